"""Everything the templates of a bundle say, settled before anything is rendered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploy.containers import checked_image, image_for
from deploy.errors import BundleRefused
from deploy.names import kubernetes_name
from deploy.scaling import DEFAULT_MAX_REPLICAS, scaling_for, traffic_from
from deploy.smoke import Smoke, smoke_for
from model_repo.config_pbtxt import NATIVE_BACKENDS
from model_repo.layout import PACKAGES
from search.cost import cost_per_million_inferences_usd
from search.words import knobs_text

if TYPE_CHECKING:
    from deploy.scaling import Scaling
    from model_repo.spec import ServingConfig
    from search.records import CertificateRecord, RecommendationRecord

GIB = 2**30
MIB = 2**20
MEMORY_SLACK = 1.5
"""What a container may take above what the measured server took: another allocator, another runtime."""

SHARED_MEMORY_BYTES = GIB
"""`/dev/shm` of the container: the Python backend keeps its tensors there, and Docker's 64 MB are not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOptions:
    """What the recommendation does not say. None: as the run has it, or as it is assumed."""

    rate_per_s: float | None = None
    peak_rate_per_s: float | None = None
    ramp_s: float | None = None
    start_s: float | None = None
    max_replicas: int = DEFAULT_MAX_REPLICAS
    image: str | None = None
    tensorrt_version: str | None = None  # that built the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one replica asks of its node. `memory_measured` is false where the run could not see the server's."""

    cpus: int
    memory_bytes: int
    memory_measured: bool
    gpus: int

    @property
    def memory_mib(self) -> int:
        """Of the container, without `/dev/shm`, which counts against its limit as well."""
        return math.ceil((self.memory_bytes + SHARED_MEMORY_BYTES) / MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One recommendation, ready to be rendered. `name` is what everything is called in Kubernetes."""

    found: RecommendationRecord
    config: ServingConfig
    name: str
    image: str  # of NVIDIA
    scaling: Scaling
    resources: Resources
    smoke: Smoke

    @property
    def certificate(self) -> CertificateRecord:
        """The promise. A plan is not made without one."""
        assert self.found.winner.certificate is not None
        return self.found.winner.certificate

    @property
    def model_name(self) -> str:
        """As Triton and its clients call it."""
        return self.config.engine.model_name

    @property
    def title(self) -> str:
        """The same for people: on one line, whatever the model's file was called."""
        return "".join(letter if letter.isprintable() else "?" for letter in self.model_name)

    @property
    def has_native(self) -> bool:
        """Whether NVIDIA's container has a backend for the engine."""
        return self.config.engine.backend in NATIVE_BACKENDS

    @property
    def serving_image(self) -> str:
        """What the pods run: NVIDIA's image, or one with our runtime's packages (`images/triton.Dockerfile`)."""
        tag = self.found.model.sha256[:12]
        return self.image if self.has_native else f"registry.example.com/{self.name}-triton:{tag}"

    @property
    def runtime_packages(self) -> str:
        """What our runtime in Triton's Python backend needs."""
        if self.config.engine.device == "cpu":
            return "onnxruntime numpy"
        return f"{PACKAGES[self.config.engine.backend]} cuda-bindings numpy"

    @property
    def renamed(self) -> bool:
        """Whether Kubernetes did not take the model's own name."""
        return self.name != self.model_name

    @property
    def knobs(self) -> str:
        """The configuration in words."""
        return knobs_text(self.config)

    @property
    def error_budget(self) -> float:
        """The share of requests that may be over the limit."""
        return round(1 - self.found.slo.quantile, 9)

    @property
    def cost_per_million_at_least_load_usd(self) -> float:
        """What a million inferences cost at the usual rate with the fewest replicas: the dearest planned hour."""
        scaling = self.scaling
        per_hour = self.found.cost.price.usd_per_hour * scaling.min_replicas
        return cost_per_million_inferences_usd(
            per_hour, self.found.demand.rows_per_request * scaling.traffic.rate_per_s
        )


def plan_for(found: RecommendationRecord, config: ServingConfig, options: BundleOptions | None = None) -> Plan:
    """The plan for a bundle. `config` is the winner with its engine. Raises BundleRefused."""
    options = options or BundleOptions()
    certificate = found.winner.certificate
    if certificate is None:
        raise BundleRefused(
            "The run certified no rate, so there is nothing to promise and nothing to scale by.",
            "Run optimize again with a longer --time-budget or a higher --p99.",
        )
    rate = certificate.rate_per_s
    if not 0 < rate < math.inf:
        raise BundleRefused(
            f"A certified rate of {rate:g}/s serves nobody.", "recommendation.json was changed by hand; run again."
        )
    if options.image is not None:
        image = checked_image(options.image, "--image")
    else:
        image = image_for(
            backend=config.engine.backend,
            tensorrt_version=options.tensorrt_version,
            opset=found.model.opset,
        )
    return Plan(
        found=found,
        config=config,
        name=kubernetes_name(config.engine.model_name),
        image=image,
        scaling=_scaling(found, rate, options),
        resources=resources_for(found, config),
        smoke=smoke_for(found, config),
    )


def _scaling(found: RecommendationRecord, certified_rate_per_s: float, options: BundleOptions) -> Scaling:
    """What was given, else what the run knows."""
    measured_start_s = found.served.replica_start_s if found.served is not None else None
    traffic = traffic_from(
        certified_rate_per_s=certified_rate_per_s,
        rate_per_s=options.rate_per_s or found.cost.rate_to_serve_per_s,
        peak_rate_per_s=options.peak_rate_per_s or found.cost.peak_rate_per_s,
        ramp_s=options.ramp_s,
    )
    return scaling_for(
        traffic,
        certified_rate_per_s=certified_rate_per_s,
        start_s=options.start_s if options.start_s is not None else measured_start_s,
        start_source="measured" if options.start_s is None else "given",
        max_replicas=options.max_replicas,
    )


def resources_for(found: RecommendationRecord, config: ServingConfig) -> Resources:
    """As much of the processor as was measured, and the server's memory with some slack.

    Where its memory was not seen, that of the whole machine bounds it: half of it is asked for.
    """
    seen = found.served.memory_bytes if found.served is not None else None
    memory = math.ceil(MEMORY_SLACK * seen) if seen is not None else found.machine.memory_bytes // 2
    return Resources(
        cpus=max(1, found.machine.cores),
        memory_bytes=memory,
        memory_measured=seen is not None,
        gpus=max(1, len(found.machine.gpus)) if config.engine.device == "gpu" else 0,
    )
