"""What may still show the failure where nothing fails, as commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from bisect_trt.commands.settings import CheckSettings
from bisect_trt.commands.subject import Subject
from bisect_trt.errors import quoted
from bisect_trt.onnxlib.nodes import bodies, label
from bisect_trt.onnxlib.qdq import TYPES, find_quantized
from bisect_trt.probe.activations import Reference
from bisect_trt.probe.outcome import Outcome
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison

_LIST, _SHOWN = "\n  - ", 4
MOST_SWEPT = 32
"""The largest size that is advised."""


def advised(
    error: DoesNotReproduce, subject: Subject, check: CheckSettings, outcome: Outcome | None = None
) -> DoesNotReproduce:
    """The error with what to try next, one a line; ``outcome`` is that of the original."""
    steps = [*other_types(() if outcome is None else outcome.comparisons), *next_steps(subject, check)]
    return DoesNotReproduce(f"{error} What to try next:{_LIST}{_LIST.join(steps)}")


def next_steps(subject: Subject, check: CheckSettings) -> list[str]:
    """What else may show the failure, beside what was done already."""
    target, settings, data = check.target, subject.settings, subject.settings.data
    steps = [*lost_outputs(subject), *scales(subject, check)]
    if target is not None and target.low_precisions:
        steps += not_rounded(subject, target)
    elif target is not None:
        steps.append(f"{'' if steps else 'first '}the precision of the failing deployment (--fp16, --bf16, ...)")
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
    second = _command("run", subject, ["--onnx"], settings.words())
    steps.append(f"a second reference, ONNX's own evaluator, on the same inputs ({second})")
    if target is None:
        return steps
    same = [*settings.words(), *_places(subject), *check.tolerance.words()]
    rows: list[tuple[str, str, Sequence[str]]] = [
        ("whether tensors inside differ, though what comes out does not", "layerwise", []),
        ("whether the target contradicts itself", "run", ["--self-check"]),
        ("whether it fails in some builds alone", "repeat", ["--until", "bad", "-n", "20"]),
    ]
    if target.target.capabilities.pins:
        held = "with builds held to the first of 20 that fails, so that one can be searched"
        rows.append((held, "diagnose", ["--pin", "--repeat", "20"]))
    steps += [f"{what} ({_command(name, subject, target.flags(), [*more, *same])})" for what, name, more in rows]
    return [*steps, *(f"{what} ({shlex.join(words)})" for what, words in more_inputs(subject, check))]


def _command(name: str, subject: Subject, target: Sequence[str], words: Sequence[str]) -> str:
    return shlex.join(["bisect-trt", name, str(subject.settings.path), *target, *words])


def _places(subject: Subject) -> list[str]:
    return [word for place in subject.workers.places for word in ("--on", place.said)]


def scales(subject: Subject, check: CheckSettings) -> list[str]:
    """The command that checks the scales of a quantized model: the reference computes with the same ones."""
    rungs = {group.rung for group in find_quantized(subject.network).groups}
    if not rungs or check.target is None:
        return []
    flags = dict.fromkeys([*check.target.flags(), *(f"--{rung}" for rung in TYPES if rung in rungs)])
    settings, metric = subject.settings, check.metric
    fed = settings if metric is None else replace(settings, data=metric.data)
    words = [*fed.words(), *_places(subject), *([] if metric is None else metric.options.words())]
    said = _command("precision", subject, list(flags), [*words, "--reference", "FLOAT.onnx", "-o", "mixed.onnx"])
    why = "the reference computes with the same, so bad ones are on both sides"
    return [f"whether its scales fit: {why} ({said}, where FLOAT.onnx is the model before it was quantized)"]


def other_types(comparisons: Iterable[TensorComparison]) -> list[str]:
    """Outputs that match by value, and are of another type than the reference's."""
    said = dict.fromkeys(
        f"'{each.name}' is {each.target_dtype} and the reference's {each.reference_dtype}"
        for each in comparisons
        if each.target_dtype not in (None, each.reference_dtype)
    )
    return [f"who reads the outputs: values match, types do not ({', '.join(list(said)[:4])})"] if said else []


def not_rounded(subject: Subject, target: TargetSettings) -> list[str]:
    """Branches and loops, which stay in fp32 where a low precision is emulated."""
    found = [f"{node.op_type} '{label(node)}'" for node in subject.network.nodes if any(bodies(node))]
    if not found or not target.target.emulates_low(target):
        return []
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return [
        f"hardware that computes in {' and '.join(target.low_precisions)}: inside of {found[0]}{more} nothing was rounded here"
    ]


def lost_outputs(subject: Subject) -> list[str]:
    """Outputs that are empty, or of which at least half is NaN or Inf, with the first node that makes these."""
    network, reference = subject.network, subject.reference
    empty = [name for name in network.outputs if name in reference.infos and 0 in (reference.infos[name].shape or ())]
    nothing = f"{quoted(empty, _SHOWN)} ha{'s' if len(empty) == 1 else 've'} no elements with these"
    steps = [f"inputs of which something is left to compare: {nothing}"] if empty else []
    lost = {name: share for name in network.outputs if (share := _nonfinite(reference, name)) >= 0.5}
    if not lost:
        return steps

    def makes(index: int) -> bool:
        node = network.nodes[index]
        return any(_nonfinite(reference, n) for n in node.output) and not any(
            _nonfinite(reference, n) for n in node.input
        )

    said = ", ".join(f"{share:.0%} of '{name}'" for name, share in list(lost.items())[:4])
    maker = next(filter(makes, network.order), None)
    first = "" if maker is None else f", first from {network.describe(maker)}"
    made = f"of these the reference itself makes NaN or Inf ({said}{first})"
    return [*steps, f"inputs of which something is left to compare: {made}, and NaN beside NaN matches"]


def _nonfinite(reference: Reference, name: str) -> float:
    """The share of a tensor's elements that are NaN or Inf; 0 if it is unknown, or not of floats."""
    if name not in reference.infos or reference.infos[name].dtype.kind != "f":
        return 0.0
    value = reference.select([name])[name]
    return float(np.mean(~np.isfinite(value))) if value.size else 0.0


def more_inputs(subject: Subject, check: CheckSettings) -> list[tuple[str, list[str]]]:
    """Commands that try other sizes, where the model takes any, and more samples."""
    assert check.target is not None
    settings, data = subject.settings, subject.settings.data
    model, flags, same = str(settings.path), check.target.flags(), [*_places(subject), *check.tolerance.words()]
    found, shapes = [], []
    swept: set[str | int | None] = set()
    for name, value in subject.samples[0].items():
        dims = subject.declared.get(name, value.shape)
        free = next((axis for axis, dim in enumerate(dims) if not isinstance(dim, int)), None)
        if free is None or (dims[free] is not None and dims[free] in swept):
            continue
        swept.add(dims[free])
        sizes = [f"1..{MOST_SWEPT}" if axis == free else str(size) for axis, size in enumerate(value.shape)]
        shapes.append(f"{name}:[{','.join(sizes)}]")
    if shapes:
        words = ["bisect-trt", "sweep", model, *flags, "--shapes", *shapes]
        found.append(("other sizes of what is free", [*words, *replace(settings, input_shapes={}).words(), *same]))
    if not (data.load_inputs or data.data_loader_script is not None):
        shaped = [f"{name}:{[*value.shape]}".replace(" ", "") for name, value in subject.samples[0].items()]
        plain = replace(data, iterations=None, seed=type(data)().seed)
        fed = [*replace(settings, input_shapes={}, data=plain).words(), *same]
        words = ["bisect-trt", "samples", model, *flags, "--iterations", "50", "--input-shapes", *shaped, *fed]
        found.append(("many random samples", words))
    return found
