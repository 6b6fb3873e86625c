"""The model.py of a probe in Triton's Python backend: it loads if our runtime finds its packages."""

from __future__ import annotations

import importlib

NEEDED = ("numpy", "onnxruntime")


class TritonPythonModel:
    """The interface to Triton's Python backend. No request is ever sent to it."""

    def initialize(self, args: dict[str, str]) -> None:
        """Import the packages that every model needs. An exception fails the load; its text becomes the reason."""
        del args
        for name in NEEDED:
            importlib.import_module(name)
