"""How ``reproduce.py`` runs a model on TensorRT; its source goes into that file, so it needs nothing of bisect-trt.

It sets a build up as :mod:`bisect_trt.targets.trt.config` and :mod:`~bisect_trt.targets.trt.layers` do.
It is long because all that runs there without bisect-trt has to stand there.
"""

from __future__ import annotations

import ctypes
import pathlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from bisect_trt.targets.trt.knobs import (
    calibrator_base,
    forget_int8,
    make_context,
    order_layers,
    plug_instancenorm,
    set_parser_flags,
    turn,
)
from bisect_trt.targets.trt.selector import PIN_REFUSED, lift, missed, select
from bisect_trt.targets.trt.tuned import CannotTake, build_edited, by_cache, listen
from bisect_trt.targets.trt.wording import is_out_of_memory, reason


class Refused(Exception):  # noqa: N818 - a finding, not an error
    """TensorRT does not take the model: it fails to "build" or to "run" it."""

    def __init__(self, doing: str, message: str) -> None:
        """``message`` in the target's words."""
        super().__init__(message)
        self.doing = doing
        self.message = message


LAYER_SUFFIX = re.compile(r"(_\d+)?( \[[^\]]*\])?$")
"""What the parser appends where a node makes several layers."""


def make_logger(trt: Any, errors: list[str]) -> Any:
    """Prints warnings, and keeps errors for the reason of a refusal."""
    # Looked up now: at the interpreter's end TensorRT still speaks, when its module has been emptied.
    base, bad = trt.ILogger, (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR)
    much, quiet, hear = trt.ILogger.VERBOSE, (trt.ILogger.VERBOSE, trt.ILogger.INFO), listen

    class Logger(base):  # type: ignore[misc, valid-type]  # TensorRT ships no types
        def __init__(self) -> None:
            base.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in bad:
                errors.append(message)
            if severity == much:
                hear(message)
            if severity not in quiet:
                print(f"TensorRT: {message}")

    return Logger()


def typing_of(trt: Any, settings: Mapping[str, Any]) -> tuple[int, bool, bool]:
    """The network's flags, whether the types in the graph are those that run, and whether layers are told so one by one."""
    flags = trt.NetworkDefinitionCreationFlag
    # TensorRT 11 has nothing but strong typing, and no such flag any more; 8.6 has none yet: there each layer is told to
    # run in the type that it reads.
    strong = settings["strongly_typed"] or settings["lowered"] or not hasattr(flags, "EXPLICIT_BATCH")
    wanted = ["EXPLICIT_BATCH"] + (["STRONGLY_TYPED"] if strong else [])
    bits = sum(1 << int(getattr(flags, name)) for name in wanted if hasattr(flags, name))
    by_reading = strong and hasattr(flags, "EXPLICIT_BATCH") and not hasattr(flags, "STRONGLY_TYPED")
    return bits, strong, by_reading


def build(
    trt: Any, logger: Any, errors: list[str], path: pathlib.Path, inputs: Mapping[str, Any], settings: Mapping[str, Any]
) -> Any:
    """The serialised engine of the model."""
    bits, strong, by_reading = typing_of(trt, settings)
    builder = trt.Builder(logger)
    network = builder.create_network(bits)
    parser = trt.OnnxParser(network, logger)
    set_parser_flags(trt, parser, settings["onnx_flags"])
    if settings["plugin_instancenorm"]:
        plug_instancenorm(trt, parser)
    if not parser.parse_from_file(str(path)):
        raise Refused("build", why_not_parsed(parser, path))
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    set_precision(trt, config, settings, strong, by_reading)
    if not strong or by_reading:
        constrain(trt, network, settings, by_reading)
    set_limits(trt, config, settings)
    profile = make_profile(builder.create_optimization_profile(), network, inputs, settings)
    if profile is not None:
        config.add_optimization_profile(profile)
    if settings["calibration_cache"] is not None and "int8" in settings["precisions"]:
        config.int8_calibrator = make_calibrator(trt, path.parent / settings["calibration_cache"], settings)
    forget_int8(trt, config, network)
    timings = settings["load_timing_cache"]
    content = b"" if timings is None else (path.parent / timings).read_bytes()
    del errors[:]
    if by_cache(trt, settings):
        try:
            plan = build_edited(trt, builder, network, config, settings, content)
        except CannotTake as error:
            raise Refused("build", f"{PIN_REFUSED}: {error}") from error
    else:
        config.set_timing_cache(config.create_timing_cache(content), ignore_mismatch=False)
        plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise Refused("build", why(errors, "the builder gives no engine and does not say why"))
    refused = missed(settings)
    if refused is not None:
        raise Refused("build", refused)
    return plan


def set_precision(trt: Any, config: Any, settings: Mapping[str, Any], strong: bool, by_reading: bool) -> None:
    """In which types layers may run, and whether that is an order."""
    config.clear_flag(trt.BuilderFlag.TF32)
    for name in settings["precisions"]:
        if name == "tf32" or not strong or by_reading:
            config.set_flag(getattr(trt.BuilderFlag, name.upper()))
    constraints = settings["precision_constraints"]
    if constraints == "none" and (settings["keep"] or settings["layer_precisions"] or by_reading):
        constraints = "obey"
    if constraints == "none" and settings["held"]:
        constraints = "prefer"
    if (not strong or by_reading) and constraints != "none":
        config.set_flag(getattr(trt.BuilderFlag, constraints.upper() + "_PRECISION_CONSTRAINTS"))


def why(errors: list[str], otherwise: str) -> str:
    """What TensorRT said last, for people."""
    return ("out of memory: " if is_out_of_memory(errors) else "") + reason(errors, otherwise)


def why_not_parsed(parser: Any, path: pathlib.Path) -> str:
    """The parser's first error: which node, and what of it."""
    if parser.num_errors == 0:
        return "the ONNX parser refuses the model and does not say why"
    error = parser.get_error(0)
    where = ""
    try:
        import onnx

        node = onnx.load(str(path), load_external_data=False).graph.node[error.node()]
        where = f"{node.op_type} node '{node.name}': "
    except (ImportError, IndexError):
        pass
    return f"the ONNX parser refuses {where}{error.desc().strip()}"


def set_limits(trt: Any, config: Any, settings: Mapping[str, Any]) -> None:
    """What the builder may use, and what its engine shall run on."""
    for pool, size in settings["pool_limits"]:
        config.set_memory_pool_limit(entry(trt.MemoryPoolType, pool), size)
    if settings["tactic_sources"] is not None:
        config.set_tactic_sources(sum({1 << int(entry(trt.TacticSource, n)) for n in settings["tactic_sources"]}))
    if settings["builder_optimization_level"] is not None:
        config.builder_optimization_level = settings["builder_optimization_level"]
    if settings["hardware_compatibility_level"] is not None:
        level = entry(trt.HardwareCompatibilityLevel, settings["hardware_compatibility_level"])
        config.hardware_compatibility_level = level
    if settings["version_compatible"]:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    turn(trt, config, settings)
    select(trt, config, settings)


def entry(enum: Any, name: str) -> Any:
    """An entry of one of TensorRT's enumerations, by name in any case."""
    return {key.lower(): value for key, value in enum.__members__.items()}[name.lower()]


def make_profile(profile: Any, network: Any, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """The ranges of dimensions that vary; of an input that no range is given for, that of what it is fed."""
    ranges = [dict(settings[name]) for name in ("min_shapes", "opt_shapes", "max_shapes")]
    ranges[1] = ranges[1] or ranges[2]
    free = False
    for tensor in [network.get_input(index) for index in range(network.num_inputs)]:
        name = tensor.name
        if tensor.is_shape_tensor:
            profile.set_shape_input(name, *[[int(size) for size in inputs[name].ravel()]] * 3)
            free = True
        elif -1 in tuple(tensor.shape):
            given = [shapes.get(name, inputs[name].shape) for shapes in ranges]
            profile.set_shape(name, *[tuple(shape) for shape in given])
            free = True
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    return profile if free or any(-1 in tuple(tensor.shape) for tensor in outputs) else None


def make_calibrator(trt: Any, cache: pathlib.Path, settings: Mapping[str, Any]) -> Any:
    """Hands out the ranges for INT8 that were found before."""
    base = calibrator_base(trt, settings)

    class Calibrator(base):  # type: ignore[misc, valid-type]  # TensorRT ships no types
        def __init__(self) -> None:
            base.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: list[str]) -> None:
            return None

        def read_calibration_cache(self) -> bytes:
            return cache.read_bytes()

        def write_calibration_cache(self, content: memoryview) -> None:
            pass

    return Calibrator()


def constrain(trt: Any, network: Any, settings: Mapping[str, Any], by_reading: bool) -> None:
    """Say in what precision layers run: those of kept nodes in fp32; all others in the low one if they are held to it."""
    low = trt.DataType.BF16 if "bf16" in settings["precisions"] else trt.DataType.HALF
    nodes = settings["nodes"]
    named = by_reading or settings["keep"] or settings["held"]
    for layer, place in zip(layers_of(network), nodes_of(network, nodes), strict=True) if named else ():
        if by_reading:
            tensors = [layer.get_input(index) for index in range(layer.num_inputs)]
            half = any(tensor is not None and tensor.dtype == trt.DataType.HALF for tensor in tensors)
            hold(trt, layer, low if half else trt.DataType.FLOAT)
        elif place is not None and nodes[place][1][0] in settings["keep"]:
            hold(trt, layer, trt.DataType.FLOAT)
            lift([layer.name])
        elif settings["held"]:
            hold(trt, layer, low)
    lift(order_layers(trt, layers_of(network), settings["layer_precisions"]))


def layers_of(network: Any) -> list[Any]:
    """In the order they were made."""
    return [network.get_layer(index) for index in range(network.num_layers)]


def nodes_of(network: Any, nodes: list[list[Any]]) -> list[Any]:
    """For each layer the place of the node that it was made of, or ``None``; ``nodes`` are names and outputs.

    The parser makes the layers of one node after the other. A layer is told by its name, which is the node's, or by what
    it makes, which goes by the node's output; unnamed layers before such a one lead up to it.
    """
    by_name = {name: place for place, (name, _) in enumerate(nodes) if name}
    by_output = {output: place for place, (_, outputs) in enumerate(nodes) for output in outputs if output}
    found: list[int | None] = []
    pending = 0
    for layer in layers_of(network):
        node = by_name.get(layer.name, by_name.get(LAYER_SUFFIX.sub("", layer.name)))
        if node is None:
            made = [layer.get_output(index).name for index in range(layer.num_outputs)]
            node = next((by_output[name] for name in made if name in by_output), None)
        found.append(node)
        pending += 1
        if node is not None:
            found[-pending:] = [node] * pending
            pending = 0
    return found


def hold(trt: Any, layer: Any, precision: Any) -> bool:
    """Have a layer that makes floats make them in one type, and say whether it makes any.

    A Cast has its type already, and so have Quantize and Dequantize. What the network returns keeps the model's.
    """
    kinds = trt.LayerType
    if layer.type in (kinds.CONSTANT, kinds.SHAPE, kinds.CAST, kinds.QUANTIZE, kinds.DEQUANTIZE):
        return False
    outputs = [layer.get_output(index) for index in range(layer.num_outputs)]
    floats = [i for i, tensor in enumerate(outputs) if tensor.dtype in (trt.DataType.FLOAT, trt.DataType.HALF)]
    if not floats or any(outputs[index].is_shape_tensor for index in floats):
        return False
    layer.precision = precision
    for index in floats:
        if precision == trt.DataType.FLOAT or not outputs[index].is_network_output:
            layer.set_output_type(index, precision)
    return True


def load_cudart() -> Any:
    """The CUDA runtime, from the loader's path, NVIDIA's Python packages or the toolkit."""
    places = ["libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"]
    for folder in map(pathlib.Path, sys.path):
        places += map(str, folder.glob("nvidia/*/lib/libcudart.so*"))
    for place in [*places, *map(str, pathlib.Path("/usr/local").glob("cuda*/lib64/libcudart.so*"))]:
        try:
            return ctypes.CDLL(place)
        except OSError:
            pass
    raise RuntimeError("libcudart.so is not found; add its folder to LD_LIBRARY_PATH")


def execute(
    trt: Any, engine: Any, inputs: Mapping[str, Any], errors: list[str], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The outputs of an engine, by name."""
    import numpy as np

    cudart = load_cudart()

    def cuda(name: str, *arguments: Any) -> None:
        status = getattr(cudart, name)(*arguments)
        if status:
            raise Refused("run", f"CUDA error {status} in {name}")

    stream = ctypes.c_void_p()
    cuda("cudaStreamCreate", ctypes.byref(stream))
    taken: list[ctypes.c_void_p] = []
    context: Any = None

    def memory(size: int) -> ctypes.c_void_p:
        address = ctypes.c_void_p()
        cuda("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        taken.append(address)
        return address

    try:
        context = make_context(trt, engine, {"optimization_profile": None, **settings}, stream.value)
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        given = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        arrays: dict[str, Any] = {}
        buffers: dict[str, Any] = {}
        for name in given + [name for name in names if name not in given]:
            dtype = trt.nptype(engine.get_tensor_dtype(name))
            if name in given:
                arrays[name] = np.array(inputs[name], dtype, order="C")
                context.set_input_shape(name, arrays[name].shape)
            else:
                arrays[name] = np.empty(tuple(context.get_tensor_shape(name)), dtype)
            if engine.get_tensor_location(name) == trt.TensorLocation.HOST:
                context.set_tensor_address(name, arrays[name].ctypes.data)
                continue
            buffers[name] = memory(arrays[name].nbytes)
            context.set_tensor_address(name, buffers[name].value)
            copy(cuda, buffers[name], ctypes.c_void_p(arrays[name].ctypes.data), arrays[name].nbytes, 1)
        if settings["allocation_strategy"] == "runtime":
            size = max(context.update_device_memory_size_for_shapes(), 1)
            context.set_device_memory(memory(size).value, size)
        del errors[:]
        if not context.execute_async_v3(stream.value):
            raise Refused("run", why(errors, "the engine does not run and does not say why"))
        cuda("cudaStreamSynchronize", stream)
        for name, address in buffers.items():
            copy(cuda, ctypes.c_void_p(arrays[name].ctypes.data), address, arrays[name].nbytes, 2)
        return {name: arrays[name] for name in names if name not in given}
    finally:
        context = None  # before what it works in; in a place it is run again and again
        give_back(cudart, taken, stream)


def give_back(cudart: ctypes.CDLL, taken: list[ctypes.c_void_p], stream: ctypes.c_void_p) -> None:
    """Give memory and a stream back; after a failure that may fail too, and would hide which it was."""
    for address in taken:
        cudart.cudaFree(address)
    cudart.cudaStreamDestroy(stream)


def copy(cuda: Callable[..., None], target: object, source: object, size: int, kind: int) -> None:
    """Copy to the GPU (kind 1) or from it (2)."""
    cuda("cudaMemcpy", target, source, ctypes.c_size_t(size), ctypes.c_int(kind))
