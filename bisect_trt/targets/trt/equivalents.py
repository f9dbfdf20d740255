"""The commands of TensorRT's own tools that build and run a model with the same settings, for bug reports.

Options: ``trtexec --help`` of TensorRT 10.16, and ``polygraphy run --help`` of Polygraphy 0.53.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.trt.settings import Shapes, TrtSettings

_MEBIBYTE = 1 << 20
_PROFILE = ("min", "opt", "max")


def tool_commands(
    settings: TargetSettings, model: str, inputs: str, tolerance: tuple[float, float], lowered: bool
) -> list[str]:
    """Return the lines for ``trtexec`` and ``polygraphy run``, without what these tools have no option for.

    Args:
        settings: The settings of the target.
        model: The ONNX file.
        inputs: The file with the inputs, ``.json``.
        tolerance: Largest error that matches, absolute and relative.
        lowered: Whether the low precision is written into the model as Casts.
    """
    options = settings.of(TrtSettings)
    # Casts in the model hold its types; the tools' switches would lower the nodes that are kept.
    low = () if lowered else [name for name in settings.low_precisions if name != "tf32"]
    shapes = (options.min_shapes, options.opt_shapes or options.max_shapes, options.max_shapes)
    # The tools take all three shapes of a profile or none.
    profile = list(zip(_PROFILE, shapes, strict=True)) if options.min_shapes else []
    level = options.builder_optimization_level
    levels = [str(level)] * (level is not None)
    sources = options.tactic_sources
    trtexec = [
        *("trtexec", f"--onnx={model}"),
        *(f"--{name}" for name in low),
        *["--stronglyTyped"] * options.strongly_typed,
        *["--noTF32"] * (not settings.tf32),
        *(f"--{kind}Shapes={','.join(_trtexec_shapes(each))}" for kind, each in profile),
        *(f"--memPoolSize={pool}:{size / _MEBIBYTE:g}" for pool, size in options.pool_limits),
        *(f"--builderOptimizationLevel={each}" for each in levels),
        *([f"--tacticSources={_trtexec_sources(sources)}"] if sources else []),
        *(f"--staticPlugins={plugin}" for plugin in options.plugins),
    ]
    polygraphy = [
        *("polygraphy", "run", model, "--trt", "--onnxrt", "--load-inputs", inputs),
        *(f"--{name}" for name in low),
        *["--strongly-typed"] * options.strongly_typed,
        *["--tf32"] * settings.tf32,
        *chain.from_iterable(
            (f"--trt-{kind}-shapes", *_polygraphy_shapes(each)) for kind, each in profile
        ),
        *_listed("--pool-limit", [f"{pool}:{size}" for pool, size in options.pool_limits]),
        *_listed("--builder-optimization-level", levels),
        *([] if sources is None else ["--tactic-sources", *sources]),
        *_listed("--plugins", options.plugins),
        *("--atol", f"{tolerance[0]:.3g}", "--rtol", f"{tolerance[1]:.3g}"),
    ]
    return [shlex.join(trtexec), shlex.join(polygraphy)]


def _listed(flag: str, values: Sequence[str]) -> list[str]:
    return [flag, *values] if values else []


def _trtexec_shapes(shapes: Shapes) -> Iterator[str]:
    # trtexec splits at the first colon that is not in single quotes.
    names = ((f"'{name}'" if ":" in name else name, dims) for name, dims in shapes)
    return (f"{name}:{'x'.join(map(str, dims))}" for name, dims in names)


def _polygraphy_shapes(shapes: Shapes) -> Iterator[str]:
    return (f"{name}:[{','.join(map(str, dims))}]" for name, dims in shapes)


def _trtexec_sources(sources: Iterable[str]) -> str:
    return ",".join(f"+{name.upper()}" for name in sources)
