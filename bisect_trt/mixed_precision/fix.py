"""The fix of a diagnosis: the nodes to keep in fp32, searched with few probes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from bisect_trt.commands.checks import CheckSettings, make_check
from bisect_trt.commands.preflight import lowers_by
from bisect_trt.commands.session import Session
from bisect_trt.errors import BisectError
from bisect_trt.mixed_precision.answer import leave_best, recommended, tell, write_answer
from bisect_trt.mixed_precision.curve import Fix
from bisect_trt.mixed_precision.lowering import marked
from bisect_trt.mixed_precision.nodes import built_in_check, make_nodes
from bisect_trt.mixed_precision.parameters import Low, PrecisionSettings
from bisect_trt.mixed_precision.search import Task
from bisect_trt.onnxlib.nodes import first_output
from bisect_trt.options.searches import PrecisionOptions
from bisect_trt.options.shared import Search
from bisect_trt.options.spec import written
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.ledger import BudgetSpent
from bisect_trt.probe.metric_check import MetricCheck
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.search.oracle import Verdict
from bisect_trt.worker.process import workers_within

MIXED = "mixed.onnx"
_MOST_PROBES, _MOST_COSTLY_PROBES = 20, 4
"""The largest number of probes of the search for the minimal set; fewer where a build takes minutes."""
_FRESH_SAMPLES = 60
"""None of so many failing shows with 95% certainty that under 5% of all fail; `precision` tries more."""


def find_fix(session: Session, check: CheckSettings, search: Search, case: Candidate, folder: Path) -> None:
    """After a diagnosis: if the minimal case passes in fp32, look for the nodes to keep in fp32, and leave that model.

    Where no fix is found, the reason is printed, and nothing is raised: the failure itself was found before.
    """
    target = check.target
    if target is None or target.fp16 == target.bf16:
        return
    subject, prober, console = session.subject, session.prober, session.console
    precision: Low = "fp16" if target.fp16 else "bf16"
    compiles = target.target.compiles
    by_layer = compiles and lowers_by(subject, target) == "layer"
    own = PrecisionOptions(subject.settings.path, folder / MIXED, fresh_samples=_FRESH_SAMPLES, overwrite=True)
    most = _MOST_COSTLY_PROBES if compiles else _MOST_PROBES
    settings = PrecisionSettings(own, precision, target, by_layer=by_layer, most=most, tolerance=check.tolerance)
    words = ["bisect-trt", "precision", str(subject.settings.path), *target.flags(), "-o", MIXED]
    command = shlex.join([*words, *session.place_words, *written(subject.settings.data), *written(check.tolerance)])
    console.step("Is it precision? Keep nodes in fp32, and see whether the rest passes")
    fixed = make_check(built_in_check(replace(check, by_layer=by_layer), subject, precision), subject.workers)
    if isinstance(prober.runner.check, MetricCheck) and isinstance(fixed, BuiltinCheck):
        fixed = replace(prober.runner.check, runs=fixed)
    fixer = prober.beside(fixed, workers_within(search.workers, subject.workers.width))  # it shares journal and budget
    fix = None
    try:
        record = fixer.probe(_in_fp32(case, precision, by_layer=by_layer))
        if record.verdict is not Verdict.PASS:
            console.say(f"  no: the minimal case does not pass in fp32 either: {record.reason}")
            return
        task = Task(subject, console, session.result, fixer, make_nodes(subject, settings), settings)
        fix = Fix(task)
        fix.search()
        minimum = write_answer(fix)
    except BudgetSpent as error:
        if fix is not None:
            leave_best(fix)
        console.say(f"  {error} This goes on: {command}")
        session.result.suggest(command)
        return
    except BisectError as error:
        if fix is None or not session.result.extra.get("keep_fp32"):
            console.say(f"  no fix by precision: {error}")
        return
    finally:
        prober.wasted += fixer.wasted
    use, kept = recommended(task.result), f"{len(fix.kept)} of {len(task.lowering.units)} nodes in fp32"
    head = f"Fix: keep {kept}, as {use} does."
    if use is None:
        head = f"No fix by precision: with {kept} nothing that was written passes."
    tell(task, head)
    if not minimum.proven:
        console.answer(f"  this fix is preliminary: {minimum.why}; this command searches on for fewer nodes: {command}")
        task.result.suggest(command)


def _in_fp32(case: Candidate, precision: Low, *, by_layer: bool) -> Candidate:
    """The minimal case, nothing of it lowered."""
    case = replace(case, title="the minimal case in fp32")
    if by_layer:
        return replace(case, keep=tuple(first_output(node) for node in case.proto.graph.node))
    return marked(case, precision)
