"""Numbers in records: finite, or null if a field may be unknown."""

from __future__ import annotations

import math
from types import NoneType
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Count = Annotated[int, Field(ge=0)]
"""A number of things; never negative."""


class FiniteModel(BaseModel):
    """Base of records: NaN and infinity are rejected, in files as well.

    If a field may be null, a value from our code that is not finite becomes null, which means unknown.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _null_where_unknown(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, float) or math.isfinite(value) or info.mode == "json":
            return value
        field = cls.model_fields[info.field_name or ""]
        return None if NoneType in get_args(field.annotation) else value
