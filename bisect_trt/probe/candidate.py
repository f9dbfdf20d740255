"""A model to probe, and a question about it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx
from msgspec import Struct

from bisect_trt.aliases import Names
from bisect_trt.onnxlib.cut import Cut
from bisect_trt.onnxlib.load import has_external_data
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.files import Values

AGAIN = "-again"
"""Part of the key of a question that is asked although its verdict is known."""


class Identity(Struct, frozen=True):
    """The description of a candidate without its model; the key is the same for the same model."""

    key: str
    title: str
    units: Subset

    @property
    def size(self) -> int:
        """The size of the candidate: each mark counts as a unit, so that no marked model is the smallest that fails."""
        return len(self.units)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Settings of the check for a candidate, where they differ from those for all others.

    Attributes:
        keep: Nodes that the target itself is to keep in fp32, by the first output of each; ``None``
            where that is not the target's to do.
        held: Whether the target must use its low precision, where it may choose fp32 by default.
        engine: A built engine, to be probed instead of a new one.
        packages: Those that it is probed with, as ``Environment.parse`` reads them; empty for those
            at hand.
        target: How the target is set up for it.
    """

    keep: Names | None = None
    held: bool = False
    engine: Path | None = None
    packages: str = ""
    target: TargetSettings | None = None

    def settings(self, target: TargetSettings) -> TargetSettings:
        """Return the target as it is set up for this candidate, by default as it is for all."""
        settings = self.target or target
        return replace(settings, keep=self.keep or settings.keep, held=self.held or settings.held)


@dataclass(frozen=True)
class Candidate(Setup):
    """A model derived from the original, and what goes in and should come out.

    Attributes:
        made: The model.
        inputs: The tensors to feed; the reference's activations are their values.
        outputs: The tensors to compare with the reference's.
        title: What it is, in a few words.
        units: Its units, for a search over units.
        values: Of its inputs and outputs, where they are not the reference's activations of the
            original.
        sample: The number of its input sample, from 1; a search uses all samples.
        repetition: Which of several builds or runs of the same it is, from 1; each is remembered by
            itself.
    """

    made: onnx.ModelProto | Cut
    inputs: Names
    outputs: Names
    title: str
    units: Subset = frozenset()
    values: Values | None = None
    sample: int = 1
    repetition: int = 0

    @property
    def proto(self) -> onnx.ModelProto:
        """The model's message; treat it as read-only."""
        return self.made.proto if isinstance(self.made, Cut) else self.made

    @property
    def has_external_data(self) -> bool:
        """Whether any of the model's weights lies outside."""
        return (
            self.made.has_external_data
            if isinstance(self.made, Cut)
            else has_external_data(self.made)
        )

    def content(self) -> bytes | bytearray:
        """The model as a file's bytes."""
        if isinstance(self.made, Cut):
            return self.made.content
        return bytes(self.made.SerializeToString(deterministic=True))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the model, of the values that it has of its own, and of its setup."""
        digest = hashlib.sha256(self.content())
        for name, value in (self.values or {}).items():
            # A model with free dimensions may be fed the same bytes in several shapes.
            digest.update(f"{name} {value.shape}".encode() + value.tobytes())
        setup = (
            self.keep,
            self.held,
            self.engine is None,
            self.packages,
            self.target,
            self.repetition,
        )
        digest.update(repr(setup).encode())
        return digest.hexdigest()

    @property
    def identity(self) -> Identity:
        """The description without the model, of the first question about it."""
        return Probe(self).identity

    @property
    def key(self) -> str:
        """Names the candidate by its content."""
        return self.identity.key


class Probe(Struct, frozen=True, dict=True):
    """A question about a candidate, and how often the check runs to answer it.

    Attributes:
        candidate: The candidate.
        again: Whether it is probed once more although its verdict may be known, so that both
            answers are remembered.
        runs: How often the check runs at most; ``None`` for as often as the first time.
        until: The verdict that ends the runs.
    """

    candidate: Candidate
    again: bool = False
    runs: int | None = None
    until: Verdict = Verdict.FAIL

    @cached_property
    def identity(self) -> Identity:
        """The description without the model; questions with other runs have other keys."""
        candidate = self.candidate
        policy = repr((self.again, self.runs, self.until))
        key = hashlib.sha256(f"{candidate.digest} {policy}".encode()).hexdigest()
        key += AGAIN if self.again else ""
        return Identity(key, candidate.title, candidate.units)

    @property
    def key(self) -> str:
        """Names the question by the candidate's content and the runs."""
        return self.identity.key
