"""The whole model, fed any values: as its inputs have them, of fixed shapes or with its dimensions free."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from bisect_trt.graph.shapes import fix_input_shapes, free_inputs
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.protocol import Failed
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.info import value_bytes
from bisect_trt.tensors.npz import load_npz, save_npz
from bisect_trt.workflows.investigation import Investigation

Values = Mapping[str, NDArray[Any]]


class Fed:
    """Makes the candidate of some values; what the reference makes of them is what should come out.

    Attributes:
        free: Whether the model keeps the dimensions free that its file leaves so; else they are those of the values.
    """

    def __init__(self, investigation: Investigation, target: TargetSettings | None) -> None:
        """Nothing is run yet; ``target`` is the one that is compared, if one is."""
        self.free = False
        self._investigation, self._subject, self._target = investigation, investigation.subject, target
        self._golden: dict[str, Path | str] = {}
        self._engines: dict[str, Path | None] = {}

    def refused(self, values: Values) -> str | None:
        """Why the reference does not run them, if so."""
        made = self._made(values)
        return made if isinstance(made, str) else None

    def candidate(self, values: Values, title: str) -> Candidate:
        """The model with values that were not refused."""
        made = self._made(values)
        assert isinstance(made, Path), "it was not refused"
        network = self._subject.network
        proto = free_inputs(network.proto, self._subject.declared if self.free else {}, forget=False)
        if not self.free:
            fix_input_shapes(proto, {name: value.shape for name, value in values.items()})
        outputs = tuple(network.outputs)
        candidate = Candidate(proto, tuple(values), outputs, title, values={**values, **load_npz(made)})
        return replace(candidate, engine=self._engine(candidate, values))

    def _made(self, values: Values) -> Path | str:
        """A file with what the reference makes of values, or why it makes nothing."""
        digest = hashlib.sha256()
        for name, value in values.items():
            digest.update(f"{name} {value.shape}".encode() + value_bytes(value))
        key = digest.hexdigest()[:16]
        if key not in self._golden:
            made = self._subject.workspace.scratch(f"fed-{key}.golden.npz")
            failed = self._run(values, made)
            if failed is not None and not self._runs_some and self._investigation.unreferenced:
                save_npz(made, {})
                failed = None
            self._golden[key] = made if failed is None else failed.message
        return self._golden[key]

    def _run(self, values: Values, to: Path) -> Failed | None:
        """Leave what the reference makes of values in a file; why it does not run them, if so."""
        models = self._subject.models
        model = models.write("fed", free_inputs(self._subject.network.proto, self._subject.declared, forget=False))
        return models.collect(model, models.feed("fed.in", values), to)

    @cached_property
    def _runs_some(self) -> bool:
        """Whether the reference runs any sample; where it runs none, a check of the user's decides alone."""
        to = self._subject.workspace.scratch("fed-any.golden.npz")
        return any(self._run(sample, to) is None for sample in self._subject.samples)

    def _engine(self, candidate: Candidate, values: Values) -> Path | None:
        """One engine for all values of the same shapes, where the target makes such."""
        if self._target is None or self._target.target.engines is None:
            return None
        key = "-".join("x".join(map(str, value.shape)) for value in values.values())
        if key not in self._engines:
            to = self._subject.workspace.folder / f"samples-{key}.engine"
            failed = self._subject.models.build("samples", candidate.proto, values, to, self._target)
            self._engines[key] = to if failed is None else None  # else the probe says what is wrong
        return self._engines[key]
