"""How far healthy runtimes are from the reference in fp32, and what the automatic tolerance makes of it.

``python -m benchmarks.noise``: the nine light models, with the weights they have (all equal, so
that errors of rounding add up) and with random ones, every tensor an output and not, on ONNX
Runtime with all optimisations and, where it is installed, on OpenVINO. Then each tensor once more
with one element off by a thousandth of its root mean square: who misses that?
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper

from benchmarks.cases import LIGHT_MODELS, computing_nodes, light_model
from bisect_trt.tensors.compare import compare_tensor
from bisect_trt.tensors.info import finite_rms
from bisect_trt.tensors.tolerance import ToleranceOptions

Arrays = Mapping[str, NDArray[Any]]
AUTOMATIC = ToleranceOptions()
FIXED = ToleranceOptions(atol={"": 1e-5}, rtol={"": 1e-5})
PLANTED = 1e-3


def models(name: str) -> Iterator[tuple[str, onnx.ModelProto, dict[str, NDArray[np.float32]]]]:
    """A light model with its own weights and with random ones, and what to feed it."""
    rng = np.random.default_rng(0)
    for weights in ("equal", "random"):
        model = onnx.load(light_model(name))
        stored = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in stored]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        model.ir_version = max(model.ir_version, 4)
        if weights == "random":
            randomise(model, rng)
        shapes = {
            value.name: [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
            for value in inputs
        }
        yield (
            weights,
            model,
            {key: rng.normal(0, 1, shape).astype(np.float32) for key, shape in shapes.items()},
        )


def randomise(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """Give it weights as He et al. initialise them ("Delving deep into rectifiers", 2015)."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    filled = {
        n.output[0]: n
        for n in model.graph.node
        if n.op_type == "ConstantOfShape" and n.input[0] in stored
    }
    for node in list(model.graph.node):
        for place, name in enumerate(node.input):
            if name not in filled:
                continue
            maker = filled.pop(name)
            shape = tuple(int(dim) for dim in stored[maker.input[0]])
            if node.op_type == "BatchNormalization" and place in (1, 4):
                value = rng.uniform(0.5, 1.5, shape)
            elif len(shape) > 1:
                value = rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
            else:
                value = rng.normal(0, 0.1, shape)
            model.graph.node.remove(maker)
            model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))


def onnxrt(model: onnx.ModelProto, feed: Arrays, *, optimize: bool) -> Arrays:
    """What ONNX Runtime makes of it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # that a light model has weights that nothing reads
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return dict(
        zip(
            [value.name for value in session.get_outputs()],
            session.run(None, dict(feed)),
            strict=True,
        )
    )


def openvino(model: onnx.ModelProto, feed: Arrays) -> Arrays:
    """What OpenVINO makes of it, in fp32."""
    core = importlib.import_module("openvino").Core()
    read = core.read_model(model.SerializeToString())
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    made = compiled(dict(feed))
    return {name: made[output] for output in compiled.outputs for name in output.names}


def targets(
    model: onnx.ModelProto, marked: onnx.ModelProto, feed: Arrays
) -> Iterator[tuple[str, Arrays]]:
    """Each runtime on the model as it is, and with every tensor an output."""
    for how, each in (("", model), (", marked", marked)):
        yield f"ONNX Runtime{how}", onnxrt(each, feed, optimize=True)
        if importlib.util.find_spec("openvino") is not None:
            yield f"OpenVINO{how}", openvino(each, feed)


def missed(name: str, values: NDArray[Any], rng: np.random.Generator) -> bool:
    """Whether the automatic tolerance forgives one element that is off by a thousandth of the root mean square."""
    wrong = values.copy()
    wrong.reshape(-1)[rng.integers(values.size)] += np.float32(PLANTED * finite_rms(values))
    return bool(compare_tensor(name, values, wrong, AUTOMATIC).passed)


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(1)
    print(
        "| model | weights | runtime | tensors | alarms at 1e-5 | alarms | most noise, of RMS | missed |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in LIGHT_MODELS:
        for weights, model, feed in models(name):
            marked = onnx.ModelProto()
            marked.CopyFrom(model)
            outputs = {value.name for value in model.graph.output}
            live = [made for made in computing_nodes(light_model(name)) if made not in outputs]
            marked.graph.output.extend(onnx.ValueInfoProto(name=made) for made in live)
            reference = onnxrt(marked, feed, optimize=False)
            # Where Polygraphy's 1e-5 is more than a thousandth of a tensor, that was forgiven
            # before, and is.
            visible = {
                n: v for n, v in reference.items() if PLANTED * finite_rms(v) > FIXED.atol[""]
            }
            unseen = sum(missed(n, values, rng) for n, values in visible.items())
            for runtime, made in targets(model, marked, feed):
                seen = [n for n in reference if n in made]
                alarms = [
                    sum(not compare_tensor(n, reference[n], made[n], options).passed for n in seen)
                    for options in (FIXED, AUTOMATIC)
                ]
                noise = [
                    np.abs(reference[n] - made[n]).max() / finite_rms(reference[n])
                    for n in seen
                    if n in visible
                ]
                cells = [name, weights, runtime, len(seen), *alarms, f"{max(noise, default=0):.1e}"]
                print(f"| {' | '.join(map(str, cells))} | {unseen} of {len(visible)} |", flush=True)


if __name__ == "__main__":
    main()
