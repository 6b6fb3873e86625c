"""The content of the images that a bundle builds: pinned packages, and the wheel of this installation."""
