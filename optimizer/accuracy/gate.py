"""Make the precisions of a model, run them, and keep those that are close enough to fp32."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from loadgen.errors import BadInput
from optimizer.accuracy.check import (
    INPUTS,
    LARGER_BATCH,
    OnnxCpuRunner,
    Reference,
    classifying_outputs,
    judge,
    reference_of,
)
from optimizer.accuracy.kept import Judgments, digest_of, judgments_of, once, value_of, variant_from_entry
from optimizer.accuracy.thresholds import AccuracyRule
from optimizer.cached import NO_CACHE, ResultCache
from optimizer.child import call_limited, graph_limits, machine_limits, threads
from optimizer.errors import RunFailed, UnsupportedModel
from optimizer.model.checks import plain, shortened
from optimizer.model.onnx_model import Model
from optimizer.model.samples import Samples, given_samples, samples_from_data, synthetic_samples
from optimizer.precision.half_plan import observed_peaks
from optimizer.precision.names import Device, Precision
from optimizer.precision.variants import Variant, VariantOptions, variant_from_model
from search.records.recommendation import AccuracyRecord
from search.trials import events
from search.trials.events import OnEvent, timed_step

CHECKED_SHARE = 4
"""Every fourth sample of the calibration data is kept from calibration, for the accuracy gate."""

CALIBRATED: frozenset[Precision] = frozenset({"int8", "fp8"})
AS_FP32: frozenset[Precision] = frozenset({"fp32", "tf32"})
"""Precisions with the graph of fp32."""

CORES_A_VARIANT = 4
MAX_VARIANTS_AT_ONCE = 4
"""One variant is made and judged per four cores, and at most four at once: writing its graph takes one core."""

IF_FP16_FAILS: tuple[Precision, ...] = ("bf16",)
GPU_ONLY: frozenset[Precision] = frozenset({"tf32", "bf16", "fp8"})
JUDGING_SHARE = 0.1
"""10 % of a run's time budget is for running the model and its variants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRequest:
    """The precisions to make, with `options` that say how, and the settings by which they are judged.

    `judged` False: the precisions were judged elsewhere and are only made. Those of `if_fp16_fails` are only tried
    if fp16 is not usable.
    """

    precisions: Sequence[Precision]
    rule: AccuracyRule
    options: VariantOptions
    calibration_data: Path | None = None
    input_data: Path | None = None  # of the load; for judging if there is no calibration data
    judging_budget_s: float = 60.0
    seed: int = 0
    judged: bool = True
    if_fp16_fails: Sequence[Precision] = ()
    cache: ResultCache = NO_CACHE
    processor: str = ""  # the name of the one that computes the reference
    processors: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))  # for variants at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """The `variants` that passed, in the order of the request, and the figures of all that were judged.

    `reference` returns the results that they are compared with and computes them at the first call; it is None if
    there was nothing to judge. `judgments` keeps others that rest on the same reference.
    """

    variants: tuple[Variant, ...]
    accuracy: tuple[AccuracyRecord, ...] = field(default=())
    reference: Callable[[], Reference] | None = None
    judgments: Judgments | None = None


def default_precisions(device: Device) -> tuple[Precision, ...]:
    """Return the precisions to try if none are given.

    On a CPU fp32 alone, because half precision is emulated and int8 needs data; on a GPU all that need no data.
    There bf16, as fast as fp16 and less exact, is for models that leave the range of fp16 (`IF_FP16_FAILS`).
    """
    return ("fp32",) if device == "cpu" else ("fp32", "tf32", "fp16", *IF_FP16_FAILS)


def usable_variants(
    model: Model,
    request: VariantRequest,
    on_event: OnEvent = events.ignore,
    *,
    on_made: Callable[[Precision, Model], None] = lambda *_: None,
) -> Usable:
    """Make and judge every precision of the request; one that fails is left out with a note.

    fp32 always stays; its figures show how far it differs from itself between batch sizes. `on_made` gets each
    variant before it is judged, from any thread. Raises BadInput for calibration data that does not fit, and
    UnsupportedModel if nothing is left.
    """
    texts = model.takes_texts
    given = request.calibration_data and samples_from_data(request.calibration_data, model)
    precisions = _possible(request, texts=texts, calibrated=given is not None, on_event=on_event)
    if precisions == ["fp32"]:
        return Usable(variants=(variant_from_model(model, "fp32", request.options),))
    for precision in precisions:
        if precision in AS_FP32:
            on_made(precision, model)
    calibration, checked = given.parted(every=CHECKED_SHARE) if given else (None, None)
    checked = checked or _inputs(model, request, on_event)
    options = replace(request.options, calibration=calibration)
    if not request.judged:
        options = replace(options, peaks=_peaks(model, checked, on_event))
        made = [_made(model, precision, options, on_event) for precision in precisions]
        return Usable(variants=tuple(variant for variant in made if variant is not None))
    inputs = checked.first(INPUTS)
    judgments = judgments_of(
        model,
        inputs,
        request.rule,
        cache=request.cache,
        processor=request.processor,
        budget_s=request.judging_budget_s / (1 + 2 * len(precisions)),  # each is run at two batch sizes
    )
    reference = once(partial(_reference, model, inputs, judgments.budget_s, on_event))
    with timed_step(on_event, "precisions judged before") as step:
        tried = _kept(model, precisions, options, judgments, on_event)
        step.cached = bool(tried)
    later = [precision for precision in precisions if precision in request.if_fp16_fails and "fp16" in precisions]
    for asked in ([precision for precision in precisions if precision not in later], later):
        missing = [precision for precision in asked if precision not in tried]
        if not missing or (asked is later and tried["fp16"][0] is not None):
            continue
        if not options.peaks:
            options = replace(options, peaks=_peaks(model, checked, on_event))
        gate = _Gate(
            model=model,
            options=options,
            reference=reference,
            request=request,
            judgments=judgments,
            on_made=on_made,
        )
        on_event(events.PhaseStarted(name="prepare", detail=f"the variants {', '.join(missing)}"))
        with timed_step(on_event, "variants and their accuracy"):
            tried |= dict(zip(missing, gate.all_tried(missing, on_event), strict=True))
    fp16 = tried["fp16"][0] is not None if later else False
    done = [tried[one] for one in precisions if one in tried and not (fp16 and one in later)]
    variants = [variant for variant, _ in done if variant is not None]
    records = [record for _, record in done if record is not None]
    if not variants:
        raise UnsupportedModel(
            f"None of the precisions {', '.join(request.precisions)} is usable for this model.",
            "Add fp32 to --precisions, or loosen --accuracy.",
        )
    return Usable(variants=tuple(variants), accuracy=tuple(records), reference=reference, judgments=judgments)


def _peaks(model: Model, checked: Samples, on_event: OnEvent) -> Mapping[str, float]:
    with timed_step(on_event, "magnitudes inside the model"):
        observed = partial(observed_peaks, model, checked)
        return call_limited(observed, model=model.path, limits=graph_limits(model.size_bytes))


def _reference(model: Model, inputs: Samples, budget_s: float, on_event: OnEvent) -> Reference:
    on_event(events.PhaseStarted(name="prepare", detail=f"fp32 on {inputs.count} {inputs.source} inputs"))
    with timed_step(on_event, "reference results in fp32"):
        run, classifying = OnnxCpuRunner(model=model).run_within, classifying_outputs(model)
        return reference_of(run, inputs, classifying=classifying, budget_s=budget_s)


def _inputs(model: Model, request: VariantRequest, on_event: OnEvent) -> Samples:
    """Return the inputs of the load if the model takes them, else random ones."""
    try:
        if given := given_samples(model, request.input_data, INPUTS):
            return given
    except BadInput as error:
        on_event(events.Note(text=f"Accuracy is judged on random inputs: {error.what}", warning=True))
    return synthetic_samples(model, INPUTS, seed=request.seed)


def _possible(request: VariantRequest, *, texts: bool, calibrated: bool, on_event: OnEvent) -> list[Precision]:
    """Return the precisions that this device can run, for a model of texts or not, calibrated or not.

    Raises UnsupportedModel if there are none.
    """
    possible: list[Precision] = []
    for precision in dict.fromkeys(request.precisions):
        if texts and precision != "fp32":
            lacks = "inputs that are not strings"
        elif request.options.device == "cpu" and precision in GPU_ONLY:
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


def variants_at_once(size_bytes: int, processors: int) -> int:
    """Return how many variants of a model of that size to make at the same time, by processors and memory."""
    memory = machine_limits().memory_bytes // graph_limits(size_bytes).memory_bytes
    return max(1, min(MAX_VARIANTS_AT_ONCE, processors // CORES_A_VARIANT, memory))


Tried = tuple[Variant | None, AccuracyRecord | None]
"""A variant, None if it is not usable, and its figures, None if it was not judged."""


def _kept(
    model: Model, precisions: Sequence[Precision], options: VariantOptions, judgments: Judgments, on_event: OnEvent
) -> dict[Precision, Tried]:
    """Return the precisions that need not be made or judged: those of earlier runs, and tf32.

    tf32 has the graph of fp32: only an engine shows the difference.
    """
    tried: dict[Precision, Tried] = {}
    for precision in precisions:
        if precision == "tf32":
            tried[precision] = variant_from_model(model, precision, options), None
        found = judgments.find(_settings(precision, options))
        if found is None:
            continue
        record, entry = found
        if not record.passed and precision != "fp32":
            tried[precision] = None, record
            on_event(events.Note(text=_verdict(record, 0), warning=True))
            continue
        variant = variant_from_entry(entry, precision, model, options.work_dir / f"{model.name}-{precision}")
        if variant is not None:
            tried[precision] = variant, record
            on_event(events.Note(text=_verdict(record, len(variant.kept)), warning=not record.passed))
    return tried


def _settings(precision: Precision, options: VariantOptions) -> dict[str, str | None]:
    """Return what decides a variant besides the model and the inputs, as a part of the key in the cache."""
    calibrated = precision in CALIBRATED
    return {
        "precision": precision,
        "device": options.device,
        "io_precision": options.io_precision,
        "calibration": digest_of(options.calibration) if calibrated else None,
        "calibration_method": options.calibration_method if calibrated else None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gate:
    """Makes variants, judges them against the reference, and keeps the judgments for later runs."""

    model: Model
    options: VariantOptions
    reference: Callable[[], Reference]
    request: VariantRequest
    judgments: Judgments
    on_made: Callable[[Precision, Model], None]

    def all_tried(self, precisions: Sequence[Precision], on_event: OnEvent) -> list[Tried]:
        """Make and judge these, several at once if there are cores; notes come in the precisions' order."""
        at_once = variants_at_once(self.model.size_bytes, self.request.processors)
        if at_once == 1:
            return [self._tried(precision, on_event, None) for precision in precisions]
        notes: list[list[events.Event]] = [[] for _ in precisions]
        found, cores = [], self.request.processors // at_once
        with threads(at_once) as pool:
            calls = [
                pool.submit(self._tried, precision, own.append, cores)
                for precision, own in zip(precisions, notes, strict=True)
            ]
            for call, own in zip(calls, notes, strict=True):
                found.append(call.result())
                for note in own:
                    on_event(note)
        return found

    def _tried(self, precision: Precision, on_event: OnEvent, run_threads: int | None) -> Tried:
        variant = _made(self.model, precision, self.options, on_event)
        if variant is None:
            return None, None
        if precision not in AS_FP32:  # those were handed on at once
            self.on_made(precision, variant.model)
        reference = self.reference()
        # The reference is fp32 at batch 1; a second run, at batch 8, shows how far fp32 differs from itself.
        again = precision == "fp32" and reference.samples.batched
        try:
            record = judge(
                OnnxCpuRunner(model=variant.stand_in, optimized=variant.optimizable, threads=run_threads),
                precision,
                reference,
                self.request.rule,
                batch_sizes=(LARGER_BATCH,) if again else (1, LARGER_BATCH),
            )
        except RunFailed as error:
            reason = shortened(plain(error.reason))
            text = f"{precision} is left out: ONNX Runtime cannot run it: {reason}"
            on_event(events.Note(text=text, warning=True))
            return None, None
        on_event(events.Note(text=_verdict(record, len(variant.kept)), warning=not record.passed))
        value, files = value_of(variant, self.model) if record.passed else ({}, {})
        self.judgments.keep(_settings(precision, self.options), record, value, files)
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


def _verdict(record: AccuracyRecord, kept: int) -> str:
    """Return the figures in one line, for the user; `kept` nodes stayed in fp32."""
    inputs = f"{record.inputs} {record.input_source} inputs"
    if not record.passed:
        left_out = "" if record.precision == "fp32" else "left out, "
        return f"{record.precision} is {left_out}not close enough to fp32 on {inputs}: {record.reason}."
    figure = "equal" if record.least_sqnr_db is None else f"SQNR {record.least_sqnr_db:.1f} dB"
    note = f" ({record.note})" if record.note else ""
    if record.precision == "fp32":
        return f"fp32 against itself at other batch sizes, on {inputs}{note}: {figure}."
    in_fp32 = f", {kept} nodes in fp32" if kept else ""
    return f"{record.precision} is numerically close to fp32 on {inputs}{note}: {figure}{in_fp32}."
