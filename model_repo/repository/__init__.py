"""Model repositories: specs, config.pbtxt, folders on disk."""
