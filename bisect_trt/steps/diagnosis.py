"""``diagnose``: finds the layers that make a model wrong and the side that is wrong, and writes a reproducer and a fix.

:meth:`Diagnosis.run` lists the steps; each step is a method below it. ``workaround`` has the same
first steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import UNSET, Struct, structs

from bisect_trt.aliases import Names
from bisect_trt.errors import quoted
from bisect_trt.onnxlib.qdq import find_quantized
from bisect_trt.options.compare import CompareOptions
from bisect_trt.options.searches import Diagnose, Reduce
from bisect_trt.options.shared import CheckOptions, Search
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.parts import Amplified, Failure, Inside, WrongSide
from bisect_trt.report.proofs import HELD, tell_steps
from bisect_trt.report.reproducer import MIXED, MODEL, Since, pack
from bisect_trt.report.result import Result
from bisect_trt.report.sentences import ONLY_A_PIECE, ROUNDING_FAILS, Try
from bisect_trt.search.oracle import Mode
from bisect_trt.session.call import Call
from bisect_trt.session.checks import CheckSettings
from bisect_trt.session.session import Case, RebuiltPasses, Session, saving_best
from bisect_trt.session.subject import Subject
from bisect_trt.steps.arbiter import Arbiter
from bisect_trt.steps.dynamic_dims import (
    free_where_needed,
    free_where_profiled,
    needed_dimensions,
    note_dynamic,
)
from bisect_trt.steps.inside import look_inside
from bisect_trt.steps.layers import LayerComparison, fill_in, tell
from bisect_trt.steps.minimal_case import (
    JudgedCase,
    by_blame,
    extract_suspect,
    find_minimum,
    find_suspects,
    look_for_others,
)
from bisect_trt.steps.reduced_model import deliver, smallest
from bisect_trt.steps.refused_format import require_format
from bisect_trt.steps.reproducer import Left, leave_reproducer, make_folder
from bisect_trt.steps.rounding import rounding_alone
from bisect_trt.steps.shrink import shrink
from bisect_trt.steps.switches import name_cause
from bisect_trt.steps.workarounds import (
    after_diagnosis,
)
from bisect_trt.targets.base import TargetSettings
from bisect_trt.worker.deadline import BudgetSpent

MECHANISM = "same-mechanism"
"""The folder in the reproducer's for a larger case."""


class Diagnosis(Struct, frozen=True):
    """A diagnosis and its steps."""

    session: Session
    check: CheckSettings
    search: Search
    own: Diagnose
    output: Path

    @property
    def arbiter(self) -> Arbiter:
        """Asks whether the reference or a release is wrong."""
        return Arbiter(self.session, self.check, not self.own.no_other_release)

    @property
    def archive(self) -> Path | None:
        """The ``.zip`` of the reproducer, if the user wants one."""
        return archive_of(self.output) if self.own.archive else None

    def run(self) -> Result:
        """Find why the target differs from the reference, and write a reproducer that proves it.

        Raises:
            DoesNotReproduce: The target does not differ.
            BudgetSpent: The best so far has been written.
            KeyboardInterrupt: The user stops; the best so far has been written.
        """
        session, result = self.session, self.session.result
        result.cause = []
        result.cause_detail = None
        result.workarounds = []
        with saving_best(self.save_best):
            case, suspects = self.find_case()
            if case is None:
                return result
            answer = self.judge(case, suspects)
            delivery = self.deliver(answer)
        fixed: Mapping[Names, Candidate] = {}
        since: Since | None = None
        inside: list[Inside] = []
        try:
            inside = look_inside(session, answer.whole)
            result.inside = inside or UNSET
            arbiter = self.arbiter
            if self.own.releases and answer.fault.is_fixable:
                # All releases are asked below.
                arbiter = structs.replace(arbiter, installs=False)
            failing = answer.candidate if answer.fault.right else answer.whole
            since = arbiter.upgrade(failing, answer.fault)
            if answer.fault.is_bug:
                fixed = name_cause(
                    session, self.check, answer.whole, partial(self.keep_larger, answer)
                )
            further = partial(self.deliver_another, [*fixed.values()])
            look_for_others(session, case, further if self.own.find_all else None)
            if answer.fault.is_fixable:
                from bisect_trt.mixed_precision.answer import find_fix  # noqa: PLC0415 - not needed before the first probe
                from bisect_trt.steps.release_boundary import since_when  # noqa: PLC0415 - as above

                find_fix(session, self.check, self.search, answer.whole, self.output / MIXED)
                after_diagnosis(
                    session,
                    self.check,
                    case,
                    answer.fault.whose,
                    self.output,
                    steady=delivery.steady,
                )
                boundary = since_when(
                    session, self.check, answer.whole, self.output, asked=self.own.releases
                )
                since = boundary or since
            else:
                session.console.say(
                    "The target is not wrong in this failure, so no workaround is needed."
                )
        except BudgetSpent as error:
            if self.own.find_all:
                # Other failures may be left.
                raise
            session.console.say(f"  {error}")
        finally:
            # The texts have the number of probes of the whole run.
            delivery.finish(
                session, result.minimality, self.archive, result.cause_detail or None, since, inside
            )
            if self.archive is not None:
                result.artifacts["archive"] = str(self.archive)
        return result

    def find_case(self) -> tuple[Case | None, list[int]]:
        """Find the smallest failing case: a suspicious node if one fails alone, else by reducing the whole model.

        Returns:
            The case, ``None`` where many nodes amplify rounding and none fails alone; and the
            suspicious nodes.
        """
        self.confirm()
        amplified = self.add_rounding()
        suspects = self.locate()
        case = extract_suspect(self.session, self.check.target, suspects)
        if case is None and amplified is not None and amplified.spread:
            self.stop_at_rounding(amplified)
        elif case is None:
            try:
                case = self.reduce(suspects)
            except RebuiltPasses:
                if not free_where_needed(self.session):
                    raise
                case = extract_suspect(self.session, self.check.target, suspects) or self.reduce(
                    suspects
                )
        return case, suspects

    def confirm(self) -> None:
        """Probe the original: it must fail as it is in its file."""
        session = self.session
        nodes = len(session.subject.network.nodes)
        session.console.step(f"Does the target differ from the reference ({nodes} nodes)?")
        try:
            record = session.probe_original(self.search)
        except DoesNotReproduce as error:
            doubted = self.arbiter.doubted(error)
            raise (self.advised(error) if doubted is error else doubted) from error
        session.console.say(f"  yes: {record.reason}")
        require_format(session, record, self.arbiter)
        free_where_profiled(session)

    def advised(self, error: DoesNotReproduce) -> DoesNotReproduce:
        """Return the error with what to try next, one a line."""
        session = self.session
        subject = session.subject
        check = self.check
        data = subject.settings.data
        target = check.target
        lost = _without_values(subject)
        compares = check.metric is None
        package = target and target.target.package(target)
        steps = {
            Try.INPUTS: lost,
            Try.PRECISION: target and not target.low_precisions,
            Try.RELEASE: package and not subject.workers.places,
            Try.SCALES: find_quantized(subject.network).groups,
            Try.LABELS: not compares,
            Try.GIVEN: compares and data.given,
            Try.DATA: compares and not data.given,
            Try.SAMPLES: compares and not data.given,
            Try.TOLERANCE: compares,
            Try.LAYERS: compares and not subject.settings.loop.steps,
            Try.BUILDS: compares,
            Try.SIZES: compares and subject.free_shapes,
            Try.MODULE: compares and subject.network.proto.producer_name == "pytorch",
        }
        extra = {
            "samples": ("--iterations", "50"),
            "layerwise": (),
            "repeat": ("--until", "bad", "-n", "20"),
            "sweep": ("--shapes", *subject.free_shapes),
            "run": ("--reference", "MODULE.py:make"),
        }
        commands = {
            name: session.command(name, check, extra=words) for name, words in extra.items()
        }
        name = package and package.name
        texts = (
            step.value.format(lost=quoted(lost), package=name, **commands)
            for step in steps
            if steps[step]
        )
        return DoesNotReproduce("\n  - ".join([str(error), *texts]))

    def add_rounding(self) -> Amplified | None:
        """Compare the reference with itself with rounding added; returns the field ``amplified`` if that fails too."""
        session = self.session
        outcome = session.prober.ledger.outcome(session.subject.original.key)
        amplified = (
            rounding_alone(session.subject, self.check, outcome.comparisons) if outcome else None
        )
        if amplified is not None:
            session.console.say("  the reference with rounding errors added differs as much")
            session.result.amplified = amplified
        return amplified

    def locate(self) -> list[int]:
        """Compare every tensor: returns the nodes that compute a wrong tensor from right ones."""
        session = self.session
        session.console.step("Find the first wrong tensor")

        def show(layers: LayerComparison) -> None:
            fill_in(session.result, session.subject, layers)
            tell(layers, session.console)

        return find_suspects(session, show)

    def stop_at_rounding(self, amplified: Amplified) -> None:
        """End where rounding alone fails the whole model: whether a piece of it fails depends on its last digit."""
        result = self.session.result.end("inconclusive", ROUNDING_FAILS)
        result.fault = WrongSide("rounding", amplified.sentence, op=amplified.op)

    def reduce(self, suspects: Sequence[int]) -> Case:
        """Search the whole model for the fewest units that still fail."""
        session = self.session
        session.console.step(
            f"Reduce the whole model: which of its {len(session.subject.units)} units are needed to fail?",
            len(session.subject.units),
        )
        minimum = find_minimum(session, Mode.AUTO, suspects)
        tell_steps(minimum, session.console)
        return Case(minimum)

    def judge(self, case: Case, suspects: Sequence[int] = ()) -> JudgedCase:
        """Shrink the tensors of a case, and decide which side is wrong."""
        session = self.session
        settled = needed_dimensions(session, session.settle(case))
        blamed = by_blame(session, settled, suspects)
        small = settled
        if self.search.shrink:
            session.console.step("Shrink tensors of the minimal case")
            small = shrink(session, settled)
        target = small.target or self.check.runtime
        fault = self.arbiter.arbitrate(target, small)
        if fault.whose in ("tie", "rounding") and small is not settled:
            # A smaller case may show less than was reported.
            reported = self.arbiter.arbitrate(settled.target or target, settled)
            if reported.whose != fault.whose:
                session.console.say(
                    "  the smaller tensors do not show the same, so they stay as they are"
                )
                return JudgedCase(case, settled, settled, blamed, reported)
        return JudgedCase(case, settled, small, blamed, fault)

    def deliver(self, answer: JudgedCase) -> Left:
        """Write the reproducer, and print the answer."""
        session, result = self.session, self.session.result
        session.console.step(f"Write a reproducer to {self.output}, and run it")
        delivery = leave_reproducer(session, self.check, answer, self.output, self.own)
        session.conclude(delivery.minimum)
        session.console.keep(f"  the minimal case is {result.minimality}")
        result.reported().proof = delivery.proof
        result.culprits = session.subject.describe_nodes(answer.blamed)
        result.fault = answer.fault.to_part()
        result.held = answer.candidate.held or UNSET
        result.artifacts |= {"reproducer": str(self.output), "reduced": str(delivery.files[0])}
        if answer.candidate.held:
            session.console.answer(HELD)
        note_dynamic(session, answer.candidate)
        return delivery

    def deliver_another(self, passing: Sequence[Candidate], case: Case, number: int) -> Failure:
        """Write a reproducer of another failure beside the first; returns its entry in ``failures``.

        Args:
            passing: The whole model with switches with which it passes.
            case: The failure.
            number: Its number.
        """
        session = self.session
        answer = self.judge(case)
        folder = folder_of(self.output, number)
        delivery = leave_reproducer(session, self.check, answer, folder, self.own)
        if first := session.result.reported().proof:
            first.others.append(delivery.proof.command)
        failure = session.failure(
            delivery.minimum, session.subject.describe_nodes(answer.blamed), delivery.files[0]
        )
        for whole in passing:
            title = f"{answer.whole.title}, as {whole.title}"
            if session.prober.probe(replace(answer.whole, title=title, target=whole.target)).fails:
                failure = structs.replace(failure, minimality="unproven", why=ONLY_A_PIECE)
        inside = look_inside(session, answer.whole)
        delivery.finish(session, failure.minimality, inside=inside)
        return structs.replace(failure, inside=tuple(inside), fault=answer.fault.to_part())

    def keep_larger(self, answer: JudgedCase, case: Case) -> str:
        """Write a larger case that shows the mechanism of the whole model beside the minimal case; returns its folder."""
        session = self.session
        folder = self.output / MECHANISM
        settled = session.settle(case)
        larger = structs.replace(answer, case=case, whole=settled, candidate=settled)
        delivery = leave_reproducer(session, self.check, larger, folder, self.own)
        minimality, _ = session.proof(delivery.minimum)
        delivery.finish(session, minimality)
        return str(folder)

    def save_best(self) -> None:
        """Write the smallest candidate that has failed so far to the place of the reproducer's model."""
        if self.session.best is not None:
            make_folder(self.output)
            self.session.save_best(self.output / MODEL)


def _without_values(subject: Subject) -> list[str]:
    """The outputs that are empty, or have NaN or Inf, in the reference."""
    names = [name for name in subject.network.outputs if name in subject.reference.infos]
    return [
        name
        for name, value in subject.reference.select(names).items()
        if not value.size or (value.dtype.kind == "f" and not np.isfinite(value).all())
    ]


def folder_of(output: Path, number: int) -> Path:
    """Return the folder of the reproducer of a further failure, beside the first reproducer."""
    return output if number == 1 else output.parent / f"{output.resolve().name}-{number}"


def archive_of(folder: Path) -> Path:
    """The ``.zip`` of a reproducer's folder."""
    folder = folder if folder.name else folder.resolve()
    return folder.with_suffix(f"{folder.suffix}.zip")


def diagnose_whole(diagnosis: Diagnosis) -> Result:
    """Find the layers that lower the metric on the target, or take it past a limit, and write them.

    ``reproduce.py`` compares outputs, so the command that measures the model is suggested in place
    of a script.

    Raises:
        DoesNotReproduce: The metric does not drop past its bound, or no limit is exceeded.
        BudgetSpent: The best so far has been written.
        KeyboardInterrupt: The user stops; the best so far has been written.
    """
    session = diagnosis.session
    check = diagnosis.check
    output = diagnosis.output
    console = session.console
    subject = session.subject
    result = session.result
    limited = check.limits is not None
    console.step(
        f"Is the target {'past its limits' if limited else 'below the bound of the metric'} "
        f"({len(subject.network.nodes)} nodes)?"
    )
    try:
        record = session.probe_original(diagnosis.search)
    except DoesNotReproduce as error:
        raise (error if limited else diagnosis.advised(error)) from error
    console.say(f"  yes: {record.reason}")
    make_folder(output)
    reduced = Reduce(subject.settings.path, output / MODEL, overwrite=True)
    with saving_best(lambda: session.save_best(reduced.output)):
        console.step(f"Which of {len(subject.units)} units take it there?", len(subject.units))
        case = Case(find_minimum(session, reduced.mode))
        answer = smallest(session, reduced, diagnosis.search, case)
        console.step(f"Write them to {output}")
        deliver(session, reduced, answer, case.minimum)
    if limited:
        name_cause(session, check, answer)
    else:
        from bisect_trt.mixed_precision.answer import find_fix  # noqa: PLC0415 - not needed before the first probe

        measured = result.metric
        find_fix(session, check, diagnosis.search, answer, output / MIXED)
        if measured and result.metric and result.metric is not measured:
            result.metric = structs.replace(measured, fixed=result.metric.candidate)
    result.suggest(session.command("run", check))
    if diagnosis.archive is not None:
        files = sorted({*output.glob(f"{reduced.output.stem}.*"), *output.glob(f"{MIXED}*")})
        pack(output, files, diagnosis.archive)
        result.artifacts["archive"] = str(diagnosis.archive)
    return result


def inner_check(call: Call, target: TargetSettings, timeout: float | None) -> CheckSettings:
    """Return the check of a target, which compares inner tensors too."""
    call[CompareOptions].require_numbers()
    call.options.change(CheckOptions, timeout=timeout)
    return call.check(target)
