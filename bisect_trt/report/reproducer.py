"""The folder that is attached to a bug report: the minimal model, its values, ``reproduce.py``, ``ISSUE.md``, ``README.md``.

``reproduce.py`` needs nothing but the target's own package and NumPy. It consists of the sources of
the modules that run the target and of one literal, which holds everything about this failure: names
in a model are never code.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import platform
import re
import shlex
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from msgspec import Struct
from onnx import printer

from bisect_trt.errors import OutputFileError, first_few
from bisect_trt.onnxlib.nodes import DEFAULT_DOMAINS
from bisect_trt.report.outcomes import describe_comparison
from bisect_trt.report.parts import CauseDetail
from bisect_trt.report.result import environment
from bisect_trt.report.summary import describe_placement, notes_of, why_no_cause
from bisect_trt.report.text import Entry, block, code, prose
from bisect_trt.targets.base import Script, TargetSettings
from bisect_trt.targets.messages import names_of
from bisect_trt.tensors.comparison import TensorComparison, to_plain
from bisect_trt.tensors.files import Values, replacing, save_npz, save_samples

if TYPE_CHECKING:
    import jinja2

MODEL = "model.onnx"
MIXED = "mixed.onnx"
INPUTS = "inputs.npz"
TOOL_INPUTS = "inputs.json"
EARLIER = "earlier-{}.npz"
GOLDEN = "golden.npz"
README = "README.md"
ISSUE = "ISSUE.md"
NOTES = "NOTES.md"
SCRIPT = "reproduce.py"
FILES = "files"
ARCHIVED = "reproducer"
WRITTEN = (MODEL, INPUTS, GOLDEN, SCRIPT, README)
"""The files of every folder; there is either ``ISSUE.md`` or ``NOTES.md`` too."""
_OF_ISSUES = "\n## How it was found\n"
_SHOWN_KINDS = 3
_SHOWN_LINES = 40
_LINE_LENGTH = 400
_SYMPTOMS = {"signal ": "crash in", "time-out": "time-out in", "nan": "NaN from", "inf": "Inf from"}
"""Symptoms in titles, by the start of the signature of the failure."""
_OUTSIDE = "bisect_trt.targets.outside"
_SHARED = (
    *("bisect_trt.aliases", "bisect_trt.errors", "bisect_trt.tensors.info"),
    *("bisect_trt.targets.messages", "bisect_trt.targets.reproduce"),
)
"""The modules of every script, each after those it needs."""
_FOR_LINTERS = re.compile(r"  # (?:noqa|type: ignore)[^\n]*")
_HEAD = '''"""Shows a failure again.

Ends with status 1 if the failure shows, 0 if it does not, and 2, with a sentence, otherwise.
"""

from __future__ import annotations

import os
import sys

if sys.path[0] == os.path.dirname(os.path.realpath(__file__)):
    del sys.path[0]  # nothing beside this file is imported

CASE = {}
'''
_INSIDE = """
if __name__ == "__main__" and sys.argv[1:] != [INSIDE]:
    sys.exit(run_outside(CASE))

try:
    import PACKAGES
except ImportError as error:
    say(f"inconclusive: {error}. This needs {CASE['needs']}.")
    sys.exit(INSIDE_STATUS + UNKNOWN)
"""
_TAIL = """
if __name__ == "__main__":
    sys.exit(run_inside(CASE, make))
"""


class Since(Struct, frozen=True):
    """The release in which a failure appeared.

    Attributes:
        sentence: The release, and whether later ones pass.
        fixed: The release to upgrade to, as a request (``upgrade to onnxruntime 1.21.0 or later``),
            if there is one.
    """

    sentence: str
    fixed: str | None = None


NOT_RUN_HERE = "not run: the target runs in another place"
NOT_STARTED = "not run: it does not start here"
NOT_ANONYMISED = "Not anonymised: it does not fail with other weights. The reproducer has the model's names and weights."
FOUND = "By bisect-trt's `diagnose` from a model of {} nodes, in {} probes. The answer is {}."
MINIMAL = ": without any one of its nodes the rest does not fail"
FROM_STEP = " Its values are from step {} of {}, the state too."


class Trial(Struct, frozen=True):
    """The outcome of running ``reproduce.py`` before it is delivered.

    Attributes:
        shows: Whether it shows the failure; ``None`` if it could not be run.
    """

    shows: bool | None = None
    why: str = "not run here"


class Reproducer(Struct, frozen=True):
    """The content of the folder.

    Attributes:
        ran: The form of it that the target ran, where that is another (fp16 by Casts, free
            dimensions).
        lowered: Whether the low precision is in that form already.
        target: The target; the files that it reads are in the folder.
        refusal: The target's message, where the failure is that the model does not run.
        timeout: Seconds that a run may take, where that is the failure.
        blamed: Places of the model's nodes, the culprits first.
        places: Versions and devices of each place where the target ran, if not here.
        since: Since which release it fails, where that was examined.
        cause: The switches that fix it, or why none is known.
        inside: Sentences about the nodes that fail in the body of its node.
        layers: The nodes with the execution provider that runs each, where the target reports it.
        earlier: The inputs of samples that are run before, in the same session, where a failure
            needs them.
    """

    model: onnx.ModelProto
    ran: onnx.ModelProto | None
    lowered: bool
    inputs: Values
    golden: Values
    comparisons: Sequence[TensorComparison]
    answer: str
    target: TargetSettings
    found: str
    failure: str
    refusal: str | None = None
    timeout: float | None = None
    validate: bool = False
    files: Sequence[str] = ()
    trial: Trial = Trial()
    blamed: Sequence[int] = ()
    fault: str | None = None
    is_bug: bool = True
    cause: CauseDetail | None = None
    places: Sequence[Mapping[str, str]] = ()
    since: Since | None = None
    inside: Sequence[str] = ()
    layers: Sequence[Entry] = ()
    earlier: Sequence[Values] = ()

    @property
    def tracker(self) -> str:
        """The bug tracker of the target, the form of which ``ISSUE.md`` has."""
        return self.target.target.title.lower().replace(" ", "").removesuffix("-rtx")

    def facts(self) -> Mapping[str, str]:
        """Return versions and devices of the machine that the target ran on, for the fields of a tracker; ``""`` if unknown."""
        local = environment()
        entries = {
            "onnxruntime": local.get("onnxruntime-gpu", ""),
            **(self.places[0] if self.places else local),
        }
        if not self.places:
            entries["machine"] = platform.machine()
        entries["system"] = entries.get("platform", "").partition("-")[0]
        return defaultdict(str, entries)

    def title(self) -> str:
        """Return a title: runtime, symptom and operators, without names of the model."""
        nodes = self.model.graph.node
        # Culprits first: a title has room for three operators.
        ordered = (nodes[place] for place in dict.fromkeys((*self.blamed, *range(len(nodes)))))
        operators = dict.fromkeys(
            f"{'' if n.domain in DEFAULT_DOMAINS else f'{n.domain}.'}{n.op_type}" for n in ordered
        )
        kinds = first_few([*operators], _SHOWN_KINDS) or "a model without nodes"
        plain = "wrong values from" if self.refusal is None else "refusal of"
        symptom = next(
            (words for begin, words in _SYMPTOMS.items() if self.failure.startswith(begin)), plain
        )
        return f"{self.target.target.title}: {symptom} {kinds}"

    @property
    def issue(self) -> str:
        """The name of the text of the bug report; ``NOTES.md`` where none is to be filed."""
        is_fixed = self.since is not None and self.since.fixed is not None
        return ISSUE if self.is_bug and not is_fixed else NOTES

    @property
    def target_model(self) -> str:
        """The file that the target runs."""
        if self.ran is None:
            return MODEL
        return (
            f"model_{('bf16' if self.target.bf16 else 'fp16') if self.lowered else 'target'}.onnx"
        )

    @property
    def script(self) -> Script:
        """The settings and modules that run the model on the target."""
        graph = self.model.graph
        hints = {
            "inputs": [value.name for value in graph.input],
            "outputs": [value.name for value in graph.output],
            "lowered": self.lowered,
            "nodes": [[node.name, list(node.output)] for node in graph.node],
        }
        return self.target.target.script(self.target, hints)

    @property
    def tool_commands(self) -> list[str]:
        """The commands of the runtime's own tools that run the model."""
        if not self.target.target.tools:
            return []
        tools = importlib.import_module(self.target.target.tools)
        tolerances = [(entry.atol or 0.0, entry.rtol or 0.0) for entry in self.comparisons]
        absolute, relative = zip(*tolerances or [(0.0, 0.0)], strict=True)
        # The tools take one tolerance for all outputs, and the strictest shows the failure.
        bounds = (min(absolute), min(relative))
        return list(
            tools.tool_commands(self.target, self.target_model, TOOL_INPUTS, bounds, self.lowered)
        )

    def source(self) -> str:
        """Return ``reproduce.py``."""
        names = {*names_of(self.model.graph), *names_of((self.ran or self.model).graph)} - {""}
        case = {
            "answer": self.answer,
            "target": self.target.describe(),
            "model": self.target_model,
            "names": sorted(names) if self.failure.startswith(("build: ", "run: ")) else [],
            "failure": self.failure,
            "timeout": self.timeout,
            "validate": self.validate,
            "earlier": [EARLIER.format(number) for number, _ in enumerate(self.earlier, 1)],
        }
        return render_script(self.script, self.comparisons, case)

    def versions(self) -> dict[str, str]:
        """Return versions and devices of this machine, where the reference ran, and of each place of the target."""
        if not self.places:
            return {**self.target.target.versions(self.target), **environment()}
        environments = {
            f"target: {name}": value for place in self.places for name, value in place.items()
        }
        return {
            **environments,
            **{f"reference: {name}": value for name, value in environment().items()},
        }

    def render(self, file: str) -> str:
        """Return the text of ``README.md``, or of ``ISSUE.md`` or ``NOTES.md``."""
        failed = [comparison for comparison in self.comparisons if not comparison.passed]
        template = _templates().get_template("readme.md" if file == README else "issue.md")
        return template.render(
            case=self,
            failed=failed,
            needs=self.script.needs,
            facts=self.facts(),
            graph=describe_graph(self.model),
            placement=describe_placement(self.layers),
        )

    def write(self, folder: Path) -> list[Path]:
        """Write all files except the model and the files that the target reads, which exist already.

        Returns:
            The files that were written, the model first, without ``ISSUE.md`` or ``NOTES.md``.

        Raises:
            UsageError: The folder cannot be written.
        """
        files = [*WRITTEN, *self.files]
        with writing(folder):
            if self.ran is not None:
                onnx.save(self.ran, str(folder / self.target_model))
                files.insert(1, self.target_model)
            save_npz(folder / INPUTS, self.inputs)
            for stale in folder.glob(EARLIER.format("*")):
                stale.unlink()
            for number, sample in enumerate(self.earlier, 1):
                files.append(EARLIER.format(number))
                save_npz(folder / files[-1], sample)
            if self.tool_commands:
                save_samples(folder / TOOL_INPUTS, [*self.earlier, self.inputs])
                files.append(TOOL_INPUTS)
            save_npz(folder / GOLDEN, self.golden)
            (folder / SCRIPT).write_text(self.source(), encoding="utf-8")
        self.write_texts(folder)
        return [folder / file for file in files]

    def write_texts(self, folder: Path) -> None:
        """Write ``README.md`` and ``ISSUE.md`` or ``NOTES.md``, in place of earlier ones.

        Raises:
            UsageError: The folder cannot be written.
        """
        with writing(folder):
            for file in (README, self.issue):
                (folder / file).write_text(self.render(file), encoding="utf-8")
            earlier = folder / (NOTES if self.issue == ISSUE else ISSUE)
            if earlier.exists() and _OF_ISSUES in earlier.read_text("utf-8", "replace"):
                # A user's own notes have another form.
                earlier.unlink()


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
    import jinja2  # noqa: PLC0415 - it is not needed before the first probe

    from bisect_trt.report.page import templates  # noqa: PLC0415 - as above

    markdown = templates(
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    markdown.filters |= {
        "block": block,
        "code": code,
        "notes_of": notes_of,
        "prose": prose,
        "difference": describe_comparison,
        "shell": shlex.join,
        "why_no_cause": why_no_cause,
    }
    markdown.globals |= {
        "model": MODEL,
        "inputs": INPUTS,
        "golden": GOLDEN,
        "files": FILES,
        "script": SCRIPT,
    }
    return markdown


def describe_graph(model: onnx.ModelProto) -> str:
    """Return a model's graph in ONNX's text format, without the values of its weights."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:
        # ONNX raises errors of its own.
        graph = model.graph
    shown = onnx.GraphProto(
        name=graph.name,
        node=graph.node,
        input=graph.input,
        output=graph.output,
        value_info=graph.value_info,
    )
    shown.initializer.extend(map(_without_values, graph.initializer))
    for attribute in (attribute for node in shown.node for attribute in node.attribute):
        if attribute.t.ByteSize() > _LINE_LENGTH:
            attribute.t.CopyFrom(_without_values(attribute.t))
    lines = [line.rstrip() for line in printer.to_text(shown).rstrip().split("\n")]
    ellipsis = (
        [f"... and {len(lines) - _SHOWN_LINES} more lines"] if len(lines) > _SHOWN_LINES else []
    )
    opsets = ", ".join(
        f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in model.opset_import
    )
    cut = [
        line if len(line) <= _LINE_LENGTH else f"{line[:_LINE_LENGTH]} ..."
        for line in lines[:_SHOWN_LINES]
    ]
    return "\n".join([f"opsets: {opsets}", *cut, *ellipsis])


def _without_values(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def pack(folder: Path, files: Sequence[Path], archive: Path) -> None:
    """Pack files of a folder, and nothing else in it.

    Args:
        folder: The reproducer; paths in the archive are relative to it.
        files: The files of the folder.
        archive: The zip, replaced as a whole.

    Raises:
        UsageError: The archive cannot be written.
    """
    with replacing(archive) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in files:
            packed.write(path, f"{ARCHIVED}/{path.relative_to(folder).as_posix()}")


def render_script(
    script: Script, comparisons: Sequence[TensorComparison], case: Mapping[str, Any]
) -> str:
    """The source of ``reproduce.py``; ``case`` are the values of its literal that are of neither."""
    literal = {
        **case,
        "needs": script.needs,
        "settings": script.settings,
        "hints": script.hints,
        # By output: absolute tolerance, relative tolerance, the error statistic that is held
        # against them; of a quantized one the step, and how many elements may be one off.
        "tolerances": {
            c.name: [
                c.atol or 0,
                c.rtol or 0,
                c.stat.value if c.quantile is None else f"{c.stat.value} {c.quantile}",
                c.step or 0,
                c.most_ties,
            ]
            for c in comparisons
        },
    }
    sources = [_source(name) for name in (*_SHARED, *script.modules)]
    packages = sorted(set().union(*(packages for packages, _ in sources)))
    lines = "".join(f"    {name!r}: {to_plain(value)!r},\n" for name, value in literal.items())
    head = _HEAD.replace("CASE = {}", f"CASE = {{\n{lines}}}")
    inside = _INSIDE.replace("PACKAGES", ", ".join(packages))
    return "\n\n".join([head, _source(_OUTSIDE)[1], inside, *(text for _, text in sources), _TAIL])


@functools.cache
def _source(module: str) -> tuple[set[str], str]:
    """Return a module's source without its docstring and the imports of this package; and the packages that it imports."""
    spec = importlib.util.find_spec(module)
    # A module of ours, or of a target's package.
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    body = ast.parse(source).body
    checking = [
        node
        for node in body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    roots = {ast.unparse(node): ast.unparse(node).split()[1].partition(".")[0] for node in imports}
    import_lines = [
        line for line, root in roots.items() if root not in ("__future__", "bisect_trt")
    ]
    # Comments belong to what follows them.
    last = max((node.end_lineno or 0 for node in (*imports, *checking)), default=0)
    definitions = "\n".join(source.splitlines()[last:]).strip("\n") + "\n"
    packages = {
        root for root in roots.values() if root not in (*sys.stdlib_module_names, "bisect_trt")
    }
    return packages, "\n".join([*import_lines, "\n" + _FOR_LINTERS.sub("", definitions)])
