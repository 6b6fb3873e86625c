"""Cost, comparison and explanation of a search's result."""
