"""The base of everything in a run's files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
