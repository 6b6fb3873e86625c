"""The protocol of a run is chosen by what each front end let through, once."""

from pathlib import Path
from typing import Any, cast

import pytest

from loadgen.errors import BadInput, LoadError
from loadgen.spec.limits import LatencyLimit
from model_repo.errors import ServerError
from model_repo.spec import Protocol
from optimizer.config import OptimizeConfig
from optimizer.run.front_ends import FRONT_ENDS_FILE, with_protocol
from optimizer.run.prepare import Prepared
from search.records.recommendation import FrontEndsRecord
from search.trials import events

HTTP = (4900.0, 5100.0, 5000.0)


GRPC_BETTER = FrontEndsRecord(http=HTTP, grpc=(9800.0, 9900.0, 10000.0))


def chosen(
    folder: Path, found: FrontEndsRecord | Exception, seen: list[Any] | None = None, **given: Any
) -> tuple[str, FrontEndsRecord | None]:
    config = OptimizeConfig(model="m", limits=(LatencyLimit(limit_ms=50.0),), output=folder, **given)

    def measure(*_: object) -> FrontEndsRecord:
        if isinstance(found, Exception):
            raise found
        return found

    config, kept = with_protocol(config, cast(Prepared, None), measure, ([] if seen is None else seen).append)
    return config.protocol, kept


@pytest.mark.parametrize(
    ("grpc", "expected"),
    [
        ((9800.0, 9900.0, 10000.0), "grpc"),
        ((5150.0, 5350.0, 5250.0), "http"),  # surely better, by 5 %
        ((3000.0, 9900.0, 10000.0), "http"),  # better by half, and not surely
        ((3000.0, 3100.0, 2900.0), "http"),
    ],
)
def test_grpc_is_chosen_only_if_it_lets_clearly_more_through(
    tmp_path: Path, grpc: tuple[float, ...], expected: Protocol
) -> None:
    found = FrontEndsRecord(http=HTTP, grpc=grpc)
    assert chosen(tmp_path, found) == (expected, found)


def test_http_counts_up_to_the_rate_from_which_it_may_lose_answers(tmp_path: Path) -> None:
    grpc = (5150.0, 5350.0, 5250.0)
    usable, lossy = (
        FrontEndsRecord(http=HTTP, grpc=grpc, http_loses_from_per_s=most) for most in (5540.0, 2770.0)
    )
    assert chosen(tmp_path, usable) == ("http", usable)
    assert chosen(tmp_path, lossy) == ("grpc", lossy)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_resumed_run_keeps_its_protocol_and_what_was_measured(tmp_path: Path, protocol: Protocol) -> None:
    chosen(tmp_path, GRPC_BETTER)
    assert chosen(tmp_path, AssertionError(), protocol=protocol) == (protocol, GRPC_BETTER)


def test_a_given_protocol_is_not_measured(tmp_path: Path) -> None:
    assert chosen(tmp_path, AssertionError(), protocol="grpc") == ("grpc", None)


def test_a_remote_server_is_not_measured(tmp_path: Path) -> None:
    assert chosen(tmp_path, AssertionError(), server="remote") == ("http", None)


@pytest.mark.parametrize("error", [ServerError("It did not start.\nWait."), LoadError("Refused.\nLook.")])
def test_http_is_taken_with_a_warning_if_nothing_can_be_measured(tmp_path: Path, error: Exception) -> None:
    seen: list[Any] = []
    assert chosen(tmp_path, error, seen) == ("http", None)
    assert [event.warning for event in seen if isinstance(event, events.Note)] == [True]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FRONT_ENDS_FILE).write_text("{}\n")
    with pytest.raises(BadInput, match=FRONT_ENDS_FILE):
        chosen(tmp_path, AssertionError(), protocol="grpc")
