"""How OpenVINO compiles and runs a model: in a worker here, in a place and in ``reproduce.py``, where its source goes too.

So it needs nothing of bisect-trt but what goes along, and has Python 3.8's syntax.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping

from bisect_trt.targets.signatures import clean_message

HINT = "INFERENCE_PRECISION_HINT"
FULL, HINTS = "f32", {"fp16": "f16", "bf16": "bf16"}
CAPABILITIES = {"fp16": "FP16", "bf16": "BF16"}
PROPERTIES = (
    ("LP_TRANSFORMS_MODE", "NO"),
    ("SNIPPETS_MODE", "DISABLE"),
    ("EXECUTION_MODE_HINT", "ACCURACY"),
    ("CPU_DENORMALS_OPTIMIZATION", "YES"),
    ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "0"),
    ("ENABLE_CPU_PINNING", "NO"),
    ("INFERENCE_NUM_THREADS", "1"),
)
"""Properties that can be turned, and to what."""
RESULT = "/sink_port_0"
"""What OpenVINO's frontend appends to the name of a model's output."""
PLACE = re.compile(r" at \S+\.(?:cpp|hpp|h):\d+:?|^\s*Exception from \S+:\d+:?", re.MULTILINE)
"""Of its source, in its messages."""
BITS = {"bf16": "bfloat16"}
"""Types that NumPy lacks, as ml_dtypes calls them; their bits are 16."""


def said(error: Exception) -> str:
    """What OpenVINO says, on one line, without the places in its source."""
    return clean_message(PLACE.sub("", str(error)))


def hint_for(low: str | None, kept: Any, capabilities: Any) -> str:
    """The precision to ask for: the low one, where the device computes in it and no node is kept from it; else fp32.

    Args:
        low: ``fp16``, ``bf16`` or none.
        kept: Nodes that stay in fp32.
        capabilities: What the device says of itself.
    """
    return HINTS[low] if low is not None and not kept and CAPABILITIES[low] in capabilities else FULL


def compile_model(core: Any, model: Any, settings: Mapping[str, Any]) -> Any:
    """A model compiled for a device.

    Args:
        core: OpenVINO's.
        model: What it has read.
        settings: ``device``, ``properties`` and the ``precision`` hint, a word of OpenVINO's.
    """
    properties = {HINT: settings["precision"]}
    properties.update((name, value) for name, value in settings["properties"])
    return aside(core.compile_model, model, settings["device"], properties)


def aside(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives, in a thread that ends with it.

    OpenVINO changes the floating-point mode of the thread that it works in (CPU_DENORMALS_OPTIMIZATION flushes subnormals), and
    leaves it so for whatever else is computed there: NumPy's comparison of what came out, first of all.
    """
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(call, *arguments).result()


def output_names(read: Any) -> list[str]:
    """The model's outputs in its own order, by the names that ONNX gives them."""
    names = []
    for port in read.outputs:
        name = port.get_node().get_friendly_name()
        if not name.endswith(RESULT):  # of a model that another frontend has read
            names.append(min(port.get_names()))
            continue
        names.append(name[: -len(RESULT)])
    return names


def input_names(compiled: Any, declared: Any) -> list[str]:
    """What each input is called.

    Args:
        compiled: The model.
        declared: The names of the model's inputs, without those of weights, in its own order, which OpenVINO keeps; empty
            where they are not known. Where a node passes an input on, OpenVINO itself knows it by that node's name.
    """
    if len(declared) == len(compiled.inputs):
        return list(declared)
    return [port.get_node().get_friendly_name() for port in compiled.inputs]


def run_compiled(compiled: Any, inputs: list[str], outputs: list[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs by name; those of types that NumPy has no arrays of are left out."""
    request = compiled.create_infer_request()
    aside(request.infer, {place: to_tensor(compiled.inputs[place], values[name]) for place, name in enumerate(inputs)})
    found = {}
    for place, name in enumerate(outputs):
        array = to_array(request.get_output_tensor(place))
        if array is not None:
            found[name] = array
    return found


def to_tensor(port: Any, values: Any) -> Any:
    """An input's values as OpenVINO is fed."""
    import numpy as np
    import openvino

    kind = port.get_element_type()
    if kind.get_type_name() in BITS:
        tensor = openvino.Tensor(kind, openvino.Shape(list(values.shape)))
        tensor.data.view(np.uint16)[...] = np.ascontiguousarray(values).view(np.uint16)
        return tensor
    return openvino.Tensor(np.array(values, order="C"))


def to_array(tensor: Any) -> Any:
    """A copy of a tensor as an array; ``None`` if NumPy has no such type."""
    kind = tensor.element_type.get_type_name()
    if kind == "string":
        return tensor.str_data.astype(object)
    if kind in BITS:
        import numpy as np

        try:
            import ml_dtypes
        except ImportError:
            return None
        return tensor.data.view(np.uint16).copy().view(getattr(ml_dtypes, BITS[kind]))
    return tensor.data.copy() if tensor.element_type.bitwidth >= 8 and not kind.startswith("f8") else None
