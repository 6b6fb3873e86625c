"""Why no bundle can be rendered: two lines, what is wrong with which value, and what to do."""

from __future__ import annotations


class BundleRefused(Exception):
    """A recommendation, or an option, from which no honest bundle follows."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}\n{fix}")
        self.what = what
        self.fix = fix
