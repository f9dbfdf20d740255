"""``extract``: writes a piece of the model."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from bisect_trt.errors import (
    ModelRefusedError,
)
from bisect_trt.onnxlib.cut import extract
from bisect_trt.onnxlib.network import Network
from bisect_trt.options.commands import Extract
from bisect_trt.options.shared import Data
from bisect_trt.report.result import Result
from bisect_trt.session.call import Call
from bisect_trt.tensors.files import save_npz


def run(call: Call) -> Result:
    """Write a piece of the model, and the values of its inputs if the model's input values are given."""
    options = call[Extract]
    data = call[Data]
    values = [options.output.with_suffix(".inputs.npz")] if data.given else []
    # Else the piece's inputs keep free dimensions.
    fixed = bool(data.input_shapes or values)
    call.may_write(options.output, *values, overwrite=options.overwrite)
    opened = call.open()
    opened = structs.replace(opened, model=structs.replace(opened.model, stays_free=not fixed))
    with opened.examined(options.timeout) as session:
        subject, network = session.subject, session.subject.network
        starts = _tensors(options.inputs, network)
        ends = _tensors(options.outputs, network)
        piece, inputs = extract(network, starts, ends, network.infos)
        infos = [
            info
            for name in inputs
            if (info := network.infos.get(name)) is not None and info.shape is not None
        ]
        free = bool(data.input_shapes) and not all(info.is_static for info in infos)
        # The inputs of a valid model have types; a run finds those that shape inference does not.
        if values or free or len(infos) < len(inputs):
            if not fixed:
                subject.say_sizes()
            piece, inputs = extract(subject.network, starts, ends, subject.infos)
            if unknown := [name for name in inputs if name not in subject.reference.infos]:
                raise ModelRefusedError(
                    f"the values of '{unknown[0]}' are unknown, because ONNX Runtime cannot run the nodes before it; start the "
                    "piece elsewhere."
                )
        subject.workspace.save(piece, options.output)
        names = ", ".join(value.name for value in piece.graph.output)
        call.console.answer(
            f"{options.output}: {len(piece.graph.node)} nodes from {', '.join(inputs)} to {names}, not run."
        )
        for path in values:
            save_npz(path, subject.reference.select(inputs))
            call.result.artifacts["inputs"] = str(path)
            call.console.answer(f"{path}: the values of its inputs.")
        return call.result.wrote(extracted=options.output)


def _tensors(names: Sequence[str], network: Network) -> list[str]:
    """Return names of tensors without Polygraphy's suffix ``:auto:auto``."""
    available = {*network.producer, *network.inputs}
    return [
        name if name in available else name.removesuffix(":auto").removesuffix(":auto")
        for name in names
    ]
