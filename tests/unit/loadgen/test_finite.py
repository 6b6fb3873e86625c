"""No record holds a number that is none."""

import math
from typing import Any

import pytest
from pydantic import Field, ValidationError

from loadgen.finite import Count, FiniteModel


class Example(FiniteModel):
    """One field of each kind."""

    rate: float = 1.0
    latency: float | None = None
    curve: tuple[float, ...] = ()
    bins: tuple[float | None, ...] = ()
    by_name: dict[str, float] = Field(default_factory=dict)
    requests: Count = 0


NONE_OF_THESE = (math.nan, math.inf, -math.inf)


@pytest.mark.parametrize("value", NONE_OF_THESE)
def test_what_may_be_unknown_becomes_null(value: float) -> None:
    assert Example(latency=value).latency is None
    assert Example.model_validate_json(Example(latency=value).model_dump_json()).latency is None


@pytest.mark.parametrize("value", NONE_OF_THESE)
@pytest.mark.parametrize("name", ["rate", "curve", "bins", "by_name"])
def test_what_must_be_known_is_refused(value: float, name: str) -> None:
    within: Any = {"rate": value, "curve": (1.0, value), "bins": (None, value), "by_name": {"a": value}}[name]
    with pytest.raises(ValidationError, match=r"finite"):
        Example(**{name: within})
