"""Locust's web UI in a process of its own: it shows rows that its parent sends, and reports its Stop button."""

from __future__ import annotations

import logging
import sys

import gevent
from locust import User, task
from locust.env import Environment
from locust.stats import stats_history

from loadgen.sending.children import Channel, Message, channel_to_parent
from loadgen.status import outcome_name


class Shown(User):
    """Stands for the load, which other processes send; does nothing itself."""

    @task
    def wait_for_the_end(self) -> None:
        """Sleep on, so that the UI says "running"."""
        gevent.sleep(3600)


def show(environment: Environment, message: Message) -> None:
    """Count the requests that came back since the last message, or begin anew."""
    assert environment.runner is not None
    stats = environment.runner.stats
    if message["do"] == "reset":
        stats.clear_all()
        return
    name = message["name"]
    for latency_ms, outcome in zip(message["latency_ms"], message["outcome"], strict=True):
        stats.log_request("infer", name, latency_ms, 0)
        if outcome:
            stats.log_error("infer", name, outcome_name(outcome))


def serve(channel: Channel, host: str, port: int, target: str) -> None:
    """Until the parent closes its end."""
    environment = Environment(user_classes=[Shown], host=target)
    runner = environment.create_local_runner()
    web_ui = environment.create_web_ui(host, port)
    runner.start(1, spawn_rate=1)
    history = gevent.spawn(stats_history, runner)
    environment.events.test_stop.add_listener(lambda **_: channel.send({"stop": True}))  # type: ignore[no-untyped-call]
    channel.send({"ready": True})
    try:
        while True:
            message, _ = channel.receive()
            show(environment, message)
    except (EOFError, ConnectionError):
        history.kill()
        web_ui.stop()  # type: ignore[no-untyped-call]


def main() -> None:
    """`python -m loadgen.command.web_process PARENT_PID HOST PORT TARGET`; stdin is one end of a socket pair."""
    channel = channel_to_parent()
    logging.basicConfig(level=logging.ERROR)
    serve(channel, sys.argv[2], int(sys.argv[3]), sys.argv[4])


if __name__ == "__main__":
    main()
