"""``ISSUE.md``: the text of a bug report, with the commands of other tools that show the failure.

It is long because the text has many short parts, which are read in the order in which they are written.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from bisect_trt.options.choices import ErrorStat
from bisect_trt.reporting.culprits import describe_nodes, guilty_first, kinds
from bisect_trt.reporting.markdown import block, code, plain, prose, table
from bisect_trt.targets.base import Minimal, NotReproducible
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.info import is_string
from bisect_trt.tensors.polygraphy_json import write_inputs, write_outputs

ISSUE, INPUTS, GOLDEN, RAW = "ISSUE.md", "inputs.json", "golden.json", "trtexec"
_JSON_LIMIT_BYTES = 256 << 20
_FP16_MAX = float(np.finfo(np.float16).max)
_RANGE = "a matter of the model's range, not of a kernel"
_SYMPTOMS = {
    "refused": "refused",
    "crash": "crashes",
    "time-out": "does not end",
    "overflow": "overflows",
    "nan": "gives NaN",
    "inf": "gives Inf",
    "mismatch": "gives wrong values",
}


def symptom(kind: str, *, several: bool) -> str:
    """What goes wrong, as a verb of one operator or of several: ``gives NaN``, ``give NaN``, ``are refused``."""
    verb, _, rest = ("is refused" if kind == "refused" else _SYMPTOMS[kind]).partition(" ")
    verb = {"is": "are", "does": "do", "crashes": "crash"}.get(verb, verb.removesuffix("s")) if several else verb
    return f"{verb} {rest}".rstrip()


Cause = tuple[str, Sequence[str]]
"""What of a target does it, in a sentence, and the lines of code that turn it."""


@dataclass(frozen=True)
class Since:
    """Since which release something fails.

    Attributes:
        said: In sentences.
        mended: Which release has it no more, where ``reproduce.py`` was run with that: what to do, without its end.
    """

    said: str
    mended: str | None = None


@dataclass(frozen=True)
class Trial:
    """What came of a command that was run before it is written down.

    Attributes:
        shows: Whether it shows the failure; ``None`` if that cannot be told.
        why: Why it cannot, or what there is to say of it.
    """

    shows: bool | None
    why: str = ""


@dataclass(frozen=True)
class Command:
    """Another tool's command.

    Attributes:
        tool: The program.
        title: The tool in words, and where it comes from.
        words: The command line.
    """

    tool: str
    title: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Issue:
    """What a bug report says.

    Attributes:
        model: The minimal model.
        target: The target.
        file: The model's file.
        target_file: The file that the target runs; another one if it runs another form of the model.
        lowered: Whether the low precision that it runs in is in that form already.
        comparisons: What the target made of the outputs.
        failure: The signature of the failure.
        refusal: What the target says of the model, where its not running it is the failure.
        found: What the search did, in a sentence.
        environment: Versions and devices, by name.
        ruled_out: What else was run, and what came of it, each in a sentence.
        blamed: Places of the model's nodes, the guilty first.
        fault: Whose fault it is, in a sentence, where that was asked.
        is_bug: Whether it may be a bug of the target; if not, the text is none to send, and says so first.
        cause: What of the target does it: each in a sentence, with the lines of code that turn it.
        since: Since which release it fails, where that was asked.
        written: Where nodes were written, in words, by the first thing that each makes.
    """

    model: onnx.ModelProto
    target: TargetSettings
    file: str
    target_file: str
    lowered: bool
    comparisons: Sequence[TensorComparison]
    failure: str
    refusal: str | None
    found: str
    environment: Mapping[str, str]
    ruled_out: Sequence[str] = field(default_factory=tuple)
    blamed: Sequence[int] = ()
    fault: str | None = None
    is_bug: bool = True
    cause: Sequence[Cause] = ()
    since: Since | None = None
    written: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What goes wrong, in a word."""
        if self.refusal is not None:
            return (
                "crash"
                if self.failure.startswith("signal ")
                else self.failure
                if self.failure == "time-out"
                else "refused"
            )
        if self._out_of_range():
            return "overflow"
        seen = [comparison.kind.value for comparison in self.comparisons if not comparison.passed]
        return next((kind for kind in ("nan", "inf") if kind in seen), "mismatch")

    @property
    def title(self) -> str:
        """Operators and symptom; no names of the model's."""
        nodes = guilty_first(self.model, self.blamed)
        several = len({(node.domain, node.op_type) for node in nodes}) > 1
        return f"{self.target.target.title}: {kinds(nodes)} {symptom(self.kind, several=several)}"

    @property
    def minimal(self) -> Minimal:
        """The model as other tools are told of it."""
        return minimal(self.model, self.target_file, lowered=self.lowered)

    def render(self, inputs: Mapping[str, Path], trials: Mapping[str, Trial], script: str) -> str:
        """The text.

        Args:
            inputs: The files with the raw values of the model's inputs, for ``trtexec``.
            trials: What came of the other tools' commands that were run, by tool.
            script: How to run ``reproduce.py`` and what came of it, in a paragraph.
        """
        runs = f"{code(self.target_file)} on {prose(self.target.describe())}"
        whose = f"{code(self.file)} with graph optimisations off"
        if self.refusal is not None:
            about = f"{runs} {'is refused' if self.kind == 'refused' else _SYMPTOMS[self.kind]}."
        else:
            about = f"{runs} gives other values than ONNX Runtime gives on the CPU for {whose}."
        parts = [
            *self._mended(),
            *([] if self.is_bug else [f"> **Not a bug report.** {prose(self.fault or '')}"]),
            f"# {prose(self.title)}",
            about,
            *([f"Arbitration: {prose(self.fault)}"] if self.fault is not None and self.is_bug else []),
            "## Environment",
            table(dict(self.environment)),
            "## Steps to reproduce",
            f"Everything is in {'the attached' if self.is_bug else 'this'} folder. {script}",
            *self._commands(inputs, trials),
            "## The model",
            describe_nodes(self.model, guilty_first(self.model, self.blamed), self.written),
            "## Expected",
            self._expected(),
            "## Seen",
            self._seen(),
            *self._cause(),
            *([] if self.since is None else ["## Releases", prose(self.since.said)]),
            "## What was ruled out",
            "\n".join(f"- {prose(each)}" for each in self.ruled_out) or "Nothing else was run.",
            "## How it was found",
            self.found,
        ]
        return "\n\n".join(parts) + "\n"

    def _mended(self) -> list[str]:
        """The first thing to say of what a newer release does right."""
        if self.since is None or self.since.mended is None or not self.is_bug:
            return []
        return [f"> **Fixed in a newer release.** {prose(self.since.mended)} rather than file this."]

    def _cause(self) -> list[str]:
        """The pass, option or tactic that does it, where that is known."""
        if not self.cause:
            return []
        parts = [f"## What of {prose(self.target.target.title)} does it"]
        for sentence, lines in self.cause:
            parts += [prose(sentence), *([block("\n".join(map(plain, lines)))] if lines else [])]
        return parts

    def commands(self, inputs: Mapping[str, Path]) -> list[Command | NotReproducible]:
        """The commands of other tools that this target can be said to."""
        found: list[Command | NotReproducible] = []
        for tool, title in (
            ("polygraphy", "Polygraphy (`pip install polygraphy`)"),
            ("trtexec", "TensorRT's own trtexec"),
        ):
            said = self.target.target.said_to(tool, self.target, self.minimal)
            if said is None:
                continue
            if isinstance(said, NotReproducible):
                found.append(NotReproducible(f"{title.partition(' (')[0]} cannot be asked for it: {said.reason}."))
                continue
            words = self._polygraphy(said) if tool == "polygraphy" else self._trtexec(said, inputs)
            found.append(Command(tool, title, tuple(words)))
        return found

    def _commands(self, inputs: Mapping[str, Path], trials: Mapping[str, Trial]) -> list[str]:
        parts: list[str] = []
        for command in self.commands(inputs):
            if isinstance(command, NotReproducible):
                parts.append(prose(command.reason))
                continue
            trial = trials.get(command.tool, Trial(None, "not tried"))
            if trial.shows is False:
                parts.append(f"{command.title} does not show it: its command passes here.")
                continue
            what = "run here, it shows the failure" if trial.shows else trial.why
            parts += [f"With {command.title}; {prose(what)}:", block(shlex.join(map(plain, command.words)))]
        return parts

    def _polygraphy(self, said: Sequence[str]) -> list[str]:
        """The ``polygraphy run`` that compares the target's outputs with the golden ones."""
        words = ["polygraphy", "run", self.target_file, *said, "--load-inputs", INPUTS]
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

    def _trtexec(self, said: Sequence[str], inputs: Mapping[str, Path]) -> list[str]:
        """The ``trtexec`` that builds the model, feeds it the inputs and prints its outputs."""
        words = ["trtexec", f"--onnx={self.target_file}", *said]
        if inputs:
            words += ["--loadInputs=" + ",".join(f"{name}:{path.as_posix()}" for name, path in inputs.items())]
        return [*words, "--dumpOutput"]

    def _expected(self) -> str:
        if self.refusal is not None:
            return "The model is built and runs: it is valid ONNX, and ONNX Runtime runs it."
        rows = [f"- {code(c.name)}{_at(c)}{_value(c, 'reference')}" for c in self.comparisons if not c.passed]
        return "\n".join([*rows, *self._out_of_range()]) + f"\n\n(`golden.npz` has all values: {GOLDEN_IS}.)"

    def _out_of_range(self) -> list[str]:
        """A sentence if the target's precision has no such number as is expected."""
        values = [c.worst.reference for c in self.comparisons if not c.passed and c.worst is not None]
        numbers = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value)]
        past = self.target.fp16 and max(numbers, default=0.0) > _FP16_MAX
        return [f"\nThe expected value is past fp16's range ({_FP16_MAX:.0f}): {_RANGE}."] if past else []

    def _seen(self) -> str:
        if self.refusal is not None:
            return block(self.refusal)
        rows = [
            f"- {code(c.name)}{_at(c)}{_value(c, 'target')}\n  {prose(c.describe())}"
            for c in self.comparisons
            if not c.passed
        ]
        return "\n".join(rows) or "Nothing is off any more: the last probe did not show the failure again."


def issue_files(
    issue: Issue, folder: Path, inputs: Mapping[str, NDArray[Any]], golden: Mapping[str, NDArray[Any]]
) -> list[str]:
    """Write what the commands of other tools read; values that are too large for JSON are left out.

    Returns:
        The names of the files.

    Raises:
        OSError: The folder cannot be written.
        UsageError: The same.
    """
    files: list[str] = []
    if sum(value.nbytes for value in (*inputs.values(), *golden.values())) <= _JSON_LIMIT_BYTES:
        write_inputs(folder / INPUTS, [inputs])
        write_outputs(folder / GOLDEN, "reference", [golden])
        files += [INPUTS, GOLDEN]
    for name, path in raw_inputs(issue, inputs).items():
        (folder / RAW).mkdir(exist_ok=True)
        (folder / path).write_bytes(np.ascontiguousarray(inputs[name]).tobytes())
        files.append(path.as_posix())
    return files


def raw_inputs(issue: Issue, inputs: Mapping[str, NDArray[Any]]) -> dict[str, Path]:
    """The files with the raw values of a model's inputs, if the target is one of trtexec's, which reads no others."""
    if issue.target.target.said_to("trtexec", issue.target, issue.minimal) is None:
        return {}
    named = enumerate(inputs.items())
    return {name: Path(RAW) / f"input_{number}.bin" for number, (name, value) in named if not is_string(value.dtype)}


GOLDEN_IS = "what ONNX Runtime makes of the inputs on the CPU, graph optimisations off"
"""Whose values the reproducer's golden ones are."""


def minimal(model: onnx.ModelProto, file: str, *, lowered: bool) -> Minimal:
    """A model as a target is asked for how it is said."""
    nodes = tuple((node.name, tuple(node.output)) for node in model.graph.node)
    inputs, outputs = (tuple(value.name for value in ends) for ends in (model.graph.input, model.graph.output))
    return Minimal(file, lowered, inputs, outputs, nodes)


def _at(comparison: TensorComparison) -> str:
    worst = comparison.worst
    return f" at {list(worst.index)}" if worst is not None else ""


def _value(comparison: TensorComparison, whose: str) -> str:
    worst = comparison.worst
    if worst is None:
        shape = comparison.reference_shape if whose == "reference" else comparison.target_shape
        return "" if shape is None else f": shape {list(shape)}"
    value = getattr(worst, whose)
    return f": {value:.9g}" if isinstance(value, float) else f": {prose(str(value))}"
