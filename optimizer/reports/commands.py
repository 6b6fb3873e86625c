"""The commands that repeat a run, and those that use its answer."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from deploy.smoke import PORTS, traffic_options
from loadgen.addresses import plain_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optimizer.config import OptimizeConfig
    from optimizer.reports.evidence import Evidence
    from optimizer.thresholds import AccuracyRule
    from search.records import Slo


def commands(evidence: Evidence) -> list[tuple[str, str]]:
    """Pairs of what for and the command."""
    directory = shlex.quote(str(evidence.directory))
    pairs = [("Run it again", _optimize(evidence))]
    if evidence.found is None:
        return [*pairs, ("Go on with this run", f"optimize --resume {directory}")]
    certificate = evidence.found.winner.certificate
    assert certificate is not None
    name = shlex.quote(evidence.model_name)
    demand = evidence.found.demand
    protocol = demand.protocol
    address = f"{protocol}://127.0.0.1:{PORTS[protocol]}"
    serve = f"optimize serve {directory} --port {PORTS['http']}"
    serve += f" --grpc-port {PORTS['grpc']}" if protocol == "grpc" else ""
    serve += f" --shared-memory {demand.shared_memory}" if demand.shared_memory != "none" else ""
    test = (
        f"loadtest {address} --model {name} --rate {certificate.rate_per_s:.0f} --duration 60s "
        f"{_limits(evidence.slo)}"
    )
    trace = str(evidence.directory / (demand.trace or ""))
    data = None if demand.input_data is None else str(evidence.directory / demand.input_data)
    test = " ".join([test, *map(shlex.quote, traffic_options(demand, trace=trace, input_data=data))])
    return [
        *pairs,
        ("Serve the answer", serve),
        ("Check its promise", test),
        ("Render its deployment bundle", f"optimize bundle {directory}"),
        ("Compare with a later run", f"optimize compare {directory} LATER_RUN_DIR"),
    ]


def _optimize(evidence: Evidence) -> str:
    if evidence.config is not None:
        return "optimize " + " ".join(_arguments(evidence.config))
    assert evidence.found is not None
    model, slo = evidence.found.model, evidence.slo
    return f"optimize --model {shlex.quote(model.file)} {_limits(slo)} --seed {evidence.found.seed}"


def _limits(slo: Slo) -> str:
    return " ".join(limit.option.replace("=", " ") for limit in slo.limits)


def _arguments(config: OptimizeConfig) -> Iterator[str]:
    """The options that decide the run; those at their defaults are left out."""
    usual = type(config).model_fields
    yield f"--model {shlex.quote(str(config.model))} {_limits(config.slo)}"
    for name, shape in config.shapes.items():
        yield "--shape " + shlex.quote(f"{name}:{','.join(map(str, shape))}")
    values = {
        "--max-memory": (config.max_memory_bytes and f"{config.max_memory_bytes / 2**20:.15g}MiB", None),
        "--objective": (config.objective, usual["objective"].default),
        "--confidence": (config.confidence, 0.95),
        "--input-data": (config.input_data, None),
        "--arrivals": (config.arrivals if config.trace is None else None, "poisson"),
        "--trace": (config.trace, None),
        "--client-batch": (config.client_batch, 1),
        "--protocol": (config.protocol, usual["protocol"].default),
        "--shared-memory": (config.shared_memory, usual["shared_memory"].default),
        "--precisions": (config.precisions and ",".join(config.precisions), None),
        "--calibration-data": (config.calibration_data, None),
        "--accuracy": (_accuracy(config.accuracy), "strict"),
        "--io-precision": (config.io_precision, usual["io_precision"].default),
        "--server": (config.server, usual["server"].default),
        "--server-url": (config.server_url and plain_address(config.server_url), None),
        "--server-repository": (config.server_repository, None),
        "--docker-image": (config.docker_image, None),
        "--price-per-hour": (config.price_per_hour_usd, None),
        "--price-file": (config.price_file, None),
        "--price-term": (config.price_term, usual["price_term"].default),
        "--rate": (config.rate_to_serve_per_s, None),
        "--peak-rate": (config.peak_rate_per_s, None),
    }
    for option, (value, default) in values.items():
        if value is not None and value != default:
            yield f"{option} {shlex.quote(f'{value:g}' if isinstance(value, float) else str(value))}"
    if config.pareto:
        yield "--pareto"
    yield f"--time-budget {config.time_budget_s:g}s --seed {config.seed}"


def _accuracy(rule: AccuracyRule) -> str:
    return ",".join([rule.level, *(f"{name}={value:g}" for name, value in rule.changes)])
