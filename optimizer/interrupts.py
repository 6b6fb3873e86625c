"""Ctrl-C at a terminal; `loadgen.interrupts` has it, for both commands."""

from __future__ import annotations

from loadgen.interrupts import Stop, finish_on_first_interrupt

__all__ = ["Stop", "finish_on_first_interrupt"]
