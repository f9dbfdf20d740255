"""``reproduce.py``: shows a failure with nothing but the target's own package and NumPy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.comparison import TensorComparison


@dataclass(frozen=True)
class TargetScript:
    """How a target runs a model, as Python source.

    Attributes:
        template: The file that defines ``VERSION`` and ``run``.
        needs: The packages it needs, in words.
        imports: Its imports.
        settings: Its options: names of constants to their values, JSON-like but for ``None`` and bools.
    """

    template: str
    needs: str
    imports: str
    settings: Mapping[str, object]


def onnxrt_script(providers: Sequence[str]) -> TargetScript:
    """ONNX Runtime; ``providers`` by their long names."""
    imports = "import onnxruntime"
    return TargetScript("run_onnxrt.py.txt", "onnxruntime and numpy", imports, {"PROVIDERS": list(providers)})


def trt_script(settings: TargetSettings, *, lowered: bool) -> TargetScript:
    """TensorRT.

    Args:
        settings: The target.
        lowered: Whether half precision is in the model itself, so that the build need not be asked for it.
    """
    names = (name for name in settings.low_precisions if not (lowered and name in ("fp16", "bf16")))
    values: dict[str, object] = {
        "FLAGS": [name.upper() for name in names],
        "STRONGLY_TYPED": lowered or settings.of(TrtSettings).strongly_typed,
        "HELD": settings.held,
        "POOL_LIMITS": [[pool.upper(), size] for pool, size in settings.of(TrtSettings).pool_limits],
        "LEVEL": settings.of(TrtSettings).builder_optimization_level,
        "PLUGINS": list(settings.of(TrtSettings).plugins),
    }
    imports = "import ctypes\nimport glob\n\nimport tensorrt as trt"
    return TargetScript("run_trt.py.txt", "tensorrt, numpy and an NVIDIA GPU", imports, values)


def render_script(
    target: TargetScript,
    model: str,
    comparisons: Sequence[TensorComparison],
    *,
    answer: str,
    described: str,
    refusal: str | None,
) -> str:
    """The source of ``reproduce.py``.

    Args:
        target: How to run the model.
        model: The model's file name.
        comparisons: What was seen of its outputs; their tolerances are what it is held to.
        answer: What fails, in a sentence.
        described: The target in words.
        refusal: What the target says of the model, where its refusing it is the failure.
    """
    tolerances = {c.name: [c.atol, c.rtol, _statistic(c)] for c in comparisons if c.atol is not None}
    values = {
        "NEEDS": target.needs,
        "IMPORTS": target.imports,
        "ANSWER": json.dumps(answer),
        "TARGET": json.dumps(described),
        "MODEL": json.dumps(model),
        "SETTINGS": "\n".join(f"{name} = {value!r}" for name, value in target.settings.items()),
        "TOLERANCES": json.dumps(tolerances, indent=4),
        "REFUSAL": repr(refusal),
        "RUN": _template(target.template).strip("\n"),
    }
    text = _template("reproduce.py.txt")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _template(name: str) -> str:
    return resources.files("bisect_trt.reporting").joinpath(f"templates/{name}").read_text("utf-8")


def _statistic(comparison: TensorComparison) -> str:
    """The error statistic that decided, as the script reads it."""
    stat = comparison.stat.value
    return stat if comparison.quantile is None else f"{stat} {comparison.quantile}"
