"""An engine as plain values, for whoever wants to look into it."""

from __future__ import annotations

import json
from typing import Any

from onnx import ModelProto

from bisect_trt.targets.trt.api import TensorRt
from bisect_trt.targets.trt.inspect import Origins, parse_layers
from bisect_trt.targets.trt.session import to_dtype


def describe_engine(engine: Any, tensorrt: TensorRt) -> dict[str, Any]:
    """Its inputs, outputs and layers.

    Args:
        engine: A deserialised engine.
        tensorrt: This process's TensorRT.

    Returns:
        ``version`` of TensorRT; ``inputs`` and ``outputs``, each with ``name``, ``dtype``, ``shape`` (-1 where it varies)
        and, of inputs that vary, the smallest, usual and largest shape of each of the ``profiles``; ``layers`` in the
        order they run, each with ``name``, ``kind`` and ``precisions``.
    """
    tensors: dict[str, list[dict[str, Any]]] = {"INPUT": [], "OUTPUT": []}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        shape = [int(dim) for dim in engine.get_tensor_shape(name)]
        plain = {"name": name, "dtype": to_dtype(engine.get_tensor_dtype(name)).name, "shape": shape}
        mode = str(engine.get_tensor_mode(name).name)
        if mode == "INPUT" and -1 in shape:
            ranges = [engine.get_tensor_profile_shape(name, place) for place in range(engine.num_optimization_profiles)]
            plain["profiles"] = [[[int(dim) for dim in each] for each in shapes] for shapes in ranges]
        tensors[mode].append(plain)
    inspector = engine.create_engine_inspector()
    text = inspector.get_engine_information(tensorrt.trt.LayerInformationFormat.JSON)
    layers = parse_layers(json.loads(text, strict=False).get("Layers", []), Origins(ModelProto()))
    return {
        "version": str(tensorrt.trt.__version__),
        "inputs": tensors["INPUT"],
        "outputs": tensors["OUTPUT"],
        "layers": [{"name": each.name, "kind": each.kind, "precisions": list(each.precisions)} for each in layers],
    }
