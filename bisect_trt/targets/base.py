"""The plug-in of a runtime: class ``Target``, its settings and switches, and the registry of all targets.

A plug-in imports what it needs from here; other packages add theirs by entry points
(:mod:`bisect_trt.plugins`). The settings are plain data that crosses to the worker as JSON. A
switch of a runtime is one change of its settings that may make a failure disappear.

It is long because it is one class, and the author of another target reads its methods side by side.
"""

from __future__ import annotations

import importlib
import re
from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from msgspec import Struct

from bisect_trt.aliases import Fields, Names, Plain, Sizes
from bisect_trt.errors import PackageError
from bisect_trt.options.spec import entries
from bisect_trt.plugins import FAILED, TAKEN, TARGETS, contained, installed, load, refused

if TYPE_CHECKING:
    # Nothing of them is needed to parse a command line.
    from onnx import ModelProto

    from bisect_trt.targets.choices import Choice


_TOO_NEW = re.compile(
    r"(?i)is under development and support for this is limited|Unsupported model IR version|unsupported (?:ONNX )?opset"
    r"|Unknown model file format version|max supported (?:IR|opset)|No Op registered for|is not a registered function/op"
    r"|No opset import for|unrecognized attribute"
)
"""Messages of runtimes about a file that is newer than they are."""


def too_new(message: str) -> list[str]:
    """Return the words of a runtime's message that say that a file is newer than the runtime is."""
    return _TOO_NEW.findall(message)


_NO_KERNEL = re.compile(
    r"(?i)\bNOT_IMPLEMENTED\b|Could not find an implementation|No importer registered for|OpConversionFailure"
    r"|unsupported operator|not support(?:ed)? (?:operation|operator|op\b)"
)
"""Messages about a missing operator, which a runtime may have put into the model itself."""
Value = Any
"""The value of a setting: plain, or a tuple."""
ShapeRange = tuple[Sizes, Sizes, Sizes]
"""The smallest, the usual and the largest shape of an input."""


class Script(Struct, frozen=True):
    """The settings and modules with which ``reproduce.py`` runs a model.

    Attributes:
        needs: The packages that it needs, in words.
        modules: The modules that it consists of, each after those it imports. They import nothing
            of bisect-trt but each other and what :mod:`bisect_trt.targets.reproduce` imports, and
            define ``make`` as :mod:`bisect_trt.targets.runtime` describes it.
        settings: The argument of ``make``: plain values.
        hints: The hints of ``load``: plain values.
    """

    needs: str
    modules: Names
    settings: Plain
    hints: Plain = {}


class Package(Struct, frozen=True):
    """A package on an index; its releases are the releases of a target.

    Attributes:
        name: Its canonical name.
        parts: The packages that are installed in its place, without what they depend on; all have
            its releases.
    """

    name: str
    parts: Names = ()

    @property
    def index_name(self) -> str:
        """The package on the index."""
        return self.parts[0] if self.parts else self.name

    def requirements(self, release: str) -> Names:
        """Return what is installed of a release, as pip takes it."""
        return tuple(f"{name}=={release}" for name in self.parts or (self.name,))


Own = TypeVar("Own", bound="OwnSettings")
PRECISIONS = ("tf32", "fp16", "bf16", "fp8", "int8")
"""The precisions below fp32, as their options are called."""


@dataclass(frozen=True)
class OwnSettings:
    """The settings of one target: a frozen dataclass of plain values and tuples, each with a default.

    What a user can give is declared with its option:
    ``device: Annotated[str, option("--device", help="...")] = "CPU"``.
    """

    def checked(self, given: Sequence[str], *, engines: bool) -> OwnSettings:
        """Return the settings, checked against each other and against other options.

        Args:
            given: The options of targets that are given (``--fp16``).
            engines: Whether engines may be loaded and saved, as where a single model is built.

        Raises:
            UsageError: An option conflicts with others.
        """
        return self


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

    @property
    def debug_tensors(self) -> bool:
        """Whether the target returns inner tensors of a model without marks, those that its compiler keeps."""
        return bool(getattr(self.own, "debug_tensors", False))

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


class Target(ABC):
    """A runtime as a plug-in; the registry makes one object of each.

    Attributes:
        name: Its name in options (``--NAME``), settings and Python, and of its entry point.
        title: Its name in messages; the name if missing.
        own: The class of its settings, which declare its options.
        help: The help of ``--NAME``.
        precisions: The low precisions that it takes.
        selectable: Whether it can be under suspicion; if not, it only runs beside another.
        compiles: Whether it compiles a model before it runs it: a probe may take minutes, depends
            on the shapes that are fed, chooses or lowers the precision of layers (see ``facts`` of
            runners), and takes after earlier builds of its process.
        engines: Whether it writes what it compiles into files, and builds can be restricted to
            choices (:meth:`pinned`); its settings then have ``load_engine``, ``save_engine``,
            ``calibration_cache`` and ``calibration_data``.
        needs: The packages that it needs, in words.
        emulator: What computes emulated precisions (see :meth:`emulates_low`), in words.
        packages: The packages that it is released in.
        files: The settings that are paths of files which it reads.
        not_reproducible: The settings that are left out of a reproducer.
        sent: The modules that run it, each after those it imports; the last one is its runner, see
            :mod:`bisect_trt.targets.runtime`. They are sent to remote workers and joined into
            ``reproduce.py``. Empty for a target that only runs on this machine, by its own
            :meth:`make_runner`.
        reads_graph: Whether its :meth:`hints` are needed for every model.
        writes_casts: Whether :meth:`lower` writes Casts to the low precision into every model, so
            that other nodes stay in fp32.
        sent_back: The settings that are files which it writes when a model is loaded; they come
            back from a place.
        stays: Whether it always runs on this machine.
        tools: The module with ``tool_commands``, which returns the commands of the runtime's own
            tools for bug reports, where it has such tools.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    own: ClassVar[type[OwnSettings]] = OwnSettings
    help: ClassVar[str] = ""
    precisions: ClassVar[Names] = ("fp16", "bf16")
    selectable: ClassVar[bool] = True
    compiles: ClassVar[bool] = False
    engines: ClassVar[bool] = False
    needs: ClassVar[str] = ""
    emulator: ClassVar[str] = ""
    packages: ClassVar[tuple[Package, ...]] = ()
    files: ClassVar[Names] = ()
    not_reproducible: ClassVar[Names] = ()
    sent: ClassVar[Names] = ()
    reads_graph: ClassVar[bool] = False
    writes_casts: ClassVar[bool] = False
    sent_back: ClassVar[Names] = ()
    stays: ClassVar[bool] = False
    tools: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Let the name be the title where there is no other."""
        if hasattr(cls, "name") and not hasattr(cls, "title"):
            cls.title = cls.name

    @property
    def keyword(self) -> str:
        """Its name as an attribute of the options."""
        return self.name.replace("-", "_")

    def make_runner(self, settings: TargetSettings) -> Any:  # noqa: ANN401 - of a module of its own
        """Return what runs models, see :mod:`bisect_trt.targets.runtime`; called in a worker process.

        The runtime's package is imported here and not before.

        Raises:
            UnavailableError: The runtime is missing, or has no such provider, or there is no GPU.
            UsageError: The runtime has no such option.
        """
        return importlib.import_module(self.sent[-1]).make(self.plain(settings))

    def plain(self, settings: TargetSettings) -> Fields:
        """Return the settings as a runner takes them: the shared ones and its own."""
        return {
            **{name: value for name, value in settings.to_json().items() if name != "own"},
            **asdict(settings.of(self.own)),
        }

    def package(self, settings: TargetSettings) -> Package | None:
        """Return the package that it is released in; ``None`` for a target without releases."""
        return self.packages[0] if self.packages else None

    def builds(self, settings: TargetSettings) -> Sequence[Package]:
        """Return the packages of which one has the runtime."""
        return self.packages

    def does_not_know(self, message: str, *, newest: bool = False) -> bool:
        """Return whether a runtime's message means that the model is newer than this release, not that something is wrong.

        The age of the newest release is no reason for a missing operator.
        """
        return bool(too_new(message)) or (not newest and _NO_KERNEL.search(message) is not None)

    def lower(self, settings: TargetSettings, model: Path, facts: Plain) -> ModelProto | None:
        """Return the form of an ONNX file that it runs, given the facts of its runner; ``None`` if that is the file itself.

        Args:
            settings: The settings of the target.
            model: The ONNX file.
            facts: The facts that its runner reports, such as the version.
        """
        return None

    def changes_model(self, settings: TargetSettings, facts: Plain) -> bool:
        """Return whether what :meth:`lower` returns computes anything else than the model, and does not only name its nodes."""
        return True

    def hints(self, settings: TargetSettings, model: ModelProto, path: Path, facts: Plain) -> Plain:
        """Return what its runner has to know of a model, as plain values.

        Args:
            settings: Its settings.
            model: What :meth:`lower` returned, or the model in the file.
            path: The ONNX file.
            facts: What its runner reports of itself.
        """
        return {}

    def versions(self, settings: TargetSettings) -> Mapping[str, str]:
        """Return further versions for a bug report, by the name of the package."""
        return {}

    def describe(self, settings: TargetSettings) -> str:
        """Return its title and its settings in words."""
        return f"{self.title} ({', '.join(settings.low_precisions) or 'fp32'})"

    def flags(self, settings: TargetSettings) -> list[str]:
        """Return its settings as options on a command line."""
        words = [f"--{self.name}", *(f"--{name}" for name in settings.low_precisions)]
        words += ["--hold-precision"] if settings.held else []
        words += ["--keep-fp32", *settings.keep] if settings.keep else []
        declared = {entry.name: entry for entry in entries(self.own)}
        return words + [
            word
            for name, value in self.changed(settings)
            if name in declared
            for word in declared[name].words(value)
        ]

    def changed(self, settings: TargetSettings) -> list[tuple[str, Value]]:
        """Return its own settings that differ from their defaults, by name."""
        defaults = self.own()
        return [
            (name, value)
            for name, value in vars(settings.of(self.own)).items()
            if value != getattr(defaults, name)
        ]

    def script(self, settings: TargetSettings, hints: Plain) -> Script:
        """Return how ``reproduce.py`` runs a model: by the target's runner, or by bisect-trt where it has none.

        The hints are the names of its ``inputs`` and ``outputs``, the name and the outputs of each
        of its ``nodes``, and whether the low precision is in its file already (``lowered``).
        """
        if not self.sent:
            needs = (
                f"bisect-trt and {self.needs}"
                if self.needs
                else "bisect-trt and the package of this target"
            )
            return Script(needs, ("bisect_trt.targets.installed",), {"target": settings.to_json()})
        if not (settings.keep or settings.held):
            # Only kept or held layers are looked up by node, so the script is shorter without
            # nodes.
            hints = {**hints, "nodes": []}
        options = {
            name: value
            for name, value in self.changed(settings)
            if name not in self.not_reproducible
        }
        reproduced = replace(settings, own=self.own(**options))
        return Script(f"{self.needs} and numpy", self.sent, self.plain(reproduced), hints)

    def switches(self, settings: TargetSettings, looked: Looked) -> list[Switch]:
        """Return its switches, the cheapest first, by facts about the model; see :class:`Switch`."""
        return precision_switches(settings)

    def elsewhere(self, settings: TargetSettings, trace: Plain) -> tuple[str, str, bool] | None:
        """Return how its options of the compiler are set without bisect-trt: name, value, and whether that is documented.

        Args:
            settings: The settings of the target.
            trace: What its runner's ``trace`` returned.
        """
        return None

    def loading(self, settings: TargetSettings, engine: Path) -> TargetSettings:
        """Run a prebuilt engine instead of the model."""
        return settings.with_own(load_engine=str(engine.absolute()))

    def calibrating(
        self, settings: TargetSettings, samples: Sequence[Path], cache: Path | None
    ) -> TargetSettings:
        """Find the ranges for INT8 with ``.npz`` files of inputs, or read them from ``cache`` if it exists.

        Args:
            settings: The settings of the target.
            samples: ``.npz`` files of inputs, one a sample.
            cache: The file of the ranges; ``None`` for none.
        """
        files = tuple(str(path.absolute()) for path in samples)
        cache_file = None if cache is None else str(cache.absolute())
        return settings.with_own(calibration_data=files, calibration_cache=cache_file)

    def recording(self, settings: TargetSettings, folder: Path) -> TargetSettings:
        """Have each build write its choices (``choices.RECORD``), and what else is worth keeping, to an existing folder.

        A target that reports no more than ``RuntimeSession.layers`` returns the settings as they
        are.
        """
        return settings

    def pinned(
        self, settings: TargetSettings, pins: Sequence[Choice], bans: Sequence[Choice] = ()
    ) -> TargetSettings:
        """Hold builds to some choices and keep them from others; for a target that ``pins``.

        A build that does not take one of them for a layer that exists is refused, with the
        signature ``build: pin``.

        Args:
            settings: The settings of the target.
            pins: The choices to hold builds to.
            bans: The choices to keep them from.
        """
        return settings

    def typed(self, settings: TargetSettings) -> list[TargetSettings]:
        """Return the ways to run a model with the low precision in its graph, where the target may lower one itself."""
        return []

    def check_inputs(  # noqa: B027 - of those that are told
        self, settings: TargetSettings, shapes: Mapping[str, Sizes]
    ) -> None:
        """Check that the settings fit the shapes of the inputs.

        Raises:
            UsageError: They do not.
        """

    def check_model(self, settings: TargetSettings, operators: Collection[str]) -> None:  # noqa: B027 - of those that need some
        """Check that the settings fit a model of these operators.

        Raises:
            UsageError: They do not.
        """

    def profile(self, settings: TargetSettings) -> Mapping[str, ShapeRange]:
        """Return the ranges of shapes that it compiles for, by input."""
        return {}

    def spanning(
        self, settings: TargetSettings, ranges: Mapping[str, ShapeRange]
    ) -> TargetSettings:
        """Compile for these ranges of shapes instead; the settings as they are if it takes any shape."""
        return settings

    def reference(self, settings: TargetSettings, plain: TargetSettings) -> TargetSettings:
        """Return the reference beside it: ``plain``, with what the model needs to run at all."""
        return plain

    def emulates_low(self, settings: TargetSettings) -> bool:
        """Return whether it would compute low-precision nodes in fp32, so that candidates have to round instead."""
        return False

    def computes_low(self, settings: TargetSettings) -> bool:
        """Return whether it computes floats in a low precision of its own, so that only the CPU computes a node in fp32."""
        return False

    def reports_placement(self, settings: TargetSettings) -> bool:
        """Return whether it may say which execution provider runs a node."""
        return False

    def finds_weights(self, settings: TargetSettings) -> bool:
        """Return whether its runtime reads :data:`ELSEWHERE` for the folder of a model's weights.

        For all others they are copied beside the candidates.
        """
        return False


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


_BUILT_IN = {
    "onnxrt": "bisect_trt.targets.onnxrt:OnnxRuntimeTarget",
    "trt": "bisect_trt.targets.trt:TensorRtTarget",
    "trt-rtx": "bisect_trt.targets.trt:TensorRtRtxTarget",
    "openvino": "bisect_trt.targets.openvino:OpenVinoTarget",
    "through": "bisect_trt.targets.through:ThroughTarget",
    "onnx": "bisect_trt.targets.evaluator:EvaluatorTarget",
}


@cache
def find(name: str) -> Target:
    """A target by its name.

    Raises:
        UnavailableError: There is none of this name, or its package cannot be imported.
    """
    place = _BUILT_IN.get(name) or installed(TARGETS).get(name)
    if place is None:
        raise PackageError(f"there is no target '{name}' here; install the package that has it.")
    kind = load(place, name)
    is_target = isinstance(kind, type) and issubclass(kind, Target)
    if not is_target or getattr(kind, "name", "") != name:
        raise PackageError(refused(name, place, "is no target of that name"))
    if not kind.sent and kind.make_runner is Target.make_runner:
        raise PackageError(refused(name, place, "has neither make_runner nor sent"))
    target: Target = contained(kind, Target)
    return target


@cache
def names() -> tuple[str, ...]:
    """Return all targets, the ones of bisect-trt first."""
    others = installed(TARGETS)
    FAILED.extend(refused(name, others[name], TAKEN) for name in others if name in _BUILT_IN)
    return tuple(dict.fromkeys((*_BUILT_IN, *others)))
