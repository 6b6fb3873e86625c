"""Measure how close the results of one model are to those of another: figures, without a verdict.

SQNR is 10 log10(sum r^2 / sum (r - y)^2) over all samples, in dB; cosine is that of all results as one vector; the
relative error of an element is |r - y| / (|r| + 0.01 rms(r)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TIE = 1e-3
"""Classes whose scores differ by at most 1e-3 of the largest score tie: either choice agrees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closeness:
    """Figures of closeness. `sqnr_db` is inf for equal results.

    `non_finite` counts NaN and infinite elements, and missing ones. Outputs that are not floats have no distances:
    these are None. Their `top1_agreement` is the share of elements that are equal; for floats it is None if they
    are not scores of classes.
    """

    sqnr_db: float | None
    cosine: float | None
    max_relative_error: float | None
    non_finite: int
    top1_agreement: float | None = None


def closeness(reference: Sequence[NDArray[Any]], actual: Sequence[NDArray[Any]], *, classes: bool) -> Closeness:
    """Compare results pair by pair; `classes` if the last axis of each holds one score per class.

    An array of another shape counts as wholly missing.
    """
    if any(array.dtype.kind != "f" for array in reference):
        return _equality(reference, actual)
    pairs = [(r.astype(np.float64), y.astype(np.float64)) for r, y in zip(reference, actual, strict=True)]
    whole = [(r, y) for r, y in pairs if r.shape == y.shape]
    missing = sum(r.size for r, y in pairs if r.shape != y.shape)
    bad = missing + sum(int(r.size - (np.isfinite(r) & np.isfinite(y)).sum()) for r, y in whole)
    finite = [(r[ok], y[ok]) for r, y in whole for ok in [np.isfinite(r) & np.isfinite(y)]]
    rr, yy, ry, lost = (
        sum(float(np.dot(a, b)) for a, b in terms)
        for terms in (
            [(r, r) for r, _ in finite],
            [(y, y) for _, y in finite],
            finite,
            [(r - y, r - y) for r, y in finite],
        )
    )
    elements = sum(r.size for r, _ in finite)
    rms = math.sqrt(rr / elements) if elements else 0.0
    rows, agreeing = _top1(whole) if classes else (0, 0)
    return Closeness(
        sqnr_db=_sqnr_db(rr, lost),
        cosine=_cosine(rr, yy, ry),
        max_relative_error=max((_relative_error(r, y, rms) for r, y in finite), default=0.0),
        non_finite=bad,
        top1_agreement=agreeing / rows if rows else None,
    )


def _equality(reference: Sequence[NDArray[Any]], actual: Sequence[NDArray[Any]]) -> Closeness:
    whole = [(r, y) for r, y in zip(reference, actual, strict=True) if r.shape == y.shape]
    equal, elements = sum(int((r == y).sum()) for r, y in whole), sum(r.size for r in reference)
    return Closeness(
        sqnr_db=None,
        cosine=None,
        max_relative_error=None,
        non_finite=elements - sum(r.size for r, _ in whole),
        top1_agreement=equal / elements if elements else None,
    )


def _sqnr_db(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _cosine(rr: float, yy: float, ry: float) -> float:
    if rr == 0 and yy == 0:
        return 1.0
    return ry / math.sqrt(rr * yy) if rr > 0 and yy > 0 else 0.0


def _relative_error(r: NDArray[np.float64], y: NDArray[np.float64], rms: float) -> float:
    gap = np.abs(r - y)
    scale = np.abs(r) + 0.01 * rms
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(gap == 0, 0.0, gap / scale), initial=0.0))


def _top1(pairs: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> tuple[int, int]:
    """Return (rows, rows whose best class is the same or ties with it). NaN agrees with nothing."""
    rows = agreeing = 0
    for r, y in pairs:
        scores, others = r.reshape(-1, r.shape[-1]), y.reshape(-1, y.shape[-1])
        chosen = np.take_along_axis(scores, others.argmax(axis=1)[:, None], axis=1)[:, 0]
        near = scores.max(axis=1) - chosen <= TIE * np.abs(scores).max(axis=1)
        agreeing += int((near & np.isfinite(others).all(axis=1)).sum())
        rows += len(scores)
    return rows, agreeing
