"""The error of a bundle that cannot be rendered, in two lines: the problem with its value, and the remedy."""

from __future__ import annotations


class BundleRefused(Exception):
    """A recommendation or an option does not allow a correct bundle."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}\n{fix}")
        self.what = what
        self.fix = fix
