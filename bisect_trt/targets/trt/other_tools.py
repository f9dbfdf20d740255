"""TensorRT's settings as options of ``polygraphy run`` and ``trtexec``.

Sources: TensorRT's developer guide, "trtexec"; ``polygraphy run --help`` (0.53.6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bisect_trt.targets.base import Minimal, NotReproducible, Value
from bisect_trt.targets.settings import TargetSettings

POLYGRAPHY, TRTEXEC = "polygraphy", "trtexec"
TACTIC_SOURCES = ("CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
"""All of TensorRT's: ``trtexec`` adds to its default and takes away from it."""
_HALF = ("fp16", "bf16")
_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Polygraphy's words for types."""
Words = tuple[list[str], list[str]]
"""Polygraphy's, and trtexec's."""


def _shapes(which: str) -> Callable[[Value], Words]:
    def words(value: Value) -> Words:
        ranges = [f"{name}:{list(shape)}".replace(" ", "") for name, shape in value]
        sizes = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in value)
        return [f"--trt-{which}-shapes", *ranges], [f"--{which}Shapes={sizes}"]

    return words


def _sources(value: Value) -> Words:
    wanted = [name.upper() for name in value]
    signed = ",".join(f"{'+' if name in wanted else '-'}{name}" for name in TACTIC_SOURCES)
    return ["--tactic-sources", *wanted], [f"--tacticSources={signed}"]


def _pools(value: Value) -> Words:
    limits = [f"{pool}:{size}" for pool, size in value]
    return ["--pool-limit", *limits], [f"--memPoolSize={limit}B" for limit in limits]


def _alike(polygraphy: str, trtexec: str) -> Callable[[Value], Words]:
    return lambda value: ([polygraphy, str(value)], [f"{trtexec}={value}"])


_SETTINGS: Mapping[str, Callable[[Value], Words]] = {
    "strongly_typed": lambda _: (["--strongly-typed"], ["--stronglyTyped"]),
    "min_shapes": _shapes("min"),
    "opt_shapes": _shapes("opt"),
    "max_shapes": _shapes("max"),
    "pool_limits": _pools,
    "tactic_sources": _sources,
    "builder_optimization_level": _alike("--builder-optimization-level", "--builderOptimizationLevel"),
    "plugins": lambda value: (["--plugins", *value], [f"--staticPlugins={library}" for library in value]),
    "load_timing_cache": _alike("--load-timing-cache", "--timingCacheFile"),
    "calibration_cache": _alike("--calibration-cache", "--calib"),
}


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
    own = {**changed, **({"strongly_typed": True} if model.lowered else {})}
    if unsaid := [name.replace("_", " ") for name in own if name not in _SETTINGS]:
        return NotReproducible(f"its options for {', '.join(unsaid)} are not known here")
    layers = {} if model.lowered else _layers(tool, settings, model)
    if "" in layers:
        return NotReproducible("some nodes whose precision is set have no name, and it names layers by those")
    for name in [name for name in own if name.endswith("_shapes")]:
        own[name] = tuple(each for each in own[name] if each[0] in model.inputs)
        if not own[name]:
            del own[name]
    names = [name for name in settings.low_precisions if not (model.lowered and name in _HALF)]
    constraints = "obey" if settings.keep else "prefer"
    said = [words(own[name]) for name, words in _SETTINGS.items() if name in own]
    if tool == POLYGRAPHY:
        words = ["--trt", *(f"--{name}" for name in names), *(word for each, _ in said for word in each)]
        typed = [f"{name}:{_TYPES[kind]}" for name, kind in layers.items()]
        return [*words, "--precision-constraints", constraints, "--layer-precisions", *typed] if typed else words
    words = [*(f"--{name}" for name in names if name != "tf32"), *([] if settings.tf32 else ["--noTF32"])]
    words += [word for _, each in said for word in each]
    if layers:
        held = ",".join(f"{name}:{kind}" for name, kind in layers.items())
        words += [f"--precisionConstraints={constraints}", f"--layerPrecisions={held}", f"--layerOutputTypes={held}"]
    return words


def _layers(tool: str, settings: TargetSettings, model: Minimal) -> dict[str, str]:
    """Return the precisions that layers are held to as a whole, by their nodes' names."""
    low = "bf16" if settings.bf16 else "fp16"
    kept = {name: "fp32" for name, outputs in model.nodes if set(outputs[:1]) & set(settings.keep)}
    if not settings.held:
        return kept
    return {"*": low, **kept} if tool == TRTEXEC else {name: low for name, _ in model.nodes} | kept
