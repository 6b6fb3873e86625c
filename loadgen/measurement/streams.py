"""The tokens of streamed responses: the columns of the log, the times that limits are about, and the figures."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from loadgen.finite import Count, FiniteModel
from loadgen.spec.limits import StreamLimit
from loadgen.spec.plan import Streamed

STREAM_DTYPE = np.dtype(
    [
        ("first_ns", np.int64),  # when the first token arrived, since the run's start; 0: none did
        ("last_ns", np.int64),
        ("longest_gap_ns", np.int64),  # between two arrivals of tokens
        ("tokens_in", np.int32),  # of the prompt, by the server's `usage`; -1: it sent none
        ("tokens_out", np.int32),
        ("cached_tokens", np.int32),  # of the prompt
        ("chunks", np.int32),  # events that brought tokens
        ("tokens_first", np.int32),  # streamed at once with the first event
        ("tokens_later", np.int32),  # streamed after it; both by the length of the texts
        ("finish", "S16"),  # the finish reason, "other" for an unknown one; empty: none
    ]
)

GOOD = (
    "A request is good if its stream ended with a finish reason, no error, and the tokens it asked for, and "
    "in time; all others are over every limit. TTFT counts from the time it was due to its first token, of "
    "reasoning or not (a frame without text brings none); TPOT is the time from the first event to the last / "
    "the tokens after the first event."
)
"""What the figures of streams mean; every report has it."""

_TEMPLATE_TOKENS = 100  # the template of a chat and the mark of a prompt add up to as many
_QUANTILES = (0.5, 0.9, 0.95, 0.99)


def time_of(
    limit: StreamLimit,
    scheduled_ns: NDArray[np.int64],
    done_ns: NDArray[np.int64],
    streams: NDArray[np.void] | None,
) -> NDArray[np.int64]:
    """Return the time of each request that a limit is about, in ns, shape (n,).

    For a limit with parts it is in shares of these, the largest of which counts: its `limit_ns` is all of it.
    """
    if limit.parts:
        each = [time_of(part, scheduled_ns, done_ns, streams) / part.limit_ns for part in limit.parts]
        return np.asarray(np.ceil(np.max(each, axis=0) * limit.limit_ns), np.int64)
    if limit.measure == "e2e" or streams is None:
        return done_ns - scheduled_ns
    if limit.measure == "ttft":
        return np.where(streams["first_ns"] == 0, done_ns, streams["first_ns"]) - scheduled_ns
    return _tpot_ns(scheduled_ns, streams)


def came_at_once(streams: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return True for each response of several tokens that all came at the same time."""
    return np.asarray((streams["tokens_later"] == 0) & (streams["tokens_first"] > 1))


def _tpot_ns(scheduled_ns: NDArray[np.int64], streams: NDArray[np.void]) -> NDArray[np.int64]:
    """Return the time per token after the first event; of tokens that came at once the most that it can be."""
    at_once = came_at_once(streams)
    began_ns = np.where(at_once, scheduled_ns, streams["first_ns"])
    tokens = np.where(at_once, streams["tokens_first"] - 1, streams["tokens_later"])
    return np.asarray((streams["last_ns"] - began_ns) // np.maximum(tokens, 1))


def token_counts(asked: Streamed, good: NDArray[np.void]) -> tuple[str, bool]:
    """Return a sentence about the mean tokens of good requests, and False if they are not the load asked for.

    They are not if a mean is over a quarter off. With prompts of users, any lengths are those asked for.
    """
    parts, as_asked = list[str](), True
    made = np.where(good["tokens_out"] < 0, good["chunks"], good["tokens_out"])
    for what, counts, wanted, added in (
        ("prompt", good["tokens_in"], asked.prompt_tokens, _TEMPLATE_TOKENS),
        ("reply", np.maximum(made, 1), asked.output_tokens, 0),
    ):
        if wanted is not None and len(known := counts[counts > 0]):
            parts.append(f"{known.mean():,.0f} tokens per {what} ({wanted:,} asked for)")
            fits = 0.75 * wanted <= known.mean() <= 1.25 * wanted + added
            as_asked &= fits or asked.prompt_tokens is None
    counted = f"{' and '.join(parts)} were counted"
    if as_asked:
        return counted, True
    return f"not the load asked for: {counted}; ask for about as many, or send --prompts of your own", False


class StreamFigures(FiniteModel):
    """The figures of streamed responses, per request and in ms; null if the quantile is that of a failed one.

    Nothing is pooled over tokens: the longest gap is one figure per request.
    """

    ttft_ms: dict[str, float | None] = Field(description="Due time to first token, by quantile.")
    tpot_ms: dict[str, float | None] = Field(description="Time per token after the first event, by quantile.")
    longest_gap_ms: dict[str, float | None] = Field(description="Longest time between tokens, by quantile.")
    tokens_in: Count = Field(description="Of all prompts, by the server's usage.")
    tokens_out: Count = Field(description="Of all responses, by the server's usage.")
    cached_tokens: Count = Field(description="Tokens of prompts that a prefix cache held.")
    chunks: Count = Field(description="Events that brought tokens; an event may bring several.")
    without_usage: Count = Field(description="Complete responses without usage; their chunks count as tokens.")
    at_once: Count = Field(default=0, description="Responses whose tokens all came at once: TPOT is a bound.")
    several_per_event: Count = Field(default=0, description="Responses whose first event brought several tokens.")
    hidden_tokens: Count = Field(default=0, description="Of reasoning that was counted and not streamed.")
    finish_reasons: dict[str, int]

    @property
    def in_front(self) -> tuple[str, ...]:
        """Sentences if a cache did part of the work, and on what times mean if tokens come together."""
        cached, at_once, several = self.cached_tokens, self.at_once, self.several_per_event
        share = cached / max(self.tokens_in, 1)
        found = {
            f"a prefix cache held {cached:,} of {self.tokens_in:,} prompt tokens ({share:.0%})": cached,
            f"all tokens of {at_once:,} responses came at once, as if something held them back: their TTFT is the "
            "time of the whole response, and TPOT is the most that it can be, counted from the due time": at_once,
            f"the first event of {several:,} responses brought several tokens: TPOT is that of the tokens after "
            "it, counted by the length of the texts": several * 2 > sum(self.finish_reasons.values()),
        }
        return tuple(text for text, holds in found.items() if holds)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What figures of streams mean, and what was counted in place of tokens."""
        chunks, hidden = self.without_usage, self.hidden_tokens
        found = {
            GOOD: 1,
            f"{chunks:,} responses had no usage: their chunks are counted, not their tokens": chunks,
            f"{hidden:,} tokens of reasoning were not streamed: TPOT leaves them out": hidden,
        }
        return tuple(text for text, count in found.items() if count)


def stream_figures(
    scheduled_ns: NDArray[np.int64], failed: NDArray[np.bool_], streams: NDArray[np.void]
) -> StreamFigures:
    """Return the figures of all requests of a run."""
    several, at_once = ~failed & (streams["tokens_first"] > 1), came_at_once(streams)
    streamed = streams["tokens_first"] + streams["tokens_later"]
    reasons = Counter(reason.decode() for reason in streams["finish"].tolist() if reason)
    return StreamFigures(
        ttft_ms=_quantiles_ms(streams["first_ns"] - scheduled_ns, failed),
        tpot_ms=_quantiles_ms(_tpot_ns(scheduled_ns, streams), failed),
        longest_gap_ms=_quantiles_ms(streams["longest_gap_ns"], failed),
        tokens_in=_known(streams["tokens_in"]),
        tokens_out=_known(streams["tokens_out"]),
        # A count of more than the prompt has is not believed.
        cached_tokens=_known(streams["cached_tokens"][streams["cached_tokens"] <= streams["tokens_in"]]),
        chunks=int(streams["chunks"].sum()),
        without_usage=int(np.count_nonzero(~failed & (streams["tokens_out"] < 0))),
        at_once=int(np.count_nonzero(several & at_once)),
        several_per_event=int(np.count_nonzero(several & ~at_once)),
        hidden_tokens=_known(streams["tokens_out"] - streamed),
        finish_reasons=dict(reasons.most_common()),
    )


def _quantiles_ms(times_ns: NDArray[np.int64], failed: NDArray[np.bool_]) -> dict[str, float | None]:
    times = np.sort(np.where(failed, np.inf, times_ns / 1e6))
    ranks = {f"p{100 * q:g}": max(0, int(np.ceil(q * len(times))) - 1) for q in _QUANTILES}
    found = {name: float(times[rank]) if len(times) else np.inf for name, rank in ranks.items()}
    return {name: value if np.isfinite(value) else None for name, value in found.items()}


def _known(counts: NDArray[np.int32]) -> int:
    return int(np.maximum(counts, 0).sum(dtype=np.int64))
