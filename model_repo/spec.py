"""Types of serving: tensors, an engine, and one serving configuration of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Runtime = Literal["python", "slots", "native"]
"""Runtime of the engine in Triton: our code in the Python backend, or the backend of NVIDIA's container. `slots`:
our own Triton backend, one process per GPU for all instances, for engines that `Engine.served_by` names; others
then use the Python backend."""

VERSION = "1"
"""The version folder of every model we write: one model, one version."""

ServerKind = Literal["embedded", "local", "docker", "remote"]

Backend = Literal["onnxruntime", "tensorrt", "tensorrt_rtx", "repository"]
"""Library that executes the engine; the folder `model_repo/runtime` has the code for it inside Triton.
`repository`: a model of the user's own repository, with the backend that its `config.pbtxt` names."""

OWN: Backend = "repository"

ENSEMBLE = "ensemble"
"""Triton's platform of a model that passes requests through others, and the precision of its engine."""

SLOT_BACKENDS: tuple[Backend, ...] = ("tensorrt", "tensorrt_rtx")
"""The libraries with which several streams of one process may execute one engine."""

Protocol = Literal["http", "grpc"]
"""Protocol of requests. Triton serves both; their capacities differ."""

DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "BYTES",
)  # fmt: skip
"""Datatype names of the KServe v2 protocol, which Triton speaks."""

_DATA_FILE = re.compile(r"model\.onnx|model\.plan|engine\.json|kernels\.cache|weights-(?:0|[1-9][0-9]{0,5})\.bin")
"""Names in a version folder that Python, Triton and a shell take for data, never for code."""


def weights_name(number: int) -> str:
    """Return the name of weights file `number` (from 0) in a version folder, whatever its name in the model."""
    return f"weights-{number}.bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One input or output of a model, as a request carries it.

    `shape` leaves the batch dimension out and holds -1 for a dimension that may vary between requests;
    `sample_shape` is then a shape of real requests, for uses that need a fixed one (warm-up, load). An empty
    shape, one number per request, is sent as (1,), because Triton knows no tensor without dimensions.
    """

    name: str
    datatype: str  # one of DATATYPES
    shape: tuple[int, ...]
    sample_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.datatype not in DATATYPES:
            raise ValueError(f"{self.name}: {self.datatype} is not a datatype of the KServe v2 protocol")
        if any(size < -1 or size == 0 for size in self.shape):
            raise ValueError(f"{self.name}: {self.shape} holds a size that is neither positive nor -1")
        if self.sample_shape is not None and not self._allows(self.sample_shape):
            raise ValueError(f"{self.name}: sample_shape {self.sample_shape} is not a case of shape {self.shape}")

    def _allows(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            size >= 1 and allowed in (-1, size) for size, allowed in zip(shape, self.shape, strict=True)
        )

    @property
    def concrete_shape(self) -> tuple[int, ...] | None:
        """A shape without -1: `shape` itself, else `sample_shape`; None if neither is one."""
        return self.sample_shape if -1 in self.shape else self.shape


def chosen_shapes(inputs: Iterable[TensorSpec]) -> dict[str, tuple[int, ...]]:
    """Return by name the shapes that were chosen for inputs whose sizes the model leaves open."""
    return {one.name: one.sample_shape for one in inputs if -1 in one.shape and one.sample_shape}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleStep:
    """A step of an ensemble: its model, and the steps, by number from 0, that make its inputs."""

    model: str
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """A model of the user's own repository: its folder, which nobody writes to, and its configuration.

    `text` is its `config.pbtxt` with what Triton completes by itself; the other fields are what that says.
    `counts` are the instances of each instance group, `max_batch_size` 0 means no batches; one that is larger than
    the search tries counts as the largest that it tries. `steps` are those of an ensemble, each after the steps
    whose outputs it takes.
    """

    folder: Path
    text: str = field(repr=False)
    max_batch_size: int = 0
    dynamic_batching: bool = False
    max_queue_delay_us: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    counts: tuple[int, ...] = (1,)
    size_bytes: int = 0
    steps: tuple[EnsembleStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An executable model: its file, its library, and its input and output tensors.

    `files` maps each file's name in the model's version folder to its current path; `model_file` is the one to
    open. `batched` is True if inputs and outputs have a leading batch dimension that may vary; an engine without
    one is served with `max_batch_size` 0. `alone_ms` gives (batch size, milliseconds per standalone execution) for
    the sizes that were measured. `code` is a `model.py` that replaces our runtime, for models made of code in
    tests and benchmarks. Nothing that comes with a model file sets it, and `files` accepts no name of code, so
    that a model brings data alone. `own` is a model of the user's repository, whose folder takes the place of
    `files`, and whose `precision` is the name of its backend. `members` are models of that repository that it
    calls, each with its name as `precision`: all of an ensemble, in the order of their first steps, then what they
    call.
    """

    model_name: str
    backend: Backend
    precision: str  # "fp32", "fp16", ...
    model_file: str = ""
    files: tuple[tuple[str, Path], ...] = ()
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    batched: bool = False
    device: Literal["cpu", "gpu"] = "cpu"
    alone_ms: tuple[tuple[int, float], ...] = ()
    code: Path | None = None
    own: OwnModel | None = None
    members: tuple[Engine, ...] = ()

    def __post_init__(self) -> None:
        if not self.model_name or "/" in self.model_name or self.model_name.startswith("."):
            raise ValueError(f"model_name {self.model_name!r} cannot be the name of a visible folder")
        for name, _ in self.files:
            if not _DATA_FILE.fullmatch(name):
                raise ValueError(f"{self.model_name}: {name!r} is not a name that a file of an engine may have")
        if len(dict(self.files)) != len(self.files):
            raise ValueError(f"{self.model_name}: two of the files {[n for n, _ in self.files]} have one name")
        if self.own is not None:
            return
        if self.code is None and self.model_file not in dict(self.files):
            raise ValueError(f"model_file {self.model_file} is not among the files {[n for n, _ in self.files]}")
        if not self.inputs or not self.outputs:
            raise ValueError(f"{self.model_name}: an engine needs at least one input and one output")

    @property
    def steps(self) -> tuple[EnsembleStep, ...]:
        """The steps of an ensemble; () for another model."""
        return () if self.own is None else self.own.steps

    @property
    def is_ensemble(self) -> bool:
        """True if it executes nothing itself, but passes requests through its members."""
        return bool(self.steps)

    @property
    def size_bytes(self) -> int:
        """The bytes of its files. Raises OSError."""
        return self.own.size_bytes if self.own else sum(path.stat().st_size for _, path in self.files)

    def served_by(self, runtime: Runtime) -> Runtime:
        """Return the runtime that serves it if this one is chosen: `slots` is for TensorRT without texts."""
        ours = self.device == "gpu" and self.backend in SLOT_BACKENDS and self.code is None
        has_texts = any(spec.datatype == "BYTES" for spec in (*self.inputs, *self.outputs))
        return "python" if runtime == "slots" and (not ours or has_texts) else runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """One way to serve one engine: a point of the search space, and all that `config.pbtxt` needs.

    `max_batch_size` 0 means no batching: each request carries the whole tensors. `intra_op_threads` 0 leaves the
    number to ONNX Runtime (one per core). `preferred_batch_sizes` empty means that Triton prefers the maximum
    batch size alone. `cuda_graph_batch_sizes` empty means no CUDA graphs; a batch in between is padded to the
    next. `backend_options` are (name, value) pairs for the engine's runtime. `members` are the configurations of
    the engine's members, in their order.
    """

    engine: Engine
    max_batch_size: int
    instance_count: int = 1
    dynamic_batching: bool = True
    max_queue_delay_us: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    intra_op_threads: int = 0
    cuda_graph_batch_sizes: tuple[int, ...] = ()
    backend_options: tuple[tuple[str, str], ...] = ()
    members: tuple[ServingConfig, ...] = ()

    def __post_init__(self) -> None:
        if tuple(config.engine for config in self.members) != self.engine.members:
            raise ValueError(f"{self.engine.model_name} needs a configuration for each of its members")
        if self.max_batch_size < 0 or self.instance_count < 1:
            raise ValueError(
                f"max_batch_size {self.max_batch_size} must be >= 0, instance_count {self.instance_count} >= 1"
            )
        if self.max_batch_size > 0 and not self.engine.batched:
            raise ValueError(
                f"{self.engine.model_name} has no batch dimension, so max_batch_size "
                f"{self.max_batch_size} must be 0"
            )
        if self.dynamic_batching and self.max_batch_size == 0:
            raise ValueError("dynamic_batching needs max_batch_size >= 1")
        if self.max_queue_delay_us < 0 or self.intra_op_threads < 0:
            raise ValueError(
                f"max_queue_delay_us {self.max_queue_delay_us} and intra_op_threads "
                f"{self.intra_op_threads} must be >= 0"
            )
        for size in (*self.preferred_batch_sizes, *self.cuda_graph_batch_sizes):
            if not 1 <= size <= self.max_batch_size:
                raise ValueError(f"batch size {size} is outside 1..max_batch_size {self.max_batch_size}")

    @property
    def models(self) -> tuple[ServingConfig, ...]:
        """The configurations of all models that are served: members first, as the others need them."""
        return (*self.members, self)

    def forms_batches_of(self, rows: int) -> bool:
        """True if the server puts requests of so many rows together, in this model or in a member."""
        return any(one.dynamic_batching and one.max_batch_size > rows for one in self.models)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a running Triton. A TCP port is None if its protocol has none, or if metrics are off.

    `control_folder` holds the Unix socket of the protocol without a port, which alone takes control requests:
    other users and web pages cannot reach it. None: control requests go to the HTTP port. `key` travels with every
    inference over TCP (`headers`), None: all are answered. `credentials` are headers that go with every request
    to a server that others run.
    """

    host: str
    http_port: int | None
    grpc_port: int | None
    metrics_port: int | None
    control_folder: Path | None = None
    key: str | None = field(default=None, repr=False)
    credentials: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def headers(self, protocol: Protocol) -> tuple[tuple[str, str], ...]:
        """Return the headers without which the server refuses an inference."""
        prefix = "triton-grpc-protocol-" if protocol == "grpc" else ""
        own = () if self.key is None else ((f"{prefix}tritune-key", self.key),)
        return (*own, *self.credentials)

    def url(self, protocol: Protocol) -> str:
        """Return `http://host:port`, or `grpc://host:port` as our load generator writes it. Raises ValueError."""
        port = self.http_port if protocol == "http" else self.grpc_port
        if port is None:
            raise ValueError(f"this server has no {protocol} port: it was started for the other protocol")
        return f"{protocol}://{self.host}:{port}"
