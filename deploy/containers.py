"""Choose the release of NVIDIA's Triton container that serves an engine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from deploy.errors import BundleRefused
from model_repo.server.options import DEFAULT_IMAGE

IMAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/:@-]{0,253}[A-Za-z0-9])?")

REPOSITORY = "nvcr.io/nvidia/tritonserver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One monthly release: the TensorRT and ONNX Runtime inside, and the highest opset that the latter reads."""

    tag: str
    tensorrt: str
    onnxruntime: str
    opset: int


RELEASES = (
    Release(tag="24.10", tensorrt="10.5.0", onnxruntime="1.19.2", opset=21),
    Release(tag="24.11", tensorrt="10.6.0", onnxruntime="1.19.2", opset=21),
    Release(tag="24.12", tensorrt="10.7.0", onnxruntime="1.20.1", opset=21),
    Release(tag="25.01", tensorrt="10.8.0", onnxruntime="1.20.1", opset=21),
    Release(tag="25.02", tensorrt="10.8.0", onnxruntime="1.20.1", opset=21),
    Release(tag="25.03", tensorrt="10.9.0", onnxruntime="1.21.0", opset=22),
    Release(tag="25.04", tensorrt="10.9.0", onnxruntime="1.21.0", opset=22),
    Release(tag="25.05", tensorrt="10.10.0", onnxruntime="1.22.0", opset=23),
    Release(tag="25.06", tensorrt="10.11.0", onnxruntime="1.22.0", opset=23),
    Release(tag="25.08", tensorrt="10.13.2", onnxruntime="1.23.0", opset=23),
    Release(tag="25.09", tensorrt="10.13.3", onnxruntime="1.23.0", opset=23),
    Release(tag="25.10", tensorrt="10.13.3", onnxruntime="1.23.1", opset=23),
)
"""Oldest first. TensorRT as in NVIDIA's Frameworks Support Matrix, ONNX Runtime as in the compatibility page of
Triton's documentation (docs.nvidia.com/deeplearning/triton-inference-server, "Release Compatibility Matrix"),
opsets as in ONNX Runtime's compatibility page (onnxruntime.ai/docs/reference/compatibility.html)."""


def image_for(*, backend: str, tensorrt_version: str | None, opset: int) -> str:
    """Return the image that serves the engine. Raises BundleRefused if no known release does.

    A TensorRT engine loads only in the version that built it, so the release is the one with that version. For
    ONNX Runtime it is the release of the server that was measured, or the oldest one that reads the opset.
    """
    if backend == "tensorrt":
        return f"{REPOSITORY}:{_with_tensorrt(tensorrt_version).tag}-py3"
    for release in RELEASES:
        if release.opset >= opset:
            newest_needed = f"{REPOSITORY}:{release.tag}-py3"
            return DEFAULT_IMAGE if release is RELEASES[0] else newest_needed
    raise BundleRefused(
        f"No release of NVIDIA's container up to {RELEASES[-1].tag} is known to read opset {opset}.",
        "Name one that does: --image nvcr.io/nvidia/tritonserver:YY.MM-py3",
    )


def checked_image(image: str, option: str) -> str:
    """Return the image. Raises BundleRefused, which names the option, if it cannot be the name of an image."""
    if not IMAGE.fullmatch(image):
        raise BundleRefused(
            f"{option} {image!r} is not the name of a container image.", f"Write {option} REGISTRY/NAME:TAG"
        )
    return image


def _with_tensorrt(version: str | None) -> Release:
    """Return the newest release with this TensorRT: same major, minor and patch number. Raises BundleRefused."""
    wanted = None if version is None else ".".join(version.split(".")[:3])
    for release in reversed(RELEASES):
        if release.tensorrt == wanted:
            return release
    known = f"{RELEASES[0].tensorrt} to {RELEASES[-1].tensorrt}"
    raise BundleRefused(
        f"No release of NVIDIA's container with TensorRT {version or 'of this engine'} is known (known: {known}).",
        "Name the one with the version that built the engine: --image nvcr.io/nvidia/tritonserver:YY.MM-py3",
    )
