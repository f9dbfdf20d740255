"""Requests and replies as the JSON headers of messages, and back; for the framing see :mod:`bisect_trt.worker.channel`.

Every header carries the version of the protocol, because a worker may be of another release than its driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from bisect_trt.errors import UnavailableError
from bisect_trt.worker import protocol
from bisect_trt.worker.protocol import Answer, Order, Reply, Request

VERSION = 2
"""Raised whenever an older worker would misread a request, or a driver its reply."""
_KINDS = {
    name: kind for name, kind in vars(protocol).items() if isinstance(kind, type) and issubclass(kind, (Request, Reply))
}


def encode(message: Order | Answer) -> dict[str, Any]:
    """A header."""
    return {"version": VERSION, **_plain(message)}


def decode_order(header: dict[str, Any]) -> Order:
    """The order that :func:`encode` wrote.

    Raises:
        UnavailableError: It has another version.
    """
    order: Order = _typed(Order, _checked(header))
    return order


def decode_answer(header: dict[str, Any]) -> Answer:
    """The answer that :func:`encode` wrote.

    Raises:
        UnavailableError: It has another version.
    """
    answer: Answer = _typed(Answer, _checked(header))
    return answer


def _checked(header: dict[str, Any]) -> dict[str, Any]:
    if (version := header.pop("version", None)) != VERSION:
        raise UnavailableError(
            f"the worker process and bisect-trt do not have the same protocol (version {version} where {VERSION} is "
            "expected); install the same release of bisect-trt for both."
        )
    return header


def _plain(value: Any) -> Any:  # noqa: ANN401 - of any field
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        plain = {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
        return {"kind_of": type(value).__name__, **plain} if isinstance(value, Request | Reply) else plain
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _typed(kind: Any, value: Any) -> Any:  # noqa: ANN401, PLR0911 - one return a kind of type
    """A value of JSON as what a field of this type holds."""
    arguments = get_args(kind)
    origin = get_origin(kind)
    if value is None or kind is Any or origin is Literal:
        return value
    if type(None) in arguments:
        return _typed(next(each for each in arguments if each is not type(None)), value)
    if origin is tuple:
        return tuple(_typed(arguments[0], entry) for entry in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: _typed(arguments[1], entry) for name, entry in value.items()}
    if isinstance(origin or kind, type) and issubclass(origin or kind, (Request, Reply)):
        kind = _KINDS[value["kind_of"]]
    if hasattr(kind, "from_json"):
        return kind.from_json(value)
    if is_dataclass(kind):
        hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]  # a class can be hashed
        known = {name: _typed(hints[name], entry) for name, entry in value.items() if name in hints}
        return kind(**known)  # type: ignore[operator]  # a class can be called
    return Path(value) if kind is Path else value


@cache
def _hints(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
    from bisect_trt.targets.base import Lowering  # noqa: PLC0415 - a driver starts its first worker before it imports NumPy
    from bisect_trt.targets.settings import TargetSettings  # noqa: PLC0415 - as above
    from bisect_trt.tensors.comparison import TensorComparison  # noqa: PLC0415 - as above
    from bisect_trt.tensors.tolerance import ToleranceOptions  # noqa: PLC0415 - as above

    known = (TargetSettings, TensorComparison, ToleranceOptions)
    return get_type_hints(kind, localns={"Lowering": Lowering, **{each.__name__: each for each in known}})
