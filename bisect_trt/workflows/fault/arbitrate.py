"""Before an answer is called a bug of the target: arbitrate."""

from __future__ import annotations

from dataclasses import replace

from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.outcome import Ending
from bisect_trt.targets.settings import TargetSettings, reference_settings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.fault.evidence import gather, unheeded
from bisect_trt.workflows.fault.fault import Fault
from bisect_trt.workflows.fault.judge import judge
from bisect_trt.workflows.investigation import Investigation


def arbitrate(
    investigation: Investigation, target: TargetSettings, tolerance: ToleranceOptions, answer: Candidate
) -> Fault:
    """Whose fault a minimal case is.

    It is computed once more by ONNX's reference evaluator, the same in float64, and rounded without the target: a few runs
    of a few nodes, none of them a probe.
    """
    outcome = investigation.prober.ledger.outcome(answer.key)
    broken = outcome is not None and outcome.ending is not Ending.MISMATCHED and outcome.ending is not Ending.PASSED
    refused = outcome.reason if outcome is not None and broken else None
    evidence = gather(investigation.subject, answer, target, refused=refused)
    who, right = target.target.title, reference_settings()
    reference = f"the reference ({right.target.title})"
    if who == right.target.title:  # one runtime, set up in two ways
        who, reference = target.describe(), f"the reference ({right.target.title} on the CPU, graph optimisations off)"
    versions = {str(seen.target.get("version", "")) for seen in investigation.subject.seen.values()}
    if len(versions) == 1 and "" not in versions:  # in a place; here, every answer's page has the one that is installed
        who = who.replace(target.target.title, f"{target.target.title} {versions.pop()}", 1)
    fault = judge(evidence, tolerance, who, reference)
    if (
        fault.whose in ("reference", "unknown")
        and (passed_over := unheeded(investigation.subject, evidence)) is not None
    ):
        evidence = replace(evidence, wide=passed_over, evaluator=passed_over)
        fault = judge(evidence, tolerance, who, reference)
    return fault
