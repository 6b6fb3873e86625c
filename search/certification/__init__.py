"""From an estimated capacity to a certified rate."""
