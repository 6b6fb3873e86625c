"""Print the raw lines of benchmarks/exhaustive.py as tables, and compare them with its thresholds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from lib.ablation import ABLATIONS, search_phase
from lib.audits import answer_of
from lib.elimination import DECIDED, Elimination
from lib.raw_lines import Line, lines_of, verdict
from loadgen.records.formats import format_ms
from loadgen.records.record import Answer
from search.space import Key, key_of

FINALISTS = 3
"""So many of the best configurations of the elimination are bisected at length."""

MIN_MEAN_OF_BEST, MIN_OF_BEST = 0.97, 0.93
MAX_PROMISED = 1.02  # certified rate / audited capacity
MIN_PROMISES_MET, MIN_AUDITS_MET = 0.95, 19 / 20
MAX_OF_EXHAUSTIVE, MAX_OF_TPE = 1 / 10, 1 / 5
AUDIT_WORDS = {"met": "met", "violated": "**violated**", "inconclusive": "not decided"}


@dataclass(frozen=True, slots=True)
class Results:
    """The raw lines of one model. Capacities are converted to a pace of one second, see `pace_s`.

    `searched`: the phase whose searches count.
    """

    name: str
    lines: Sequence[Line]
    searched: str = "search"

    def of(self, phase: str) -> list[Line]:
        return [line for line in self.lines if line["phase"] == phase]

    @property
    def points(self) -> int:
        """The size of the space."""
        return int(self.lines[0]["points"])

    @property
    def eliminated(self) -> dict[str, int]:
        """Count the configurations by verdict, and those without one."""
        lines = self.of("eliminate")
        each = {key_of(line["knobs"]): line["knobs"] for line in lines}
        counts = Elimination(list(each.values()), lines).counts()
        return {**counts, "left": self.points - sum(counts.values()) + counts["left"]}

    @property
    def elimination_s(self) -> float:
        """Seconds of load, including the profile that gave the order."""
        return math.fsum(line["load_s"] for line in (*self.of("profile"), *self.of("eliminate")))

    @property
    def plain_s(self) -> tuple[float, float]:
        """Seconds of load to bisect every configuration, extrapolated, and the standard error. NaN: unknown."""
        each = [line["load_s"] for line in self.of("sample")]
        error = stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.nan
        return self.points * _mean(each), self.points * error

    @property
    def tpe_s(self) -> float:
        """Seconds of load of Optuna's TPE, mean of its runs; NaN if it was not run."""
        return _mean([line["load_s"] for line in self.of("tpe")])

    @property
    def capacities(self) -> dict[Key, float]:
        """Capacities of the configurations that were bisected at length."""
        return {key_of(line["knobs"]): line["rate_per_s"] * line["pace_s"] for line in self.of("capacity")}

    @property
    def best(self) -> float:
        """The highest capacity; NaN until nothing is left to try and the best of the elimination are bisected."""
        known, state = self.capacities, Elimination([], self.of("eliminate"))
        finalists = [key_of(knobs) for knobs in state.finalists(FINALISTS)]
        complete = self.eliminated["left"] == 0 and all(key in known for key in finalists)
        return max(known.values()) if complete and known else math.nan

    @property
    def of_best(self) -> list[float]:
        """The capacity of the choice per seed, as a share of the best; 0 if nothing was chosen."""
        known, best = self.capacities, self.best
        if math.isnan(best):
            return []
        chosen = [line["knobs"] for line in self.of(self.searched)]
        shares = [0.0 if knobs is None else known.get(key_of(knobs), math.nan) / best for knobs in chosen]
        return [share for share in shares if not math.isnan(share)]

    @property
    def promised(self) -> list[float]:
        """Each certified rate as a share of the capacity of the chosen configuration."""
        known = self.capacities
        return [
            line["promised_per_s"] * line["pace_s"] / known[key_of(line["knobs"])]
            for line in self.of(self.searched)
            if line["promised_per_s"] is not None and key_of(line["knobs"]) in known
        ]

    def seconds(self, name: str) -> list[float]:
        """Return seconds: `search_s` until a candidate, `winner_s` until its certificate, `load_s`, `wall_s`."""
        return [line[name] for line in self.of(self.searched)]


def report(paths: Iterable[Path]) -> None:
    """Print everything in Markdown."""
    found = [Results(path.stem, lines) for path in paths if (lines := lines_of(path))]
    print_best(found)
    print_searches(found)
    print_seconds(found)
    print_ablations(found)
    print_thresholds(found)


def print_best(found: Sequence[Results]) -> None:
    verdicts = "violated | below | throughput | bisected | failed | left"
    print(f"\n| model | limit, ms | {verdicts} | best by bisection | s of load |")
    print("|---" * 10 + "|")
    for one in found:
        counts = one.eliminated
        best = Elimination([], one.of("eliminate")).finalists(1)
        cells = (
            one.name,
            f"{one.lines[0]['limit_ms']:g}",
            *(counts[name] for name in (*DECIDED, "left")),
            f"{knobs_words(best[0])}" if best else "-",
            f"{one.elimination_s:.0f}",
        )
        print("| " + " | ".join(str(cell) for cell in cells) + " |")


def print_searches(found: Sequence[Results]) -> None:
    print(
        "\n| model | seed | chosen | promised/s | of its capacity | of the best | audits | s of load | s in all |"
    )
    print("|---" * 9 + "|")
    for one in found:
        known, best = one.capacities, one.best
        for line in one.of("search"):
            key = None if line["knobs"] is None else key_of(line["knobs"])
            capacity = math.nan if key is None else known.get(key, math.nan)
            promised = math.nan if line["promised_per_s"] is None else line["promised_per_s"]
            audits = [audit for audit in one.of("audit") if audit["seed"] == line["seed"]]
            cells = (
                one.name,
                line["seed"],
                "-" if line["knobs"] is None else knobs_words(line["knobs"]),
                f"{promised:.1f}",
                f"{100 * promised * line['pace_s'] / capacity:.1f} %",
                f"{100 * capacity / best:.1f} %",
                ", ".join(f"{AUDIT_WORDS[_answer(audit)]} at {format_ms(audit['p99_ms'])} ms" for audit in audits),
                f"{line['load_s']:.0f}",
                f"{line['wall_s']:.0f}",
            )
            print("| " + " | ".join(str(cell) for cell in cells) + " |")


def print_seconds(found: Sequence[Results]) -> None:
    print("\nSeconds of load, means over the seeds; exhaustive bisection extrapolated from a sample:\n")
    print("| model | to candidate | to certificate | in all | wall | elimination | exhaustive (se) | TPE |")
    print("|---" * 8 + "|")
    for one in found:
        means = [f"{_mean(one.seconds(name)):.0f}" for name in ("search_s", "winner_s", "load_s", "wall_s")]
        plain_s, error_s = one.plain_s
        tpe = f"{one.tpe_s:.0f}" if one.of("tpe") else "not run"
        sample = f"{plain_s:.0f} ({error_s:.0f}, {len(one.of('sample'))} of {one.points})"
        print("| " + " | ".join((one.name, *means, f"{one.elimination_s:.0f}", sample, tpe)) + " |")


def print_ablations(found: Sequence[Results]) -> None:
    """Print the value of each part of the search that was left out in some runs."""
    print("\n| model | without | searches | of the best | promised of capacity | s to candidate | s of load |")
    print("|---" * 7 + "|")
    for one in found:
        for without in ABLATIONS:
            other = replace(one, searched=search_phase(without))
            if not other.seconds("load_s"):
                continue
            cells = (
                one.name,
                without,
                len(other.seconds("load_s")),
                f"{100 * _mean(other.of_best):.1f} %",
                f"{100 * _mean(other.promised):.1f} %",
                f"{_mean(other.seconds('search_s')):.0f}",
                f"{_mean(other.seconds('load_s')):.0f}",
            )
            print("| " + " | ".join(str(cell) for cell in cells) + " |")


def print_thresholds(found: Sequence[Results]) -> None:
    print()
    for one in found:
        load_s = _mean(one.seconds("load_s"))
        verdict(f"{one.name}: of the best, mean of {len(one.of_best)}", _mean(one.of_best), ">=", MIN_MEAN_OF_BEST)
        verdict(f"{one.name}: of the best, worst", min(one.of_best, default=math.nan), ">=", MIN_OF_BEST)
        verdict(f"{one.name}: s of load, of exhaustive's", load_s / one.plain_s[0], "<=", MAX_OF_EXHAUSTIVE)
        verdict(f"{one.name}: s of load, of TPE's", load_s / one.tpe_s, "<=", MAX_OF_TPE)
        if one.eliminated["left"]:
            print(f"- {one.name} is **not complete**: {one.eliminated['left']} configurations are left to try")
    promised = [share for one in found for share in one.promised]
    answers = [_answer(line) for one in found for line in one.of("audit")]
    audits = [answer == "met" for answer in answers if answer != "inconclusive"]
    within = _mean([share <= MAX_PROMISED for share in promised])
    verdict(f"promises within {MAX_PROMISED} x capacity, of {len(promised)}", within, ">=", MIN_PROMISES_MET)
    rest = f" ({len(answers) - len(audits)} not decided)" if len(answers) > len(audits) else ""
    verdict(f"audits met, of {len(audits)}{rest}", _mean(audits), ">=", MIN_AUDITS_MET)


def knobs_words(knobs: dict[str, int | str]) -> str:
    """Return batch x instances, delay, and threads if set."""
    threads = f", {knobs['intra_op_threads']} threads" if knobs["intra_op_threads"] else ""
    delay_ms = int(knobs["max_queue_delay_us"]) / 1000
    return f"{knobs['max_batch_size']} x {knobs['instance_count']}, {delay_ms:g} ms{threads}"


def _answer(audit: Line) -> Answer:
    return answer_of(audit, audit["problems"], audit.get("contention"))


def _mean(values: Sequence[float]) -> float:
    """Return the mean; NaN if there are no values."""
    return fmean(values) if values else math.nan
