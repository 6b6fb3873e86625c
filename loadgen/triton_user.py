"""Locust users that load a model on Triton, for your own locustfile and for Locust's web UI.


    class Resnet(TritonHttpUser):
        host = "http://127.0.0.1:8000"
        model_name = "resnet"
        rate_per_s = 200

`locust -f that_file.py --rate 300` sends its load; `--processes 4` shares the rate among four processes.
"""

from __future__ import annotations

import logging
import signal
import time
from argparse import ArgumentError, ArgumentParser, Namespace
from pathlib import Path
from typing import Any, ClassVar, Self

import gevent
from gevent import GreenletExit
from locust import LoadTestShape, User, task
from locust import events as locust_events
from locust.env import Environment
from locust.exception import CatchResponseError, StopUser
from locust.runners import STATE_INIT, STATE_RUNNING, Runner, WorkerRunner
from locust.user.task import LOCUST_STATE_STOPPING

from loadgen.errors import LoadError, UserError
from loadgen.measurement.request_log import RequestLog
from loadgen.sending.generator import LoadGenerator, LocalWorkers
from loadgen.sending.plan_run import LoadJob
from loadgen.spec.plan import Arrivals, LoadPlan, Payload, arrivals_from_text
from loadgen.spec.target import Target
from loadgen.spec.units import duration_ms
from loadgen.status import outcome_name

log = logging.getLogger("tritune.locust")

_OF_TARGET = (
    "model_name", "model_version", "headers", "ca_cert", "insecure", "client_cert", "client_key", "server_name",
)  # fmt: skip
_LOOK_S = 0.1  # at most as long are events fired at once
_EVENTS_MAX = 5_000


class RequestEvents:
    """Fires Locust's `request` event once for each request of a log that grows, in the order of the schedule.

    `order` is an exception by which a listener ends the test, such as StopUser.
    """

    def __init__(self, user: User, *, name: str) -> None:
        self.order: Exception | None = None
        self._request = user.environment.events.request
        self._context = user.context()
        self._name = name
        self._fired = 0

    def fire(self, ended: RequestLog, origin_ns: int) -> bool:
        """Fire events that are left for 0.1 s; False if all were. `origin_ns`: of the log, monotonic."""
        until_s, origin_s = time.monotonic() + _LOOK_S, time.time() - (time.monotonic_ns() - origin_ns) / 1e9
        new = ended.rows(self._fired, min(len(ended), self._fired + _EVENTS_MAX))
        columns = (new.scheduled_ns.tolist(), new.latency_ns.tolist(), new.outcome.tolist())
        for scheduled_ns, latency_ns, outcome in zip(*columns, strict=True):
            self._fired += 1
            try:
                self._request.fire(
                    request_type="infer",
                    name=self._name,
                    response_time=latency_ns / 1e6,
                    response_length=0,
                    response=None,
                    context=self._context,
                    exception=CatchResponseError(outcome_name(outcome)) if outcome else None,
                    start_time=origin_s + scheduled_ns / 1e9,
                )
            except Exception as order:  # Locust lets only those out of a listener that order something
                self.order = order
            if time.monotonic() > until_s:
                break
        return self._fired < len(ended)


class TritonUser(User):
    """One open loop at `rate_per_s`, which a load process sends: no listener and no other user delays a request.

    Locust's `request` event is fired once for each request, soon after its end, with the latency from the
    scheduled time; Locust's statistics and CSV files follow from it. If a locustfile has no other users, Locust
    starts one user in each process, `rate_per_s` is that of all together, and the test ends with the schedule.
    If it has others, each user sends the whole rate, and a process can run only one. In a distributed run every
    worker has its own seed. `--model`, `--rate`, `--duration` and `--arrivals` override these attributes.
    """

    abstract = True
    timeout_s = 10.0
    _running: ClassVar[bool] = False
    model_name = ""
    model_version = ""
    headers: tuple[tuple[str, str], ...] = ()
    ca_cert: Path | None = None
    insecure = False
    client_cert: Path | None = None
    client_key: Path | None = None
    server_name: str | None = None
    rate_per_s = 1.0
    duration_s: float | None = None  # None: Locust's run time, else ten minutes
    arrivals = Arrivals()
    seed = 0
    max_in_flight: int | None = None
    payload = Payload()

    @task
    def follow_schedule(self) -> None:
        """Send the schedule once, then end this user. After an error Locust exits with code 2."""
        if TritonUser._running:
            log.error("An open-loop user is the whole load of a process, so a second one does not start.")
            log.error("Raise rate_per_s, or run with --processes N.")
            raise StopUser
        TritonUser._running = True
        try:
            plan = self._plan()
            with LoadGenerator() as generator:
                self._send(generator.workers_for(LoadJob(self._target(), plan, self.payload, limit_ms=None)))
        except (LoadError, UserError) as error:
            log.error("%s", error)  # noqa: TRY400 - two lines that say what to do, not a traceback
            self.environment.process_exit_code = 2
            self.environment.events.user_error.fire(user_instance=self, exception=error, tb=error.__traceback__)
        finally:
            TritonUser._running = False
        raise StopUser

    def _send(self, workers: LocalWorkers) -> None:
        """Let the load process send, and fire events, until the last is fired."""
        events = RequestEvents(self, name=self.model_name)
        workers.prepare()
        workers.start()
        sending = events_left = True
        while sending or events_left:
            try:
                if sending:
                    sending = workers.wait(_LOOK_S)
                else:
                    gevent.sleep(0.001)
                events_left = events.fire(workers.log(), workers.origin_ns)
            except GreenletExit:  # Locust stops this user: what is in flight is waited for
                self._state = LOCUST_STATE_STOPPING
            if sending and (self._state == LOCUST_STATE_STOPPING or events.order is not None):
                workers.stop()
        if events.order is not None:
            raise events.order

    def _plan(self) -> LoadPlan:
        """Return the plan. Options of the command line, or of the start form, override the attributes."""
        options = vars(self.environment.parsed_options or Namespace())
        # A default came from the class, whose attributes may have changed since.
        given = {name: value for name, value in options.items() if value != _DEFAULTS.get(name)}
        self.model_name = given.get("model") or self.model_name
        longest_s = given.get("longest_s") or given.get("run_time")
        duration_s = self.duration_s or longest_s or 600.0
        if text := given.get("duration"):
            duration_s = duration_ms(text, option="--duration", default_unit="s") / 1e3
        return LoadPlan(
            rate_per_s=(given.get("rate") or self.rate_per_s) / given.get("open_loops", 1),
            duration_s=float(min(duration_s, longest_s or duration_s)),
            seed=self.seed + max(0, getattr(self.environment.runner, "worker_index", 0)),
            arrivals=arrivals_from_text(given["arrivals"]) if given.get("arrivals") else self.arrivals,
            timeout_s=self.timeout_s,
            max_in_flight=self.max_in_flight,
        )

    def _target(self) -> Target:
        return Target(
            url=self.host or self.environment.host or "",
            **{name: getattr(self, name) for name in _OF_TARGET},
        )


class TritonHttpUser(TritonUser):
    """Loads over HTTP/1.1 and Triton's binary tensor extension; `host` is http:// or https://."""

    abstract = True
    host = "http://127.0.0.1:8000"


class TritonGrpcUser(TritonUser):
    """Loads over gRPC; `host` is grpc:// or grpcs://."""

    abstract = True
    host = "grpc://127.0.0.1:8001"


def _users(kind: type[TritonUser]) -> list[type[TritonUser]]:
    below = [user for child in kind.__subclasses__() for user in _users(child)]
    return below if kind.abstract else [kind, *below]


_DEFAULTS: dict[str, Any] = {}
"""What the start form shows as the model and the rate of the locustfile."""


class _Rate(float):
    """Requests per second, read from a text as Locust reads its form; an empty one is 0."""

    def __new__(cls, text: str | float) -> Self:
        return super().__new__(cls, text or 0.0)


_Rate.__name__ = "rate"  # Locust's error names the type


def _add_options(parser: ArgumentParser, **_: Any) -> None:
    """Add options, which Locust also shows in its start form. What is empty or 0 is as in the locustfile."""
    add = parser.add_argument
    users = _users(TritonUser)
    model, rate = (users[0].model_name, users[0].rate_per_s) if len(users) == 1 else ("", 0)
    _DEFAULTS.update(model=model, rate=float(rate))
    try:
        add("--model", default=model, help="its name on the server")
        add(
            "--rate",
            type=_Rate,
            default=_Rate(rate),
            help="requests per second of all; empty: as in the locustfile",
        )
        add("--duration", default="", help="such as 30s or 5m; empty: as in the locustfile")
        add("--arrivals", default="", help="such as gamma:cv=2; empty: as in the locustfile")
    except ArgumentError as error:  # the locustfile added it before
        _refuse(parser, error.argument_name)
    _guard(parser, parser)


_OURS = ("--model", "--rate", "--duration", "--arrivals")


def _guard(parser: ArgumentParser, container: Any) -> Any:
    """Return the parser, or a group of its options, which from now on refuses options with names of ours."""

    def guarded_add(*names: str, add: Any = container.add_argument, **options: Any) -> Any:
        for name in set(names).intersection(_OURS):
            _refuse(parser, name)
        return add(*names, **options)

    container.add_argument = guarded_add
    for kind in ("add_argument_group", "add_mutually_exclusive_group"):
        make = getattr(container, kind)
        setattr(container, kind, lambda *a, make=make, **options: _guard(parser, make(*a, **options)))
    return container


def _refuse(parser: ArgumentParser, name: str | None) -> None:
    parser.exit(
        2,
        f"error: this locustfile adds an option {name}, and tritune's users have one of that name.\n"
        f"       Rename it; theirs are {', '.join(_OURS)}.\n",
    )


_STYLE = """<style>
.MuiFormControl-root:has(input:disabled), button.MuiButton-colorSecondary:disabled {display: none}
.MuiCollapse-root:has(input[name=rate]) {height: auto !important; visibility: visible !important}
</style></head>"""
"""Locust greys out what a load shape decides, the numbers of users and Edit, and folds custom options. It has no
setting that leaves those out and shows these."""


_CSV_WAIT_S = 30.0


class OneUserPerProcess(LoadTestShape):
    """Runs one user in each process until the last has sent its schedule: Locust asks for no number of users."""

    _users = 1

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users and the users started per second; None ends the test."""
        runner: Any = self.runner
        workers = getattr(runner, "clients", None)  # those that are slow to start count as workers without users
        starting = workers and (workers.ready or workers.spawning)
        if runner.state == STATE_INIT:
            self._users = max(1, runner.worker_count)
            # Locust sends options that are not its own to the workers.
            options = runner.environment.parsed_options
            options.open_loops, options.longest_s = self._users, options.run_time
        elif runner.state == STATE_RUNNING and not starting and runner.user_count == 0:
            return None
        return self._users, float(self._users)


def set_up(environment: Environment, runner: Runner, web_ui: Any, **_: Any) -> None:
    """Let Locust start one user per process if all users are open loops, and end after their last requests."""
    main = gevent.getcurrent()
    for number in (signal.SIGINT, signal.SIGTERM):  # as Locust does, but never in the midst of the sending loop
        signal.signal(number, lambda *_: gevent.kill(main, KeyboardInterrupt))
    if isinstance(runner, WorkerRunner):
        return
    environment.events.quitting.add_listener(_complete)  # type: ignore[no-untyped-call]
    only_open_loops = all(issubclass(user, TritonUser) for user in environment.user_classes)
    names = [user.__name__ for user in environment.user_classes]
    if only_open_loops and len(names) > 1:
        log.warning("A process sends one open loop, and this locustfile has %d: %s.", len(names), ", ".join(names))
        log.warning("Name one of them, as in locust -f FILE %s.", names[0])
    if environment.shape_class is None and only_open_loops:
        environment.shape_class = OneUserPerProcess()  # type: ignore[no-untyped-call]
        environment.shape_class.runner = runner
        if web_ui is not None:
            web_ui.app.after_request(_restyle)


def _restyle(response: Any) -> Any:
    if response.mimetype == "text/html" and not response.direct_passthrough:
        response.set_data(response.get_data(as_text=True).replace("</head>", _STYLE, 1))
    return response


def _complete(environment: Environment, **_: Any) -> None:
    """Wait for the last requests, and until they are in the CSV files, which Locust writes once per second."""
    runner: Any = environment.runner
    runner.stop()
    runner.user_greenlets.join()  # Locust does not, if a listener ended the test
    runner.quit()
    prefix = getattr(environment.parsed_options, "csv_prefix", None)
    if prefix:
        file = Path(f"{prefix}_stats.csv")
        before_ns, until_s = file.stat().st_mtime_ns, time.monotonic() + _CSV_WAIT_S
        while file.stat().st_mtime_ns == before_ns and time.monotonic() < until_s:
            gevent.sleep(0.05)


locust_events.init_command_line_parser.add_listener(_add_options)  # type: ignore[no-untyped-call]
locust_events.init.add_listener(set_up)  # type: ignore[no-untyped-call]
