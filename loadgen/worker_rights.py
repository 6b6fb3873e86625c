"""What a worker on another machine is given where it is started, because it never travels between machines."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRights:
    """The headers to send, to which server, and whether it may be on another machine than the worker (`--yes`).

    `secret` is that of the test, which the master has as well. `server` None: any, and there are no headers.
    """

    secret: bytes = field(repr=False)
    server: str | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    may_load_others: bool = False
