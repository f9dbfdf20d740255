"""Where nothing fails: what may show the failure yet, as commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from bisect_trt.errors import quoted
from bisect_trt.graph.nodes import bodies, label
from bisect_trt.graph.qdq import TYPES
from bisect_trt.graph.qdq_groups import find_quantized
from bisect_trt.probing.activations import Reference
from bisect_trt.probing.outcome import Outcome
from bisect_trt.probing.prober import DoesNotReproduce
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.workflows.settings import CheckSettings
from bisect_trt.workflows.subject import Subject

_LIST, _SHOWN = "\n  - ", 4
MOST_SWEPT = 32
"""The largest size that is advised."""


def advised(
    error: DoesNotReproduce, subject: Subject, check: CheckSettings, outcome: Outcome | None = None
) -> DoesNotReproduce:
    """The same with what to try next, one a line; ``outcome`` is that of the original."""
    steps = [*other_types(() if outcome is None else outcome.comparisons), *next_steps(subject, check)]
    return DoesNotReproduce(f"{error} What to try next:{_LIST}{_LIST.join(steps)}")


def next_steps(subject: Subject, check: CheckSettings) -> list[str]:
    """What else may show the failure, after what was done already."""
    target, data = check.target, subject.settings.data
    steps = [*lost_outputs(subject), *scales(subject, check)]
    if target is not None and target.low_precisions:
        steps += not_rounded(subject, target)
    if target is not None and not target.low_precisions:
        first = "" if steps else "first "
        steps.append(f"{first}the precision of the failing deployment (--fp16, --bf16, ...)")
    if check.metric is not None:
        options, seen = check.metric.options, "whether the labels and what is done to the inputs are the deployment's"
        steps += [f"{seen}, for the reference scores no better", "the other options of the failing deployment"]
        return [*steps, *(["a smaller --max-drop"] if options.max_drop is not None else [])]
    if data.load_inputs or data.data_loader_script is not None:
        steps.append("other samples of the failing deployment's inputs")
    else:
        steps += ["real input data (--load-inputs or --data-loader-script) instead of random values", "another --seed"]
    steps += ["a tighter --atol and --rtol", "the other options of the failing deployment"]
    # A kernel of ONNX Runtime's own that is wrong is wrong on both sides.
    second = _command("run", subject, ["--onnx"], subject.settings.words())
    steps += [f"a second reference, ONNX's own evaluator, on the same inputs ({second})"]
    if target is not None:
        same = [*subject.settings.words(), *_places(subject), *check.tolerance.words()]
        inside = _command("layerwise", subject, target.flags(), same)
        steps += [f"whether tensors inside differ, though what comes out does not ({inside})"]
        steadily = _command("run", subject, target.flags(), ["--self-check", *same])
        steps += [f"whether the target contradicts itself ({steadily})"]
        again = _command("repeat", subject, target.flags(), ["--until", "bad", "-n", "20", *same])
        steps += [f"whether it fails in some builds alone ({again})"]
        if target.target.capabilities.pins:
            held = _command("diagnose", subject, target.flags(), ["--pin", "--repeat", "20", *same])
            steps += [f"with builds held to the first of 20 that fails, so that one can be searched ({held})"]
        steps += [f"{what} ({shlex.join(words)})" for what, words in more_inputs(subject, check)]
    return steps


def _command(name: str, subject: Subject, target: Sequence[str], words: Sequence[str]) -> str:
    return shlex.join(["bisect-trt", name, str(subject.settings.path), *target, *words])


def _places(subject: Subject) -> list[str]:
    return [word for place in subject.workers.places for word in ("--on", place.said)]


def scales(subject: Subject, check: CheckSettings) -> list[str]:
    """The command that asks about scales, where the model has any: the reference computes with the same ones."""
    rungs = {group.rung for group in find_quantized(subject.network).groups}
    if not rungs or check.target is None:
        return []
    flags = dict.fromkeys([*check.target.flags(), *(f"--{rung}" for rung in TYPES if rung in rungs)])
    settings, metric = subject.settings, check.metric
    fed = settings if metric is None else replace(settings, data=metric.data)
    words = ["bisect-trt", "precision", str(settings.path), *flags, *fed.words()]
    words += [
        *_places(subject),
        *([] if metric is None else metric.options.words()),
        "--reference",
        "FLOAT.onnx",
        "-o",
        "mixed.onnx",
    ]
    why = "the reference computes with the same, so bad ones are on both sides"
    return [
        f"whether its scales fit: {why} ({shlex.join(words)}, where FLOAT.onnx is the model before it was quantized)"
    ]


def other_types(comparisons: Iterable[TensorComparison]) -> list[str]:
    """Outputs that match by value, and are of another type than the reference's: who reads them may go wrong."""
    said = dict.fromkeys(
        f"'{each.name}' is {each.target_dtype} and the reference's {each.reference_dtype}"
        for each in comparisons
        if each.target_dtype not in (None, each.reference_dtype)
    )
    return [f"who reads the outputs: values match, types do not ({', '.join(list(said)[:4])})"] if said else []


def not_rounded(subject: Subject, target: TargetSettings) -> list[str]:
    """Branches and loops whose inside is computed in fp32 where a low precision is emulated, and not on who has it."""
    if not target.target.emulates_low(target):
        return []
    found = [f"{node.op_type} '{label(node)}'" for node in subject.network.nodes if any(bodies(node))]
    if not found:
        return []
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return [
        f"hardware that computes in {' and '.join(target.low_precisions)}: inside of {found[0]}{more} nothing was rounded here"
    ]


def lost_outputs(subject: Subject) -> list[str]:
    """Outputs that are empty, or that NaN or Inf leave nothing of, and the first node that makes these of finite values.

    A mask of -Inf leaves the rest; what counts is half of the elements.
    """
    network, reference = subject.network, subject.reference
    empty = [name for name in network.outputs if name in reference.infos and 0 in (reference.infos[name].shape or ())]
    nothing = f"{quoted(empty, _SHOWN)} ha{'s' if len(empty) == 1 else 've'} no elements with these"
    steps = [f"inputs of which something is left to compare: {nothing}"] if empty else []
    lost = {name: share for name in network.outputs if (share := _nonfinite(reference, name)) >= 0.5}
    if not lost:
        return steps
    said = ", ".join(f"{share:.0%} of '{name}'" for name, share in list(lost.items())[:4])
    maker = next(
        (
            index
            for index in network.order
            if any(_nonfinite(reference, name) for name in network.nodes[index].output)
            and not any(_nonfinite(reference, name) for name in network.nodes[index].input)
        ),
        None,
    )
    first = "" if maker is None else f", first from {network.describe(maker)}"
    made = f"of these the reference itself makes NaN or Inf ({said}{first})"
    return [*steps, f"inputs of which something is left to compare: {made}, and NaN beside NaN matches"]


def _nonfinite(reference: Reference, name: str) -> float:
    """The share of a tensor's elements that are NaN or Inf; 0 for what is not known, or of integers."""
    if name not in reference.infos or reference.infos[name].dtype.kind != "f":
        return 0.0
    value = reference.select([name])[name]
    return float(np.mean(~np.isfinite(value))) if value.size else 0.0


def more_inputs(subject: Subject, check: CheckSettings) -> list[tuple[str, list[str]]]:
    """Commands that look at other sizes, where the model takes any, and at more samples."""
    assert check.target is not None
    model, flags = str(subject.settings.path), check.target.flags()
    same = [*_places(subject), *check.tolerance.words()]
    found = []
    swept: dict[str | int | None, None] = {}  # a dimension without a name is one of its own
    shapes = []
    for name, value in subject.samples[0].items():
        dims = subject.declared.get(name, value.shape)
        free = next((axis for axis, dim in enumerate(dims) if not isinstance(dim, int)), None)
        if free is None or (dims[free] is not None and dims[free] in swept):
            continue
        swept[dims[free]] = None
        sizes = [f"1..{MOST_SWEPT}" if axis == free else str(size) for axis, size in enumerate(value.shape)]
        shapes.append(f"{name}:[{','.join(sizes)}]")
    if shapes:
        fed = replace(subject.settings, input_shapes={}).words()
        words = ["bisect-trt", "sweep", model, *flags, "--shapes", *shapes, *fed, *same]
        found.append(("other sizes of what is free", words))
    data = subject.settings.data
    if not (data.load_inputs or data.data_loader_script is not None):
        shaped = [f"{name}:{[*value.shape]}".replace(" ", "") for name, value in subject.samples[0].items()]
        plain = replace(data, iterations=None, seed=type(data)().seed)
        fed = [*replace(subject.settings, input_shapes={}, data=plain).words(), *same]
        words = ["bisect-trt", "samples", model, *flags, "--iterations", "50", "--input-shapes", *shaped, *fed]
        found.append(("many random samples", words))
    return found
