"""A module that has the names of one version of TensorRT and does nothing: for option mapping, which needs no GPU.

Generated from the version's API list. Its objects record what is called and set, and raise ``AttributeError`` for any
name that the list does not have, as the real ones do.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from trt_api import APIS, RETURNS, VIRTUAL

from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.api import Log, TensorRt, version_of
from bisect_trt.targets.trt.settings import TrtSettings


class StandIn:
    """An object of one of TensorRT's classes.

    Attributes:
        calls: What was called, with the arguments.
        values: What was set, or is given to be read.
    """

    def __init__(self, version: str, kind: str, values: Mapping[str, Any] | None = None) -> None:
        self.__dict__.update(version=version, kind=kind, calls=[], values=dict(values or {}))

    def _known(self, name: str) -> None:
        if not APIS[self.version].has(f"{self.kind}.{name}"):
            raise AttributeError(f"TensorRT {self.version} has no {self.kind}.{name}")

    def __getattr__(self, name: str) -> Any:
        self._known(name)
        if name in self.values:
            return self.values[name]

        def method(*words: Any, **named: Any) -> Any:
            self.calls.append((name, *words, *named.values()))
            result = RETURNS.get(f"{self.kind}.{name}")
            return StandIn(self.version, result) if result else None

        return method

    def __setattr__(self, name: str, value: Any) -> None:
        self._known(name)
        self.values[name] = value


def make_module(version: str) -> SimpleNamespace:
    """The module's enumerations, classes and version."""
    api = APIS[version]
    module = SimpleNamespace(__version__=version, init_libnvinfer_plugins=lambda *_: True)
    for name, members in api.names.items():
        if name in api.enums:
            setattr(module, name, IntEnum(name, {member: place for place, member in enumerate(sorted(members))}))
        elif name in VIRTUAL:
            setattr(module, name, type(name, (), {}))
    return module


def make_tensorrt(version: str) -> TensorRt:
    """What a process has of that version."""
    trt = make_module(version)
    builder, runtime = StandIn(version, "Builder"), StandIn(version, "Runtime")
    # No CUDA: nothing that is tested with it gets that far.
    return TensorRt(trt, version_of(trt), Log(), builder, runtime, cuda=None, stream=0)  # type: ignore[arg-type]  # there is no GPU


def trt_target(*precisions: str, keep: tuple[str, ...] = (), **trt: Any) -> TargetSettings:
    """A TensorRT target: names of precisions, and fields of ``TrtSettings``."""
    allowed: dict[str, Any] = dict.fromkeys(precisions, True)
    return TargetSettings("trt", **allowed, keep=keep, own=TrtSettings(**trt))
