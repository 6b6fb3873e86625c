"""Names that Kubernetes takes, from names that Triton takes."""

from __future__ import annotations

import re

LONGEST = 40
"""A DNS label has at most 63 characters, and what belongs to an application adds a suffix to its name."""

FALLBACK = "model"

YAML_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
"""What YAML takes for something else than a text."""


def kubernetes_name(model_name: str) -> str:
    """A DNS label (RFC 1123) that is nearest to the model's name: lower case, letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", model_name.lower())
    name = name.lstrip("-0123456789")[:LONGEST].strip("-")  # a Service's name starts with a letter (RFC 1035)
    return f"{name}-{FALLBACK}" if name in YAML_WORDS else name or FALLBACK
