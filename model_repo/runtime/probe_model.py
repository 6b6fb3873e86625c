"""The model.py of a probe in Triton's Python backend: it loads where our runtime finds its packages."""

from __future__ import annotations

import importlib

NEEDED = ("numpy", "onnxruntime")


class TritonPythonModel:
    """What Triton's Python backend calls. It is never sent a request."""

    def initialize(self, args: dict[str, str]) -> None:
        """Import what every model needs. What is raised here fails the load, with its text as the reason."""
        del args
        for name in NEEDED:
            importlib.import_module(name)
