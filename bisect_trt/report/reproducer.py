"""The folder that is attached to a bug report: the minimal model, its values, a script, ``ISSUE.md`` and ``README.md``."""

from __future__ import annotations

import functools
import math
import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bisect_trt.errors import UsageError
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS
from bisect_trt.options.choices import ErrorStat
from bisect_trt.report.page import templates
from bisect_trt.report.result import environment
from bisect_trt.report.script import render_script
from bisect_trt.report.text import block, code, plain, prose, shorten, table
from bisect_trt.targets.base import Minimal, NotReproducible, Script
from bisect_trt.targets.messages import names_of
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.info import is_string
from bisect_trt.tensors.npz import save_npz
from bisect_trt.tensors.saved import write_inputs, write_outputs

MODEL, INPUTS, GOLDEN, README, ISSUE = "model.onnx", "inputs.npz", "golden.npz", "README.md", "ISSUE.md"
SCRIPT, FILES = "reproduce.py", "files"
_INPUTS_JSON, _GOLDEN_JSON, _RAW = "inputs.json", "golden.json", "trtexec"
_NAMED_OPS, _SHOWN_KINDS, _SHOWN_NODES, _ATTRIBUTE_LENGTH = 2, 3, 12, 120
_JSON_LIMIT_BYTES = 256 << 20
_FP16_MAX = float(np.finfo(np.float16).max)
GOLDEN_IS = "what ONNX Runtime computes from the inputs on the CPU, graph optimisations off"
_SYMPTOMS = {
    "refused": "refusal of",
    "crash": "crash in",
    "time-out": "time-out in",
    "overflow": "fp16 overflow in",
    "nan": "NaN from",
    "inf": "Inf from",
    "mismatch": "wrong values from",
}
_TOOLS = {"polygraphy": "Polygraphy (`pip install polygraphy`)", "trtexec": "TensorRT's own trtexec"}

Cause = tuple[str, Sequence[str]]
"""What of a target causes the failure, in a sentence, and the lines of code that change it."""


def minimal(model: onnx.ModelProto, file: str, *, lowered: bool) -> Minimal:
    """Return the description of a model from which a target says how to run it."""
    nodes = tuple((node.name, tuple(node.output)) for node in model.graph.node)
    inputs, outputs = (tuple(value.name for value in ends) for ends in (model.graph.input, model.graph.output))
    return Minimal(file, lowered, inputs, outputs, nodes)


@dataclass(frozen=True)
class Since:
    """The release in which a failure appeared.

    Attributes:
        said: In sentences.
        mended: The release in which ``reproduce.py`` passes, and what to do: the beginning of a sentence.
    """

    said: str
    mended: str | None = None


@dataclass(frozen=True)
class Trial:
    """The outcome of a command that was run before it is recommended.

    Attributes:
        shows: Whether it shows the failure; ``None`` if that cannot be told.
        why: Why it cannot, or what else there is to say.
    """

    shows: bool | None
    why: str = ""


@dataclass(frozen=True)
class ToolCommand:
    """Another tool's command.

    Attributes:
        tool: The program.
        title: The tool in words, and where it comes from.
        words: The command line.
    """

    tool: str
    title: str
    words: tuple[str, ...]

    @property
    def line(self) -> str:
        """The command line as text for a shell."""
        return shlex.join(map(plain, self.words))


@dataclass(frozen=True)
class Reproducer:
    """The content of the folder.

    Attributes:
        model: The minimal model, as it lies in the folder.
        ran: The form of it that the target ran, where that is another (fp16 by round trips, free dimensions).
        lowered: Whether the low precision is in that form already.
        inputs: Its inputs.
        golden: Its expected outputs.
        comparisons: The comparison of the target's outputs with these.
        answer: What fails, in a sentence.
        target: The target; the files that it reads are in the folder.
        found: What the search did, in a sentence.
        failure: The signature of the failure.
        refusal: The target's message, where the failure is that the model does not run.
        timeout: Seconds that a run may take, where that is the failure.
        validate: Whether NaN and Inf always fail.
        files: Names of the files that the target reads.
        ruled_out: Other runs and their outcomes, each in a sentence.
        trials: Outcomes of the commands, by tool; of ``reproduce.py`` under its name.
        blamed: Places of the model's nodes, the culprits first.
        fault: Which side is wrong, in a sentence, where that was examined.
        is_bug: Whether it may be a bug of the target.
        cause: What of the target causes it: each in a sentence, with the lines of code that change it.
        places: Versions and devices of each place where the target ran, if not here.
        since: Since which release it fails, where that was examined.
        written: The source location of nodes, by their first output.
    """

    model: onnx.ModelProto
    ran: onnx.ModelProto | None
    lowered: bool
    inputs: Mapping[str, NDArray[Any]]
    golden: Mapping[str, NDArray[Any]]
    comparisons: Sequence[TensorComparison]
    answer: str
    target: TargetSettings
    found: str
    failure: str
    refusal: str | None = None
    timeout: float | None = None
    validate: bool = False
    files: Sequence[str] = ()
    ruled_out: Sequence[str] = ()
    trials: Mapping[str, Trial] = field(default_factory=dict)
    blamed: Sequence[int] = ()
    fault: str | None = None
    is_bug: bool = True
    cause: Sequence[Cause] = ()
    places: Sequence[Mapping[str, str]] = ()
    since: Since | None = None
    written: Mapping[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """The model's nodes, the culprits first."""
        return [
            self.model.graph.node[place] for place in dict.fromkeys((*self.blamed, *range(len(self.model.graph.node))))
        ]

    @property
    def past_range(self) -> bool:
        """Whether an expected value cannot be represented in the target's fp16."""
        values = [c.worst.reference for c in self.comparisons if not c.passed and c.worst is not None]
        numbers = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value)]
        return self.target.fp16 and max(numbers, default=0.0) > _FP16_MAX

    @property
    def kind(self) -> str:
        """The failure in a word: a key of the symptoms."""
        if self.refusal is not None:
            if self.failure.startswith("signal "):
                return "crash"
            return "time-out" if self.failure == "time-out" else "refused"
        if self.past_range:
            return "overflow"
        seen = [comparison.kind.value for comparison in self.comparisons if not comparison.passed]
        return next((kind for kind in ("nan", "inf") if kind in seen), "mismatch")

    @property
    def title(self) -> str:
        """Runtime, symptom and operators; no names of the model."""
        found = list(dict.fromkeys(map(_operator, self.nodes)))
        more = [f"{len(found) - _SHOWN_KINDS} more"] if len(found) > _SHOWN_KINDS else []
        kinds = ", ".join([*found[:_SHOWN_KINDS], *more]) or "a model without nodes"
        return f"{self.target.target.title}: {_SYMPTOMS[self.kind]} {kinds}"

    @property
    def slug(self) -> str:
        """The failure as a part of a file's name: ``pow-overflow``, ``matmul-and-2-more-mismatch``."""
        ops = [node.op_type.lower() for node in self.nodes]
        return "-".join([*(ops if len(ops) <= _NAMED_OPS else [ops[0], "and", str(len(ops) - 1), "more"]), self.kind])

    @property
    def target_model(self) -> str:
        """The file that the target runs."""
        if self.ran is None:
            return MODEL
        return f"model_{('bf16' if self.target.bf16 else 'fp16') if self.lowered else 'target'}.onnx"

    @property
    def minimal(self) -> Minimal:
        """The model as targets and other tools are given it."""
        return minimal(self.model, self.target_model, lowered=self.lowered)

    @property
    def script(self) -> Script:
        """How ``reproduce.py`` runs the model."""
        return self.target.target.script(self.target, self.minimal)

    @property
    def raw_inputs(self) -> dict[str, Path]:
        """The files with the raw values of the model's inputs, for a target of trtexec, which reads no others."""
        if self.target.target.said_to("trtexec", self.target, self.minimal) is None:
            return {}
        values = enumerate(self.inputs.items())
        return {
            name: Path(_RAW) / f"input_{number}.bin" for number, (name, value) in values if not is_string(value.dtype)
        }

    def commands(self) -> list[ToolCommand | NotReproducible]:
        """Return the commands of other tools that show the failure on this target, or why a tool has none."""
        found: list[ToolCommand | NotReproducible] = []
        for tool, title in _TOOLS.items():
            said = self.target.target.said_to(tool, self.target, self.minimal)
            if isinstance(said, NotReproducible):
                name = title.partition(" (")[0]
                found.append(NotReproducible(f"{name} cannot be asked for it: {said.reason}."))
            elif said is not None:
                words = self._polygraphy(said) if tool == "polygraphy" else self._trtexec(said)
                found.append(ToolCommand(tool, title, tuple(words)))
        return found

    def _polygraphy(self, said: Sequence[str]) -> list[str]:
        """Return the ``polygraphy run`` that compares the target's outputs with the golden ones."""
        words = ["polygraphy", "run", self.target_model, *said, "--load-inputs", _INPUTS_JSON]
        if self.refusal is not None:
            return words
        words += ["--load-outputs", _GOLDEN_JSON]
        held = {c.name: c for c in self.comparisons if c.atol is not None}
        if held:
            words += ["--atol", *(f"{name}:{c.atol:.9g}" for name, c in held.items())]
            words += ["--rtol", *(f"{name}:{c.rtol:.9g}" for name, c in held.items())]
            words += ["--check-error-stat", *(f"{name}:{c.stat.value}" for name, c in held.items())]
        quantiles = [f"{name}:{c.quantile}" for name, c in held.items() if c.stat is ErrorStat.QUANTILE]
        return [*words, *(["--error-quantile", *quantiles] if quantiles else [])]

    def _trtexec(self, said: Sequence[str]) -> list[str]:
        """Return the ``trtexec`` that builds the model, feeds it the inputs and prints its outputs."""
        words = ["trtexec", f"--onnx={self.target_model}", *said]
        if self.raw_inputs:
            files = ",".join(f"{name}:{path.as_posix()}" for name, path in self.raw_inputs.items())
            words.append(f"--loadInputs={files}")
        return [*words, "--dumpOutput"]

    def source(self) -> str:
        """Return ``reproduce.py``."""
        about = ("place", "Python", "platform", "CPU", "GPU")
        packages = [", ".join(f"{name} {each[name]}" for name in each if name not in about) for each in self.places]
        return render_script(
            self.script,
            self.target_model,
            sorted({*names_of(self.model.graph), *names_of((self.ran or self.model).graph)} - {""}),
            self.comparisons,
            answer=self.answer,
            described=self.target.describe()
            + "".join(f", seen with {each}" for each in dict.fromkeys(packages) if each),
            failure=self.failure,
            timeout=self.timeout,
            validate=self.validate,
        )

    def versions(self) -> dict[str, str]:
        """Return versions and devices of this machine, where the reference ran, and of each place of the target."""
        if not self.places:
            return environment()
        there = {
            f"place: {name}" if name != "place" else name: value for each in self.places for name, value in each.items()
        }
        return {**there, **{f"here: {name}": value for name, value in environment().items()}}

    def how_to_run(self) -> str:
        """Return a paragraph on ``reproduce.py`` and its outcome here, in Markdown."""
        trial, where = self.trials.get(SCRIPT, Trial(None, "not run here")), "here"
        if self.places:
            kind, _, packages = self.places[0]["place"].partition("=")
            where = f"in an environment with {packages}" if kind == "env" else f"in {self.places[0]['place']}"
        said = f"Run {where}, it shows the failure."
        if not trial.shows:
            said = (
                f"It was {trial.why}."
                if trial.shows is None
                else f"Run {where}, it does not show the failure: {trial.why}."
            )
        return (
            f"With nothing but {self.script.needs}, in the versions that this page names (others may be right):\n\n"
            f"{block(f'python {SCRIPT}')}\n\nIt prints the failure, and ends with status 1 while it is there, 0 once it is "
            f"gone, and 2, with a sentence, for anything else. {prose(said)}"
        )

    def render(self, file: str) -> str:
        """Return the text of ``ISSUE.md`` or ``README.md``."""
        failed = [
            {"name": c.name, "place": _place(c), "expected": _value(c, "reference"), "seen": _value(c, "target"),
             "described": c.describe()}
            for c in self.comparisons if not c.passed
        ]  # fmt: skip
        trials = [
            (each, self.trials.get(getattr(each, "tool", ""), Trial(None, "not tried"))) for each in self.commands()
        ]
        return (
            _templates()
            .get_template(file.lower())
            .render(
                case=self,
                failed=failed,
                commands=trials,
                how_to_run=self.how_to_run(),
                nodes=describe_nodes(self.model, self.nodes, self.written),
                versions=self.versions(),
            )
        )

    def write(self, folder: Path) -> list[Path]:
        """Write all files but the model itself and the files that the target reads, which lie there already.

        Raises:
            UsageError: The folder cannot be written.
        """
        try:
            files = [MODEL, INPUTS, GOLDEN, SCRIPT, README, ISSUE, *self.files]
            if self.ran is not None:
                onnx.save(self.ran, str(folder / self.target_model))
                files.insert(1, self.target_model)
            save_npz(folder / INPUTS, self.inputs)
            save_npz(folder / GOLDEN, self.golden)
            (folder / SCRIPT).write_text(self.source(), encoding="utf-8")
            files += self.write_tool_files(folder)
            self.write_texts(folder)
        except OSError as error:
            raise _unwritable(folder, error) from error
        return [folder / file for file in files]

    def write_texts(self, folder: Path) -> None:
        """Write the two texts, again too.

        Raises:
            UsageError: The folder cannot be written.
        """
        try:
            for file in (README, ISSUE):
                (folder / file).write_text(self.render(file), encoding="utf-8")
        except OSError as error:
            raise _unwritable(folder, error) from error

    def write_tool_files(self, folder: Path) -> list[str]:
        """Write the files that other tools' commands read and return their names; values too large for JSON are left out.

        Raises:
            OSError: The folder cannot be written.
            UsageError: Likewise.
        """
        files: list[str] = []
        if sum(value.nbytes for value in (*self.inputs.values(), *self.golden.values())) <= _JSON_LIMIT_BYTES:
            write_inputs(folder / _INPUTS_JSON, [self.inputs])
            write_outputs(folder / _GOLDEN_JSON, "reference", [self.golden])
            files += [_INPUTS_JSON, _GOLDEN_JSON]
        for name, path in self.raw_inputs.items():
            (folder / _RAW).mkdir(exist_ok=True)
            (folder / path).write_bytes(np.ascontiguousarray(self.inputs[name]).tobytes())
            files.append(path.as_posix())
        return files


@functools.cache
def _templates() -> jinja2.Environment:
    """Return the environment of the Markdown templates; they escape by filters, as Markdown has no quoting for all places."""
    made = templates(
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {"block": block, "code": code, "markdown_table": table, "prose": prose}
    made.globals |= {
        "fp16_max": _FP16_MAX,
        "golden_is": GOLDEN_IS,
        "model": MODEL,
        "inputs": INPUTS,
        "golden": GOLDEN,
        "issue": ISSUE,
        "files": FILES,
    }
    return made


def _place(comparison: TensorComparison) -> str:
    worst = comparison.worst
    return f" at {list(worst.index)}" if worst is not None else ""


def _value(comparison: TensorComparison, side: str) -> str:
    """Return the worst element of the reference or the target, or the shape where there is no element to compare."""
    worst = comparison.worst
    if worst is None:
        shape = comparison.reference_shape if side == "reference" else comparison.target_shape
        return "" if shape is None else f": shape {list(shape)}"
    value = getattr(worst, side)
    return f": {value:.9g}" if isinstance(value, float) else f": {prose(str(value))}"


def describe_nodes(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], written: Mapping[str, str] | None = None
) -> str:
    """Return a list of nodes with attributes and the types of their tensors, in Markdown.

    Args:
        model: The model.
        nodes: Those of its nodes that are listed.
        written: The source location of nodes, by their first output.
    """
    tensors = dict(_tensor_types(model))
    rows = [_describe_node(node, tensors, written or {}) for node in nodes[:_SHOWN_NODES]]
    rows += [f"- and {len(nodes) - _SHOWN_NODES} more"] if len(nodes) > _SHOWN_NODES else []
    opsets = ", ".join(f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in model.opset_import)
    return "\n".join([*rows, "", f"Opsets: {prose(opsets)}."])


def _describe_node(node: onnx.NodeProto, tensors: Mapping[str, str], written: Mapping[str, str]) -> str:
    read, made = (
        ", ".join(f"{code(name)} {code(tensors[name])}" if name in tensors else code(name) for name in names if name)
        for names in (node.input, node.output)
    )
    name = node.name or next(filter(None, node.output), "")
    more = [code(shorten(str(helper.printable_attribute(each)), _ATTRIBUTE_LENGTH)) for each in node.attribute]
    more += [f"in module {code(written[name])}" for name in node.output[:1] if name in written]
    return "; ".join([f"- {prose(_operator(node))} {code(name)}: {read or 'no inputs'} \u2192 {made}", *more])


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in DEFAULT_DOMAINS else node.op_type


def _tensor_types(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """Yield the name and the type of each tensor of which it is known."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # ONNX's own
        graph = model.graph
    for value in (*graph.value_info, *graph.output, *graph.input):
        tensor = value.type.tensor_type
        if value.type.HasField("tensor_type"):
            dims = [
                str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim
            ]
            known = f"[{', '.join(dims)}]" if tensor.HasField("shape") else ""
            yield value.name, f"{TensorProto.DataType.Name(tensor.elem_type).lower()}{known}"
    for weight in model.graph.initializer:
        yield weight.name, f"{TensorProto.DataType.Name(weight.data_type).lower()}{list(weight.dims)} (weight)"


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"the reproducer cannot be written to {folder}: {error.strerror}; name another folder.")


def pack(folder: Path, files: Sequence[Path], archive: Path, top: str) -> None:
    """Pack files of a folder, and nothing else that lies in it.

    Args:
        folder: The reproducer's.
        files: What :meth:`Reproducer.write` wrote.
        archive: The archive to write.
        top: The name of the folder in it.

    Raises:
        UsageError: The archive cannot be written.
    """
    try:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for file in files:
                packed.write(file, f"{top}/{file.relative_to(folder).as_posix()}")
    except OSError as error:
        raise UsageError(f"{archive} cannot be written: {error.strerror}; make room or name another folder.") from error
