"""The plug-in of a runtime: class ``Target``, and the declarations that it makes. A plug-in imports what it needs from here.

It stays long because it is one class, whose methods are read side by side by an author of another target.
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from bisect_trt.targets.runtime import (
    ELSEWHERE,
    Arrays,
    EngineLayer,
    LocalRuntime,
    Lowering,
    Runtime,
    Session,
)

if TYPE_CHECKING:  # nothing of them is needed to parse a command line
    from onnx import ModelProto

    from bisect_trt.targets.choices import Choice
    from bisect_trt.targets.options import TargetOptions
    from bisect_trt.targets.settings import TargetSettings
    from bisect_trt.targets.switches import Looked, Switch


__all__ = [
    "ELSEWHERE",
    "Arrays",
    "Capabilities",
    "EngineLayer",
    "Engines",
    "Lowering",
    "Minimal",
    "NotReproducible",
    "OwnOptions",
    "OwnSettings",
    "Package",
    "Runtime",
    "Script",
    "Session",
    "ShapeRange",
    "Target",
    "Value",
    "make_runtime",
]
_TOO_NEW = re.compile(
    r"(?i)is under development and support for this is limited|Unsupported model IR version|unsupported (?:ONNX )?opset"
    r"|Unknown model file format version|max supported (?:IR|opset)|No Op registered for|is not a registered function/op"
    r"|No opset import for|unrecognized attribute"
)
"""How runtimes say that a file, or what is in it, is of a time after them."""
_NO_KERNEL = re.compile(
    r"(?i)\bNOT_IMPLEMENTED\b|Could not find an implementation|No importer registered for|OpConversionFailure"
    r"|unsupported operator|not support(?:ed)? (?:operation|operator|op\b)"
)
"""How they say that they lack an operator; what they made of a model themselves may be that too."""
Value = Any
"""What a setting is set to: a plain value or a tuple, whatever its field says."""
ShapeRange = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The smallest, the most usual and the largest shape of an input."""


@dataclass(frozen=True)
class Capabilities:
    """What a target is like, where workflows go about it one way or the other.

    Attributes:
        costly: Whether a probe is minutes rather than milliseconds.
        timed: Whether how long a model runs on it is worth measuring.
        chooses_precision: Whether it may run in fp32 what it may run in a low precision, unless it is held to that.
        lowers_layers: Whether it may lower a model itself, layer by layer; see ``Runtime.lowers_by``.
        runs_more: Whether it may run operators that the reference cannot, such as plugins.
        sliced: Whether a model that is too large for memory may be run on it slice by slice.
        compiles_shapes: Whether it compiles a model for the shapes it is fed, so that others take another session.
        remembers_builds: Whether a process that has built before builds alike, so that a fresh build takes a fresh process.
        pins: Whether a build can be held to what another one chose, and kept from it; see ``Target.pinned``.
        crowds: Operators of which a build tries kernels on the device, so that builds of several of them beside each other take
            as long as one after the other.
    """

    costly: bool = False
    timed: bool = False
    chooses_precision: bool = False
    lowers_layers: bool = False
    runs_more: bool = False
    sliced: bool = False
    compiles_shapes: bool = False
    remembers_builds: bool = False
    pins: bool = False
    crowds: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NotReproducible:
    """That a setting is not said to others.

    Attributes:
        reason: Why.
    """

    reason: str


@dataclass(frozen=True)
class Script:
    """How ``reproduce.py`` runs a model.

    Attributes:
        needs: The packages that takes, in words.
        modules: The modules that it is made of, each after those it needs. They import nothing of bisect-trt but each other
            and what :mod:`bisect_trt.targets.reproduce` imports, and define ``make`` as :mod:`bisect_trt.targets.runtime` says.
        settings: What ``make`` is given: plain values.
        hints: What ``load`` is given of the model: plain values.
    """

    needs: str
    modules: tuple[str, ...]
    settings: Mapping[str, Any]
    hints: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Minimal:
    """The model that is to be reproduced.

    Attributes:
        file: The file that the target runs.
        lowered: Whether the low precision is in that file already.
        inputs: The names of its inputs.
        outputs: The names of its outputs.
        nodes: Of each of its nodes the name and the outputs.
    """

    file: str
    lowered: bool = False
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    nodes: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Package:
    """A package of an index that a target comes as, a release at a time.

    Attributes:
        name: As the index calls it, in its canonical form.
        numpy_before: Releases that were built for an older NumPy than the newest, and do not say so: those before this one
            need the NumPy that is named, as ``((1, 19), "numpy<2")``.
    """

    name: str
    numpy_before: tuple[tuple[tuple[int, ...], str], ...] = ()

    def numpy(self, release: tuple[int, ...]) -> str:
        """The NumPy that a release works with, as a requirement."""
        return next((needs for before, needs in self.numpy_before if release < before), "numpy")


class Engines(Protocol):
    """Of a target that compiles models into files: how it is set up to read and write those."""

    def load(self, settings: TargetSettings, engine: Path) -> TargetSettings:
        """Run a prebuilt engine instead of the model."""

    def save(self, settings: TargetSettings, engine: Path) -> TargetSettings:
        """Leave the engine of what is run."""

    def calibrate(self, settings: TargetSettings, samples: Sequence[Path], cache: Path | None) -> TargetSettings:
        """Find the ranges for INT8 with ``.npz`` files of inputs, or read them from ``cache`` if it is there."""


@dataclass(frozen=True)
class OwnSettings:
    """What only one target has: a frozen dataclass of plain values and tuples, each with a default."""


@dataclass
class OwnOptions:
    """The options that only one target has: a dataclass of ``Annotated[..., option(...)]``, each with a default."""

    def settings(self, common: TargetOptions, *, engines: bool) -> OwnSettings:
        """As plain data.

        Args:
            common: The options of all targets.
            engines: Whether engines may be loaded and saved: where one model is built, and not one after the other.

        Raises:
            UsageError: One that others rule out, or a file that is not there.
        """
        return OwnSettings()

    def files(self) -> list[Path]:
        """The files that the target depends on."""
        return []


class Target(ABC):
    """A runtime as a plug-in; there is one object of each, which the registry makes.

    Attributes:
        name: What it is called in options (``--NAME``), settings and Python; the entry point's name too.
        title: What messages call it.
        own: The settings that only it has.
        options: The options that only it has.
        help: What ``--NAME`` says of itself.
        precisions: The low precisions that it can be asked for.
        selectable: Whether it can be under suspicion, and is not only looked at beside another.
        capabilities: What it is like.
        engines: What there is to say of its engines, if it makes such.
        needs: The packages that it takes, in words.
        emulator: What of it computes what it emulates (see :meth:`emulates_low`), in words.
        packages: Those of an index that it comes as.
        files: Those of its own settings that are paths of files which it reads.
        not_reproducible: Its own settings that are not said in a reproducer, with the reason.
        sent: The modules that run it, each after those it needs; the last one is its runner, see
            :mod:`bisect_trt.targets.runtime`. They are sent to remote workers and joined into ``reproduce.py``. Empty for
            a target that only runs here, by its own :meth:`make_runtime`.
        reads_graph: Whether its :meth:`hints` are needed for every model.
        sent_files: More of its own settings that are files which a place has to be sent.
        sent_back: Those that are files which it writes when a model is loaded, and that come back from a place.
        stays: Whether it is run here whatever places there are.
        rows: What ``doctor`` says of it: options beside ``--NAME``, to the looks (see :meth:`look`) that these need.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    own: ClassVar[type[OwnSettings]] = OwnSettings
    options: ClassVar[type[OwnOptions]] = OwnOptions
    help: ClassVar[str] = ""
    precisions: ClassVar[tuple[str, ...]] = ("fp16", "bf16")
    selectable: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = Capabilities()
    engines: ClassVar[Engines | None] = None
    needs: ClassVar[str] = ""
    emulator: ClassVar[str] = ""
    packages: ClassVar[tuple[Package, ...]] = ()
    files: ClassVar[tuple[str, ...]] = ()
    not_reproducible: ClassVar[Mapping[str, NotReproducible]] = {}
    sent: ClassVar[tuple[str, ...]] = ()
    reads_graph: ClassVar[bool] = False
    sent_files: ClassVar[tuple[str, ...]] = ()
    sent_back: ClassVar[tuple[str, ...]] = ()
    stays: ClassVar[bool] = False
    rows: ClassVar[Mapping[str, tuple[str, ...]]] = {"": ("start",)}

    def make_runtime(self, settings: TargetSettings) -> Runtime:
        """Return what runs models; called in a worker process. The runtime's package is imported here and not before.

        The last module of :attr:`sent` is the runner; a target without one overrides this method.

        Raises:
            UnavailableError: The runtime is missing, or has no such provider, or there is no GPU.
            UsageError: The runtime has no such option.
        """
        return LocalRuntime(settings)

    def plain(self, settings: TargetSettings) -> dict[str, Any]:
        """Return the settings as a runner takes them: those of all targets, and its own beside them."""
        return {
            **{name: value for name, value in settings.to_json().items() if name != "own"},
            **asdict(settings.of(self.own)),
        }

    def look(self, name: str, plain: TargetSettings) -> Iterator[tuple[str, str]]:
        """What ``doctor`` finds, in a process of its own: what there is and what it is, as a version.

        Args:
            name: What is looked at, as :attr:`rows` name it.
            plain: The target, nothing set.

        Raises:
            UnavailableError: The rest is not there.
        """
        self.make_runtime(plain)
        yield from ()

    def package(self, settings: TargetSettings) -> Package | None:
        """The one that it comes as, set up so; ``None`` for a target without releases."""
        return self.packages[0] if self.packages else None

    def does_not_know(self, message: str, *, newest: bool = False) -> bool:
        """Whether a message says that this release does not know what is in a model, rather than that something is wrong.

        Args:
            message: What it says.
            newest: Whether no release is newer, so that an operator which it lacks is no matter of its age.
        """
        return _TOO_NEW.search(message) is not None or (not newest and _NO_KERNEL.search(message) is not None)

    def lower(self, settings: TargetSettings, model: Path, facts: Mapping[str, Any]) -> ModelProto | None:
        """The form of a model that it runs in a place, where there is no ONNX to lower it; ``None`` if that is the model.

        Args:
            settings: How it is set up.
            model: The ONNX file.
            facts: What it says of itself there.
        """
        return None

    def changes_model(self, settings: TargetSettings, facts: Mapping[str, Any]) -> bool:
        """Whether what :meth:`lower` returns computes anything else than the model, and does not only name its nodes."""
        return True

    def hints(
        self, settings: TargetSettings, model: ModelProto, path: Path, facts: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return what its runner has to know of a model, as plain values.

        Args:
            settings: How it is set up.
            model: What :meth:`lower` returned, or the model in the file.
            path: The ONNX file.
            facts: What the runner reports of itself.
        """
        return {}

    def describe(self, settings: TargetSettings) -> str:
        """In words."""
        return f"{self.title} ({', '.join(settings.low_precisions) or 'fp32'})"

    def flags(self, settings: TargetSettings) -> list[str]:
        """The options that ask for it, in the words of a command line."""
        words = [f"--{self.name}", *(f"--{name}" for name in settings.low_precisions)]
        words += ["--hold-precision"] if settings.held else []
        words += ["--keep-fp32", *settings.keep] if settings.keep else []
        return words + [word for name, value in self.changed(settings) for word in self.flag(name, value)]

    def flag(self, name: str, value: Value) -> list[str]:
        """One of its own settings as its option, in the words of a command line."""
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            return [option]
        return [option, *map(str, value)] if isinstance(value, tuple) else [option, str(value)]

    def changed(self, settings: TargetSettings) -> list[tuple[str, Value]]:
        """Its own settings that differ from their defaults, by name."""
        own, defaults = settings.of(self.own), self.own()
        names = [entry.name for entry in fields(own)]
        return [(name, getattr(own, name)) for name in names if getattr(own, name) != getattr(defaults, name)]

    def script(self, settings: TargetSettings, model: Minimal) -> Script:
        """Return how ``reproduce.py`` runs a model: by the target's runner, or by bisect-trt where it has none."""
        if not self.sent:
            needs = f"bisect-trt and {self.needs}" if self.needs else "bisect-trt and the package of this target"
            return Script(needs, ("bisect_trt.targets.installed",), {"target": settings.to_json()})
        hints = {
            "inputs": list(model.inputs),
            "outputs": list(model.outputs),
            "lowered": model.lowered,
            "nodes": [[name, list(outputs)] for name, outputs in model.nodes] if settings.keep or settings.held else [],
        }
        own = replace(settings, own=self.own(**self.reproducible(settings)))
        return Script(f"{self.needs} and numpy", self.sent, self.plain(own), hints)

    def said_to(self, tool: str, settings: TargetSettings, model: Minimal) -> list[str] | NotReproducible | None:
        """How another tool (``polygraphy`` for ``polygraphy run``, ``trtexec``) is asked for it, after the model's name.

        Returns:
            The words; why it cannot say all of it; or ``None`` if it does not know this target.
        """
        return None

    def alternatives(self, settings: TargetSettings) -> list[tuple[str, TargetSettings]]:
        """What else a minimal model is worth running on, to rule things out: in words (``In fp32``), and set so."""
        full: dict[str, Any] = dict.fromkeys(settings.low_precisions, False)
        return [("In fp32", replace(settings, **full, keep=(), held=False))] if full else []

    def switches(self, settings: TargetSettings, looked: Looked) -> list[Switch]:
        """What of it can be turned, the cheapest first; see :mod:`bisect_trt.targets.switches`.

        Args:
            settings: How it is set up.
            looked: What is known of the model.
        """
        from bisect_trt.targets.switches import precision_switches  # noqa: PLC0415 - a command line is read without

        return precision_switches(settings)

    def recording(self, settings: TargetSettings, folder: Path) -> TargetSettings:
        """The same, but each build leaves in a folder, which is there, what it chose and what else is worth keeping of it.

        What it chose goes to ``chosen.RECORD`` there. A target that does not say more than ``Session.layers`` leaves it at that.
        """
        return settings

    def pinned(
        self,
        settings: TargetSettings,
        pins: Sequence[Choice],
        bans: Sequence[Choice] = (),
        known: Sequence[Choice] = (),
    ) -> TargetSettings:
        """The same, but a build is held to some choices and kept from others; for a target that ``pins``.

        A build that cannot be held to one of them is refused, with the signature ``build: pin``.

        Args:
            settings: How it is set up.
            pins: What it has to choose, for layers that are there.
            bans: What it shall not choose.
            known: What it may choose instead, as far as that was seen.
        """
        return settings

    def held_to(
        self,
        settings: TargetSettings,
        choices: Sequence[Choice],
        folder: Path,
    ) -> TargetSettings | None:
        """The same, but builds are held to all that another one chose; ``None`` if it chose nothing that one can be held to.

        Args:
            settings: How it is set up.
            choices: What it chose.
            folder: Where it left that, and what else it was told to by :meth:`recording`.
        """
        pins = [choice for choice in choices if choice.pins]
        return self.pinned(settings, pins) if pins else None

    def snippet(self, settings: TargetSettings) -> tuple[str, ...] | None:
        """The settings as lines of Python to paste, with the model's file as ``m``; ``None`` if it has no such words."""
        return None

    def typed(self, settings: TargetSettings) -> list[TargetSettings]:
        """The ways in which users run a model with the low precision in its graph, where the target may lower one itself."""
        return []

    def reproducible(self, settings: TargetSettings) -> dict[str, Value]:
        """What is said of its own settings in a reproducer, by name."""
        own = settings.of(self.own)
        names = [entry.name for entry in fields(own) if entry.name not in self.not_reproducible]
        return {name: getattr(own, name) for name in names}

    def check_inputs(  # noqa: B027 - of those that are told
        self, settings: TargetSettings, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Make sure that what it was told of the inputs fits the values that they are fed, by their shapes.

        Raises:
            UsageError: It does not.
        """

    def check_model(self, settings: TargetSettings, operators: Collection[str]) -> None:  # noqa: B027 - of those that need some
        """Make sure that what it was told fits a model of these operators.

        Raises:
            UsageError: It does not.
        """

    def profile(self, settings: TargetSettings) -> Mapping[str, ShapeRange]:
        """The ranges of shapes that it was told to compile for, by input."""
        return {}

    def spanning(self, settings: TargetSettings, ranges: Mapping[str, ShapeRange]) -> TargetSettings:
        """Compile for these ranges of shapes instead, by input; as it is, where it takes any shape without being told."""
        return settings

    def drops_casts(self, settings: TargetSettings) -> bool:
        """Whether it drops a Cast to fp16 with the one back, so that what is emulated has to round by arithmetic."""
        return False

    def reference(self, settings: TargetSettings, plain: TargetSettings) -> TargetSettings:
        """The reference beside it: ``plain``, with what the model cannot be run without there either."""
        return plain

    def emulates_low(self, settings: TargetSettings) -> bool:
        """Whether it would compute low-precision nodes in fp32, so that candidates have to round instead."""
        return False

    def finds_weights(self, settings: TargetSettings) -> bool:
        """Whether its runtime, here, looks into :data:`ELSEWHERE` for where a model's weights are.

        For all others they are copied beside the candidates.
        """
        return False


def make_runtime(settings: TargetSettings) -> Runtime:
    """The runtime that is asked for; its package is imported only then.

    Raises:
        UnavailableError: It is not there, or has no such provider, or no GPU.
        UsageError: It has no such option.
    """
    return settings.target.make_runtime(settings)
