"""The folder that is attached to a bug report: the minimal model, its values, a script, ``ISSUE.md`` and ``README.md``."""

from __future__ import annotations

import functools
import math
import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import printer

from bisect_trt.errors import OutputFileError
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS
from bisect_trt.options.choices import ErrorStat
from bisect_trt.report.page import templates
from bisect_trt.report.result import environment
from bisect_trt.report.script import render_script
from bisect_trt.report.text import block, code, plain, prose, table
from bisect_trt.targets.base import Minimal, NotReproducible
from bisect_trt.targets.messages import names_of
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.info import is_string
from bisect_trt.tensors.npz import replacing, save_npz
from bisect_trt.tensors.saved import write_inputs, write_outputs

MODEL, INPUTS, GOLDEN, README, ISSUE = "model.onnx", "inputs.npz", "golden.npz", "README.md", "ISSUE.md"
SCRIPT, FILES = "reproduce.py", "files"
_INPUTS_JSON, _GOLDEN_JSON, _RAW = "inputs.json", "golden.json", "trtexec"
_NAMED_OPS, _SHOWN_KINDS, _SHOWN_LINES, _LINE_LENGTH = 2, 3, 40, 400
_JSON_LIMIT_BYTES = 256 << 20
_FP16_MAX = float(np.finfo(np.float16).max)
_SYMPTOMS = {
    "refused": "refusal of",
    "crash": "crash in",
    "time-out": "time-out in",
    "overflow": "fp16 overflow in",
    "nan": "NaN from",
    "inf": "Inf from",
    "mismatch": "wrong values from",
}
_OTHER_TOOLS = {"polygraphy": "Polygraphy (`pip install polygraphy`)", "trtexec": "TensorRT's own trtexec"}

Cause = tuple[str, Sequence[str]]
"""What of a target causes the failure, in a sentence, and the lines of code that change it."""


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
        why: Why it does not, or what else there is to say.
    """

    shows: bool | None = None
    why: str = "not run here"


@dataclass(frozen=True)
class Recommended:
    """A command that shows the failure.

    Attributes:
        tool: The program.
        words: The command line; empty where the tool cannot run this target so.
        why: Why it cannot.
    """

    tool: str
    words: tuple[str, ...] = ()
    why: str = ""

    @property
    def title(self) -> str:
        """The tool in words, and where it comes from."""
        return _OTHER_TOOLS.get(self.tool, self.tool)

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
        trials: Outcomes of the recommended commands, by tool.
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
    def operators(self) -> list[str]:
        """The operator of each node, those of the culprits first."""
        nodes = self.model.graph.node
        order = dict.fromkeys((*self.blamed, *range(len(nodes))))
        return [
            ("" if (n := nodes[place]).domain in DEFAULT_DOMAINS else f"{n.domain}.") + n.op_type for place in order
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
        found = list(dict.fromkeys(self.operators))
        more = [f"{len(found) - _SHOWN_KINDS} more"] if len(found) > _SHOWN_KINDS else []
        kinds = ", ".join([*found[:_SHOWN_KINDS], *more]) or "a model without nodes"
        return f"{self.target.target.title}: {_SYMPTOMS[self.kind]} {kinds}"

    @property
    def slug(self) -> str:
        """The failure as a part of a file's name: ``pow-overflow``, ``matmul-and-2-more-mismatch``."""
        ops = [operator.lower() for operator in self.operators]
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
        graph = self.model.graph
        inputs, outputs = (tuple(value.name for value in ends) for ends in (graph.input, graph.output))
        nodes = tuple((node.name, tuple(node.output)) for node in graph.node)
        return Minimal(self.target_model, self.lowered, inputs, outputs, nodes)

    @property
    def raw_inputs(self) -> dict[str, str]:
        """Files with the raw values of the model's inputs, which trtexec reads, by input."""
        numbered = enumerate(self.inputs.items())
        return {name: f"{_RAW}/input_{n}.bin" for n, (name, value) in numbered if not is_string(value.dtype)}

    def recommended(self) -> list[Recommended]:
        """Return the commands that show the failure: the script, and other tools that know this target."""
        found = [Recommended(SCRIPT, ("python", SCRIPT))]
        for tool, title in _OTHER_TOOLS.items():
            said = self.target.target.said_to(tool, self.target, self.minimal)
            if isinstance(said, NotReproducible):
                found.append(
                    Recommended(tool, (), f"{title.partition(' (')[0]} cannot be asked for it: {said.reason}.")
                )
            elif said is not None:
                words = self._polygraphy(said) if tool == "polygraphy" else self._trtexec(said)
                found.append(Recommended(tool, tuple(words)))
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
        files = ",".join(f"{name}:{path}" for name, path in self.raw_inputs.items())
        fed = [f"--loadInputs={files}"] if files else []
        return ["trtexec", f"--onnx={self.target_model}", *said, *fed, "--dumpOutput"]

    def source(self) -> str:
        """Return ``reproduce.py``."""
        about = ("place", "Python", "platform", "CPU", "GPU")
        packages = [", ".join(f"{name} {each[name]}" for name in each if name not in about) for each in self.places]
        return render_script(
            self.target.target.script(self.target, self.minimal),
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

    @property
    def place(self) -> str:
        """Where the target ran, in words."""
        if not self.places:
            return "here"
        kind, _, packages = self.places[0]["place"].partition("=")
        return f"in an environment with {packages}" if kind == "env" else f"in {self.places[0]['place']}"

    def versions(self) -> dict[str, str]:
        """Return versions and devices of this machine, where the reference ran, and of each place of the target."""
        if not self.places:
            return environment()
        there = {
            f"place: {name}" if name != "place" else name: value for each in self.places for name, value in each.items()
        }
        return {**there, **{f"here: {name}": value for name, value in environment().items()}}

    def render(self, file: str) -> str:
        """Return the text of ``ISSUE.md`` or ``README.md``."""
        script, *others = self.recommended()
        target = self.target.target
        return (
            _templates()
            .get_template(file.lower())
            .render(
                case=self,
                failed=[c for c in self.comparisons if not c.passed],
                needs=target.script(self.target, self.minimal).needs,
                script=script,
                trial=self.trials.get(SCRIPT, Trial()),
                others=[(each, self.trials.get(each.tool, Trial())) for each in others],
                graph=describe_graph(self.model),
            )
        )

    def write(self, folder: Path) -> list[Path]:
        """Write all files but the model itself and the files that the target reads, which lie there already.

        Returns:
            All files of the folder, the model first.

        Raises:
            UsageError: The folder cannot be written.
        """
        files = [MODEL, INPUTS, GOLDEN, SCRIPT, README, ISSUE, *self.files]
        with writing(folder):
            if self.ran is not None:
                onnx.save(self.ran, str(folder / self.target_model))
                files.insert(1, self.target_model)
            save_npz(folder / INPUTS, self.inputs)
            save_npz(folder / GOLDEN, self.golden)
            (folder / SCRIPT).write_text(self.source(), encoding="utf-8")
            if sum(value.nbytes for value in (*self.inputs.values(), *self.golden.values())) <= _JSON_LIMIT_BYTES:
                write_inputs(folder / _INPUTS_JSON, [self.inputs])
                write_outputs(folder / _GOLDEN_JSON, "reference", [self.golden])
                files += [_INPUTS_JSON, _GOLDEN_JSON]
            if any(command.words[:1] == ("trtexec",) for command in self.recommended()):
                for name, path in self.raw_inputs.items():
                    (folder / _RAW).mkdir(exist_ok=True)
                    (folder / path).write_bytes(np.ascontiguousarray(self.inputs[name]).tobytes())
                    files.append(path)
        self.write_texts(folder)
        return [folder / file for file in files]

    def write_texts(self, folder: Path) -> None:
        """Write the two texts, again too.

        Raises:
            UsageError: The folder cannot be written.
        """
        with writing(folder):
            for file in (README, ISSUE):
                (folder / file).write_text(self.render(file), encoding="utf-8")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write a reproducer to a folder or an archive.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise OutputFileError(
            f"{path} cannot be written: {error.strerror or error}; make room, or name another folder with --output."
        ) from error


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
    made.filters |= {"block": block, "code": code, "markdown_table": table, "prose": prose, "value": _value}
    made.globals |= {
        "fp16_max": _FP16_MAX,
        "golden_is": "what ONNX Runtime computes from the inputs on the CPU, graph optimisations off",
        "model": MODEL,
        "inputs": INPUTS,
        "golden": GOLDEN,
        "issue": ISSUE,
        "files": FILES,
    }
    return made


def _value(comparison: TensorComparison, side: str) -> str:
    """Return where and what the worst element is on a side, or the shape where there is no element to compare."""
    worst = comparison.worst
    if worst is None:
        shape = comparison.reference_shape if side == "reference" else comparison.target_shape
        return "" if shape is None else f": shape {list(shape)}"
    value = getattr(worst, side)
    return f" at {list(worst.index)}: " + (f"{value:.9g}" if isinstance(value, float) else prose(str(value)))


def describe_graph(model: onnx.ModelProto) -> str:
    """Return a model's graph in ONNX's text format, without the values of its weights."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # ONNX's own
        graph = model.graph
    shown = onnx.GraphProto(
        name=graph.name, node=graph.node, input=graph.input, output=graph.output, value_info=graph.value_info
    )
    shown.initializer.extend(map(_without_values, graph.initializer))
    for attribute in (attribute for node in shown.node for attribute in node.attribute):
        if attribute.t.ByteSize() > _LINE_LENGTH:
            attribute.t.CopyFrom(_without_values(attribute.t))
    lines = [line.rstrip() for line in printer.to_text(shown).rstrip().split("\n")]
    more = [f"... and {len(lines) - _SHOWN_LINES} more lines"] if len(lines) > _SHOWN_LINES else []
    opsets = ", ".join(f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in model.opset_import)
    cut = [line if len(line) <= _LINE_LENGTH else f"{line[:_LINE_LENGTH]} ..." for line in lines[:_SHOWN_LINES]]
    return "\n".join([f"opsets: {opsets}", *cut, *more])


def _without_values(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


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
    with replacing(archive) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in files:
            packed.write(path, f"{top}/{path.relative_to(folder).as_posix()}")
