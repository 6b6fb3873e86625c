"""Choose the configuration to try next."""
