"""Compare the search with exhaustive search on the real embedded Triton: does it find the best configuration?

    python benchmarks/exhaustive.py PHASE --on cnn|transformer|tight --out DIR [--minutes M]
    python benchmarks/exhaustive.py PHASE --model MODEL.onnx --limit-ms L --out DIR [--minutes M] \
        [--precisions fp16 --batches 8,32,64 --instances 1,2,4 --delays-ms 0]
    python benchmarks/exhaustive.py report --out DIR

`--share 2/3` does every third step, from the second: three calls with the same `--out`, each with its own
processors (taskset), do a phase together. The next phase begins once all of them have ended.

Phases, in this order; `all` runs the first five:

- `eliminate`: every configuration of the space is tested 3 % below the best rate so far. One that clearly violates
  the limit there (overloaded, or twice by the sequential test at 99 %) cannot be the best; nor can one that
  violates it in runs of `--edge-s` both there and 7 % below the best. The others are bisected. A sleeping model is
  also eliminated if its measured executions, with all instances busy, give too low a throughput for that rate. The
  simulator's predictions order the configurations, for speed; they decide nothing.
- `sample`: a plain bisection of some configurations drawn at random, to extrapolate the cost for all.
- `search`: the search and certification of `optimize`, once per seed, each on its own server.
- `capacity`: a long bisection of the chosen configurations and of the best three of the elimination, with equal
  arrivals.
- `audit`: new runs of `--audit-s` at each certified rate, each on a new server.
- `tpe`: Optuna's TPE, 30 trials of 7 probes of 10 s. Without it, `report` compares nothing with TPE.

DIR/NAME.jsonl gets a raw line for every step, and a second call continues after the last one. `--minutes` starts
only steps that can end by then, as far as known.

The first three models sleep by a law of the batch size and the number of busy instances (sleeping_model.py). On
shared hardware, whose speed drifts by a factor of two to three, only a sleep takes the same time an hour later. A
real model is measured too; its rates are corrected to equal execution times.

The thresholds were written here before the first run; a miss is reported, the threshold stays:

- audited capacity of the choice: at least 97 % of the best in the mean of ten seeds, 93 % in the worst
- certified rate at most 1.02 times that capacity in at least 95 % of runs
- the limit met at the certified rate in at least 19 of 20 new 60 s runs
- seconds of load, certificates included: at most a tenth of plain exhaustive bisection (which certifies nothing),
  extrapolated from the sample, and at most a fifth of Optuna's TPE
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

from lib.ablation import ABLATIONS
from lib.exhaustive.call import Call, Settings
from lib.exhaustive.phases import PHASES
from lib.exhaustive.report import report
from lib.exhaustive.subjects import SLEEPS, model_subject, sleeping_subject

from loadgen.spec.limits import LatencyLimit
from optimizer.config import OptimizeConfig

IN_ORDER = ("eliminate", "sample", "search", "capacity", "audit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=[*PHASES, "all", "report"])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--on", choices=[*SLEEPS])
    what.add_argument("--model", type=Path)
    grid = parser.add_argument_group("the space of --model")
    grid.add_argument("--limit-ms", type=float, default=50.0, help="p99")
    grid.add_argument("--precisions", type=words, default=("fp32",))
    grid.add_argument("--batches", type=numbers, help="as in `optimize` where it is left out, as the next two")
    grid.add_argument("--instances", type=numbers)
    grid.add_argument("--delays-ms", type=numbers)
    grid.add_argument("--io-precision", default="keep")
    grid.add_argument("--protocol", default="http")
    grid.add_argument("--shared-memory", default="none")
    grid.add_argument("--cache-dir", type=Path)
    parser.add_argument("--share", type=share, default=(1, 1), metavar="I/N")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--seeds", type=int, default=10, help="searches")
    parser.add_argument(
        "--budget-s", type=float, default=600.0, help="of a search, as `--time-budget` of optimize"
    )
    parser.add_argument("--without", choices=ABLATIONS, default="none", help="search without this part of it")
    parser.add_argument("--samples", type=int, default=12, help="configurations of `sample`")
    parser.add_argument("--edge-s", type=float, default=15.0)
    parser.add_argument("--capacity-s", type=float, default=40.0, help="the longest run of `capacity`")
    parser.add_argument("--audit-s", type=float, default=60.0)
    parser.add_argument("--audits", type=int, default=1, help="fresh runs for each promise")
    arguments = parser.parse_args()
    if arguments.phase == "report":
        report(sorted(arguments.out.glob("*.jsonl")))
        return
    if (arguments.on is None) == (arguments.model is None):
        parser.error("neither --on nor --model says what to measure; give one of them")
    given = {name: getattr(arguments, name) for name in Settings.__dataclass_fields__}
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        subject = (
            sleeping_subject(arguments.on, folder)
            if arguments.model is None
            else model_subject(config_of(arguments, folder), grid_of(arguments))
        )
        call = Call(subject=subject, out=arguments.out, minutes=arguments.minutes, settings=Settings(**given))
        try:
            for phase in IN_ORDER if arguments.phase == "all" else (arguments.phase,):
                PHASES[phase](call)
        except KeyboardInterrupt:
            sys.exit("Stopped; the same command goes on with the step that was stopped.")


def config_of(arguments: argparse.Namespace, folder: Path) -> OptimizeConfig:
    """Return the configuration that `optimize` would get for the model."""
    return OptimizeConfig(
        model=arguments.model,
        limits=(LatencyLimit(limit_ms=arguments.limit_ms),),
        output=folder,
        precisions=arguments.precisions,
        io_precision=arguments.io_precision,
        protocol=arguments.protocol,
        shared_memory=arguments.shared_memory,
        cache_dir=arguments.cache_dir,
        price_per_hour_usd=1.0,  # no figure here depends on the price
    )


def grid_of(arguments: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """Return axes of the space that replace those of `optimize`."""
    delays_ms = arguments.delays_ms
    given = {
        "max_batch_size": arguments.batches,
        "instance_count": arguments.instances,
        "max_queue_delay_us": delays_ms and tuple(1000 * delay for delay in delays_ms),
    }
    return {name: values for name, values in given.items() if values is not None}


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def share(text: str) -> tuple[int, int]:
    which, _, of = text.partition("/")
    if not 1 <= int(which) <= int(of):
        raise ValueError(text)
    return int(which), int(of)


if __name__ == "__main__":
    main()
