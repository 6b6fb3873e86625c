"""The base of everything in a run's files."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from loadgen.printable import printable_json


class Record(BaseModel):
    """Frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def model_dump_json(self, **options: Any) -> str:
        """As Pydantic's, and safe to look at on a terminal."""
        return printable_json(super().model_dump_json(**options))
