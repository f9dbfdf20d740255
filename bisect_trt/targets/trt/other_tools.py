"""Says TensorRT's settings in the words of ``polygraphy run`` and ``trtexec``.

Sources: TensorRT's developer guide, "trtexec"; ``polygraphy run --help`` (0.53.6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bisect_trt.targets.base import Minimal, NotReproducible, Value
from bisect_trt.targets.settings import TargetSettings

Words = Callable[[Value], list[str]]
POLYGRAPHY, TRTEXEC = "polygraphy", "trtexec"
TACTIC_SOURCES = ("CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
"""All of TensorRT's: ``trtexec`` adds to its default and takes away from it."""
_LEVELS = {"none": "none", "ampere_plus": "ampere+", "same_compute_capability": "sameComputeCapability"}
_FLAGS: Mapping[str, tuple[str | None, str | None]] = {
    "SPARSE_WEIGHTS": ("--sparse-weights", "--sparsity=enable"),
    "REFIT": ("--refittable", "--refit"),
    "STRIP_PLAN": ("--strip-plan", "--stripWeights"),
    "WEIGHT_STREAMING": ("--weight-streaming", "--allowWeightStreaming"),
    "EXCLUDE_LEAN_RUNTIME": ("--exclude-lean-runtime", "--excludeLeanRuntime"),
    "ERROR_ON_TIMING_CACHE_MISS": ("--error-on-timing-cache-miss", "--errorOnTimingCacheMiss"),
    "DISABLE_COMPILATION_CACHE": ("--disable-compilation-cache", "--disableCompilationCache"),
    "DIRECT_IO": ("--direct-io", "--directIO"),
    "GPU_FALLBACK": ("--allow-gpu-fallback", "--allowGPUFallback"),
    "SAFETY_SCOPE": ("--trt-safety-restricted", "--restricted"),
    "VERSION_COMPATIBLE": ("--version-compatible", "--versionCompatible"),
    "ENABLE_TACTIC_HEURISTIC": (None, "--heuristic"),
    "MONITOR_MEMORY": (None, "--monitorMemory"),
    "NATIVE_INSTANCENORM": ("--onnx-flags native_instancenorm", None),
}
"""Builder and parser flags: Polygraphy's option, trtexec's; ``None`` for a tool without one."""
_ATTRIBUTES: Mapping[str, tuple[str | None, str | None]] = {
    "max_aux_streams": ("--max-aux-streams", "--maxAuxStreams"),
    "avg_timing_iterations": (None, "--avgTiming"),
    "profiling_verbosity": ("--profiling-verbosity", "--profilingVerbosity"),
    "tiling_optimization_level": ("--tiling-optimization-level", "--tilingOptimizationLevel"),
    "l2_limit_for_tiling": (None, "--l2LimitForTiling"),
    "max_num_tactics": (None, "--maxTactics"),
    "hardware_compatibility_level": ("--hardware-compatibility-level", "--hardwareCompatibilityLevel"),
    "runtime_platform": ("--runtime-platform", "--runtimePlatform"),
    "quantization_flags": ("--quantization-flags", None),
    "preview_features": ("--preview-features", "--preview"),
    "DLA_core": (None, "--useDLACore"),
    "build_route": (None, "--setBuildRoute"),
}
"""Attributes of the builder configuration, likewise."""


def _option(name: str) -> Words:
    return lambda value: [name, str(value)]


def _flag(name: str) -> Words:
    return lambda value: [name] if value else []


def _equals(name: str, spell: Callable[[Value], str] = str) -> Words:
    return lambda value: [f"{name}={spell(value)}"]


def _shapes(value: Value) -> str:
    """Return ``x:1x3,y:2``."""
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in value)


def _range(name: str) -> Words:
    """Return ``x:[1,3] y:[2]`` after a flag."""
    return lambda value: [name, *(f"{key}:{list(shape)}".replace(" ", "") for key, shape in value)]


def _sources(value: Value) -> str:
    wanted = {name.upper() for name in value}
    return ",".join(f"{'+' if name in wanted else '-'}{name}" for name in TACTIC_SOURCES)


def _flag_words(place: int) -> Words:
    return lambda value: [word for name in value for word in str(_FLAGS[name][place]).split()]


def _polygraphy_attributes(value: Value) -> list[str]:
    listed = ("quantization_flags", "preview_features")
    return [
        word
        for name, each in value
        for word in (
            str(_ATTRIBUTES[name][0]),
            *([flag for flag in each.split(",") if flag != "none"] if name in listed else [each]),
        )
    ]


def _trtexec_attributes(value: Value) -> list[str]:
    def spelled(name: str, each: str) -> str:
        if name == "preview_features":
            return ",".join(f"+{feature}" for feature in each.split(",") if feature != "none")
        return _LEVELS.get(each.lower(), each) if name == "hardware_compatibility_level" else each

    return [f"{_ATTRIBUTES[name][1]}={spelled(name, each)}" for name, each in value]


_SETTINGS: Mapping[str, tuple[Words, Words]] = {
    "precision_constraints": (_option("--precision-constraints"), _equals("--precisionConstraints")),
    "min_shapes": (_range("--trt-min-shapes"), _equals("--minShapes", _shapes)),
    "opt_shapes": (_range("--trt-opt-shapes"), _equals("--optShapes", _shapes)),
    "max_shapes": (_range("--trt-max-shapes"), _equals("--maxShapes", _shapes)),
    "pool_limits": (
        lambda value: ["--pool-limit", *(f"{pool}:{size}" for pool, size in value)],
        lambda value: [f"--memPoolSize={pool}:{size}B" for pool, size in value],
    ),
    "tactic_sources": (
        lambda value: ["--tactic-sources", *(name.upper() for name in value)],
        _equals("--tacticSources", _sources),
    ),
    "builder_optimization_level": (_option("--builder-optimization-level"), _equals("--builderOptimizationLevel")),
    "plugins": (
        lambda value: ["--plugins", *value],
        lambda value: [f"--staticPlugins={library}" for library in value],
    ),
    "strongly_typed": (_flag("--strongly-typed"), _flag("--stronglyTyped")),
    "builder_flags": (_flag_words(0), _flag_words(1)),
    "builder_settings": (_polygraphy_attributes, _trtexec_attributes),
    "load_timing_cache": (_option("--load-timing-cache"), _equals("--timingCacheFile")),
    "calibration_cache": (_option("--calibration-cache"), _equals("--calib")),
}
"""The words of the settings: for Polygraphy, for trtexec."""


def _missing(place: int, own: Mapping[str, Value]) -> str:
    """Return what a tool has no words for."""
    missing = [name for name in own.get("builder_flags", ()) if _FLAGS.get(name, (None, None))[place] is None]
    missing += [n for n, _ in own.get("builder_settings", ()) if _ATTRIBUTES.get(n, (None, None))[place] is None]
    return ", ".join([*missing, *own.get("avoid_tactics", ()), *own.get("pin_tactics", ())])


_HALF = ("fp16", "bf16")
_TYPES = {POLYGRAPHY: {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}}


def say(
    tool: str, changed: Mapping[str, Value], settings: TargetSettings, model: Minimal
) -> list[str] | NotReproducible:
    """Return the words after the model's name, or why the tool has none for some setting.

    Args:
        tool: Which tool.
        changed: TensorRT's own settings that are not the defaults.
        settings: All of them.
        model: What it is to run.
    """
    own, place = {**changed, **({"strongly_typed": True} if model.lowered else {})}, (POLYGRAPHY, TRTEXEC).index(tool)
    if missing := _missing(place, own):
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
    words += [word for name, value in _fitting(own, model) for word in _SETTINGS[name][place](value)]
    return words + _say_layers(tool, layers, ordered)


def _fitting(own: Mapping[str, Value], model: Minimal) -> list[tuple[str, Value]]:
    """Return the settings, of ranges those of the model's inputs alone."""
    found = []
    for name in _SETTINGS:
        value = own.get(name)
        if name in own and name.endswith("_shapes"):
            value = tuple(each for each in own[name] if each[0] in model.inputs)
        if name in own and (value or not name.endswith("_shapes")):
            found.append((name, value))
    return found


def _layers(tool: str, settings: TargetSettings, model: Minimal) -> dict[str, str] | None:
    """Return the precisions that layers are held to, by their nodes' names; ``None`` if one has no name."""
    low = "bf16" if settings.bf16 else "fp16"
    kept = {name: "fp32" for name, outputs in model.nodes if set(outputs[:1]) & set(settings.keep)}
    if settings.held and tool == TRTEXEC:
        kept = {"*": low, **kept}
    elif settings.held:
        kept = {name: low for name, _ in model.nodes} | kept
    return None if "" in kept else kept


def _say_layers(tool: str, layers: Mapping[str, str], ordered: Mapping[str, str]) -> list[str]:
    """Say the layers that are held to a type as a whole, and those that are only told to compute in one."""
    every = {**layers, **ordered}
    if not every:
        return []
    if tool == POLYGRAPHY:
        return ["--layer-precisions", *(f"{name}:{_TYPES[tool].get(kind, kind)}" for name, kind in every.items())]
    said, ends = (",".join(f"{name}:{kind}" for name, kind in some.items()) for some in (every, layers))
    return [f"--layerPrecisions={said}", *([f"--layerOutputTypes={ends}"] if layers else [])]
