"""Cut a piece out of a model, with the values it really gets there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.cut import extract
from bisect_trt.graph.network import Network
from bisect_trt.graph.save import save_model
from bisect_trt.graph.shapes import inferred_infos
from bisect_trt.reporting.result import Result
from bisect_trt.tensors.npz import save_npz
from bisect_trt.workflows.investigation import Examination
from bisect_trt.workflows.picture import draw


@dataclass(frozen=True)
class ExtractSettings:
    """What to cut out.

    Attributes:
        inputs: The tensors where it starts; the graph's inputs where empty.
        outputs: The tensors where it ends; the graph's outputs where empty.
        output: Where it goes.
        with_inputs: Whether to run the original and write the values of the inputs beside it.
        timeout: Seconds that it may run, where that is more than by default.
        visual: Where a picture of it goes, if one is wanted.
    """

    inputs: Sequence[str]
    outputs: Sequence[str]
    output: Path
    with_inputs: bool = False
    timeout: float | None = None
    visual: Path | None = None

    @property
    def values(self) -> Path:
        """Where the values of the inputs go."""
        return self.output.with_suffix(".inputs.npz")


def extract_model(examination: Examination, settings: ExtractSettings) -> Result:
    """Write the piece, and its inputs where they were asked for.

    Raises:
        UsageError: A name is no tensor of the model.
        UnavailableError: The values of an input are not known, because ONNX Runtime cannot run what comes before it.
    """
    subject, console, result = examination.subject, examination.console, examination.result
    network = subject.network
    infos = inferred_infos(network)
    piece, inputs = extract(network, settings.inputs, settings.outputs, infos)
    # Without a type a model's input is not valid; a run knows what shape inference does not.
    if settings.with_inputs or any(name not in infos or not infos[name].is_static for name in inputs):
        piece, inputs = extract(network, settings.inputs, settings.outputs, subject.infos)
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
    if settings.visual is not None:
        draw(Network(piece), settings.visual)
        result.artifacts["visual"] = str(settings.visual)
    result.status, result.minimality = "found", "1-minimal"
    console.answer(
        f"{settings.output}: {len(piece.graph.node)} nodes from {', '.join(inputs)} to "
        f"{', '.join(value.name for value in piece.graph.output)}."
    )
    if settings.with_inputs:
        console.answer(f"{settings.values}: the values of its inputs.")
    return result
