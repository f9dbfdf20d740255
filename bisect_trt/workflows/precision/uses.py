"""The ways in which an answer is used: its model, its engine, the ``trtexec`` line; each tried as a user will use it.

A build that is not strongly typed is free to run layers in another type than the graph says, so that a model with Casts may
be right for one way of building it and wrong for another.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx

from bisect_trt.errors import UsageError
from bisect_trt.probing.builtin import BuiltinCheck
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.journal import Record
from bisect_trt.probing.ledger import BudgetSpent
from bisect_trt.probing.prober import Prober
from bisect_trt.probing.runner import Runner
from bisect_trt.probing.workers.process import run_to_end
from bisect_trt.reporting.console import Console
from bisect_trt.search.oracle import Subset, Verdict
from bisect_trt.targets.base import Minimal, NotReproducible
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.workflows.precision.by_layer import LayerLowering, engine_path
from bisect_trt.workflows.precision.task import Task

TRTEXEC = "trtexec"
_NOT_TRIED = "the search did not come to its end"


@dataclass(frozen=True)
class Use:
    """One way to use an answer.

    Attributes:
        what: What is used: a file, or the options of ``trtexec``.
        command: The command line that uses it.
        passed: Whether it was seen to pass; ``None`` where it was not tried.
        reason: What was seen, or why nothing was.
    """

    what: str
    command: str
    passed: bool | None
    reason: str


def try_uses(task: Task, keep: Subset, written: Record | None) -> list[Use]:
    """Try every way to use what was written.

    Args:
        task: The search.
        keep: The units that stay in fp32.
        written: What was said of what was written, read back; ``None`` if the search was ended, and nothing more is run.
    """
    target, output, lowering = task.settings.target, task.settings.output, task.lowering
    if target is None:
        return []
    if not isinstance(lowering, LayerLowering):  # it was read back as any runtime reads it
        return [_use(str(output), "", written)]
    model, engine = str(task.subject.settings.path), engine_path(output)
    load = target.target.engines.load(target, engine).flags() if target.target.engines is not None else []
    uses = [*_models(task, lowering, keep, target, tried=written is not None)] if lowering.writes_model(output) else []
    uses.append(_use(str(engine), shlex.join(["bisect-trt", "run", model, *load]), written))
    return [*uses, *_trtexec(task, lowering, keep, target, tried=written is not None)]


def _use(what: str, command: str, record: Record | None) -> Use:
    if record is None:  # of the candidates that passed it is the one, as it was built then
        return Use(what, command, passed=True, reason="as it passed in the search")
    return Use(what, command, record.verdict is Verdict.PASS, record.reason)


def _models(task: Task, lowering: LayerLowering, keep: Subset, target: TargetSettings, *, tried: bool) -> Iterator[Use]:
    """The model with Casts, built in each way in which the target takes such a one."""
    output = task.settings.output
    for how in target.target.typed(target):
        command = shlex.join(["bisect-trt", "run", str(output), *how.flags()])
        if not tried:
            yield Use(str(output), command, None, _NOT_TRIED)
            continue
        title = f"{output.name}, built with {' '.join(how.flags())}"
        assert lowering.cast is not None  # a model was written
        candidate = replace(lowering.cast.read_back(keep, output), title=title)
        try:
            yield _probed(task, str(output), command, _told_apart(candidate, command), how)
        except UsageError:  # of a way that this version does not have, nothing need be said
            continue


def _probed(task: Task, what: str, command: str, candidate: Candidate, target: TargetSettings) -> Use:
    """Probe a candidate on a target that is set up as a user will have it."""
    prober = task.prober
    check = prober.runner.check
    if not isinstance(check, BuiltinCheck):
        return Use(what, command, None, "the check is a command of yours: try it by hand")
    runner = Runner(
        replace(check, target=target, shelf=None, timed=False), task.subject.workspace, task.subject.reference
    )
    runner.flakiness = prober.runner.flakiness
    try:
        record = Prober(runner, prober.ledger, 1).probe(candidate)
    except BudgetSpent as error:
        return Use(what, command, None, str(error))
    return Use(what, command, record.verdict is Verdict.PASS, record.reason)


def _told_apart(candidate: Candidate, how: str) -> Candidate:
    """The same file is another candidate if it is used in another way."""
    model = onnx.ModelProto()
    model.CopyFrom(candidate.proto)
    model.metadata_props.add(key="bisect-trt.use", value=how)
    return replace(candidate, made=model)


def _trtexec(
    task: Task, lowering: LayerLowering, keep: Subset, target: TargetSettings, *, tried: bool
) -> Iterator[Use]:
    """The options that tell TensorRT the same: run, if the tool is there, and its engine probed."""
    subject, network = task.subject, task.subject.network
    nodes = tuple((node.name, tuple(node.output)) for node in network.nodes)
    minimal = Minimal(str(subject.settings.path), inputs=tuple(network.inputs), nodes=nodes)
    said = target.target.said_to(TRTEXEC, replace(target, keep=lowering.names(keep)), minimal)
    if said is None:
        return
    what = f"the options of {TRTEXEC}"
    if isinstance(said, NotReproducible):
        yield Use(what, "", None, said.reason)
        return
    words = [TRTEXEC, f"--onnx={minimal.file}", *said]
    command, tool = shlex.join(words), shutil.which(TRTEXEC)
    if not tried or tool is None:
        yield Use(what, command, None, _NOT_TRIED if not tried else f"there is no {TRTEXEC} on the PATH")
        return
    engine, log = subject.workspace.scratch("trtexec.engine"), subject.workspace.scratch("trtexec.log")
    engine.unlink(missing_ok=True)
    end = run_to_end([tool, *words[1:], f"--saveEngine={engine}", "--skipInference"], log=log, environment=os.environ)
    if end.code != 0 or not engine.exists():
        yield Use(what, command, passed=False, reason=f"{TRTEXEC} builds no engine (exit status {end.code}); see {log}")
        return
    candidate = replace(lowering.read_back(keep, task.settings.output), title="the engine of trtexec", engine=engine)
    yield _probed(task, what, command, _told_apart(candidate, TRTEXEC), target)


def recommended(uses: Sequence[Mapping[str, Any]]) -> str | None:
    """What is used in the first way that was seen to pass."""
    return next((str(use["what"]) for use in uses if use["passed"]), None)


def tell_uses(uses: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Say of each way whether it works, and how it is gone."""
    for use in sorted(uses, key=lambda use: (use["passed"] is not True, use["passed"] is None)):
        if use["passed"]:
            if use["command"]:
                console.answer(f"  seen to pass: {use['what']}: {use['command']}")
        elif use["passed"] is None:
            command = f": {use['command']}" if use["command"] else ""
            console.answer(f"  not tried ({use['reason']}): {use['what']}{command}")
        else:
            by = f" by {use['command']}" if use["command"] else ""
            console.answer(f"  does not pass: {use['what']}{by}: {use['reason']}")
