"""Cut a piece out of a model, with the values it really gets there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_trt.commands.session import Session
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.cut import extract
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.save import save_model
from bisect_trt.onnxlib.shapes import free_inputs, inferred_infos
from bisect_trt.report.result import Result
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.npz import save_npz


@dataclass(frozen=True)
class ExtractSettings:
    """What to cut out.

    Attributes:
        inputs: The tensors where it starts; the graph's inputs where empty.
        outputs: The tensors where it ends; the graph's outputs where empty.
        output: Where it goes.
        sized: Whether sizes of inputs are given, so that its own are those of a run; else it is dynamic where the original is.
        with_inputs: Whether to run the original and write the values of the inputs beside it.
        timeout: Seconds that it may run, where that is more than by default.
    """

    inputs: Sequence[str]
    outputs: Sequence[str]
    output: Path
    sized: bool = False
    with_inputs: bool = False
    timeout: float | None = None

    @property
    def values(self) -> Path:
        """Where the values of the inputs go."""
        return self.output.with_suffix(".inputs.npz")


def extract_model(session: Session, settings: ExtractSettings) -> Result:
    """Write the piece, and its inputs where they were asked for.

    Raises:
        UsageError: A name is no tensor of the model.
        UnavailableError: The values of an input are not known, because ONNX Runtime cannot run what comes before it.
    """
    subject, console, result = session.subject, session.console, session.result
    network = subject.network if settings.sized or settings.with_inputs else _as_in_file(subject)
    infos = inferred_infos(network)
    starts, ends = _names("--inputs", settings.inputs, network), _names("--outputs", settings.outputs, network)
    piece, inputs = extract(network, starts, ends, infos)
    # Without a type a model's input is not valid; a run knows what shape inference does not.
    if settings.with_inputs or any(_unknown(infos.get(name), sized=settings.sized) for name in inputs):
        if not (settings.sized or settings.with_inputs):
            subject.say_sizes()
        piece, inputs = extract(subject.network, starts, ends, subject.infos)
        unknown = [name for name in inputs if name not in subject.reference.infos]
        if unknown:
            raise UnavailableError(
                f"the values of '{unknown[0]}' are not known, because ONNX Runtime cannot run what comes before it; "
                "start the piece elsewhere."
            )
    save_model(piece, subject.workspace.weights.folder_of(piece), settings.output)
    result.artifacts["extracted"] = str(settings.output)
    if settings.with_inputs:
        save_npz(settings.values, subject.reference.select(inputs))
        result.artifacts["inputs"] = str(settings.values)
    result.status, result.minimality = "found", "1-minimal"
    console.answer(
        f"{settings.output}: {len(piece.graph.node)} nodes from {', '.join(inputs)} to "
        f"{', '.join(value.name for value in piece.graph.output)}."
    )
    if settings.with_inputs:
        console.answer(f"{settings.values}: the values of its inputs.")
    return result


_META = re.compile(r"(?P<name>.+?)(:(auto|\[[^\]]*\]))?:(auto|[a-z0-9_]+)")
"""``NAME:SHAPE:TYPE`` and ``NAME:TYPE``, as Polygraphy's ``surgeon extract`` has them."""


def _as_in_file(subject: Subject) -> Network:
    """The network with those dimensions of its inputs free that are free in its file."""
    if all(isinstance(dim, int) for shape in subject.declared.values() for dim in shape):
        return subject.network
    return Network(free_inputs(subject.network.proto, subject.declared))


def _unknown(info: TensorInfo | None, *, sized: bool) -> bool:
    """Whether a run has to say what an input is."""
    return info is None or info.shape is None or (sized and not info.is_static)


def _names(option: str, given: Sequence[str], network: Network) -> list[str]:
    """The tensors that are named, without what Polygraphy says behind a name.

    Raises:
        UsageError: A type or a shape is given.
    """
    known, found = {*network.producer, *network.inputs}, []
    for name in given:
        said = None if name in known else _META.fullmatch(name)
        if said is None or said["name"] not in known:
            found.append(name)
            continue
        if {*name[len(said["name"]) :].split(":")} - {"", "auto"}:
            raise UsageError(
                f"{option} {name}: types and shapes of a piece are found; write '{said['name']}' alone, and the sizes of the "
                "model's inputs as --input-shapes."
            )
        found.append(said["name"])
    return found
