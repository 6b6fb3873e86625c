"""Keep judged variants and engines for later runs, under everything that decides the judgment."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from optimizer.accuracy.thresholds import AccuracyRule
from optimizer.cached import Entry, ResultCache, versions_digest
from optimizer.model.files import Graph
from optimizer.model.onnx_model import Model, with_files, without_files
from optimizer.model.samples import Samples
from optimizer.precision.names import Precision
from optimizer.precision.variants import Variant
from search.records.recommendation import AccuracyRecord

KIND = "judgment"

T = TypeVar("T")


def once(make: Callable[[], T]) -> Callable[[], T]:
    """Return a function that computes a value at the first call, also if several threads call at the same time."""
    lock, made = Lock(), cache(make)

    def call() -> T:
        with lock:
            return made()

    return call


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgments:
    """The judgments on one model, with the same inputs and the same rule.

    `inputs` are as many as were offered; a judgment on fewer of them counts only if `budget_s`, the time that the
    reference may take, was no shorter.
    """

    cache: ResultCache
    base: Mapping[str, Any]
    inputs: int
    budget_s: float

    def find(self, of: Mapping[str, Any]) -> tuple[AccuracyRecord, Entry] | None:
        """Return the record of an earlier run, with its entry; None if there is none that counts."""
        entry = self.cache.find(KIND, {**self.base, **of})
        if entry is None:
            return None
        record = AccuracyRecord.model_validate_json(entry.value["record"])
        enough = record.inputs >= self.inputs or entry.value["budget_s"] >= self.budget_s
        return (record, entry) if enough else None

    def keep(
        self,
        of: Mapping[str, Any],
        record: AccuracyRecord,
        value: Mapping[str, Any] | None = None,
        files: Mapping[str, Path] | None = None,
    ) -> None:
        """Keep a record, in place of one that does not count."""
        key = {**self.base, **of}
        self.cache.remove(KIND, key)
        rest = {"record": record.model_dump_json(), "budget_s": self.budget_s}
        self.cache.put(KIND, key, {**(value or {}), **rest}, files)


def judgments_of(
    model: Model, samples: Samples, rule: AccuracyRule, *, cache: ResultCache, processor: str, budget_s: float
) -> Judgments:
    """Return the judgments on a model; `processor` is the one that computes the reference."""
    base = {
        "model": model.sha256,
        "samples": digest_of(samples),
        "rule": [rule.level, *map(list, rule.changes)],
        "processor": processor,
        "versions": versions_digest(),
    }
    return Judgments(cache=cache, base=base, inputs=samples.count, budget_s=budget_s)


def digest_of(samples: Samples | None) -> str | None:
    """Return a hash of all samples, their names, types and shapes; None for None."""
    if samples is None:
        return None
    digest = hashlib.sha256(f"{samples.source} {samples.batched}".encode())
    for name, array in sorted(samples.arrays.items()):
        digest.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def value_of(variant: Variant, model: Model) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return what to keep of a variant of `model`, as JSON and files; no files if its graph is that of `model`."""
    made = variant.model
    value = {"model": without_files(made), "optimizable": variant.optimizable, "kept": dict(variant.kept)}
    return value, {} if made.path == model.path else dict(made.files)


def variant_from_entry(entry: Entry, precision: Precision, model: Model, folder: Path) -> Variant | None:
    """Return the variant of an earlier run, copied to `folder`; None if it cannot be read."""
    if not entry.files:
        return Variant(precision=precision, model=model, stand_in=model)
    try:
        value, files = entry.value, entry.copied(folder)
        path = files.pop("model.onnx").absolute()
        external = tuple((name, file.absolute()) for name, file in sorted(files.items()))
        made = with_files(value["model"], Graph(path), external)
        return Variant(
            precision=precision, model=made, stand_in=made, optimizable=value["optimizable"], kept=value["kept"]
        )
    except OSError:
        return None
