"""Profile the time that an engine takes, as a whole and per layer."""
