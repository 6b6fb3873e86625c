"""Compute all values in the templates of a bundle, before anything is rendered."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass

from deploy.images import (
    DEFAULT_TRITON,
    Sources,
    checked_image,
    image_for,
    installed_sources,
    own_backends,
)
from deploy.scaling import DEFAULT_MAX_REPLICAS, Scaling, judged_scaling, scaling_for, start_of, traffic_from
from deploy.smoke import Smoke, smoke_for
from loadgen.errors import BadInput
from model_repo.repository.config_pbtxt import NATIVE_BACKENDS, render_config_pbtxt
from model_repo.server.options import DEFAULT_IMAGE
from model_repo.spec import ENSEMBLE, ServingConfig
from search.cost.cost import cost_per_million_inferences_usd
from search.labels import knobs_text, runtime_text
from search.records.autoscale import AutoscaleRecord
from search.records.certificate import CertificateRecord
from search.records.recommendation import RecommendationRecord, RuntimeRecord

LONGEST = 40
"""Names have at most 40 characters: a DNS label has at most 63, and an application's objects add suffixes."""

FALLBACK = "model"

YAML_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
"""Words that YAML does not read as text."""


def kubernetes_name(model_name: str) -> str:
    """Return a DNS label (RFC 1123) that is close to the model's name: lower case, letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", model_name.lower())
    name = name.lstrip("-0123456789")[:LONGEST].strip("-")  # a Service's name starts with a letter (RFC 1035)
    return f"{name}-{FALLBACK}" if name in YAML_WORDS else name or FALLBACK


GIB = 2**30
MIB = 2**20
MEMORY_SLACK = 1.5
"""A container may take 1.5 times the memory of the measured server: its allocator and runtime may differ."""

SHARED_MEMORY_BYTES = {"cpu": GIB, "gpu": 4 * GIB}
"""`/dev/shm` of the container: the Python backend keeps its tensors there, and Docker's 64 MB are not enough.
With 2 GiB free the server takes it in large steps on a GPU, as it does when it is measured. Native backends need
none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOptions:
    """Options that the recommendation does not contain. None: the run's value, or else an assumed one."""

    rate_per_s: float | None = None
    peak_rate_per_s: float | None = None
    ramp_s: float | None = None
    start_s: float | None = None
    max_replicas: int = DEFAULT_MAX_REPLICAS
    image: str | None = None
    tensorrt_version: str | None = None  # the version that built the engine
    registry: str | None = None  # where the images are pushed; None: they have no registry in their names
    prometheus_release: str | None = None  # label `release` of what kube-prometheus-stack selects
    judged: AutoscaleRecord | None = None  # a replay of the user's traffic, whose settings go first


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources that one replica requests. `memory_measured` is False if the server's memory was not measured."""

    cpus: int
    memory_bytes: int
    memory_measured: bool
    gpus: int
    shared_memory_bytes: int  # of /dev/shm; 0: what a container has by default

    @property
    def memory_mib(self) -> int:
        """Return the container's memory in MiB, with `/dev/shm`, which counts against its limit."""
        return math.ceil((self.memory_bytes + self.shared_memory_bytes) / MIB)

    @property
    def shm_mib(self) -> int:
        """Return the size of `/dev/shm` in MiB."""
        return self.shared_memory_bytes // MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One recommendation, ready to be rendered. `name` is the name of all its objects in Kubernetes."""

    found: RecommendationRecord
    config: ServingConfig
    name: str
    sources: Sources
    tag: str  # of the images of server and model: changes with everything in them
    image: str | None  # of Triton's native backends; None: no known release serves the engine
    registry: str | None
    prometheus_release: str | None
    scaling: Scaling
    resources: Resources
    smoke: Smoke

    @property
    def runtime(self) -> RuntimeRecord:
        """Return the runtime that was measured."""
        return self.found.runtime

    @property
    def certificate(self) -> CertificateRecord:
        """Return the winner's certificate; every plan has one."""
        assert self.found.winner.certificate is not None
        return self.found.winner.certificate

    @property
    def model_name(self) -> str:
        """Return the model's name for Triton and its clients."""
        return self.config.engine.model_name

    @property
    def title(self) -> str:
        """Return the same for people: on one line, with `?` for characters that cannot be printed."""
        return "".join(letter if letter.isprintable() else "?" for letter in self.model_name)

    @property
    def builds_image(self) -> bool:
        """True if our runtime was measured: the bundle builds its image."""
        return self.runtime.runtime != "native"

    @property
    def offers_native(self) -> bool:
        """True if there is a native backend besides what was measured."""
        return self.builds_image and self.image is not None

    @property
    def serving_image(self) -> str:
        """Return the image of the runtime that was measured: built by the bundle, or NVIDIA's."""
        if self.builds_image:
            return self.own_image("triton")
        assert self.image is not None
        return self.image

    def own_image(self, part: str, suffix: str = "") -> str:
        """Return the name of an image that the bundle builds; its tag is a hash of what is in the images."""
        return f"{self._prefix}{self.name}-{part}:{self.tag}{suffix}"

    @property
    def loadtest_image(self) -> str:
        """Return the name of the smoke test's image."""
        return f"{self._prefix}tritune-loadtest:{self.found.tritune_version}"

    @property
    def runtime_words(self) -> str:
        """Return the measured runtime in words."""
        return runtime_text(self.runtime, self.config.engine.backend)

    @property
    def _prefix(self) -> str:
        return "" if self.registry is None else f"{self.registry}/"

    @property
    def renamed(self) -> bool:
        """True if Kubernetes does not accept the model's own name."""
        return self.name != self.model_name

    @property
    def knobs(self) -> str:
        """Return the configuration in words."""
        return knobs_text(self.config)

    @property
    def error_budget(self) -> float:
        """Return the share of requests that may be over the limit."""
        return round(1 - self.found.slo.first.quantile, 9)

    @property
    def cost_per_million_at_least_load_usd(self) -> float:
        """Return USD per million inferences at the usual rate with the fewest replicas: the highest planned."""
        scaling = self.scaling
        per_hour = self.found.cost.price.usd_per_hour * scaling.min_replicas
        return cost_per_million_inferences_usd(
            per_hour, self.found.workload.rows_per_request * scaling.traffic.rate_per_s
        )


def plan_for(
    found: RecommendationRecord,
    config: ServingConfig,
    options: BundleOptions | None = None,
    sources: Sources | None = None,
) -> Plan:
    """Return the plan for a bundle. `config` is the winner with its engine. Raises BadInput.

    `sources` None: the packages of the run, and of this installation.
    """
    options = options or BundleOptions()
    certificate = found.winner.certificate
    if certificate is None:
        raise BadInput(
            "The run certified no rate, so there is nothing to deploy and no rate to scale by.",
            "Run optimize again with a longer --time-budget or a higher --p99.",
        )
    rate = certificate.rate_per_s
    sources = sources or installed_sources(found, config.engine)
    if options.registry is not None:
        checked_image(options.registry, "--registry")
    judged = options.judged if options.judged is not None and options.judged.kept else None
    measured_start_s = found.served.replica_start_s if found.served is not None else None
    start_s, start_source = start_of(options.start_s, measured_start_s)
    traffic = traffic_from(
        certified_rate_per_s=rate,
        rate_per_s=options.rate_per_s or found.cost.rate_to_serve_per_s,
        peak_rate_per_s=options.peak_rate_per_s or found.cost.peak_rate_per_s,
        ramp_s=options.ramp_s,
    )
    scaling = (
        judged_scaling(judged, certified_rate_per_s=rate, measured_start_s=measured_start_s)
        if judged is not None
        else scaling_for(
            traffic,
            certified_rate_per_s=rate,
            start_s=start_s,
            start_source=start_source,
            max_replicas=options.max_replicas,
        )
    )
    return Plan(
        found=found,
        config=config,
        name=kubernetes_name(config.engine.model_name),
        sources=sources,
        tag=_tag(found, config, sources),
        image=_native_image(found, config, options),
        registry=options.registry,
        prometheus_release=options.prometheus_release,
        scaling=scaling,
        resources=resources_for(found, config),
        smoke=smoke_for(found, config),
    )


def _tag(found: RecommendationRecord, config: ServingConfig, sources: Sources) -> str:
    """Return a tag that no other model, configuration, package or code of ours has."""
    parts = (
        found.model.sha256,
        *(render_config_pbtxt(model, runtime=found.runtime.runtime) for model in config.models),
        sources.python,
        sources.constraints,
        hashlib.sha256(sources.wheel).hexdigest(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _native_image(found: RecommendationRecord, config: ServingConfig, options: BundleOptions) -> str | None:
    """Return NVIDIA's image for the engine; None if there is none, which matters only if it was measured."""
    own, backend, runtime = config.engine.own is not None, config.engine.backend, found.runtime
    if own and own_backends(config.engine) <= {"onnxruntime", ENSEMBLE}:
        backend = "onnxruntime"
    if options.image is not None:
        return checked_image(options.image, "--image") if own or backend in NATIVE_BACKENDS else None
    if runtime.image is not None:
        return checked_image(runtime.image, "--image")
    if own and runtime.runtime == "native":
        if runtime.triton_version == DEFAULT_TRITON:
            return DEFAULT_IMAGE
        raise BadInput(
            f"No image is known of the server that was measured, Triton {runtime.triton_version or '?'}.",
            "Name it: optimize bundle RUN_DIR --image nvcr.io/nvidia/tritonserver:YY.MM-py3",
        )
    if backend not in NATIVE_BACKENDS:
        return None
    try:
        return image_for(backend=backend, tensorrt_version=options.tensorrt_version, opset=found.model.opset or 0)
    except BadInput:
        if runtime.runtime == "native":
            raise
        return None


def resources_for(found: RecommendationRecord, config: ServingConfig) -> Resources:
    """Return as many CPUs as the measured machine had, and the server's memory with some slack.

    If its memory was not measured, half of the machine's memory is requested.
    """
    seen = found.served.memory_bytes if found.served is not None else None
    memory = math.ceil(MEMORY_SLACK * seen) if seen is not None else found.machine.memory_bytes // 2
    return Resources(
        cpus=max(1, found.machine.cores),
        memory_bytes=memory,
        memory_measured=seen is not None,
        gpus=max(1, len(found.machine.gpus)) if config.engine.device == "gpu" else 0,
        shared_memory_bytes=SHARED_MEMORY_BYTES[config.engine.device] if found.runtime.runtime != "native" else 0,
    )
