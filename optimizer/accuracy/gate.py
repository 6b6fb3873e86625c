"""Make the precisions of a model, run them, and keep those that are close enough to fp32."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from loadgen.errors import BadInput
from optimizer.accuracy.check import INPUTS, LARGER_BATCH, OnnxCpuRunner, Reference, judge, reference_of
from optimizer.accuracy.diagnose import classifying_outputs, first_diverging_node
from optimizer.accuracy.thresholds import AccuracyRule
from optimizer.child import threads
from optimizer.errors import RunFailed, UnsupportedModel
from optimizer.limited_call import call_limited
from optimizer.machine.child_limits import graph_limits, machine_limits
from optimizer.model.checks import plain, shortened
from optimizer.model.onnx_model import Model
from optimizer.model.samples import Samples, samples_from_data, synthetic_samples
from optimizer.precision.half_plan import observed_peaks
from optimizer.precision.names import CalibrationMethod, IoPrecision, Precision
from optimizer.precision.variants import Device, Variant, VariantOptions, variant_from_model
from search.records.accuracy import AccuracyRecord
from search.trials import events
from search.trials.events import OnEvent, timed_step

CHECKED_SHARE = 4
"""Every fourth sample of the calibration data is kept from calibration, for the accuracy gate."""

CALIBRATED: frozenset[Precision] = frozenset({"int8", "fp8"})
AS_FP32: frozenset[Precision] = frozenset({"fp32", "tf32"})
"""Precisions with the graph of fp32."""

CORES_A_VARIANT = 4
MOST_VARIANTS_AT_ONCE = 4
"""One variant is made and judged per four cores, and at most four at once: writing its graph takes one core."""

GPU_ONLY: frozenset[Precision] = frozenset({"tf32", "bf16", "fp8"})
JUDGING_SHARE = 0.1
"""10 % of a run's time budget is for running the model and its variants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRequest:
    """The precisions to make, and the settings by which they are made and judged.

    `judged` False: the precisions were judged elsewhere and are only made.
    """

    precisions: Sequence[Precision]
    rule: AccuracyRule
    device: Device
    work_dir: Path
    io_precision: IoPrecision = "keep"
    calibration_method: CalibrationMethod = "percentile"
    calibration_data: Path | None = None
    input_data: Path | None = None  # of the load; for judging if there is no calibration data
    judging_budget_s: float = 60.0
    seed: int = 0
    judged: bool = True
    processors: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))  # for variants at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """The `variants` that passed, in the order of the request, and the figures of all that were judged.

    `reference` are the results that they were compared with, None if there was nothing to judge.
    """

    variants: tuple[Variant, ...]
    accuracy: tuple[AccuracyRecord, ...] = field(default=())
    reference: Reference | None = None


def default_precisions(device: Device) -> tuple[Precision, ...]:
    """Return the precisions to try if none are given.

    On a CPU fp32 alone, because half precision is emulated and int8 needs data; on a GPU all that need no data.
    """
    return ("fp32",) if device == "cpu" else ("fp32", "tf32", "fp16", "bf16")


def usable_variants(model: Model, request: VariantRequest, on_event: OnEvent = events.ignore) -> Usable:
    """Make and judge every precision of the request; one that fails is left out with a note.

    fp32 always stays; its figures show how far it differs from itself between batch sizes. Raises BadInput for
    calibration data that does not fit, and UnsupportedModel if nothing is left.
    """
    given = request.calibration_data and samples_from_data(request.calibration_data, model)
    precisions = _possible(request, calibrated=given is not None, on_event=on_event)
    if precisions == ["fp32"]:
        return Usable(variants=(variant_from_model(model, "fp32", VariantOptions(work_dir=request.work_dir)),))
    calibration, checked = given.parted(every=CHECKED_SHARE) if given else (None, None)
    checked = checked or _inputs(model, request, on_event)
    with timed_step(on_event, "magnitudes inside the model"):
        peaks = call_limited(
            partial(observed_peaks, model, checked), model=model.path, limits=graph_limits(model.size_bytes)
        )
    options = VariantOptions(
        work_dir=request.work_dir,
        device=request.device,
        io_precision=request.io_precision,
        calibration_method=request.calibration_method,
        calibration=calibration,
        peaks=peaks,
    )
    if not request.judged:
        made = [_made(model, precision, options, on_event) for precision in precisions]
        return Usable(variants=tuple(variant for variant in made if variant is not None))
    on_event(events.PhaseStarted(name="prepare", detail=f"fp32 on {checked.count} {checked.source} inputs"))
    with timed_step(on_event, "reference results in fp32"):
        reference = reference_of(
            OnnxCpuRunner(model=model),
            checked.first(INPUTS),
            classifying=classifying_outputs(model),
            budget_s=request.judging_budget_s / (1 + 2 * len(precisions)),  # each is run at two batch sizes
        )
    on_event(events.PhaseStarted(name="prepare", detail=f"the variants {', '.join(precisions)}"))
    with timed_step(on_event, "variants and their accuracy"):
        tried = _all_tried(model, precisions, options, reference, request, on_event)
    variants = [variant for variant, _ in tried if variant is not None]
    records = [record for _, record in tried if record is not None]
    if not variants:
        raise UnsupportedModel(
            f"None of the precisions {', '.join(request.precisions)} is usable for this model.",
            "Add fp32 to --precisions, or loosen --accuracy.",
        )
    return Usable(variants=tuple(variants), accuracy=tuple(records), reference=reference)


def _inputs(model: Model, request: VariantRequest, on_event: OnEvent) -> Samples:
    """Return the inputs of the load if they are arrays that fit, else random ones."""
    if request.input_data is not None and request.input_data.suffix == ".npz":
        try:
            return samples_from_data(request.input_data, model, option="--input-data")
        except BadInput as error:
            on_event(events.Note(text=f"Accuracy is judged on random inputs: {error.what}", warning=True))
    return synthetic_samples(model, INPUTS, seed=request.seed)


def _possible(request: VariantRequest, *, calibrated: bool, on_event: OnEvent) -> list[Precision]:
    """Return the precisions that this device can run, with or without calibration data.

    Raises UnsupportedModel if there are none.
    """
    possible: list[Precision] = []
    for precision in dict.fromkeys(request.precisions):
        if request.device == "cpu" and precision in GPU_ONLY:
            lacks = "a GPU"
        elif precision in CALIBRATED and not calibrated:
            lacks = "--calibration-data with typical inputs"
        else:
            possible.append(precision)
            continue
        on_event(events.Note(text=f"{precision} is left out: it needs {lacks}.", warning=True))
    if not possible:
        raise UnsupportedModel(
            f"None of the precisions {', '.join(request.precisions)} can be had here.", "Add fp32 to --precisions."
        )
    return possible


def _all_tried(
    model: Model,
    precisions: Sequence[Precision],
    options: VariantOptions,
    reference: Reference,
    request: VariantRequest,
    on_event: OnEvent,
) -> list[tuple[Variant | None, AccuracyRecord | None]]:
    """Make and judge the precisions, several at once if there are cores; notes come in the precisions' order."""
    at_once, rule = variants_at_once(model.size_bytes, request.processors), request.rule
    if at_once == 1:
        return [_tried(model, precision, options, reference, rule, on_event) for precision in precisions]
    notes: list[list[events.Event]] = [[] for _ in precisions]
    found = []
    with threads(at_once) as pool:
        calls = [
            pool.submit(
                _tried, model, precision, options, reference, rule, own.append, request.processors // at_once
            )
            for precision, own in zip(precisions, notes, strict=True)
        ]
        for call, own in zip(calls, notes, strict=True):
            found.append(call.result())
            for note in own:
                on_event(note)
    return found


def variants_at_once(size_bytes: int, processors: int) -> int:
    """Return how many variants of a model of that size to make at the same time, by processors and memory."""
    memory = machine_limits().memory_bytes // graph_limits(size_bytes).memory_bytes
    return max(1, min(MOST_VARIANTS_AT_ONCE, processors // CORES_A_VARIANT, memory))


def _tried(
    model: Model,
    precision: Precision,
    options: VariantOptions,
    reference: Reference,
    rule: AccuracyRule,
    on_event: OnEvent,
    run_threads: int | None = None,
) -> tuple[Variant | None, AccuracyRecord | None]:
    """Return the variant, None if it is not usable, and its figures, None if it was not judged."""
    variant = _made(model, precision, options, on_event)
    if variant is None or precision == "tf32":  # fp32's graph: only an engine shows the difference
        return variant, None
    # The reference is fp32 at batch 1; a second run of it at batch 8 shows by how much fp32 differs from itself.
    sizes = (LARGER_BATCH,) if precision == "fp32" and reference.samples.batched else (1, LARGER_BATCH)
    try:
        record = judge(
            OnnxCpuRunner(model=variant.stand_in, optimized=variant.optimizable, threads=run_threads),
            precision,
            reference,
            rule,
            batch_sizes=sizes,
            first_error=lambda wanted: first_diverging_node(model, variant.stand_in, reference.samples, wanted),
        )
    except RunFailed as error:
        reason = shortened(plain(error.reason))
        on_event(events.Note(text=f"{precision} is left out: ONNX Runtime cannot run it: {reason}", warning=True))
        return None, None
    on_event(events.Note(text=_verdict(record, variant), warning=not record.passed))
    return (variant if record.passed or precision == "fp32" else None), record


def _made(model: Model, precision: Precision, options: VariantOptions, on_event: OnEvent) -> Variant | None:
    """Return the variant; None, with a note, if the model has none in that precision."""
    try:
        if precision in AS_FP32:
            return variant_from_model(model, precision, options)
        make = partial(variant_from_model, model, precision, options)
        return call_limited(make, model=model.path, limits=graph_limits(model.size_bytes))
    except UnsupportedModel as error:
        on_event(events.Note(text=f"{precision} is left out: {error.what}", warning=True))
        return None


def _verdict(record: AccuracyRecord, variant: Variant) -> str:
    """Return the figures in one line, for the user."""
    inputs = f"{record.inputs} {record.input_source} inputs"
    if not record.passed:
        where = f"; it starts at {record.first_node}" if record.first_node else ""
        left_out = "" if record.precision == "fp32" else "left out, "
        return f"{record.precision} is {left_out}not close enough to fp32 on {inputs}: {record.reason}{where}."
    figure = "equal" if record.least_sqnr_db is None else f"SQNR {record.least_sqnr_db:.1f} dB"
    note = f" ({record.note})" if record.note else ""
    if record.precision == "fp32":
        return f"fp32 against itself at other batch sizes, on {inputs}{note}: {figure}."
    kept = f", {len(variant.kept)} nodes in fp32" if variant.kept else ""
    return f"{record.precision} is numerically close to fp32 on {inputs}{note}: {figure}{kept}."
