"""The options of the commands: their declarations, and the sources of their values."""
