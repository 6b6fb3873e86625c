"""The record of answers under load, which were compared with those to the same requests sent alone."""

from __future__ import annotations

from pydantic import Field

from loadgen.finite import Count
from search.record import Record


class AnswersRecord(Record):
    """How answers under load compare with those to the same requests, sent one at a time to the same server."""

    compared: Count = Field(default=0, description="Answers under load that were compared.")
    differing: Count = Field(
        default=0,
        description="Those that differ. Of a configuration that is recommended, they are of few requests, such as "
        "near ties.",
    )
    failed: Count = Field(default=0, description="Requests under load without an answer.")
    mean_batch_size: float | None = Field(
        default=None, description="Mean number of rows in the batches meanwhile; null if not measured."
    )
    mixed: bool = Field(default=False, description="True if so many differ that batches must mix their rows.")
    unseen: str = Field(default="", description="Why mixed rows would not have been seen; empty if they would.")

    @property
    def text(self) -> str:
        """What was seen, in a sentence without its full stop."""
        if self.mixed:
            return (
                f"{self.differing:,} of {self.compared:,} answers under load differ from the answers to the same "
                "requests sent one at a time: the rows of a batch are mixed"
            )
        if self.unseen:
            return f"It was not seen whether batches mix their rows: {self.unseen}"
        batches = (
            "" if self.mean_batch_size is None else f", in batches of {self.mean_batch_size:.1f} rows on average,"
        )
        few = f", but for {self.differing:,}" if self.differing else ""
        same = "equal the answers to the same requests sent one at a time"
        return f"{self.compared:,} answers under load{batches} {same}{few}"
