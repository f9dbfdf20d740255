"""The search for the fewest units to keep in high precision: its parameters, its space, its state, and what it refuses."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import onnx
from msgspec import Struct

from bisect_trt.aliases import Names
from bisect_trt.errors import ConflictError, MissingOptionError, ValueRefusedError
from bisect_trt.onnxlib.functions import inline_functions
from bisect_trt.onnxlib.inputs import take_input_shapes
from bisect_trt.onnxlib.nodes import Node, addressed, clone
from bisect_trt.options.searches import PrecisionOptions
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.outcome import BROKEN_PREFIXES, Ending, Outcome, Reason
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.console import listed
from bisect_trt.report.mixed import BESIDE, NOT_RUN_WHOLE, UNUSED_RANGES
from bisect_trt.report.outcomes import describe_outcome
from bisect_trt.report.parts import Unit
from bisect_trt.report.result import Result
from bisect_trt.search.confirm import confirm_enough
from bisect_trt.search.keep import find_keep
from bisect_trt.search.oracle import Minimum, Oracle, Subset, Verdict, about_units
from bisect_trt.session.session import Session
from bisect_trt.session.subject import Subject
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.options import Target
from bisect_trt.tensors.files import files_of
from bisect_trt.tensors.inputs import Sample, is_script, split_script
from bisect_trt.tensors.tolerance import ToleranceOptions

Low = Literal["fp16", "bf16", "int8", "fp8", "int4"]
BITS: tuple[Low, ...] = ("int8", "fp8", "int4")
"""Quantized types; a search for one of these searches Q/DQ groups."""
HALVES: tuple[Low, ...] = ("fp16", "bf16")
BREAKS = 3.0
"""The score of a unit that breaks the tolerance alone."""
INSIDE = 2.0
"""The score of a node that overflows where it reads values twice as large."""
_SHOWN_SUSPECTS = 5


class PrecisionSettings(Struct, frozen=True):
    """The options of a search for precision, and the values that follow from them.

    Attributes:
        options: The options.
        precision: The precision that nodes are lowered to. With ``calibrated``, the precision of
            the tolerance.
        target: The runtime that is compared with the reference; ``None`` for a check command or
            prompts.
        bits: The quantized types of the groups that are searched; none for a search of nodes.
        by_layer: Whether the target lowers layer by layer, rather than run models with Casts.
        calibrated: Whether nodes that are not kept may run in INT8, by ranges that TensorRT
            measured.
        most: The largest number of questions of the search for the minimal set; ``None`` for no
            limit.
        tolerance: The tolerance on fresh samples; ``None`` for the tolerance of the search.
    """

    options: PrecisionOptions
    precision: Low
    target: TargetSettings | None = None
    bits: tuple[Low, ...] = ()
    by_layer: bool = False
    calibrated: bool = False
    most: int | None = None
    tolerance: ToleranceOptions | None = None

    @property
    def output(self) -> Path:
        """The file of the answer."""
        return self.options.output

    @property
    def low(self) -> str:
        """The precision of units that are not kept, in words."""
        return "/".join(self.bits) or ("int8" if self.calibrated else self.precision)

    @property
    def compiles(self) -> bool:
        """Whether the target compiles, so that a probe is a build."""
        return self.target is not None and self.target.target.compiles

    @property
    def cheap(self) -> bool:
        """Whether a probe takes milliseconds rather than minutes; a simulator of a device takes seconds a sample."""
        simulated = self.target is not None and self.target.target.computes_low(self.target)
        return not (self.compiles or simulated)

    @property
    def rungs(self) -> Names:
        """The precisions of ``--ladder``, the cheapest first; none without it."""
        return tuple(self.options.ladder or ())

    @property
    def half(self) -> Low | None:
        """The precision of the ladder between the quantized types and fp32, if it has one."""
        return next((low for low in HALVES if low in self.rungs), None)

    @property
    def emulated(self) -> bool:
        """Whether candidates run on a runtime that would compute low-precision nodes in fp32: ONNX Runtime's CPU provider.

        Raises:
            ConflictError: The runtime cannot emulate the precision.
        """
        if self.target is None:
            return False
        # Of a ladder the target has the precision of the rung below.
        low = replace(self.target, fp16=self.precision == "fp16", bf16=self.precision == "bf16")
        return low.target.emulates_low(low)


def precision_files(options: PrecisionOptions) -> list[Path]:
    """The files of ``--validation-data`` and ``--reference``.

    Raises:
        UsageError: A script does not exist, or a file holds no samples.
    """
    files = [] if options.reference is None else [options.reference]
    for entry in options.validation_data:
        files += (
            [split_script(entry, "", "data-loader")[0]]
            if is_script(entry)
            else files_of(Path(entry))
        )
    return files


def half_of(target: TargetSettings) -> Low | None:
    """Return the 16-bit precision of a target, unless it has both or none."""
    return None if target.fp16 == target.bf16 else "fp16" if target.fp16 else "bf16"


def low_precision(
    target: Target, own: PrecisionOptions
) -> tuple[tuple[Low, ...], TargetSettings | None]:
    """Return the precision that a search lowers to, and the target without it: the search lowers the model itself.

    A target with quantized types keeps them: to it, Q/DQ in a model shows where to quantize, and
    the option allows it.

    Raises:
        UsageError: Not exactly one of --fp16 and --bf16 is given and no quantized type, or another
            option does not fit.
    """
    given = {
        "fp16": target.fp16,
        "bf16": target.bf16,
        "int8": target.int8,
        "fp8": target.fp8,
        "int4": own.int4,
    }
    if own.ladder is not None:
        rungs = ",".join(own.ladder)
        beside = next((name for name, on in given.items() if on and name not in own.ladder), None)
        if beside is not None:
            raise ConflictError(
                f"--{beside} is not among the precisions of --ladder {rungs}; drop it, or name it there."
            )
        # The first search goes to the fewest bits; later ones widen what it keeps.
        first = [name for name in own.ladder if name in BITS] or own.ladder[:1]
        given = {name: name in first for name in given}
        target = target.but(**{name: given[name] for name in ("fp16", "bf16", "int8", "fp8")})
    bits = tuple(each for each in BITS if given[each])
    if own.calibration_cache is not None and "int8" not in bits:
        raise ConflictError(f"--calibration-cache: {UNUSED_RANGES}; drop it.")
    if not bits:
        runtime = (target if target.named() else target.but(fp16=False, bf16=False)).settings()
        if own.reference is not None:
            raise ValueRefusedError(
                "--reference is the model before quantization: use it with --int8, --fp8 or --int4."
            )
        if given["fp16"] == given["bf16"]:
            raise MissingOptionError(
                "precision needs exactly one of --fp16 and --bf16; for a quantized model --int8, --fp8 or --int4."
            )
        return ("fp16" if given["fp16"] else "bf16",), runtime
    plugins = target.named()
    # ONNX Runtime takes 8 bits from the Q/DQ nodes of the model, and has no option for them.
    able = [each for each in plugins if each.name != "onnxrt"] or plugins
    unable = {each: False for each in ("int8", "fp8") if not able or each not in able[0].precisions}
    flag = next((name for name in HALVES if given[name]), None)
    if flag is not None and not (able and able[0].compiles):
        raise ConflictError(
            f"--{flag} and --{bits[0]} are two searches for this target: drop --{flag}, and search for it in the "
            f"model that is written, or use --ladder {bits[0]},{flag},fp32."
        )
    return bits, target.but(**unable).settings()


def marked(candidate: Candidate, precision: str) -> Candidate:
    """A candidate that runs as it is, not to be taken for one of the same content that the target lowers itself."""
    return with_metadata(candidate, "bisect-trt.precision", precision)


def with_metadata(candidate: Candidate, key: str, value: str) -> Candidate:
    """A candidate with an entry more in the metadata, so that it has another key."""
    model = clone(candidate.proto)
    model.metadata_props.add(key=key, value=value)
    return replace(candidate, made=model)


class Lowering(ABC):
    """Makes a candidate of each set of units to keep: a model with the others lowered to a precision.

    Attributes:
        units: The units.
        inner: The nodes in bodies and functions among them, by unit; the other units of nodes are
            places in the model's topological order.
    """

    inner: Mapping[int, Node] = MappingProxyType({})

    def __init__(self, subject: Subject, units: Sequence[int], precision: str) -> None:
        self.units = tuple(units)
        self._subject = subject
        self._precision = precision

    @abstractmethod
    def candidate(self, keep: Subset) -> Candidate:
        """The candidate with ``keep`` in floats and the other ``units`` lowered."""

    @abstractmethod
    def write(self, keep: Subset, path: Path) -> None:
        """Write the answer for use, with the shapes of the original file.

        Raises:
            UsageError: It cannot be written.
        """

    def read_back(self, keep: Subset, path: Path) -> Candidate:
        """The candidate that was written, with the input shapes of the search."""
        proto = self._subject.workspace.read_back(path)
        take_input_shapes(proto, self._subject.network)
        return self._made(proto, keep, f"{path.name}, read back")

    def _made(self, model: onnx.ModelProto, keep: Subset, title: str) -> Candidate:
        """A mixed model as a candidate."""
        network = self._subject.network
        candidate = Candidate(model, tuple(network.inputs), tuple(network.outputs), title, keep)
        return marked(candidate, self._precision)

    @property
    def main(self) -> list[int]:
        """The units in the main graph."""
        return [unit for unit in self.units if unit not in self.inner]

    def writes_model(self, path: Path) -> bool:  # noqa: ARG002 - TensorRT alone may write an engine only
        """Return whether an ONNX model is written to ``path``."""
        return True


class Suspect(Struct, frozen=True):
    """A unit that may need high precision."""

    unit: int
    score: float
    rule: str
    reason: str


class PrecisionSpace(ABC):
    """The units of a search: nodes of a float model, or Q/DQ groups of a quantized one.

    Attributes:
        lowering: Makes the candidates.
        suspects: Units that probably need high precision, most suspicious first.
        noun: The name of a unit.
        high: The precision of units that are kept.
        state: The state of the others.
        cause: The suspected reason of the failure.
        allowed: The share of fresh samples that may fail, none of them severely.
        ways: How fresh samples are drawn; ``None`` for all ways of ``FreshSamples``.
        losing: The units that lose values alone by the automatic tolerance: by overflow, underflow
            or lost digits.
        measured: Whether it is known which these are.
    """

    losing: Subset = frozenset()
    measured = False
    noun = "node"
    high = "fp32"
    state = "lowered"
    cause = "precision"
    allowed = 0.0
    ways: Names | None = None

    def __init__(self, subject: Subject, lowering: Lowering, suspects: Sequence[Suspect]) -> None:
        self.subject = subject
        self.lowering = lowering
        self.suspects = suspects

    @property
    def suspected(self) -> Subset:
        """The units that are suspects."""
        return frozenset(suspect.unit for suspect in self.suspects)

    @property
    def certain(self) -> Subset:
        """The units that are kept in any case, because other samples will need them."""
        return frozenset()

    @property
    def walk(self) -> Sequence[int]:
        """All units in the order in which a search tries to lower them."""
        return self.lowering.units

    @abstractmethod
    def order(self, failing: Sequence[Sample]) -> list[int]:
        """All units, with those first that most probably have to be kept for these samples to pass."""

    def suspect_alike(self, operators: Collection[str]) -> None:  # noqa: B027 - groups have several operators
        """Suspect each unit of some operators."""

    @abstractmethod
    def describe(self, units: Subset) -> list[Unit]:
        """Units for the result: name, operator, outputs, and the fields of the space."""

    def label(self, unit: int) -> str:
        """A unit in messages."""
        (node,) = self.culprits(frozenset({unit}))
        return f"{node.op} '{node.name or node.outputs[0]}'"

    def modules(self, units: Sequence[int]) -> set[Subset]:
        """Return the sets of these units by module: of each block, of each norm in it, and so on."""
        modules = defaultdict[str, set[int]](set)
        for unit in units:
            for node in self.culprits(frozenset({unit})):
                path = node.module.path if node.module else node.name.replace("/", ".")
                for scope in accumulate(path.split("."), "{}.{}".format):
                    modules[scope].add(unit)
        return set(map(frozenset, modules.values()))

    def widen(self) -> Subset:
        """Suspect the nodes beside the suspects too, and return all of them."""
        network = self.subject.network
        units = self.suspected
        candidates = set(self.lowering.main) - units
        neighbours = dict[int, int]()
        for unit in units.intersection(self.lowering.main):
            index = network.order[unit]
            readers = (network.consumers.get(name, ()) for name in network.made(index))
            # Compilers move the boundary of a precision by one layer where a fusion crosses it.
            ranks = (network.rank[node] for node in chain(network.parents(index), *readers))
            neighbours |= dict.fromkeys(candidates.intersection(ranks), unit)
        additions = [
            Suspect(neighbour, 0.0, "neighbour", BESIDE.format(self.label(unit), self.high))
            for neighbour, unit in sorted(neighbours.items())
        ]
        self.suspects = [*self.suspects, *additions]
        return units.union(neighbours)

    def notes(self) -> Iterator[str]:
        """Warnings before the search, a sentence each."""
        return iter(())

    def culprits(self, units: Subset) -> list[Node]:
        """The nodes of some units, for the result."""
        inner = self.lowering.inner
        main = self.subject.describe_searched(units - inner.keys())
        return main + [inner[unit] for unit in sorted(units & inner.keys())]

    def measure_nodes(self) -> None:  # noqa: B027 - only nodes are
        """Measure the error of each node, where that was left for later."""

    def measure(self, task: Task) -> None:  # noqa: B027 - only quantized groups are measured
        """Measure the error of each unit alone, once the minimal set is known."""

    def fill_in(self, result: Result, kept: Subset, minimal: Subset) -> None:  # noqa: ARG002 - groups have a table of units
        """Put the facts of the space into a result."""
        flat = inline_functions(self.subject.network.proto, ())
        result.not_lowered = len([*addressed(flat.graph)]) - len(self.lowering.units)

    def count(self, number: int) -> str:
        """A number of units, in words."""
        return f"1 {self.noun}" if number == 1 else f"{number} {self.noun}s"


class Task(Session, frozen=True):
    """A session that searches for precision."""

    space: PrecisionSpace
    settings: PrecisionSettings

    @property
    def lowering(self) -> Lowering:
        """Makes the candidates."""
        return self.space.lowering

    @property
    def everything(self) -> Subset:
        """All units."""
        return frozenset(self.lowering.units)

    @property
    def cheap(self) -> bool:
        """Whether a probe takes milliseconds; see :attr:`PrecisionSettings.cheap`."""
        return self.settings.cheap

    @property
    def runtime(self) -> str:
        """The target in sentences; empty where a check command runs the models."""
        target = self.settings.target
        return target.target.title if target else ""

    @property
    def not_run(self) -> str | None:
        """A sentence, if the target does not run the model with all units lowered; then the answer is not about numbers."""
        broken = self.breaks(frozenset())
        if broken is None:
            return None
        form = "quantized" if self.settings.bits else f"in {self.settings.low}"
        return NOT_RUN_WHOLE.format(form, broken)

    def outcome_of(self, keep: Subset) -> Outcome | None:
        """The outcome of the candidate with some units kept, if it was probed."""
        return self.prober.ledger.outcome(self.lowering.candidate(keep).key)

    def breaks(self, keep: Subset) -> str | None:
        """The reason, if the target crashed on, refused or did not finish a candidate."""
        if not any(
            record.signature.startswith(BROKEN_PREFIXES) for record in self.prober.ledger.records
        ):
            # The lookup below makes the candidate again.
            return None
        outcome = self.outcome_of(keep)
        if outcome is None or outcome.ending is not Ending.BROKEN:
            return None
        findings = tuple(
            finding for finding in outcome.findings if finding.reason is not Reason.SAMPLE
        )
        return describe_outcome(replace(outcome, findings=findings), self.runtime)


def tell_suspects(task: Task) -> None:
    """Print the suspects, and why they are."""
    space = task.space
    console = task.console
    if not space.suspects:
        console.say("  none")
    shown = [f"{space.label(entry.unit)}: {entry.reason}" for entry in space.suspects]
    for line in listed(shown, _SHOWN_SUSPECTS, ", less suspicious"):
        console.say(line)


def probe_ends(
    task: Task,
    suspects: Subset | None = None,
    judge: Callable[[Subset], object] | None = None,
    *,
    nothing_may_pass: bool = False,
) -> Minimum | None:
    """Probe all units in high precision, then none; the empty set where that is an answer and passes.

    Args:
        task: The model and the space of the search.
        suspects: A set that is probed too: first where a probe is a build, and with several workers
            beside the others.
        judge: Called with the suspects while the others are built, where these pass; possibly
            several times.
        nothing_may_pass: Whether a model that passes with all units lowered is an answer.

    Raises:
        DoesNotReproduce: The model fails with all units kept too, or passes with none.
        BudgetSpent: No more probes may be made.
    """
    everything = task.everything
    nothing = frozenset[int]()

    def algorithm(oracle: Oracle) -> Subset | None:
        """The set with an unexpected verdict, if one has it."""
        ask = about_units(oracle)
        if suspects is not None and task.settings.compiles:
            _ask_first(task, ask, suspects, judge)
        if ask(everything) is not Verdict.PASS:
            return everything
        if ask(nothing) is not Verdict.FAIL:
            return nothing
        if suspects is not None:
            ask(suspects)
        return None

    unexpected = task.prober.search(algorithm, task.lowering.candidate)
    if unexpected is None:
        return None
    if not unexpected:
        outcome = task.outcome_of(nothing)
        ending = None if outcome is None else outcome.ending
        # After a diagnosis, or on a ladder, the failure that was seen first may be another one:
        # refused, and not off.
        if ending in (Ending.BROKEN, Ending.MISMATCHED):
            return None
        if nothing_may_pass and ending is Ending.PASSED:
            return Minimum(nothing, proven=True)
    raise refusal(task, unexpected)


def _ask_first(
    task: Task,
    ask: Callable[[Subset], Verdict],
    units: Subset,
    judge: Callable[[Subset], object] | None,
) -> None:
    """Ask about a set; ``judge`` is called with it if it passes."""
    passes = ask(units) is Verdict.PASS
    # Where there is no outcome, the verdict is a guess of the speculation.
    if passes and judge is not None and task.outcome_of(units) is not None:
        judge(units)


def search_keep(task: Task, limit: int | None, within: Subset | None = None) -> Minimum:
    """The fewest units to keep, where the model passes with all units kept and fails with none; by at most ``limit`` probes.

    They are searched ``within`` a set that is known to be enough, or all units.

    Raises:
        BudgetSpent: No more probes may be made.
    """
    suspects = [suspect.unit for suspect in task.space.suspects]
    groups = [] if task.cheap else task.space.modules(suspects)

    def algorithm(oracle: Oracle) -> Minimum:
        ask = about_units(oracle)
        units = [unit for unit in task.space.walk if within is None or unit in within]
        minimum = find_keep(units, ask, suspects=suspects, groups=groups, most=limit)
        return (
            confirm_enough(minimum, oracle, task.prober.flakiness)
            if task.prober.measured
            else minimum
        )

    return task.prober.search(algorithm, task.lowering.candidate)


def refusal(task: Task, units: Subset) -> DoesNotReproduce:
    """The reason why precision does not explain the failure, by the verdict with all units kept, or with none."""
    prober = task.prober
    space = task.space
    key = task.lowering.candidate(units).key
    record = next(record for record in prober.ledger.records if record.key == key)
    of_all = f"with all {space.count(len(task.lowering.units))} {f'in {space.high}' if units else space.state}"
    if record.verdict is Verdict.UNRESOLVED:
        return DoesNotReproduce(
            f"the check cannot judge the model {of_all}: {record.reason}. Fix the check first."
        )
    if not units:
        data = (
            "other samples of"
            if task.subject.settings.data.given
            else "real inputs (--load-inputs) from"
        )
        reference = ", the model before quantization (--reference)"
        if not task.settings.bits or task.settings.options.reference is not None:
            reference = ""
        return DoesNotReproduce(
            f"the check passes {of_all}: {record.reason}. So {space.cause} is not the reason for a failure seen elsewhere, and "
            f"no {space.noun} has to stay in {space.high}; try {data} the deployment{reference}, or a tighter tolerance."
        )
    # The record of the probe has the output that the user needs to see.
    log = shlex.join(["bisect-trt", "log", str(prober.workspace.folder), str(record.number)])
    details = f' It printed: "{record.said}"; `{log}` shows the rest.' if record.said else ""
    return DoesNotReproduce(
        f"the check fails {of_all} too: {record.reason}.{details} So {space.cause} is not the reason, or not the only one; "
        "`diagnose` or `reduce` without low precision finds what fails there."
    )
