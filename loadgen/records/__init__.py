"""The result of a load test as data."""
