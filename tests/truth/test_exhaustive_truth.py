"""Every phase of benchmarks/exhaustive.py on a simulated server, whose true capacities are known."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loadgen.spec.limits import LatencyLimit

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from engines import plain_engine
from lib.ablation import ABLATIONS, search_phase
from lib.exhaustive import phases
from lib.exhaustive.call import Call, Settings
from lib.exhaustive.report import Results
from lib.exhaustive.subjects import Subject
from lib.raw_lines import lines_of
from lib.sleeping_model import Law
from simulated_bench import SimulatedBench
from true_rates import true_rate

from search.records.slo import Slo
from search.space import MachineLimits, SearchSpace, key_of

pytestmark = pytest.mark.long

LAW = Law(4e-3, 1.6e-3, full_at=4, crowding=0.88)
LIMIT_MS = 60.0


def simulated_subject(folder: Path) -> Subject:
    file = folder / "model.onnx"
    file.write_bytes(b"x")
    space = SearchSpace(
        engines=(plain_engine(files=(("model.onnx", file),)),),
        values={
            "max_batch_size": (1, 4, 16),
            "instance_count": (1, 2),
            "intra_op_threads": (0,),
            "max_queue_delay_us": (0,),
        },
        limits=MachineLimits(cores=8, memory_bytes=2**36),
    )

    @contextmanager
    def serving(run_dir: Any) -> Iterator[SimulatedBench]:
        yield SimulatedBench(**truth())

    return Subject(
        name="law",
        slo=Slo(limits=(LatencyLimit(limit_ms=LIMIT_MS),)),
        space=space,
        serving=serving,  # type: ignore[arg-type]
        pace_s=lambda: 1.0,
        steady=True,
    )


def truth() -> dict[Any, Any]:
    return {
        "service_s": lambda config, size: LAW.seconds(size, 1),
        "contention": lambda config, busy: busy**LAW.crowding,
        "limit_ms": LIMIT_MS,
    }


SETTINGS: dict[str, Any] = {
    "seeds": 1,
    "budget_s": 60.0,
    "samples": 1,
    "edge_s": 5.0,
    "capacity_s": 8.0,
    "audit_s": 5.0,
    "audits": 2,
}


def call_on(subject: Subject, folder: Path, *, minutes: float = 1000.0, **settings: Any) -> Call:
    return Call(subject=subject, out=folder, minutes=minutes, settings=Settings(**{**SETTINGS, **settings}))


def test_every_phase_adds_what_is_missing_and_nothing_twice(tmp_path: Path) -> None:
    subject = simulated_subject(tmp_path)
    call = call_on(subject, tmp_path)
    for phase in ("eliminate", "sample", "search", "capacity", "audit"):
        phases.PHASES[phase](call_on(subject, tmp_path, minutes=0.0))
        assert not call.lines(phase)
        phases.PHASES[phase](call)
    lines = lines_of(call.path)
    for phase in ("eliminate", "sample", "search", "capacity", "audit"):
        phases.PHASES[phase](call)
    assert lines_of(call.path) == lines
    assert [len(call.lines(phase)) for phase in ("eliminate", "sample", "search", "audit")] == [6, 1, 1, 2]

    true = {key_of(point): true_rate(subject.space.config(point), **truth()) for point in subject.space.points()}
    found = Results("law", lines)
    assert found.eliminated["left"] == 0
    assert max(true, key=true.__getitem__) == max(found.capacities, key=found.capacities.__getitem__)
    for key, capacity in found.capacities.items():
        assert capacity == pytest.approx(true[key], rel=0.06)


def test_searches_without_a_part_have_lines_of_their_own(tmp_path: Path) -> None:
    subject = simulated_subject(tmp_path)
    ways = [call_on(subject, tmp_path, without=without) for without in ABLATIONS]
    for call in ways:
        phases.PHASES["search"](call)
        phases.PHASES["search"](call)
    lines = {without: ways[0].lines(search_phase(without)) for without in ABLATIONS}
    assert [len(found) for found in lines.values()] == [1, 1, 1, 1]
    whole, blind = (lines[without][0] for without in ("none", "simulator"))
    assert blind["trials"] != whole["trials"]
    phases.PHASES["capacity"](ways[0])
    chosen = {key_of(line["knobs"]) for (line,) in lines.values() if line["knobs"] is not None}
    assert chosen <= {key_of(line["knobs"]) for line in ways[0].lines("capacity")}


def test_calls_that_share_the_work_do_each_step_once(tmp_path: Path) -> None:
    subject = simulated_subject(tmp_path)
    calls = [call_on(subject, tmp_path, share=(number, 2), seeds=2) for number in (1, 2)]
    for phase in ("eliminate", "search", "audit"):
        for call in calls:
            phases.PHASES[phase](call)
    lines = calls[0].lines("eliminate")
    assert len({key_of(line["knobs"]) for line in lines}) == len(lines) == subject.space.size()
    assert sorted(line["seed"] for line in calls[0].lines("search")) == [0, 1]
    assert sorted((line["seed"], line["audit"]) for line in calls[0].lines("audit")) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
