"""Render a recommendation as files for production."""
