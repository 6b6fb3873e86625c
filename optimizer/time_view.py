"""Where the time goes, on the terminal: stages of a request, the slowest layers, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from optimizer.time_words import BOUND_WORDS, STAGES, stage_means

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from search.engine_profile import TimeUseRecord
    from search.records import MeasurementRecord, RecommendationRecord

UNKNOWN = "-"
SHOWN_LAYERS = 5
"""Of the ten in the record and the page."""


def time_table(found: RecommendationRecord) -> Table:
    """Mean ms of a request in each stage, of the recommendation and of Triton's default."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("where the time goes (mean, ms)")
    shown = [("recommended", found.winner.measurement)]
    if found.baseline is not None and found.baseline.number != found.winner.number:
        shown.append(("Triton default", found.baseline.measurement))
    for title, _ in shown:
        table.add_column(title, justify="right")
    columns = [stage_means(measured) if measured is not None else {} for _, measured in shown]
    for stage in STAGES:
        if stage != "response" or any(column.get(stage) is not None for column in columns):  # new in the records
            table.add_row(stage, *(_figure(column.get(stage)) for column in columns))
    table.add_row("(mean batch size)", *(_figure(_batch(measured)) for _, measured in shown))
    return table


def _batch(measured: MeasurementRecord | None) -> float | None:
    return None if measured is None or measured.server is None else measured.server.mean_batch_size


def _figure(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def layer_parts(used: TimeUseRecord) -> Iterator[RenderableType]:
    """The slowest layers of the recommendation's engine, and the paragraph."""
    profile = used.winner
    if profile is not None and profile.layers:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column(f"slowest of {profile.layer_count} layers, batch {profile.batch_size}", overflow="fold")
        table.add_column("operator")
        table.add_column("ms", justify="right")
        table.add_column("share", justify="right")
        table.add_column("bound by")
        for layer in profile.layers[:SHOWN_LAYERS]:
            share = f"{100 * layer.share:.0f} %"
            table.add_row(layer.name, layer.operator, f"{layer.mean_ms:.3g}", share, BOUND_WORDS[layer.bound])
        yield table
        yield ""
    yield Text.from_markup(f"[bold]Time[/bold]   {escape(used.summary)}")
