"""How each of TensorRT's settings is said to other tools.

Sources: TensorRT's developer guide, "trtexec"; ``polygraphy run --help`` (0.53.6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bisect_trt.targets.base import Minimal, NotReproducible, Value
from bisect_trt.targets.settings import TargetSettings

Words = Callable[[Value], list[str]]
POLYGRAPHY, TRTEXEC = "polygraphy", "trtexec"
TACTIC_SOURCES = ("CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
"""All of TensorRT's: ``trtexec`` adds to its default and takes away from it."""


@dataclass(frozen=True)
class Said:
    """One setting, to each tool.

    Attributes:
        polygraphy: To ``polygraphy run``.
        trtexec: To ``trtexec``.
    """

    polygraphy: Words
    trtexec: Words


def _option(name: str) -> Words:
    return lambda value: [name, str(value)]


def _flag(name: str) -> Words:
    return lambda value: [name] if value else []


def _equals(name: str, spell: Callable[[Value], str] = str) -> Words:
    return lambda value: [f"{name}={spell(value)}"]


def _shapes(value: Value) -> str:
    """``x:1x3,y:2``."""
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in value)


def _range(name: str) -> Words:
    """``x:[1,3] y:[2]`` after a flag."""
    return lambda value: [name, *(f"{key}:{list(shape)}".replace(" ", "") for key, shape in value)]


def _words(name: str, value: str) -> list[str]:
    """The value of an attribute; flags are several."""
    return [flag for flag in value.split(",") if flag != "none"] if name == "quantization_flags" else [value]


def _budget(value: Value) -> str:
    """``-1``, ``-2``, ``40%``, ``1024B``."""
    return f"{value}B" if str(value).isdigit() else str(value)


def _sources(value: Value) -> str:
    wanted = {name.upper() for name in value}
    return ",".join(f"{'+' if name in wanted else '-'}{name}" for name in TACTIC_SOURCES)


_POLYGRAPHY_FLAGS = {
    "SPARSE_WEIGHTS": "--sparse-weights",
    "REFIT": "--refittable",
    "STRIP_PLAN": "--strip-plan",
    "WEIGHT_STREAMING": "--weight-streaming",
    "EXCLUDE_LEAN_RUNTIME": "--exclude-lean-runtime",
    "ERROR_ON_TIMING_CACHE_MISS": "--error-on-timing-cache-miss",
    "DISABLE_COMPILATION_CACHE": "--disable-compilation-cache",
    "DIRECT_IO": "--direct-io",
    "GPU_FALLBACK": "--allow-gpu-fallback",
    "SAFETY_SCOPE": "--trt-safety-restricted",
}
_TRTEXEC_FLAGS = {
    "SPARSE_WEIGHTS": "--sparsity=enable",
    "REFIT": "--refit",
    "STRIP_PLAN": "--stripWeights",
    "WEIGHT_STREAMING": "--allowWeightStreaming",
    "EXCLUDE_LEAN_RUNTIME": "--excludeLeanRuntime",
    "ERROR_ON_TIMING_CACHE_MISS": "--errorOnTimingCacheMiss",
    "DISABLE_COMPILATION_CACHE": "--disableCompilationCache",
    "DIRECT_IO": "--directIO",
    "GPU_FALLBACK": "--allowGPUFallback",
    "SAFETY_SCOPE": "--restricted",
    "ENABLE_TACTIC_HEURISTIC": "--heuristic",
    "MONITOR_MEMORY": "--monitorMemory",
}
_POLYGRAPHY_SETTINGS = {
    "max_aux_streams": "--max-aux-streams",
    "quantization_flags": "--quantization-flags",
    "profiling_verbosity": "--profiling-verbosity",
    "tiling_optimization_level": "--tiling-optimization-level",
    "runtime_platform": "--runtime-platform",
}
_TRTEXEC_SETTINGS = {
    "max_aux_streams": "--maxAuxStreams",
    "avg_timing_iterations": "--avgTiming",
    "min_timing_iterations": "--minTiming",
    "profiling_verbosity": "--profilingVerbosity",
    "tiling_optimization_level": "--tilingOptimizationLevel",
    "l2_limit_for_tiling": "--l2LimitForTiling",
    "max_num_tactics": "--maxTactics",
    "runtime_platform": "--runtimePlatform",
    "DLA_core": "--useDLACore",
    "build_route": "--setBuildRoute",
}
"""What of TensorRT's flags and attributes each tool has options for."""


_POLYGRAPHYS = ("calib_base_cls", "quantile", "regression_cutoff", "dla_workspace_allocation_strategy")
"""What `trtexec` has no words for: it calibrates by entropy alone."""


def unsaid(tool: str, own: Mapping[str, Value]) -> str | None:
    """What of the settings a tool has no words for; ``None`` if nothing."""
    flags, settings = (
        (_POLYGRAPHY_FLAGS, _POLYGRAPHY_SETTINGS) if tool == POLYGRAPHY else (_TRTEXEC_FLAGS, _TRTEXEC_SETTINGS)
    )
    missing = [name for name in own.get("builder_flags", ()) if name not in flags]
    missing += [name for name, _ in own.get("builder_settings", ()) if name not in settings]
    missing += list(own.get("onnx_flags", ())) if tool == TRTEXEC else []
    missing += [name for name in _POLYGRAPHYS if name in own] if tool == TRTEXEC else []
    missing += [*own.get("avoid_tactics", ()), *own.get("pin_tactics", ())]
    return ", ".join(missing) or None


_LEVELS = {"none": "none", "ampere_plus": "ampere+", "same_compute_capability": "sameComputeCapability"}
SAID: Mapping[str, Said] = {
    "precision_constraints": Said(_option("--precision-constraints"), _equals("--precisionConstraints")),
    "min_shapes": Said(_range("--trt-min-shapes"), _equals("--minShapes", _shapes)),
    "opt_shapes": Said(_range("--trt-opt-shapes"), _equals("--optShapes", _shapes)),
    "max_shapes": Said(_range("--trt-max-shapes"), _equals("--maxShapes", _shapes)),
    "pool_limits": Said(
        lambda value: ["--pool-limit", *(f"{pool}:{size}" for pool, size in value)],
        lambda value: [f"--memPoolSize={pool}:{size}B" for pool, size in value],
    ),
    "tactic_sources": Said(
        lambda value: ["--tactic-sources", *(name.upper() for name in value)], _equals("--tacticSources", _sources)
    ),
    "builder_optimization_level": Said(_option("--builder-optimization-level"), _equals("--builderOptimizationLevel")),
    "plugins": Said(
        lambda value: ["--plugins", *value], lambda value: [f"--staticPlugins={library}" for library in value]
    ),
    "strongly_typed": Said(_flag("--strongly-typed"), _flag("--stronglyTyped")),
    "version_compatible": Said(_flag("--version-compatible"), _flag("--versionCompatible")),
    "hardware_compatibility_level": Said(
        _option("--hardware-compatibility-level"),
        _equals("--hardwareCompatibilityLevel", lambda value: _LEVELS.get(str(value).lower(), str(value))),
    ),
    "builder_flags": Said(
        lambda value: [_POLYGRAPHY_FLAGS[name] for name in value],
        lambda value: [_TRTEXEC_FLAGS[name] for name in value],
    ),
    "builder_settings": Said(
        lambda value: [word for name, each in value for word in (_POLYGRAPHY_SETTINGS[name], *_words(name, each))],
        lambda value: [f"{_TRTEXEC_SETTINGS[name]}={each}" for name, each in value],
    ),
    "preview_features": Said(
        lambda value: ["--preview-features", *value],
        lambda value: ["--preview=" + ",".join(f"+{name}" for name in value)],
    ),
    "onnx_flags": Said(lambda value: ["--onnx-flags", *(name.lower() for name in value)], lambda _: []),
    "avoid_tactics": Said(lambda value: [], lambda value: []),  # noqa: ARG005 - neither has words for it
    "pin_tactics": Said(lambda value: [], lambda value: []),  # noqa: ARG005 - as above
    "plugin_instancenorm": Said(_flag("--plugin-instancenorm"), _flag("--pluginInstanceNorm")),
    "load_runtime": Said(_option("--load-runtime"), lambda value: ["--useRuntime=lean", f"--leanDLLPath={value}"]),
    "weight_streaming_budget": Said(_option("--weight-streaming-budget"), _equals("--weightStreamingBudget", _budget)),
    "allocation_strategy": Said(_option("--allocation-strategy"), _equals("--allocationStrategy")),
    "dla_workspace_allocation_strategy": Said(
        _option("--dla-workspace-allocation-strategy"),
        lambda value: [],  # noqa: ARG005 - see unsaid
    ),
    "calib_base_cls": Said(_option("--calib-base-cls"), lambda value: []),  # noqa: ARG005 - see unsaid
    "quantile": Said(_option("--quantile"), lambda value: []),  # noqa: ARG005 - as above
    "regression_cutoff": Said(_option("--regression-cutoff"), lambda value: []),  # noqa: ARG005 - as above
    "load_timing_cache": Said(_option("--load-timing-cache"), _equals("--timingCacheFile")),
    "calibration_cache": Said(_option("--calibration-cache"), _equals("--calib")),
}
"""All of :class:`~bisect_trt.targets.trt.settings.TrtSettings` but those that are not reproducible."""
_HALF = ("fp16", "bf16")
_TYPES = {POLYGRAPHY: {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}}


def say(
    tool: str, changed: Mapping[str, Value], settings: TargetSettings, model: Minimal
) -> list[str] | NotReproducible:
    """The words after the model's name.

    Args:
        tool: Which tool.
        changed: TensorRT's own settings that are not the defaults.
        settings: All of them.
        model: What it is to run.
    """
    own = {**changed, **({"strongly_typed": True} if model.lowered else {})}
    if (missing := unsaid(tool, own)) is not None:
        return NotReproducible(f"it has no option for {missing}")
    layers = {} if model.lowered else _layers(tool, settings, model)
    if layers is None:
        return NotReproducible("some nodes whose precision is set have no name, and it names layers by those")
    ordered = dict(own.get("layer_precisions", ()))
    if layers or ordered:
        own.setdefault("precision_constraints", "obey" if settings.keep or ordered else "prefer")
    names = [name for name in settings.low_precisions if not (model.lowered and name in _HALF)]
    if tool == POLYGRAPHY:
        words = ["--trt", *(f"--{name}" for name in names)]
    else:
        words = [f"--{name}" for name in names if name != "tf32"]
        words += [] if settings.tf32 else ["--noTF32"]
    words += [word for name, value in _fitting(own, model) for word in getattr(SAID[name], tool)(value)]
    return words + _say_layers(tool, layers, ordered)


def _fitting(own: Mapping[str, Value], model: Minimal) -> list[tuple[str, Value]]:
    """The settings, of ranges those of the model's inputs alone."""
    found = []
    for name in SAID:
        value = own.get(name)
        if name in own and name.endswith("_shapes"):
            value = tuple(each for each in own[name] if each[0] in model.inputs)
        if name in own and (value or not name.endswith("_shapes")):
            found.append((name, value))
    return found


def _layers(tool: str, settings: TargetSettings, model: Minimal) -> dict[str, str] | None:
    """In what precision layers run that are told, by their nodes' names; ``None`` if one has no name."""
    low = "bf16" if settings.bf16 else "fp16"
    kept = {name: "fp32" for name, outputs in model.nodes if set(outputs[:1]) & set(settings.keep)}
    if settings.held and tool == TRTEXEC:
        kept = {"*": low, **kept}
    elif settings.held:
        kept = {name: low for name, _ in model.nodes} | kept
    return None if "" in kept else kept


def _say_layers(tool: str, layers: Mapping[str, str], ordered: Mapping[str, str]) -> list[str]:
    """Those that are held to a type as a whole, and those that are only told to compute in one."""
    every = {**layers, **ordered}
    if not every:
        return []
    if tool == POLYGRAPHY:
        return ["--layer-precisions", *(f"{name}:{_TYPES[tool].get(kind, kind)}" for name, kind in every.items())]
    said, ends = (",".join(f"{name}:{kind}" for name, kind in some.items()) for some in (every, layers))
    return [f"--layerPrecisions={said}", *([f"--layerOutputTypes={ends}"] if layers else [])]
