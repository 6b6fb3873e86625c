"""One configuration, measured."""
