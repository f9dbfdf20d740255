"""``ISSUE.md``: the text of a bug report, with the commands of other tools that show the failure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.options.choices import ErrorStat
from bisect_trt.targets.onnxrt.settings import OnnxRuntimeSettings
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.dtypes import is_string
from bisect_trt.tensors.polygraphy_json import write_inputs, write_outputs

ISSUE, INPUTS, GOLDEN, RAW = "ISSUE.md", "inputs.json", "golden.json", "trtexec"
_JSON_LIMIT_BYTES = 256 << 20
_SHOWN = 12
_FP16_MAX = float(np.finfo(np.float16).max)
_RANGE = "a matter of the model's range, not of a kernel"


@dataclass(frozen=True)
class Issue:
    """What a bug report says.

    Attributes:
        answer: What fails, in a sentence.
        target: The target.
        model: The file of the minimal model.
        target_model: The file that the target runs; another one if it was lowered first.
        nodes: The nodes of the model, in words.
        comparisons: What the target made of the outputs.
        refusal: What it says of the model, where its refusing it is the failure.
        found: What the search did, in a sentence.
        environment: Versions and devices, by name.
    """

    answer: str
    target: TargetSettings
    model: str
    target_model: str
    nodes: Sequence[str]
    comparisons: Sequence[TensorComparison]
    refusal: str | None
    found: str
    environment: Mapping[str, str]

    @property
    def failure(self) -> str:
        """What goes wrong, in a word."""
        if self.refusal is not None:
            return "refused"
        if self._out_of_range():
            return "overflow"
        kinds = [comparison.kind.value for comparison in self.comparisons if not comparison.passed]
        return next((kind for kind in ("nan", "inf") if kind in kinds), "mismatch")

    @property
    def lowered(self) -> bool:
        """Whether the model itself holds the low precision that the target runs in."""
        return self.target_model != self.model

    def render(self, inputs: Mapping[str, Path]) -> str:
        """The text.

        Args:
            inputs: The files with the raw values of the model's inputs, for ``trtexec``.
        """
        trt = self.target.runtime == "trt"
        about = f"`{self.target_model}` on {self.target.describe()} "
        about += "is refused." if self.refusal is not None else "gives other values than ONNX Runtime gives on the CPU"
        about += "" if self.refusal is not None else f" for `{self.model}` with graph optimisations off."
        more = [] if len(self.nodes) <= _SHOWN else [f"and {len(self.nodes) - _SHOWN} more"]
        values = {
            "ANSWER": self.answer,
            "SENTENCE": about,
            "ENVIRONMENT": "\n".join(f"| {name} | {value} |" for name, value in self.environment.items()),
            "NEEDS": "`tensorrt`, `numpy` and an NVIDIA GPU" if trt else "`onnxruntime` and `numpy`",
            "COMMANDS": self._commands(inputs),
            "NODES": ", ".join([*self.nodes[:_SHOWN], *more]),
            "EXPECTED": self._expected(),
            "SEEN": self._seen(),
            "FOUND": self.found,
        }
        text = resources.files("bisect_trt.reporting").joinpath("templates/issue.md.txt").read_text("utf-8")
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        return text

    def _commands(self, inputs: Mapping[str, Path]) -> str:
        text = f"With Polygraphy (`pip install polygraphy`):\n\n```\n{shlex.join(self.polygraphy())}\n```\n"
        if self.target.runtime == "trt":
            said = "it fails to build" if self.refusal is not None else "compare what it prints with the values below"
            text += f"\nWith TensorRT's own trtexec ({said}):\n\n```\n{shlex.join(self.trtexec(inputs))}\n```\n"
        return text

    def polygraphy(self) -> list[str]:
        """The ``polygraphy run`` that compares the target's outputs with the golden ones."""
        target = self.target
        trt = target.of(TrtSettings) if target.runtime == "trt" else TrtSettings()
        words = ["polygraphy", "run", self.target_model]
        if target.runtime == "trt":
            words += ["--trt", *(f"--{name}" for name in self._asked())]
            words += ["--strongly-typed"] if self.lowered or trt.strongly_typed else []
            words += [word for pool, size in trt.pool_limits for word in ("--pool-limit", f"{pool}:{size}")]
            words += _given("--builder-optimization-level", trt.builder_optimization_level)
            words += ["--plugins", *trt.plugins] if trt.plugins else []
        else:
            providers = target.of(OnnxRuntimeSettings).providers
            words += ["--onnxrt", *(["--providers", *providers] if providers else [])]
        words += ["--load-inputs", INPUTS]
        if self.refusal is not None:
            return words
        words += ["--load-outputs", GOLDEN]
        held = {c.name: c for c in self.comparisons if c.atol is not None}
        if held:
            words += ["--atol", *(f"{name}:{c.atol:.9g}" for name, c in held.items())]
            words += ["--rtol", *(f"{name}:{c.rtol:.9g}" for name, c in held.items())]
            words += ["--check-error-stat", *(f"{name}:{c.stat.value}" for name, c in held.items())]
        quantiles = [f"{name}:{c.quantile}" for name, c in held.items() if c.stat is ErrorStat.QUANTILE]
        return [*words, *(["--error-quantile", *quantiles] if quantiles else [])]

    def trtexec(self, inputs: Mapping[str, Path]) -> list[str]:
        """The ``trtexec`` that builds the model, feeds it the inputs and prints its outputs.

        Source of the options: TensorRT's developer guide, "trtexec".
        """
        target = self.target
        trt = target.of(TrtSettings) if target.runtime == "trt" else TrtSettings()
        words = ["trtexec", f"--onnx={self.target_model}"]
        words += [f"--{name}" for name in self._asked() if name != "tf32"]
        words += [] if target.tf32 else ["--noTF32"]
        words += ["--stronglyTyped"] if self.lowered or trt.strongly_typed else []
        if target.held and not self.lowered:
            low = "bf16" if target.bf16 else "fp16"
            words += ["--precisionConstraints=prefer", f"--layerPrecisions=*:{low}", f"--layerOutputTypes=*:{low}"]
        words += [f"--memPoolSize={pool}:{size}B" for pool, size in trt.pool_limits]
        level = trt.builder_optimization_level
        words += [] if level is None else [f"--builderOptimizationLevel={level}"]
        words += [f"--staticPlugins={library}" for library in trt.plugins]
        if inputs:
            words += ["--loadInputs=" + ",".join(f"{name}:{path.as_posix()}" for name, path in inputs.items())]
        return [*words, "--dumpOutput"]

    def _asked(self) -> list[str]:
        """The precisions that the build has to be asked for."""
        return [n for n in self.target.low_precisions if not (self.lowered and n in ("fp16", "bf16"))]

    def _expected(self) -> str:
        if self.refusal is not None:
            return "The model is built and runs: it is valid ONNX, and ONNX Runtime runs it."
        rows = [f"- `{c.name}`{_at(c)}{_value(c, 'reference')}" for c in self.comparisons if not c.passed]
        return "\n".join([*rows, *self._out_of_range()]) + "\n\n(`golden.npz` has all values.)"

    def _out_of_range(self) -> list[str]:
        """A sentence if the target's precision has no such number as is expected."""
        values = [c.worst.reference for c in self.comparisons if not c.passed and c.worst is not None]
        numbers = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value)]
        past = self.target.fp16 and max(numbers, default=0.0) > _FP16_MAX
        return [f"\nThe expected value is past fp16's range ({_FP16_MAX:.0f}): {_RANGE}."] if past else []

    def _seen(self) -> str:
        if self.refusal is not None:
            return f"```\n{self.refusal}\n```"
        rows = [
            f"- `{c.name}`{_at(c)}{_value(c, 'target')}\n  {c.describe()}" for c in self.comparisons if not c.passed
        ]
        return "\n".join(rows) or "Nothing is off any more: the last probe did not show the failure again."


def _given(option: str, value: object) -> list[str]:
    return [] if value is None else [option, str(value)]


def _at(comparison: TensorComparison) -> str:
    worst = comparison.worst
    return f" at {list(worst.index)}" if worst is not None else ""


def _value(comparison: TensorComparison, whose: str) -> str:
    worst = comparison.worst
    if worst is None:
        shape = comparison.reference_shape if whose == "reference" else comparison.target_shape
        return "" if shape is None else f": shape {list(shape)}"
    value = getattr(worst, whose)
    return f": {value:.9g}" if isinstance(value, float) else f": {value}"


def issue_files(
    issue: Issue, folder: Path, inputs: Mapping[str, NDArray[Any]], golden: Mapping[str, NDArray[Any]]
) -> list[str]:
    """Write ``ISSUE.md`` and what the commands in it read.

    Args:
        issue: The report.
        folder: The reproducer's.
        inputs: The model's inputs.
        golden: What its outputs should be.

    Returns:
        The names of the files that the commands read.

    Raises:
        OSError: The folder cannot be written.
        UsageError: The same.
    """
    files: list[str] = []
    raw = raw_inputs(issue.target, inputs)
    if sum(value.nbytes for value in (*inputs.values(), *golden.values())) <= _JSON_LIMIT_BYTES:
        write_inputs(folder / INPUTS, [inputs])
        write_outputs(folder / GOLDEN, "reference", [golden])
        files += [INPUTS, GOLDEN]
    for name, path in raw.items():
        (folder / RAW).mkdir(exist_ok=True)
        (folder / path).write_bytes(np.ascontiguousarray(inputs[name]).tobytes())
        files.append(path.as_posix())
    (folder / ISSUE).write_text(issue.render(raw), encoding="utf-8")
    return files


def raw_inputs(target: TargetSettings, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Path]:
    """The files with the raw values of a model's inputs: ``trtexec`` reads no others."""
    if target.runtime != "trt":
        return {}
    named = enumerate(inputs.items())
    return {name: Path(RAW) / f"input_{number}.bin" for number, (name, value) in named if not is_string(value.dtype)}
