"""The `loadtest` command."""
