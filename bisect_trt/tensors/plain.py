"""Values as JSON has them: NaN and Inf, which it lacks, as text."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

_NOT_FINITE = ("nan", "inf", "-inf")


def to_plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """What ``json.dumps(allow_nan=False)`` takes: NaN and Inf become "nan", "inf" and "-inf"."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A number that :func:`to_plain` wrote as text; anything else is itself."""
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else value
