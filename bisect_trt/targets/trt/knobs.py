"""What a build can be told beside precisions, profiles, limits and tactics; its source goes into ``reproduce.py`` too.

So it needs nothing of bisect-trt that does not go there as well, and has Python 3.8's syntax. Names are those of TensorRT's own
enumerations and attributes: whatever a version has can be said, and what it has not is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

ENUMS = {
    "default_device_type": "DeviceType",
    "engine_capability": "EngineCapability",
    "hardware_compatibility_level": "HardwareCompatibilityLevel",
    "profiling_verbosity": "ProfilingVerbosity",
    "runtime_platform": "RuntimePlatform",
    "tiling_optimization_level": "TilingOptimizationLevel",
}
"""Attributes of the builder configuration that are members of an enumeration."""
NAMED_ATTRIBUTES = (
    *("engine_capability", "max_aux_streams", "profiling_verbosity", "quantization_flags", "runtime_platform"),
    "tiling_optimization_level",
)
"""Those that have an option by their name; the others are said by ``--builder-set``."""
TYPES = {"fp32": "FLOAT", "fp16": "HALF", "bf16": "BF16", "int8": "INT8", "int32": "INT32"}
"""TensorRT's names of types in which layers may be told to run."""
_METHODS = ("add_", "all_", "can_", "clear_", "create_", "get_", "is_", "num_", "reset", "set_", "_")


class NoSuch(Exception):  # noqa: N818 - what there is not
    """This version has no such name, or takes no such value."""


def turn(trt: Any, config: Any, settings: Mapping[str, Any]) -> None:
    """Set builder flags, attributes and preview features.

    Args:
        trt: The package.
        config: The builder configuration.
        settings: The fields of :class:`~bisect_trt.targets.trt.settings.TrtSettings`.

    Raises:
        NoSuch: This version does not have one of them.
    """
    for name in settings["builder_flags"]:
        config.set_flag(member(trt, "BuilderFlag", name, "--builder-flag"))
    for name, value in settings["builder_settings"]:
        set_attribute(trt, config, name, value)
    wanted = settings["preview_features"]
    if wanted is not None:
        chosen = {member(trt, "PreviewFeature", name, "--preview-features") for name in wanted}
        for feature in getattr(trt, "PreviewFeature").__members__.values():  # noqa: B009 - named as in the API lists
            config.set_preview_feature(feature, feature in chosen)


def set_attribute(trt: Any, config: Any, name: str, value: str) -> None:
    """Set an attribute of the builder configuration to what a word says.

    Raises:
        NoSuch: There is no such attribute, or it takes other values.
    """
    named = f"--{name.replace('_', '-')} or " if name in NAMED_ATTRIBUTES else ""
    option = f"{named}--builder-set {name}"
    if name == "quantization_flags":
        chosen = {member(trt, "QuantizationFlag", flag, option) for flag in value.split(",") if flag.lower() != "none"}
        for known_flag in getattr(getattr(trt, "QuantizationFlag", None), "__members__", {}).values():
            (config.set_quantization_flag if known_flag in chosen else config.clear_quantization_flag)(known_flag)
        return
    if name in NAMED_ATTRIBUTES and not hasattr(config, name):
        raise NoSuch(f"{option}: this is TensorRT {trt.__version__}, which has no such setting; leave it out")
    if name.startswith(_METHODS) or not hasattr(config, name):
        known = ", ".join(each for each in dir(config) if not each.startswith(_METHODS))
        raise NoSuch(f"--builder-set: the builder configuration has no attribute '{name}'; it has: {known}")
    if name in ENUMS:
        word = member(trt, ENUMS[name], value, option)
    elif name == "plugins_to_serialize":
        word = value.split(",")
    else:
        word = plain(value)
    try:
        setattr(config, name, word)
    except (TypeError, ValueError, AttributeError) as error:
        raise NoSuch(f"--builder-set: {name} takes no '{value}': {error}") from error


def plain(value: str) -> Any:
    """A word as the number or the bool that it says."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return int(value, 0)
    except ValueError:
        return value


def set_parser_flags(trt: Any, parser: Any, names: Any) -> None:
    """Set flags of the ONNX parser.

    Raises:
        NoSuch: This version does not have one of them.
    """
    flags = [member(trt, "OnnxParserFlag", name, "--onnx-flags") for name in names]
    for flag in flags:
        parser.set_flag(flag)


def plug_instancenorm(trt: Any, parser: Any) -> None:
    """Have InstanceNormalization be the plugin's, by taking back a flag that is set by default since TensorRT 10.

    Raises:
        NoSuch: This version does not have it.
    """
    flag = member(trt, "OnnxParserFlag", "NATIVE_INSTANCENORM", "--plugin-instancenorm")
    parser.clear_flag(flag)


def forget_int8(trt: Any, config: Any, network: Any) -> None:
    """Take INT8 back where nothing is quantized and no ranges are given, as in a piece of a quantized model.

    TensorRT to 10 refuses to build such a network ("no scaling factors detected"), which says nothing of the piece.
    """
    flag = getattr(trt.BuilderFlag, "INT8", None)
    if flag is None or not config.get_flag(flag) or config.int8_calibrator is not None:
        return
    kinds = {network.get_layer(index).type for index in range(network.num_layers)}
    if not kinds & {trt.LayerType.QUANTIZE, trt.LayerType.DEQUANTIZE}:
        config.clear_flag(flag)
        print("TensorRT: nothing in this network is quantized, so it is built without INT8", flush=True)


def calibrator_base(trt: Any, settings: Mapping[str, Any]) -> Any:
    """The class that a calibrator is derived of.

    The legacy one asks for more than the others: where it cuts a distribution off.
    """
    name = settings["calib_base_cls"] or "IInt8EntropyCalibrator2"
    base = getattr(trt, name)
    if name != "IInt8LegacyCalibrator":
        return base
    quantile, cutoff = (0.5 if settings[key] is None else settings[key] for key in ("quantile", "regression_cutoff"))

    class Legacy(base):  # type: ignore[misc, valid-type]  # TensorRT ships no types
        def get_quantile(self) -> float:
            return float(quantile)

        def get_regression_cutoff(self) -> float:
            return float(cutoff)

        def read_histogram_cache(self, *_: Any) -> None:
            return None

        def write_histogram_cache(self, *_: Any) -> None:
            return None

    return Legacy


def stream_weights(engine: Any, budget: str | None) -> None:
    """Say how much of its weights the GPU holds; before an execution context is made.

    Args:
        engine: Built with weight streaming.
        budget: ``-2`` for all of them, ``-1`` for TensorRT's choice, ``40%``, or bytes; ``None`` for nothing said.
    """
    if budget is None:
        return
    if budget == "-2":
        size = engine.streamable_weights_size
    elif budget == "-1":
        size = engine.get_weight_streaming_automatic_budget()
    elif budget.endswith("%"):
        size = int(engine.streamable_weights_size * float(budget[:-1]) / 100)
    else:
        size = int(budget)
    engine.weight_streaming_budget_v2 = size


def prepare_runtime(trt: Any, runtime: Any, settings: Mapping[str, Any]) -> None:
    """Tell a runtime how engines on one DLA share their memory; before one is loaded.

    Raises:
        NoSuch: This version does not have it.
    """
    name, option = settings["dla_workspace_allocation_strategy"], "--dla-workspace-allocation-strategy"
    if name is not None:
        runtime.dla_workspace_allocation_strategy = member(trt, "DLAWorkspaceAllocationStrategy", name, option)


def make_context(trt: Any, engine: Any, settings: Mapping[str, Any], stream: int | None) -> Any:
    """An execution context, which takes its memory when it is told to and runs the profile that is asked for.

    With ``runtime``, that is just before it runs; see ``IExecutionContext.update_device_memory_size_for_shapes``.

    Raises:
        NoSuch: The engine has no such profile.
    """
    profile, strategy = settings["optimization_profile"], settings["allocation_strategy"]
    if profile is not None and profile >= engine.num_optimization_profiles:
        raise NoSuch(
            f"--optimization-profile {profile}: the engine's profiles are numbered from 0 to "
            f"{engine.num_optimization_profiles - 1}"
        )
    stream_weights(engine, settings["weight_streaming_budget"])
    if strategy in (None, "static"):
        context = engine.create_execution_context()
    else:
        strategies = getattr(trt, "ExecutionContextAllocationStrategy")  # noqa: B009 - named as in the API lists
        chosen = strategies.ON_PROFILE_CHANGE if strategy == "profile" else strategies.USER_MANAGED
        context = engine.create_execution_context(chosen)
    if context is not None and profile:
        context.set_optimization_profile_async(profile, stream)
    return context


def order_layers(trt: Any, layers: Iterable[Any], ordered: Iterable[tuple[str, str]]) -> list[str]:
    """Tell layers in which type they run; one that is not there, as in a piece of the model, is passed over.

    Returns:
        The names of those that are there.

    Raises:
        NoSuch: This version does not have a type.
    """
    types = {name: member(trt, "DataType", TYPES[kind], "--layer-precisions") for name, kind in ordered}
    told = []
    for layer in layers:
        if layer.name in types:
            layer.precision = types[layer.name]
            told.append(layer.name)
    return told


def check_running(settings: Mapping[str, Any], version: tuple[int, ...], said: str) -> None:
    """Make sure that a version has what is said of running layers and engines.

    Args:
        settings: The fields of :class:`~bisect_trt.targets.trt.settings.TrtSettings`.
        version: Of TensorRT: major, minor, and maybe more.
        said: The same in words.

    Raises:
        NoSuch: It has not.
    """
    chosen = version < (11,) and not settings["strongly_typed"] and settings["lowering"] != "cast"
    if settings["layer_precisions"] and not chosen:
        raise NoSuch(
            f"--layer-precisions is about types that TensorRT chooses, and here, on TensorRT {said}, those in the graph run; "
            "name what stays in fp32 with --keep-fp32"
        )
    for name in ("weight_streaming_budget", "allocation_strategy"):
        if settings[name] not in (None, "static") and version[:2] < (10, 1):
            option = "--" + name.replace("_", "-")
            raise NoSuch(f"{option} needs TensorRT 10.1 or later, and this is TensorRT {said}; leave it out")


def member(trt: Any, enum: str, name: str, option: str) -> Any:
    """A member of one of TensorRT's enumerations, by name in any case.

    Raises:
        NoSuch: This version does not have it.
    """
    known = {key.lower(): value for key, value in getattr(getattr(trt, enum, None), "__members__", {}).items()}
    if name.lower() not in known:
        has = ", ".join(sorted(known)) or "none"
        raise NoSuch(f"{option}: this is TensorRT {trt.__version__}, which has no '{name}'; it has: {has}")
    return known[name.lower()]
