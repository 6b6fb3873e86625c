"""Choose the protocol of a run's requests: measure once what each of Triton's front ends lets through."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

from loadgen.errors import LoadError
from loadgen.files import write_atomically
from loadgen.processes import scratch_folder
from loadgen.spec.plan import ClosedLoopPlan, Payload
from loadgen.spec.target import Target
from loadgen.traffic.model_info import bytes_per_value
from model_repo.errors import ModelLoadFailed, ServerError
from model_repo.repository.write import RUNTIME, write_repository
from model_repo.server.hosts import serve_repository
from model_repo.server.triton import with_usable_runtime
from model_repo.spec import Protocol, ServingConfig
from optimizer.config import OptimizeConfig
from optimizer.machine.hardware import answers_kept
from optimizer.run.prepare import Prepared
from optimizer.run.serving import load_generator, server_options
from optimizer.run.workload_inputs import payload_of
from search.records.recommendation import BETTER, FrontEndsRecord
from search.records.run_files import read_records
from search.simulator.service_times import answered_per_s
from search.simulator.surrogate import engine_alone_per_s, kinds_to_profile
from search.trials import events
from search.trials.events import OnEvent, timed_step

log = logging.getLogger("tritune.front_ends")

FRONT_ENDS_FILE = "front_ends.jsonl"

FEWEST_USERS, GROWTH, MOST_USERS = 4, 4, 256
"""Closed loops have 4, 16, 64 or 256 users: with 512 Triton loses answers over HTTP (ADR 9)."""

LOOP_S, ROUNDS = 0.25, 5
"""Each protocol gets five loops of 0.25 s, in turn; one before them, often slower, does not count."""

LARGE_BODY_BYTES = 4096  # to copy smaller ones takes no time

_NOTHING_COMPUTED = """backend: "python"
max_batch_size: {batch}
input {{ name: "x" data_type: TYPE_UINT8 dims: {bytes_in} }}
output {{ name: "y" data_type: TYPE_UINT8 dims: {bytes_out} }}
dynamic_batching {{ }}
instance_group {{ count: {instances} kind: KIND_CPU }}
"""
_MODEL_PY = """import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent))

from onnx_runtime import output_tensor


class TritonPythonModel:
    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(one, "x").shape()[0] for one in requests]
        zeros = [output_tensor("y", np.zeros((n, {bytes_out}), np.uint8)) for n in rows]
        return [pb_utils.InferenceResponse([one]) for one in zeros]
"""

MeasureFrontEnds = Callable[[OptimizeConfig, Prepared], FrontEndsRecord | None]


def with_protocol(
    config: OptimizeConfig, prepared: Prepared, measure: MeasureFrontEnds, on_event: OnEvent
) -> tuple[OptimizeConfig, FrontEndsRecord | None]:
    """Return the configuration with gRPC if it is better, else HTTP, and what `measure` found now or once."""
    path, found = config.output / FRONT_ENDS_FILE, None
    if config.protocol != "auto":
        return config, next(iter(read_records(path, FrontEndsRecord, what="the rates of both protocols")), None)
    if config.server != "remote":
        try:
            with timed_step(on_event, "choice of the protocol"):
                found = measure(config, prepared)
        except (ServerError, LoadError) as error:
            text = f"HTTP, as gRPC could not be compared with it: {str(error).splitlines()[0]}"
            on_event(events.Note(text=text, warning=True))
    write_atomically(path, "" if found is None else f"{found.model_dump_json()}\n")
    return replace(config, protocol=(found and found.better) or "http"), found


def measure_front_ends(config: OptimizeConfig, prepared: Prepared) -> FrontEndsRecord | None:
    """Return what HTTP and gRPC let through; None if a loop gets no answer.

    A server of its own answers both, with the first kind in the order of profiling whose engine loads. Raises
    ServerError and LoadError.
    """
    space, limit_ms = prepared.space, config.limits[0].limit_ms
    points = [space.spread(1.0, None)] if space.members else kinds_to_profile(space, limit_ms=limit_ms)
    kinds = {(one["engine"], one.get("cuda_graphs")): one for one in reversed(points)}
    *others, last = [one for one in points if one in kinds.values()]
    for knobs in others:
        try:
            return _measured(config, prepared, space.config(knobs))
        except ModelLoadFailed as failure:
            log.warning("%s", failure)
    return _measured(config, prepared, space.config(last))


def _measured(config: OptimizeConfig, prepared: Prepared, served: ServingConfig) -> FrontEndsRecord | None:
    """Add users until HTTP lets no more through, or the mean latency exceeds the limit; then compare in turns."""
    limit_ms, engine = config.limits[0].limit_ms, served.engine
    enough_per_s = 1000 / limit_ms  # of each user
    with _loops(config, prepared, partial(write_repository, config=served)) as loop:
        per_s = partial(loop, engine.model_name, payload_of(config, engine))
        users, before_per_s = FEWEST_USERS, 0.0
        while (now_per_s := per_s("http", users)) > max(BETTER * before_per_s, enough_per_s * users):
            if users == MOST_USERS:
                break
            users, before_per_s = GROWTH * users, now_per_s
        rounds = [(per_s("http", users), per_s("grpc", users)) for _ in range(1 + ROUNDS)]
    http, grpc = zip(*rounds[1:], strict=True)
    if not all((*http, *grpc)):
        return None
    kept = answers_kept()
    found = FrontEndsRecord(http=http, grpc=grpc, http_loses_from_per_s=kept and kept * enough_per_s)
    alone_per_s = engine_alone_per_s(engine, limit_ms=limit_ms) / config.client_batch
    if alone_per_s <= BETTER * max(map(fmean, found.usable.values())):
        return found
    try:
        return found.changed(with_input_types=_with_fewer_bytes(config, prepared, served, found, users))
    except (ServerError, LoadError) as error:  # the choice does not need it
        log.warning("smaller requests were not measured: %s", error)
        return found


@contextmanager
def _loops(
    config: OptimizeConfig, prepared: Prepared, write: Callable[..., object]
) -> Iterator[Callable[[str, Payload, Protocol, int], float]]:
    """Yield a function that returns the rate of a model's users; a server serves what `write` has written."""
    with scratch_folder("front-ends", config.output) as scratch, load_generator(config, prepared) as generator:
        options = server_options(config, scratch, gpu=bool(prepared.machine.gpus))
        options = with_usable_runtime(replace(options, http_port=None, grpc_port=None, exit_grace_s=0.0))
        write(scratch / "models", runtime=options.runtime_or_default)
        with serve_repository(scratch / "models", options) as server:

            def per_s(model: str, payload: Payload, protocol: Protocol, users: int) -> float:
                target = Target(url=server.endpoint.url(protocol), model_name=model)
                plan = ClosedLoopPlan(concurrency=users, duration_s=LOOP_S)
                return answered_per_s(generator.run(target, plan, payload=payload).log)

            yield per_s


def _with_fewer_bytes(
    config: OptimizeConfig, prepared: Prepared, served: ServingConfig, found: FrontEndsRecord, users: int
) -> dict[str, float]:
    """Return by `--input-type` what the better protocol lets through to models that compute nothing.

    Their requests have the bytes of the engine's, with its largest fp32 input as fp16 or uint8. Empty: none.
    """
    engine = served.engine
    sizes = {one.name: math.prod(one.concrete_shape or one.shape) for one in engine.inputs}
    floats = [one.name for one in engine.inputs if one.datatype == "FP32"]
    bytes_in = sum(sizes[one.name] * bytes_per_value(one.datatype) for one in engine.inputs)
    ours = config.server == "embedded" and engine.batched and not engine.own and not config.input_types
    if not ours or not floats or bytes_in < LARGE_BODY_BYTES:
        return {}
    largest = max(floats, key=lambda name: sizes[name])
    bytes_out = sum(abs(math.prod(one.shape)) * bytes_per_value(one.datatype) for one in engine.outputs)
    saved = {"uint8": 3 * sizes[largest], "fp16": 2 * sizes[largest]}

    def write(repository: Path, **_: object) -> None:
        for name, fewer in saved.items():
            shape = {"bytes_in": bytes_in - fewer, "bytes_out": bytes_out}
            (repository / name / "1").mkdir(parents=True)
            (repository / name / "1" / "model.py").write_text(_MODEL_PY.format(**shape))
            shutil.copy(RUNTIME / "onnx_runtime.py", repository / name / "1")
            text = _NOTHING_COMPUTED.format(batch=served.max_batch_size, instances=served.instance_count, **shape)
            (repository / name / "config.pbtxt").write_text(text)

    payload, protocol = Payload(batch_size=config.client_batch), found.better or "http"
    with _loops(config, prepared, write) as loop:
        rates = {name: [loop(name, payload, protocol, users) for _ in range(1 + ROUNDS)][1:] for name in saved}
    return {f"{largest}:{name}": fmean(each) for name, each in rates.items() if all(each)}
