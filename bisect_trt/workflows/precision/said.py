"""The answer in the words of other tools: what makes the same mixed model with them, each tried where the tool is installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisect_trt.errors import BisectError
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.protocol import Compare, Failed, Sample
from bisect_trt.probing.workers.process import run_to_end
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.markdown import block, prose
from bisect_trt.search.oracle import Subset
from bisect_trt.targets import find, names
from bisect_trt.targets.base import Minimal, NotReproducible
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.precision.by_layer import LayerLowering
from bisect_trt.workflows.precision.task import Task

FILE = "other-tools.md"
_SECONDS = 600.0
_ATEN: dict[str, Sequence[str]] = {
    "Add": ("add.Tensor",),
    "Div": ("div.Tensor",),
    "Erf": ("erf.default",),
    "Exp": ("exp.default",),
    "Gemm": ("addmm.default", "linear.default"),
    "LayerNormalization": ("native_layer_norm.default", "layer_norm.default"),
    "MatMul": ("mm.default", "bmm.default", "matmul.default"),
    "Mul": ("mul.Tensor",),
    "Pow": ("pow.Tensor_Scalar",),
    "ReduceMean": ("mean.dim",),
    "ReduceSum": ("sum.dim_IntList",),
    "Softmax": ("_softmax.default", "softmax.int"),
    "Sqrt": ("sqrt.default",),
    "Sub": ("sub.Tensor",),
    "Where": ("where.self",),
}
"""What PyTorch's exporter makes these operators of."""


@dataclass(frozen=True)
class Said:
    """The answer as another tool takes it.

    Attributes:
        tool: The tool.
        words: A command line, or lines of Python.
        passes: Whether what it made was seen to pass; ``None`` where it was not tried.
        why: What was seen, or why nothing was.
    """

    tool: str
    words: str
    passes: bool | None
    why: str


def say(task: Task, keep: Subset, *, tried: bool) -> list[Said]:
    """The answer in the words of every other tool that can say it.

    Args:
        task: The search.
        keep: The units that stay in fp32.
        tried: Whether there is time to run the tools that are installed.
    """
    if task.settings.calibrated:  # ranges are of this version of TensorRT; how trtexec takes them is among the uses
        return []
    network = task.subject.network
    kept = [network.nodes[network.order[unit]] for unit in sorted(keep)]
    labels, unnamed = [node.name for node in kept if node.name], sum(not node.name for node in kept)
    ops = sorted({node.op_type for node in kept})
    low = task.settings.precision
    said = [*_trtexec(task, keep)]
    if low == "fp16":
        said += [_converter(task, keep, labels, ops, unnamed=unnamed, tried=tried)]
    said.append(_autocast(task, keep, labels, unnamed=unnamed, tried=tried))
    said.append(_tensorrt(low, [name for node in kept for name in node.output if name]))
    return [*said, *_torch(kept)]


def _trtexec(task: Task, keep: Subset) -> Iterator[Said]:
    """The options of whichever target is one of ``trtexec``'s."""
    subject, network = task.subject, task.subject.network
    low = {task.settings.precision: True}
    outputs = tuple(network.made(network.order[unit])[0] for unit in sorted(keep))
    nodes = tuple((node.name, tuple(node.output)) for node in network.nodes)
    minimal = Minimal(str(subject.settings.path), inputs=tuple(network.inputs), nodes=nodes)
    for name in names():
        try:
            words = find(name).said_to("trtexec", TargetSettings(name, keep=outputs, **low), minimal)  # type: ignore[arg-type]  # fp16 or bf16
        except BisectError:  # a package that cannot be imported
            continue
        if words is None:
            continue
        if isinstance(words, NotReproducible):
            yield Said("trtexec", "", None, words.reason)
        else:
            command = shlex.join(["trtexec", f"--onnx={minimal.file}", *words])
            used = next((use for use in task.result.extra.get("uses", ()) if "trtexec" in use["what"]), None)
            passes, why = (
                (None, "it takes a build of the whole model") if used is None else (used["passed"], used["reason"])
            )
            yield Said("trtexec", command, passes, why)


def _converter(
    task: Task, keep: Subset, labels: Sequence[str], ops: Sequence[str], *, unnamed: int, tried: bool
) -> Said:
    """onnxconverter-common's ``node_block_list``; as ``op_block_list`` more would stay in fp32 than has to."""
    model, made = str(task.subject.settings.path), task.subject.workspace.scratch("converted.onnx")
    tool = "onnxconverter-common"
    lines = [
        "import onnx",
        "from onnxconverter_common import float16",
        "",
        f"model = onnx.load({model!r})",
        f"nodes = {list(labels)!r}",
        "model = float16.convert_float_to_float16(model, keep_io_types=True, node_block_list=nodes)",
        "onnx.save(model, {to!r})",
        f"# by operator: op_block_list=float16.DEFAULT_OP_BLOCK_LIST + {list(ops)!r}",
    ]
    words = "\n".join(lines).replace("{to!r}", repr("converted.onnx"))
    if unnamed:
        return Said(tool, words, None, f"{unnamed} of the nodes have no name, which it goes by")
    script = task.subject.workspace.scratch("convert.py")
    script.write_text("\n".join(lines).replace("{to!r}", repr(str(made.absolute()))), encoding="utf-8")
    seen = _try(task, keep, "onnxconverter_common", [sys.executable, str(script)], made, tried=tried)
    return Said(tool, words, *seen)


def _try(
    task: Task, keep: Subset, package: str, command: Sequence[str], made: Path, *, tried: bool, cwd: Path | None = None
) -> tuple[bool | None, str]:
    """Run a tool that writes a mixed model, if it is installed, and probe what it writes."""
    if not tried or importlib.util.find_spec(package) is None:
        return None, "it is not installed here" if tried else "the search did not come to its end"
    made.unlink(missing_ok=True)
    log = task.subject.workspace.scratch("tool.log")
    end = run_to_end(list(command), log=log, environment=os.environ, timeout=_SECONDS, cwd=cwd)
    if end.code != 0 or not made.exists():
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return False, f"run here, it ends with {last[-1] if last else end.describe()}"
    if isinstance(task.lowering, LayerLowering):
        return None, "run here; what it writes was not built"
    try:
        return _compared(task, task.lowering.read_back(keep, made))
    except Exception as error:  # what it writes need not be a model that can be read back: other tools raise their own
        return False, f"run here; what it writes cannot be run: {error}"


def _compared(task: Task, candidate: Candidate) -> tuple[bool | None, str]:
    """Whether a model passes the check, and what was seen."""
    check, subject = task.prober.runner.check, task.subject
    if not isinstance(check, BuiltinCheck):
        return None, "run here; whether what it writes passes is for your check to say"
    values = [subject.values(candidate, ends) for ends in (candidate.inputs, candidate.outputs)]
    inputs, golden = (subject.models.feed(f"said-{end}", each) for end, each in zip(("in", "out"), values, strict=True))
    model = subject.models.write("said", candidate.proto)
    request = Compare(check.target, model, (Sample(inputs, golden),), check.tolerance, names=tuple(candidate.outputs))
    reply = subject.models.ask(request, check.timeout)
    if isinstance(reply, Failed):
        return False, f"run here; the target does not run what it writes: {reply.message}"
    failed = [comparison for comparison in reply.comparisons if not comparison.passed]
    if failed:
        return False, f"run here; what it writes does not pass: '{failed[0].name}': {failed[0].describe()}"
    return True, "run here; what it writes passes"


def _autocast(task: Task, keep: Subset, labels: Sequence[str], *, unnamed: int, tried: bool) -> Said:
    """ModelOpt's AutoCast, which takes patterns of names."""
    model, low = task.subject.settings.path, task.settings.precision
    patterns = [f"^{re.escape(name)}$" for name in labels]

    def command(python: str, model: Path, to: str) -> list[str]:
        words = [python, "-m", "modelopt.onnx.autocast", "--onnx_path", str(model), "--output_path", to]
        return [*words, "--low_precision_type", low, "--nodes_to_exclude", *patterns]

    tool, words = "ModelOpt AutoCast", shlex.join(command("python", model, "converted.onnx"))
    if unnamed:
        return Said(tool, words, None, f"{unnamed} of the nodes have no name, which it goes by")
    made = task.subject.workspace.scratch("autocast.onnx")
    words_here = command(sys.executable, model.absolute(), str(made.absolute()))
    seen = _try(task, keep, "modelopt", words_here, made, tried=tried, cwd=made.parent)  # nothing is imported from here
    return Said(tool, words, *seen)


def _tensorrt(low: str, outputs: Sequence[str]) -> Said:
    lines = [
        f"config.set_flag(trt.BuilderFlag.{low.upper()})",
        "config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)",
        f"keep = {set(outputs)!r}" if outputs else "keep = set()",
        "for layer in (network.get_layer(index) for index in range(network.num_layers)):",
        "    made = [layer.get_output(index) for index in range(layer.num_outputs)]",
        "    if keep.intersection(tensor.name for tensor in made):",
        "        layer.precision = trt.float32",
        "        for index in range(len(made)):",
        "            layer.set_output_type(index, trt.float32)",
    ]
    return Said(
        "TensorRT's Python API, to 10", "\n".join(lines), None, "lines to paste; they take a build of the whole model"
    )


def _torch(kept: Sequence[Any]) -> Iterator[Said]:
    """Torch-TensorRT, where PyTorch's exporter named the nodes after its modules."""
    if not kept or not all(node.name.startswith("/") for node in kept):
        return
    ops = sorted({name for node in kept for name in _ATEN.get(node.op_type, ())})
    missing = sorted({node.op_type for node in kept if node.op_type not in _ATEN})
    if not ops:
        return
    modules = sorted({node.name.rpartition("/")[0].strip("/").replace("/", ".") for node in kept} - {""})
    listed = ", ".join(f"torch.ops.aten.{name}" for name in ops)
    lines = [f"torch_tensorrt.compile(model, inputs=inputs, torch_executed_ops={{{listed}}})"]
    lines.append(f"# of these modules, and of all others too: {', '.join(modules)}")
    why = f"nothing is known of {', '.join(missing)}" if missing else "the PyTorch module is not to be had here"
    yield Said("Torch-TensorRT", "\n".join(lines), None, why)


def write_said(said: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write all of it as a page.

    Raises:
        OSError: It cannot be written.
    """
    parts = ["# The layers that stay in fp32, in the words of other tools"]
    for entry in said:
        seen = {True: "it passes", False: "it does not pass", None: "not tried"}[entry["passes"]]
        parts += [f"## {prose(entry['tool'])}", f"{seen}: {prose(entry['why'])}"]
        parts += [block(entry["words"])] if entry["words"] else []
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def tell_said(said: Sequence[Mapping[str, Any]], console: Console) -> None:
    """One line of it: which tools can say it, and which were seen to."""
    seen = [entry["tool"] for entry in said if entry["passes"]]
    others = [entry["tool"] for entry in said if entry["passes"] is None and entry["words"]]
    failed = [entry["tool"] for entry in said if entry["passes"] is False]
    parts = [f"seen to pass: {', '.join(seen)}"] if seen else []
    parts += [f"not tried: {', '.join(others)}"] if others else []
    parts += [f"does not pass: {', '.join(failed)}"] if failed else []
    if parts:
        console.answer(f"  in the words of other tools (--json has them): {'; '.join(parts)}")
