"""Ask a runtime itself about a network, without bisect-trt.

`python -m truth.bare QUESTION MODEL SAMPLE...` prints a verdict as JSON.
The questions: `onnxrt`, `openvino` and `fp16` compare with ONNX Runtime without optimisations; `trt_rtx` builds.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Feed = dict[str, np.ndarray]


def onnxruntime_session(
    model: str | bytes, optimise: bool = False
) -> Callable[[Feed], list[np.ndarray]]:
    """Return a function that runs a model in ONNX Runtime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = {value.name for value in session.get_inputs()}
    return lambda feed: session.run(None, {name: feed[name] for name in inputs})


def openvino_session(model: str) -> Callable[[Feed], list[np.ndarray]]:
    """Return a function that runs a model in OpenVINO on the CPU, in fp32."""
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(model), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return lambda feed: [np.array(each) for each in compiled(feed).values()]


def rounded_session(path: str) -> Callable[[Feed], list[np.ndarray]]:
    """Return a function that runs a model with weights and the floats of each node rounded to fp16."""
    model = onnx.load(path)
    if not any(entry.domain == "" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", 17))
    _round(model.graph, _floats(model))
    return onnxruntime_session(model.SerializeToString())


def _floats(model: onnx.ModelProto) -> set[str]:
    """Return the names of all fp32 tensors, of bodies too, as far as shape inference knows types."""
    inferred = onnx.shape_inference.infer_shapes(model)
    names = set()
    graphs = [inferred.graph]
    while graphs:
        graph = graphs.pop()
        for value in [*graph.value_info, *graph.output, *graph.input]:
            if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
                names.add(value.name)
        for node in graph.node:
            graphs += [each.g for each in node.attribute if each.HasField("g")]
    return names


def _round(graph: onnx.GraphProto, floats: set[str]) -> None:
    for weight in graph.initializer:
        values = numpy_helper.to_array(weight)
        if values.dtype == np.float32:
            with np.errstate(over="ignore"):
                rounded = values.astype(np.float16).astype(np.float32)
            weight.CopyFrom(numpy_helper.from_array(rounded, weight.name))
    nodes = []
    for node in graph.node:
        nodes.append(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _round(attribute.g, floats)
        for slot, name in enumerate(node.output):
            if name in floats and node.op_type != "Constant":
                node.output[slot] = f"{name}/unrounded"
                nodes += [
                    helper.make_node(
                        "Cast", [node.output[slot]], [f"{name}/half"], to=onnx.TensorProto.FLOAT16
                    ),
                    helper.make_node("Cast", [f"{name}/half"], [name], to=onnx.TensorProto.FLOAT),
                ]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def distance(reference: np.ndarray, result: np.ndarray, half: bool) -> float:
    """Return the largest difference of two tensors in units of the documented tolerance."""
    reference = np.asarray(reference, np.float64)
    result = np.asarray(result, np.float64)
    if reference.shape != result.shape:
        return float("inf")
    if not reference.size:
        return 0.0
    scale = float(np.sqrt(np.mean(np.square(reference[np.isfinite(reference)], dtype=float))))
    absolute = 1e-2 * scale if half else max(1e-5, 2e-4 * scale)
    relative = 1e-2 if half else 1e-5
    with np.errstate(invalid="ignore"):
        allowed = absolute + relative * np.abs(reference)
        ratio = np.where(
            reference == result, 0, np.abs(reference - result) / np.maximum(allowed, 1e-30)
        )
    return float(np.where(np.isnan(ratio), np.inf, ratio).max())


def compare(question: str, model: str, samples: list[Feed]) -> dict[str, object]:
    """Return the verdict about values, the largest distance and the exception of a runtime that refuses."""
    reference = onnxruntime_session(model)
    try:
        if question == "onnxrt":
            target = onnxruntime_session(model, optimise=True)
        else:
            target = {"openvino": openvino_session, "fp16": rounded_session}[question](model)
        worst = 0.0
        for feed in samples:
            for expected, result in zip(reference(feed), target(feed), strict=True):
                half = question == "fp16" or expected.dtype == np.float16
                worst = max(worst, distance(expected, result, half))
    except Exception as error:  # whatever a runtime raises
        return {"verdict": "refused", "reason": str(error)}
    return {"verdict": "match" if worst <= 1 else "differs", "distance": worst}


def build(model: str, samples: list[Feed]) -> dict[str, object]:
    """Return whether TensorRT-RTX builds the file with a profile over the samples, for a GPU of SM89."""
    trt: Any = importlib.import_module("tensorrt_rtx_bindings")

    errors: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc,unused-ignore]
        def log(self, severity: object, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                errors.append(message)

    logger = Logger()
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(model):
        return {"verdict": "refused", "reason": f"parser: {errors[:1]}"}
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    for place in range(network.num_inputs):
        tensor = network.get_input(place)
        shapes = [feed[tensor.name].shape for feed in samples]
        limits = (np.min(shapes, axis=0), shapes[0], np.max(shapes, axis=0))
        if tensor.is_shape_tensor:
            values = [feed[tensor.name].ravel().tolist() for feed in samples]
            profile.set_shape_input(tensor.name, min(values), values[0], max(values))
        elif -1 in tuple(tensor.shape):
            profile.set_shape(tensor.name, *(tuple(map(int, each)) for each in limits))
    config.add_optimization_profile(profile)
    if builder.build_serialized_network(network, config) is None:
        return {"verdict": "refused", "reason": f"builder: {errors[:1]}"}
    return {"verdict": "builds"}


if __name__ == "__main__":
    samples_of_user = [dict(np.load(path)) for path in sys.argv[3:]]
    if sys.argv[1] == "trt_rtx":
        answer = build(sys.argv[2], samples_of_user)
    else:
        answer = compare(sys.argv[1], sys.argv[2], samples_of_user)
    print(json.dumps(answer))
