"""The whole model fed any values, with its shapes fixed or its dimensions free."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from bisect_trt.commands.checks import CheckSettings
from bisect_trt.commands.session import Session
from bisect_trt.onnxlib.shapes import fix_input_shapes, free_inputs
from bisect_trt.options.spec import written
from bisect_trt.probe.candidate import Candidate
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.info import value_bytes
from bisect_trt.tensors.npz import load_npz, save_npz
from bisect_trt.worker.protocol import Failed

Values = Mapping[str, NDArray[Any]]


class Fed:
    """Makes the candidate of given input values; the reference's outputs for them are the expected ones.

    Attributes:
        proto: The model with its dimensions free.
    """

    def __init__(
        self,
        session: Session,
        declared: Mapping[str, tuple[int | str | None, ...]],
        likely: Callable[[], Iterable[Values]],
        *,
        forget: bool = False,
    ) -> None:
        """Free the dimensions; nothing is run.

        Args:
            session: The model.
            declared: The dimensions of its inputs; a name or ``None`` where one is free.
            likely: Returns values that the reference should run, if it runs any.
            forget: Whether shapes inside of the model are dropped, because the file declares other ones.
        """
        self._session, self._likely = session, likely
        self.proto = free_inputs(session.subject.network.proto, declared, forget=forget)
        self._golden: dict[str, Path | str] = {}
        self._engines: dict[str, Path | None] = {}

    def refused(self, values: Values) -> str | None:
        """Return why the reference does not run some values, if so; nothing where models are only built."""
        if self._session.subject.models.build_only:
            return None
        made = self._expected(values)
        return made if isinstance(made, str) else None

    def candidate(
        self,
        values: Values,
        title: str,
        *,
        fixed: bool,
        engine: Path | None = None,
        target: TargetSettings | None = None,
    ) -> Candidate:
        """The model with values that were not refused, its shapes ``fixed`` to theirs or free."""
        proto, whole, outputs = self.proto, dict(values), tuple[str, ...]()
        if not self._session.subject.models.build_only:
            made = self._expected(values)
            assert isinstance(made, Path), "it was not refused"
            whole, outputs = {**values, **load_npz(made)}, tuple(self._session.subject.network.outputs)
        if fixed:
            proto = free_inputs(proto, {}, forget=True)
            fix_input_shapes(proto, {name: value.shape for name, value in values.items()})
        return Candidate(proto, tuple(values), outputs, title, values=whole, engine=engine, target=target)

    def engine(
        self,
        name: str,
        proto: onnx.ModelProto,
        values: Values,
        target: TargetSettings | None,
        timeout: float | None = None,
    ) -> Path | None:
        """The engine of this name, built once; ``None`` where the target makes no engines, or does not build it."""
        if target is None or not target.target.engines:
            return None
        if name not in self._engines:
            subject = self._session.subject
            to = subject.workspace.folder / f"fed-{name}.engine"
            failed = subject.models.build("fed", proto, values, to, target, timeout)
            self._engines[name] = to if failed is None else None  # a probe then shows the error
        return self._engines[name]

    def _expected(self, values: Values) -> Path | str:
        """Return a file with the reference's outputs, or why there are none."""
        digest = hashlib.sha256()
        for name, value in values.items():
            digest.update(f"{name} {value.shape}".encode() + value_bytes(value))
        key = digest.hexdigest()[:16]
        if key not in self._golden:
            made = self._session.subject.workspace.scratch(f"fed-{key}.golden.npz")
            failed = self._run(values, made)
            self._golden[key] = made if failed is None else f"the reference does not run it: {failed.message}"
            # A model that the reference cannot load at all is judged by the user's check alone.
            if failed and self._session.unreferenced and (failed.kind == "build" or not self._runs_any):
                save_npz(made, {})
                self._golden[key] = made
        return self._golden[key]

    def _run(self, values: Values, to: Path) -> Failed | None:
        models = self._session.subject.models
        return models.collect(models.write("fed", self.proto), models.feed("fed.in", values), to)

    @cached_property
    def _runs_any(self) -> bool:
        to = self._session.subject.workspace.scratch("fed-any.golden.npz")
        return any(self._run(values, to) is None for values in self._likely())


def command_on(
    session: Session, check: CheckSettings, command: str, model: Path, target: TargetSettings | None, inputs: Path
) -> str:
    """Return the command line that runs ``command`` with values: on a target, else by the check."""
    if target is None:
        return check.how_to(command, model, inputs, session.place_words)
    words = ["bisect-trt", command, str(model), *target.flags(), *session.place_words, "--load-inputs", str(inputs)]
    return shlex.join([*words, *written(check.tolerance)])
