"""Settings of a target, as plain data that crosses to the worker as JSON, and its switches: changes of them.

A switch of a runtime is one change of its settings that may make a failure disappear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

from bisect_trt.aliases import Fields, Names, Plain
from bisect_trt.targets import find
from bisect_trt.targets.base import OwnSettings, Target

PRECISIONS = ("tf32", "fp16", "bf16", "fp8", "int8")
"""The precisions below fp32, as their options are called."""
Own = TypeVar("Own", bound=OwnSettings)


@dataclass(frozen=True)
class TargetSettings:
    """A target, by its name, and its settings: the precisions that it may run in, or that the graph is lowered to.

    Attributes:
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
    keep: Names = ()
    held: bool = False
    own: OwnSettings | None = None

    def __post_init__(self) -> None:
        """Say defaults in one way, so that what is equal compares so."""
        if self.own is not None and self.own == type(self.own)():
            # The dataclass is frozen; this is the one field that is normalised.
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
        options = kind() if self.own is None else self.own
        if not isinstance(options, kind):
            raise TypeError(f"{type(options).__name__} are not {kind.__name__}")
        return options

    def with_own(self, **changes: Any) -> TargetSettings:  # noqa: ANN401 - of many types
        """Return a copy with changed settings of this target."""
        return replace(self, own=replace(self.of(self.target.own), **changes))

    @property
    def low_precisions(self) -> Names:
        """The precisions below fp32 that it may run in, as their options are called."""
        return tuple(name for name in PRECISIONS if getattr(self, name))

    @property
    def build_only(self) -> bool:
        """Whether models are only parsed and built, and neither the target nor the reference runs them."""
        return bool(getattr(self.own, "build_only", False))

    def to_json(self) -> Fields:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Plain) -> TargetSettings:
        """Read the output of :meth:`to_json`, before or after it was JSON.

        Raises:
            UnavailableError: The target is not installed.
        """
        values = {name: _frozen(value) for name, value in plain.items() if name != "own"}
        options = plain.get("own")
        kind = find(values.get("runtime", cls.runtime)).own
        return cls(
            **values,
            own=None
            if options is None
            else kind(**{name: _frozen(option_value) for name, option_value in options.items()}),
        )

    def flags(self) -> list[str]:
        """The options that ask for it, in the words of a command line."""
        return self.target.flags(self)

    def describe(self) -> str:
        """In words."""
        return self.target.describe(self)


def reference_settings(
    target: TargetSettings | None = None, *, spinning: bool = True
) -> TargetSettings:
    """Return the reference: ONNX Runtime on the CPU with graph optimisations off, every node as written.

    A target that is compared with it may need something without which the model runs nowhere.
    Threads that spin while they wait, as ONNX Runtime's do, change no value, and take up to half of
    the CPU time of a run for its values alone.
    """
    plain = TargetSettings("onnxrt").with_own(graph_optimization_level="ORT_DISABLE_ALL")
    if not spinning:
        plain = plain.with_own(session_options=(("session.intra_op.allow_spinning", "0"),))
    return plain if target is None else target.target.reference(target, plain)


def _frozen(value: Any) -> Any:  # noqa: ANN401 - of JSON
    """Lists as tuples, at any depth, so that settings can be hashed."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


Turn = Callable[[TargetSettings], TargetSettings]
LIKELY = 30.0
"""The weight of a likely switch; the others have 1."""


class Tier(IntEnum):
    """The extent of the change that a switch makes."""

    PASS = 0
    """One thing that it does to this model: a pass over the graph, a tactic of a layer."""
    OPTION = 1
    """A setting that is about another thing."""
    WHOLE = 2
    """A whole kind at once: all optimisations, a precision. It mostly helps, and costs most."""
    COMPILER = 3
    """A pass of the runtime's compiler, which may have no effect on this model."""
    STEP = 4
    """A value of a counter of the compiler (``within``); larger values let it do more."""


@dataclass(frozen=True)
class Switch:
    """Something of a runtime that can be turned.

    Attributes:
        name: Its name in the result: kind and name, as ``optimizer:GemmTransposeFusion``.
        turn: The settings with it turned, from those without.
        tier: How much it turns.
        weight: How likely it is to be the one, beside the others; 1 where nothing is known.
        covers: The kinds of switches that are all turned with it, so that none of them helps if it
            does not.
        within: Of which kind it turns several, so that it does not help where the switch that
            covers them does not. Of a step, its counter.
        how: What is done to it, in words; what has a value in its name is set to that.
    """

    name: str
    turn: Turn = field(compare=False)
    tier: Tier = Tier.OPTION
    weight: float = 1.0
    covers: str | None = None
    within: str | None = None
    how: str = "disabled"

    @property
    def said(self) -> str:
        """The change: ``disabled``, ``set to 0``."""
        _, equals, value = self.name.partition("=")
        return f"set to {value}" if equals else self.how

    @property
    def kind(self) -> str:
        """The kind of the switch."""
        return self.name.partition(":")[0]


@dataclass(frozen=True)
class Looked:
    """The operators in a model, the suspected ones, and what the runtime does to it (see ``Runtime.trace``), if known.

    ``compiler`` has the switches of the compiler that the user asks for; no others are searched then.
    """

    trace: Plain | None = None
    operators: frozenset[str] = frozenset()
    suspects: frozenset[str] = frozenset()
    compiler: Names = ()


def setting(**values: Any) -> Turn:  # noqa: ANN401 - of many types
    """Return a function that sets some of the settings that only one target has."""
    return lambda settings: settings.with_own(**values)


def changing(name: str, change: Callable[[Any], object]) -> Turn:
    """Return a function that changes a setting that only one target has, from its value then."""
    return lambda settings: settings.with_own(
        **{name: change(getattr(settings.of(settings.target.own), name))}
    )


def adding(name: str, *values: object) -> Turn:
    """Return a function that adds values to such a setting."""
    return changing(name, lambda current: (*current, *values))


def left_out(
    options: OwnSettings,
    field: str,
    kind: str = "option",
    how: str = "left out",
    weight: float = LIKELY,
) -> Iterator[Switch]:
    """Yield each value, or pair by its name, of such a setting, left out.

    Args:
        options: The settings of one target.
        field: The name of a setting with several values.
        kind: The kind of the switches.
        how: The change in words.
        weight: The weight of each switch, beside others.
    """
    for entry in getattr(options, field):
        turn = changing(field, partial(_without, entry))
        yield Switch(
            f"{kind}:{entry if isinstance(entry, str) else entry[0]}", turn, weight=weight, how=how
        )


def _without(dropped: object, entries: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value for value in entries if value != dropped)


def precision_switches(settings: TargetSettings) -> list[Switch]:
    """Each low precision that it may run in, left out."""

    def without(precision: Plain, settings_before: TargetSettings) -> TargetSettings:
        turned = replace(settings_before, **precision)
        # Kept nodes and held types mean nothing in fp32.
        return turned if turned.fp16 or turned.bf16 else replace(turned, keep=(), held=False)

    return [
        Switch(
            f"precision:{name}",
            partial(without, {name: False}),
            Tier.OPTION if name == "tf32" else Tier.WHOLE,
        )
        for name in settings.low_precisions
    ]
