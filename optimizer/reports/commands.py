"""The commands that repeat a run, and those that use its recommendation."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from deploy.smoke import PORTS, traffic_options
from loadgen.records.formats import format_rate
from loadgen.spec.limits import LatencyLimit
from optimizer.config import OptimizeConfig
from optimizer.options import KEPT
from optimizer.reports.evidence import Evidence


def commands(evidence: Evidence) -> list[tuple[str, str]]:
    """Return pairs of a purpose and a command line."""
    directory = shlex.quote(str(evidence.directory))
    pairs = [("Run it again", _optimize(evidence))]
    if evidence.found is None:
        return [*pairs, ("Go on with this run", f"optimize --resume {directory}")]
    certificate = evidence.found.winner.certificate
    assert certificate is not None
    name = shlex.quote(evidence.model_name)
    workload = evidence.found.workload
    protocol = workload.protocol
    address = f"{protocol}://127.0.0.1:{PORTS[protocol]}"
    serve = f"optimize serve {directory} --port {PORTS['http']}"
    serve += f" --grpc-port {PORTS['grpc']}" if protocol == "grpc" else ""
    serve += f" --shared-memory {workload.shared_memory}" if workload.shared_memory != "none" else ""
    rate = format_rate(certificate.rate_per_s).replace(",", "")
    test = f"loadtest {address} --model {name} --rate {rate} --duration 60s {_limits(evidence.slo.limits)}"
    trace = str(evidence.directory / (workload.trace or ""))
    data = None if workload.input_data is None else str(evidence.directory / workload.input_data)
    test = " ".join([test, *map(shlex.quote, traffic_options(workload, trace=trace, input_data=data))])
    return [
        *pairs,
        ("Serve the recommendation", serve),
        ("Check the certified rate", test),
        ("Render its deployment bundle", f"optimize bundle {directory}"),
        ("Compare with a later run", f"optimize compare {directory} LATER_RUN_DIR"),
    ]


def _optimize(evidence: Evidence) -> str:
    if evidence.config is not None:
        return "optimize " + " ".join(_arguments(evidence.config))
    assert evidence.found is not None
    model, slo = evidence.found.model, evidence.slo
    return f"optimize --model {shlex.quote(model.file)} {_limits(slo.limits)} --seed {evidence.found.seed}"


def _limits(limits: Iterable[LatencyLimit]) -> str:
    return " ".join(limit.option.replace("=", " ") for limit in limits)


def _arguments(config: OptimizeConfig) -> Iterator[str]:
    """Yield the options that decide the run; those at their defaults are left out."""
    yield f"--model {shlex.quote(str(config.model))} {_limits(config.limits)}"
    for name, one in KEPT.items():
        kept, value = one.declared.more, getattr(config, one.field)
        if name == "model" or kept.show is None or value is None or (value == one.usual and not kept.always):
            continue
        shown = kept.show(value)
        for word in [shown] if isinstance(shown, str) else shown:
            yield one.flag if one.kind is bool else f"{one.flag} {shlex.quote(word)}"
