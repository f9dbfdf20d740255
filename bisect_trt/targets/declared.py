"""What a target declares of itself: what it is like, what it comes as, and how it is said to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # nothing of it is needed to parse a command line
    from bisect_trt.targets.settings import TargetSettings


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
        modules: Whose source it is made of, each after those it needs. They have Python 3.8's syntax, import nothing of
            bisect-trt but each other, and define ``run`` and ``sign`` as :mod:`bisect_trt.targets.standalone` calls them.
        settings: What ``run`` is given: plain values.
    """

    needs: str
    modules: tuple[str, ...]
    settings: Mapping[str, Any]


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
