"""A run as a page for the browser and as Markdown, from the files in its directory."""
