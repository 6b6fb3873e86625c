"""What a worker on another machine is given where it is started, because it never travels between machines."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRights:
    """The headers to send, and whether servers that are not on the worker's machine may be loaded (`--yes`)."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    may_load_others: bool = False
