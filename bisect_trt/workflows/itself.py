"""Where a target contradicts itself: for models that no reference runs, with plugins or operators of somebody's own.

What has to come out the same is done twice (:mod:`bisect_trt.workflows.compare.self_check`); where it does not, every tensor is
marked as an output and both are done again: the first that differs is where it begins. Nothing is cut, because no values are
known to be right.
"""

from __future__ import annotations

from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.reporting.result import Result
from bisect_trt.workflows.compare.self_check import self_check, try_again
from bisect_trt.workflows.investigation import Examination
from bisect_trt.workflows.layerwise.origins import Layerwise, find_origins, of_samples
from bisect_trt.workflows.layerwise.telling import tell, to_json
from bisect_trt.workflows.settings import CheckSettings

UNPROVEN = "no reference says what is right, so nothing was cut: these are the first layers that differ from themselves"


def diagnose_itself(examination: Examination, check: CheckSettings) -> Result:
    """Compare the target with itself, and say in which of its layers what comes out begins to differ.

    Returns:
        The result; ``self_check`` in it is that of ``run --self-check``; ``contradiction`` names the check that was followed to
        its layers, and whether it shows there.

    Raises:
        DoesNotReproduce: It agrees with itself.
    """
    subject, console, result = examination.subject, examination.console, examination.result
    target = check.target
    assert target is not None
    self_check(examination, [target], check.tolerance, check.timeout)
    failed = [entry for entry in result.extra["self_check"] if entry["verdict"] == "FAIL"]
    if not failed:
        raise DoesNotReproduce("the target agrees with itself in all that was tried.")
    result.status, result.minimality = "inconclusive", "unproven"
    names = [name for name in subject.network.computed if name in subject.infos or name in subject.network.producer]
    for entry in failed:
        console.step(f"Mark every tensor as an output: where does {entry['what']} begin to differ?")
        comparisons = try_again(examination, target, entry["what"], names, check.tolerance, check.timeout)
        result.extra["contradiction"] = {"check": entry["check"], "what": entry["what"], "shown": False}
        if isinstance(comparisons, str):
            console.say(f"  the target does not run the model with every tensor marked: {comparisons}")
            result.why = f"the target does not run the model with every tensor marked: {comparisons}"
            continue
        tensors = of_samples(comparisons)
        origins = find_origins(subject.network, tensors)
        if not origins:
            console.say("  with every tensor marked it agrees with itself")
            result.why = "with every tensor marked as an output the target agrees with itself"
            continue
        unseen = {name: "it says nothing of this check" for name in names if name not in tensors}
        layers = Layerwise(tensors, unseen, origins, outputs_fail=True)
        result.extra |= to_json(subject, layers)
        result.extra["contradiction"]["shown"] = True
        tell(subject, layers, console)
        result.culprits = subject.describe_nodes(origins)
        result.status, result.why = "found", UNPROVEN
        who = ", ".join(subject.network.describe(index) for index in origins[:6])
        console.answer(f"It contradicts itself ({entry['what']}), first in {who}.")
        console.answer(f"  unproven: {UNPROVEN}")
        return result
    return result
