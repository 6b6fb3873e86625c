"""Which serving configuration is cheapest within the limit."""
