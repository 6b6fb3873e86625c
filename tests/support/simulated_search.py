"""A whole search on a simulated bench, in virtual time."""

from collections.abc import Callable
from pathlib import Path

from simulated_bench import SimulatedBench

from model_repo.spec import Engine, TensorSpec
from search import events
from search.budget import Budget
from search.certification import Certified, certify_best
from search.ledger import Ledger, open_ledger
from search.records import Slo
from search.space import MachineLimits, SearchSpace, search_space
from search.study import Search

SLO = Slo(limit_ms=50.0)


def space_in(folder: Path, *, rows_per_request: int = 1) -> SearchSpace:
    file = folder / "model.onnx"
    file.write_bytes(b"x")
    tensor = TensorSpec(name="x", datatype="FP32", shape=(3,))
    engine = Engine(
        model_name="m",
        backend="onnxruntime",
        precision="fp32",
        model_file="model.onnx",
        files=(("model.onnx", file),),
        inputs=(tensor,),
        outputs=(tensor,),
        batched=True,
    )
    limits = MachineLimits(cores=2, memory_bytes=2**34)
    return search_space((engine,), limits, limit_ms=SLO.limit_ms, rows_per_request=rows_per_request)


def search_on(
    bench: SimulatedBench,
    space: SearchSpace,
    folder: Path,
    *,
    slo: Slo = SLO,
    seed: int = 3,
    storage: str = "sqlite://",
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Ledger, Certified | None, list[events.Event]]:
    seen: list[events.Event] = []
    ledger = open_ledger(space, folder, storage=storage, seed=seed)
    budget = Budget(total_s=600.0)
    common = {"slo": slo, "budget": budget, "seed": seed, "on_event": seen.append, "stop": stop}
    common["demand"] = bench.demand
    Search(ledger=ledger, bench=bench, **common).run()
    return ledger, certify_best(ledger, bench, **common), seen
