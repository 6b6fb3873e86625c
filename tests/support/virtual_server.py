"""A server, a client's connections and their clock in virtual time, and load processes that use them."""

from collections.abc import Callable
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

from loadgen.measurement.first_answers import Turn
from loadgen.sending.children import Message
from loadgen.sending.request_table import LogTable
from loadgen.sending.send_loop import Shard
from loadgen.sending.worker import run_shard
from loadgen.status import OK
from loadgen.wire.load_wire import Finished

MS = 1_000_000
WALL_NS = 1_700_000_000_000 * MS
BEGIN_NS = 7 * MS  # the clock when a run begins


class VirtualServer:
    """A wire, its poller and its clock: each answer reaches the kernel `takes_ns(row)` after its request left.

    Sending and reading one take `send_ns` and `read_ns`. `stamp` makes the kernel's note of an answer from when it
    really came; `outcome` how a row ends. A row that `blocks` leaves only once the loop looks at its connection.
    """

    answers_may_wait = True
    bytes_sent = bytes_received = connections_opened = connections_closed = resent = 0
    error_example: str | None = None
    addresses = SimpleNamespace(may_be_several=False, names=["one"])
    places = bytearray()
    turn = Turn()

    @property
    def in_front(self) -> dict[str, int]:
        return {}

    def __init__(
        self,
        takes_ns: Callable[[int], int],
        *,
        send_ns: int = 0,
        read_ns: int = 0,
        stamp: Callable[[int], int] = lambda came_ns: came_ns,
        outcome: Callable[[int], int] = lambda row: OK,
        blocks: Callable[[int], bool] = lambda row: False,
    ) -> None:
        self.takes_ns, self.send_ns, self.read_ns, self.stamp, self.outcome, self.blocks = (
            takes_ns,
            send_ns,
            read_ns,
            stamp,
            outcome,
            blocks,
        )
        self.blocked = False
        self.waits = 0  # for an answer or a time, whichever comes first
        self.now_ns = BEGIN_NS
        self.arrived_ns: list[int] = []  # since the run began, one for each request that left
        self.in_flight: dict[int, int] = {}  # when the answer comes
        self.finished: Finished = lambda _row, _outcome, _arrived_ns: None
        self.most_in_flight = self.most_sent_between_reads = self.longest_unread_ns = self._sent_since = 0
        self.given_up: list[int] = []

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return WALL_NS + self.now_ns

    def send(self, row: int) -> bool:
        self.arrived_ns.append(self.now_ns - BEGIN_NS)
        self.in_flight[row] = self.now_ns + self.takes_ns(row)
        self.now_ns += self.send_ns
        self._sent_since += 1
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        self.most_sent_between_reads = max(self.most_sent_between_reads, self._sent_since)
        self.blocked = self.blocked or self.blocks(row)
        return not self.blocks(row)

    def wait(self, timeout_ns: int) -> list[tuple[int, int]]:
        assert self.now_ns < 60_000 * MS, "the loop goes on for ever"
        self._sent_since, self.blocked = 0, False
        self.waits += timeout_ns > 0
        self.now_ns = max(self.now_ns, min([self.now_ns + max(0, timeout_ns), *self.in_flight.values()]))
        return [(row, 1) for row, came_ns in self.in_flight.items() if came_ns <= self.now_ns]

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        assert not self.blocked, "nothing would send the rest of the request"
        self.now_ns += round(seconds * 1e9)

    def handle(self, fd: int, events: int) -> None:
        assert events == 1, "what the poller reported"
        self._sent_since = 0
        came_ns = self.in_flight.pop(fd)
        self.longest_unread_ns = max(self.longest_unread_ns, self.now_ns - came_ns)
        self.now_ns += self.read_ns
        stamp = self.stamp(came_ns)
        self.finished(fd, self.outcome(fd), stamp and WALL_NS + stamp)

    def give_up(self, row: int) -> None:
        self.given_up.append(row)
        del self.in_flight[row]


class VirtualProcess:
    """A load process with a virtual server of its own; its shard is sent within the call that starts it."""

    pid = 0

    def __init__(self, server: VirtualServer) -> None:
        self._server = server
        self._answers: list[Message] = []

    def send(self, message: Message, fd: int | None = None) -> None:
        if message["do"] == "prepare":
            self._table, self._shard = LogTable(cast("int", fd), message["rows"]), Shard(**message["shard"])
            self._answers.append({"prepared": True})
        elif message["do"] == "statistics":
            self._answers.append({"statistics": None})
        elif message["do"] == "start":
            prepared: Any = SimpleNamespace(
                wire=self._server, notes=(), turn=self._server.turn, error_example=None
            )
            poller = clock = cast("Any", self._server)
            result = run_shard(self._shard, self._table, prepared, poller, BEGIN_NS, lambda: False, clock)
            self._answers.append(asdict(result))

    def receive(self, within_s: float = 0.0) -> Message:
        return self._answers.pop(0)

    def waits(self, timeout_s: float) -> bool:
        return bool(self._answers)

    def check(self) -> None: ...
    def close(self) -> None: ...
