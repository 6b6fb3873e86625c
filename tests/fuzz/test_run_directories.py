"""Files of a run, a price file and a baseline with anything in them: a value or two lines, and nothing else."""

import contextlib
import copy
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import load_records
import pytest
import recommendations
from bundles import on_disk
from fuzzing import SECONDS, fuzz
from hypothesis import strategies as st

from loadgen.command.baseline import read_baseline
from loadgen.errors import UserError
from loadgen.spec.limits import LatencyLimit
from model_repo.repository.write import write_repository
from optimizer.cli import run_command
from optimizer.config import OptimizeConfig
from optimizer.run_file import save_config, saved_config
from search.cost.prices import PriceError, read_prices
from search.records.confirmations import ConfirmationRecord, read_confirmations
from search.records.run_files import read_recommendation, read_trials
from search.simulator.service_times_file import CurveRecord, KindRecord, ProfileRecord, read_curves

pytestmark = pytest.mark.long

ODD_VALUES = (  # type: ignore[var-annotated]
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.0, -0.0, 1e-320, 1e308, -1e308, float("nan"),
    float("inf"), "", "x", "../../x", "/etc/passwd", "a\nb", "\x1b[31m", "[/x]", "{{x}}", "\ud800", "x" * 20_000,
    [], {}, [[]], {"": {}}, [None] * 3,
)  # fmt: skip
ODD_BYTES = (
    b"", b"\n", b"null", b"[]", b"{}", b"[" * 200_000, b'{"a":' * 200_000, b"\xff\xfe", b"NaN", b"1" * 5000,
    b'"\\ud800"', b"\0", b"{" + b'"schema_version": 1,' * 1000 + b'"x": 1}', b"\xef\xbb\xbf{}",
)  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Where something can be changed in a document."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(document: Any, draw_from: Any, data: Any) -> Any:
    """The document with one to three values replaced, removed or repeated."""
    document = json.loads(json.dumps(document))
    for _ in range(data.draw(st.integers(1, 3))):
        paths = list(places(document))
        if not paths:
            break
        *parents, last = data.draw(st.sampled_from(paths))
        node = document
        for key in parents:
            node = node[key]
        if data.draw(st.integers(0, 5)) == 0:
            del node[last]
        else:
            node[last] = copy.deepcopy(data.draw(draw_from))  # the next change may be inside of it
    return document


values = st.sampled_from(ODD_VALUES) | st.floats() | st.integers() | st.text(max_size=20)


def hostile_text(document: Any, data: Any) -> Any:
    """The bytes of a file: odd ones, a changed document, or the document with some bytes changed."""
    kind = data.draw(st.integers(0, 9))
    if kind == 0:
        return data.draw(st.sampled_from(ODD_BYTES))
    text = json.dumps(changed(document, values, data)).encode()
    if kind == 1:
        at = data.draw(st.integers(0, len(text)))
        return text[:at] + data.draw(st.binary(max_size=8)) + text[at + data.draw(st.integers(0, 8)) :]
    if kind == 2:
        return text.replace(b"{", b'{"reason": 1, "reason": "x", ', 1)  # the same key twice
    return text


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, and one to compare it with."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("run", "other"):
        run = folder / name
        run.mkdir()
        found, config = on_disk(folder)
        write_repository(run / "model_repository", config, copy=True)
        (run / "recommendation.json").write_text(found.model_dump_json() + "\n")
        trials = [recommendations.trial(number) for number in range(4)]
        (run / "trials.jsonl").write_text("".join(f"{trial.model_dump_json()}\n" for trial in trials))
        (run / "trace.txt").write_text("0\n1\n")
        save_config(OptimizeConfig(limits=(LatencyLimit(limit_ms=50.0),), model=Path("m.onnx"), output=run), run)
    return folder / "run"


def document_of(path: Any) -> Any:
    return json.loads(path.read_text().splitlines()[0] if path.suffix == ".jsonl" else path.read_text())


def everything(folder: Any) -> dict[Any, Any]:
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


CONFIRMATION = ConfirmationRecord(
    trial=3, again=False, rate_per_s=10.0, met=True, answer="kept", reason="", overloaded=False, seconds=1.0,
    requests=10, violations=0, latency_ms=1.0, problems=(),
)  # fmt: skip
CURVE = {"sizes": (1.0, 2.0), "seconds": (0.1, 0.2), "handover_s": None, "fit_error": 0.1, "overhead_s": 0.0}
PROFILE = ProfileRecord(
    curves=(
        KindRecord(
            engine="onnxruntime-fp32", threads=1, cuda_graphs=False, busy=1, noise=(1.0,), **CURVE,  # type: ignore[arg-type]
            larger=(CurveRecord(busy=1, noise=(1.0,), **CURVE),),  # type: ignore[arg-type]
        ),
    )
)  # fmt: skip
PRICES = {
    "schema_version": 1,
    "instances": [
        {"provider": "AWS", "instance": "x", "region": "y", "usd_per_hour": 1.0, "vcpus": 1, "memory_gib": 2.0,
         "as_of": "2026-01-01", "source": "https://example.com"}
    ],
}  # fmt: skip


READERS = {
    "recommendation.json": (read_recommendation, None),
    "trials.jsonl": (read_trials, None),
    "run.json": (saved_config, None),
    "confirmations.jsonl": (read_confirmations, json.loads(CONFIRMATION.model_dump_json())),
    "service_times.json": (read_curves, json.loads(PROFILE.model_dump_json())),
    "prices.json": (lambda folder: read_prices(folder / "prices.json"), PRICES),
    "baseline.json": (
        lambda folder: read_baseline(folder / "baseline.json"),
        json.loads(load_records.record().model_dump_json()),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_gives_a_value_or_two_lines(name: str, run_dir: Any, tmp_path: Path) -> None:
    reader, document = READERS[name]
    if document is None:
        document = document_of(run_dir / name)

    def check(data: Any) -> None:
        (tmp_path / name).write_bytes(hostile_text(document, data) + b"\n")
        refused = None
        try:
            reader(tmp_path)
        except (UserError, PriceError) as error:
            refused = str(error)
        assert refused is None or len(refused.split("\n")) == 2

    fuzz(check, st.data(), seconds=SECONDS / len(READERS), examples=50)


COMMANDS = (
    ("bundle", "{run}", "--output", "{out}/bundle"),
    ("report", "{run}", "--output", "{out}/report.html"),
    ("report", "{run}", "--markdown"),
    ("explain", "{run}", "3"),
    ("compare", "{run}", "{other}"),
    ("fleet", "{run}", "{other}", "--rate", "100"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[::2]))
@pytest.mark.parametrize("name", ["recommendation.json", "trials.jsonl"])
def test_a_command_works_or_refuses_and_writes_nothing_elsewhere(
    name: str, command: tuple[Any, ...], run_dir: Any, tmp_path: Path
) -> None:
    original = (run_dir / name).read_bytes()
    document = document_of(run_dir / name)
    out = tmp_path / "out"

    def check(data: Any) -> None:
        (run_dir / name).write_bytes(hostile_text(document, data) + b"\n")
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        before = everything(run_dir.parent)
        words = [word.format(run=run_dir, other=run_dir.with_name("other"), out=out) for word in command]
        told, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(errors):
            code = run_command(words)
        assert code in (0, 2, 97, 99), (code, errors.getvalue()[-2000:])
        if code in (2, 99):
            assert len(errors.getvalue().splitlines()) == 2, errors.getvalue()[:2000]
        assert everything(run_dir.parent) == before
        assert {path.name for path in tmp_path.iterdir()} == {"out"}

    try:
        fuzz(check, st.data(), seconds=SECONDS / len(COMMANDS) / 2, examples=8)
    finally:
        (run_dir / name).write_bytes(original)
