"""The settings of a target: plain data that crosses to the worker as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from bisect_trt.targets import find
from bisect_trt.targets.base import OwnSettings, Target

PRECISIONS = ("tf32", "fp16", "bf16", "fp8", "int8")
"""The precisions below fp32, as their options are called."""
Own = TypeVar("Own", bound=OwnSettings)


@dataclass(frozen=True)
class TargetSettings:
    """A target and its settings.

    Attributes:
        runtime: The target's name: ``onnxrt`` for ONNX Runtime, ``trt`` for TensorRT, ``onnx`` for ONNX's reference
            evaluator, or the name of a plug-in.
        fp16: Whether it may run in half precision. ONNX Runtime runs the types in the model, so the model is lowered.
        bf16: Whether it may run in bfloat16.
        fp8: Whether it may run in 8-bit floats.
        int8: Whether it may run in 8-bit integers.
        tf32: Whether fp32 products may be computed in TF32.
        keep: Nodes that stay in fp32 all the same, each given by its first output tensor.
        held: Whether all else runs in the low precision, also where the runtime would choose fp32.
        own: What only this target has; ``None`` where all of it is as by default. See :meth:`of`.
    """

    runtime: str = "onnxrt"
    fp16: bool = False
    bf16: bool = False
    fp8: bool = False
    int8: bool = False
    tf32: bool = False
    keep: tuple[str, ...] = ()
    held: bool = False
    own: OwnSettings | None = None

    def __post_init__(self) -> None:
        """Say defaults in one way, so that what is equal compares so."""
        if self.own is not None and self.own == type(self.own)():
            object.__setattr__(self, "own", None)

    @property
    def target(self) -> Target:
        """The plug-in of the target.

        Raises:
            UnavailableError: It is not installed.
        """
        return find(self.runtime)

    def of(self, kind: type[Own]) -> Own:
        """Return the settings of this target only.

        Raises:
            TypeError: Its settings are of another kind.
        """
        own = kind() if self.own is None else self.own
        if not isinstance(own, kind):
            raise TypeError(f"{type(own).__name__} are not {kind.__name__}")
        return own

    def with_own(self, **changes: Any) -> TargetSettings:  # noqa: ANN401 - of many types
        """Return a copy with changed settings of this target."""
        return replace(self, own=replace(self.of(self.target.own), **changes))

    @property
    def low_precisions(self) -> tuple[str, ...]:
        """The precisions below fp32 that it may run in, as their options are called."""
        return tuple(name for name in PRECISIONS if getattr(self, name))

    @property
    def build_only(self) -> bool:
        """Whether models are only parsed and built, and neither the target nor the reference runs them."""
        return bool(getattr(self.own, "build_only", False))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> TargetSettings:
        """Read the output of :meth:`to_json`, before or after it was JSON.

        Raises:
            UnavailableError: The target is not installed.
        """
        values = {name: _frozen(value) for name, value in plain.items() if name != "own"}
        own = plain.get("own")
        kind = find(values.get("runtime", cls.runtime)).own
        return cls(**values, own=None if own is None else kind(**{name: _frozen(each) for name, each in own.items()}))

    def flags(self) -> list[str]:
        """The options that ask for it, in the words of a command line."""
        return self.target.flags(self)

    def describe(self) -> str:
        """In words."""
        return self.target.describe(self)


def reference_settings(target: TargetSettings | None = None, *, spinning: bool = True) -> TargetSettings:
    """Return the reference: ONNX Runtime on the CPU with graph optimisations off, every node as written.

    Args:
        target: What is compared with it; it may need something without which the model runs nowhere.
        spinning: Whether its threads spin while they wait, as ONNX Runtime's do. That changes no value, and takes up to half
            of the CPU time of a run for its values alone.
    """
    plain = TargetSettings("onnxrt").with_own(graph_optimization_level="ORT_DISABLE_ALL")
    if not spinning:
        plain = plain.with_own(session_options=(("session.intra_op.allow_spinning", "0"),))
    return plain if target is None else target.target.reference(target, plain)


def _frozen(value: Any) -> Any:  # noqa: ANN401 - of JSON
    """Lists as tuples, at any depth, so that settings can be hashed."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
