"""Record the directory of a finished run as a situation: what its last sentence follows from, and the sentence.

    python tests/support/recorded_situations.py RUN --name NAME --what "What was done to the machine."

The situation is appended to `tests/data/outcomes/recorded.jsonl`. Only what `conclude` reads is kept, with five
digits. The exit code is 1, and nothing is written, if the sentence of today's code is another than the run's own:
`--changed` records that of today's code.
"""

import argparse
import json
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from pydantic import TypeAdapter  # noqa: E402 - found by the line above

from loadgen.exit_codes import CODES  # noqa: E402
from optimizer.run.workload_inputs import workload_of  # noqa: E402
from optimizer.run_file import objective_of, saved_config, slo_of  # noqa: E402
from search.answer.conclusion import conclude  # noqa: E402
from search.answer.evidence import RunEvidence  # noqa: E402
from search.records.confirmations import read_confirmations  # noqa: E402
from search.records.recommendation import RecommendationRecord  # noqa: E402
from search.records.run_files import read_outcome, read_trials  # noqa: E402
from search.records.slo import ObjectiveRecord  # noqa: E402

FILE = ROOT / "tests" / "data" / "outcomes" / "recorded.jsonl"
RUN = TypeAdapter(RunEvidence)
DIGITS = 5

OF_A_TRIAL = {"why", "replay", "hardware", "worker", "schema_version"}
OF_A_LOAD_RUN = {"seed", "seconds", "answer"}
NOT_READ: dict[str, Any] = {
    "trials": {"__all__": {*OF_A_TRIAL}},
    "winner": {*OF_A_TRIAL, "load_runs"},
    "confirmations": {"__all__": {"schema_version"}},
}
"""Fields that `conclude` does not read."""


def evidence_in(run: Path) -> RunEvidence:
    """Return what the run had recorded when it ended. Raises BadInput if it has not ended."""
    config, outcome = saved_config(run), read_outcome(run)
    objective, workload = objective_of(config), workload_of(config, batched=True).record
    log = (run / "optimize.log").read_text()
    began, searched, certified = (phase_began(log, phase) for phase in ("prepare", "search", "certify"))
    return RunEvidence(
        slo=slo_of(config),
        trials=read_trials(run),
        confirmations=read_confirmations(run),
        objective=ObjectiveRecord(name=objective.name, rate_per_s=objective.rate_per_s),
        winner=outcome.winner if isinstance(outcome, RecommendationRecord) else None,
        interrupted=outcome.status == "interrupted",
        contention=outcome.contention,
        several_sizes=workload.mixed_shapes or workload.lengths is not None,
        budget_s=config.time_budget_s,
        prepared_s=(searched - began).total_seconds(),
        searched_s=(certified - searched).total_seconds(),
    )


def phase_began(log: str, phase: str) -> datetime:
    """Return when a phase began by the log, or when the run ended if that was before."""
    lines = re.findall(rf"(?m)^(\S+ \S+) DEBUG +PhaseStarted\(name='{phase}'", log)
    last = re.findall(r"(?m)^(\d{4}-\S+ \S+) (?:DEBUG|INFO|WARNING|ERROR)", log)[-1]
    return datetime.strptime((lines or [last])[0], "%Y-%m-%d %H:%M:%S,%f")


def trimmed(value: Any) -> Any:
    """Return the value with five digits, without what is empty."""
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {key: trimmed(part) for key, part in value.items()}
        case list():
            return [trimmed(part) for part in value]
    return value


def situation_of(run: Path, name: str, what: str) -> dict[str, Any]:
    """Return the situation, with the sentence that today's code concludes from what is kept of it."""
    kept = RUN.dump_python(evidence_in(run), mode="json", exclude=NOT_READ, exclude_defaults=True)
    for trial in kept["trials"]:
        trial["load_runs"] = [
            {key: value for key, value in one.items() if key not in OF_A_LOAD_RUN}
            for one in trial.get("load_runs", [])
        ]
    if kept.get("winner"):
        kept["winner"]["measurement"] = None
    kept = trimmed(kept)
    found = conclude(RUN.validate_json(json.dumps(kept)))
    expected = {
        "status": found.status,
        "exit_code": CODES[found.status],
        "sentences": [found.reason, found.advice],
    }
    return {"name": name, "what": what, "run": kept, "expected": expected}


def main(run: Path, name: str, what: str, *, changed: bool) -> int:
    """Append the situation to the file; return the exit code."""
    situation, outcome = situation_of(run, name, what), read_outcome(run)
    print("\n".join([situation["expected"]["status"], *situation["expected"]["sentences"]]))
    its_own = [outcome.status_reason, outcome.advice]
    if its_own != situation["expected"]["sentences"] and not changed:
        print("The run itself ended with:", *its_own, sep="\n", file=sys.stderr)
        return 1
    with FILE.open("a") as file:
        file.write(json.dumps(situation, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the directory of a finished run")
    parser.add_argument("--name", required=True, help="a name that no other situation has")
    parser.add_argument("--what", required=True, help="what was done to the machine, in a sentence")
    parser.add_argument("--changed", action="store_true", help="the sentence has been changed since the run")
    arguments = parser.parse_args()
    sys.exit(main(arguments.run, arguments.name, arguments.what, changed=arguments.changed))
