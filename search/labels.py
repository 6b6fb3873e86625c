"""Texts that describe configurations, and what is known of their rates."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from loadgen.records.formats import format_rate
from model_repo.spec import ENSEMBLE, OWN, ServingConfig
from search.knobs import KNOBS
from search.records.recommendation import RuntimeRecord
from search.records.trial import ConfigRecord, LoadRunRecord, TrialRecord

LIBRARIES = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
DISTRIBUTIONS = ("onnxruntime-gpu", "onnxruntime", "tensorrt", "tensorrt-rtx-cu13-bindings")


def knobs_text(config: ServingConfig) -> str:
    """Return a text such as `fp32, batch 8, 2 instances x 1 thread, delay 1 ms`; on a GPU with the backend."""
    engine = config.engine
    return _text(config, engine.backend, engine.precision, on_gpu=engine.device == "gpu")


def is_own(config: ConfigRecord) -> bool:
    """True if it serves a model of the user's own repository: the baseline is then the user's configuration."""
    return config.engine.startswith(f"{OWN}-")


def is_ensemble(config: ConfigRecord) -> bool:
    """True if it serves an ensemble, of which only the members have knobs."""
    return config.engine == f"{OWN}-{ENSEMBLE}"


def hidden_knobs(config: ConfigRecord) -> Collection[str]:
    """Return the knobs that have no effect here: all of an ensemble, and the threads of other own models."""
    return KNOBS if is_ensemble(config) else ("intra_op_threads",) if is_own(config) else ()


def baseline_name(config: ConfigRecord) -> str:
    """Return the name of a search's baseline in tables, given one of its configurations."""
    return "as configured" if is_own(config) else "Triton default"


def baseline_words(config: ConfigRecord, default: str = "Triton's default configuration") -> str:
    """Return the same in sentences; `default` if that is Triton's."""
    return "your own configuration" if is_own(config) else default


def runtime_text(runtime: RuntimeRecord, backend: str) -> str:
    """Return the runtime as `Triton 2.51.0, ONNX Runtime 1.31.1 in its Python backend`."""
    triton = f"Triton {runtime.triton_version or '(version unknown)'}"
    versions = {name: runtime.packages[name] for name in DISTRIBUTIONS if name in runtime.packages}
    if backend == OWN and any(name.startswith("onnxruntime") for name in versions):
        backend = "onnxruntime"  # in models, or in place of theirs
    library = LIBRARIES.get(backend, backend)
    if backend == OWN:
        return f"{triton}{f' of {runtime.image}' if runtime.image else ''}, with the backend of your repository"
    if runtime.runtime == "native":
        where = f" of {runtime.image}" if runtime.image else ""
        return f"{triton}{where}, its native {library} backend"
    number = next(iter(versions.values()), None) if backend in LIBRARIES else None
    where = "tritune's backend" if runtime.runtime == "slots" else "its Python backend"
    return f"{triton}, {library}{f' {number}' if number else ''} in {where}"


def memory_text(size_bytes: float) -> str:
    """Return a size as `8 GiB` or `512 MiB`, with three significant digits."""
    return f"{size_bytes / 2**30:.3g} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.3g} MiB"


def record_text(config: ConfigRecord, *, on_gpu: bool) -> str:
    """Return the same for the record of a configuration."""
    backend, _, precision = config.engine.partition("-")
    return _text(config, backend, precision or config.engine, on_gpu=on_gpu)


def trial_text(trial: TrialRecord) -> str:
    """Return the configuration of a trial; with the backend if its measurement has a GPU."""
    return record_text(trial.config, on_gpu=trial.measurement is not None and trial.measurement.gpu is not None)


def met_per_s(runs: Iterable[LoadRunRecord]) -> float:
    """Return the highest rate at which a test met the SLO in a trusted load run; 0 if none did."""
    return max((run.rate_per_s for run in runs if run.trusted and run.answer == "met"), default=0.0)


def rate_text(trial: TrialRecord) -> str:
    """Return a complete trial's rate as `met 480/s`, if a test met the SLO there, or as `predicted 500/s`.

    If every request of every load run was late, only an upper bound is known: `below 510/s`.
    """
    certificate, runs = trial.certificate, [run for run in trial.load_runs if run.trusted]
    met = max(met_per_s(runs), 0.0 if certificate is None else certificate.rate_per_s)
    if met:
        return f"met {format_rate(met)}/s"
    if runs and all(run.requests == run.violations for run in runs):
        return f"below {format_rate(min(run.rate_per_s for run in runs))}/s"
    return f"predicted {format_rate(trial.rate_at_limit_per_s)}/s"


def _text(config: ServingConfig | ConfigRecord, backend: str, precision: str, *, on_gpu: bool) -> str:
    name = f"{backend} {precision}" if on_gpu and backend != OWN else precision
    said = {knob.name: knob.said(config) for knob in KNOBS.values()}
    threads = said.pop("intra_op_threads")
    said["instance_count"] += "" if on_gpu or backend == OWN else f" x {threads}"
    text = ENSEMBLE if precision == ENSEMBLE else ", ".join([name, *filter(None, said.values())])
    return "; ".join([text, *(_member_text(member) for member in config.members)])


def _member_text(config: ServingConfig | ConfigRecord) -> str:
    """Return a text such as `tokenizer, batch 8, 2 instances`: the name is the precision of a member."""
    name = config.engine.precision if isinstance(config, ServingConfig) else member_name(config)
    return _text(config, OWN, name, on_gpu=False)


def member_name(config: ConfigRecord) -> str:
    """Return the name of a model that another one calls, from its configuration."""
    return config.engine.removeprefix(f"{OWN}-")
