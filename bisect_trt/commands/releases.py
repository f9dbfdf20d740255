"""``releases``: the release since which a model fails."""

from __future__ import annotations

from dataclasses import replace

from bisect_trt.errors import (
    MissingOptionError,
    PlaceError,
)
from bisect_trt.options.searches import Releases
from bisect_trt.options.shared import Data, Search
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.reproducer import MODEL
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Verdict
from bisect_trt.session.call import Call
from bisect_trt.steps.release_boundary import Range, ask_releases, in_releases, list_releases
from bisect_trt.steps.second_opinion import Disagreement, ask_evaluator
from bisect_trt.targets.base import Package
from bisect_trt.targets.options import Target


def run(call: Call) -> Result:
    """Find the releases in which a failure appeared and was fixed, for a model or the folder of a reproducer.

    With ``--repeat`` each release is probed up to that many times.
    """
    own = call[Releases]
    console = call.console
    folder = own.model if call.source is None else call.source.named
    if (folder / MODEL).is_file():
        call.options.change(Releases, model=folder / MODEL)
        given = call[Data].given
        if call.source is not None:
            given = given or call.source.inputs is not None
            call.source = replace(call.source, model=folder / MODEL)
        if not given and (folder / "inputs.npz").is_file():
            call.options.change(Data, load_inputs=[folder / "inputs.npz"])
    target = call[Target].settings()
    if own.package is not None and not call.has_check:
        raise MissingOptionError(
            "--package needs a --check command; add one, or name a target instead."
        )
    package = (
        Package(own.package)
        if own.package
        else None
        if target is None
        else target.target.package(target)
    )
    if package is None:
        raise MissingOptionError(
            "no package: name a target that is a package with releases, such as --onnxrt, or --package NAME with a "
            "--check command."
        )
    wanted = Range.read(own.from_, own.to)
    check = call.check(target)
    opened = call.open(check)
    check = replace(check, target=None) if check.argv else check
    with (
        opened.subject(check.timeout, check.target, older=True) as subject,
        opened.searching(check, subject, target, elsewhere=True) as session,
    ):
        elsewhere = in_releases(session.prober.check, subject, target)
        pythons = list_releases(package.index_name, wanted)
        console.step(
            f"{len(pythons)} releases of {package.name}: {next(iter(pythons))} to {[*pythons][-1]}"
        )
        console.step("Probe each release" if own.find_all else "Bisect the releases")
        model = subject.original
        asks = not check.argv and len(subject.samples) == 1
        doubt = ask_evaluator(subject) if asks else None
        if isinstance(doubt, Disagreement):
            console.answer(f"{doubt.sentence} Releases are compared with the evaluator.")
            call.result.reference_doubt = doubt.sentence
            model = replace(model, values=doubt.values)
        found = ask_releases(
            session,
            elsewhere,
            package,
            pythons,
            model,
            beside=own.beside,
            every=own.find_all,
            runs=call[Search].repeat or 1,
        )
        if own.find_all:
            console.table(("release", "verdict", "reason"), found.rows(), len(pythons))
        if found.history.oldest is None:
            silent = [row for row in found.rows() if row[1] == Verdict.UNRESOLVED.value]
            said = f" ({silent[0][0]}: {silent[0][2]})" if silent else ""
            if len(silent) == len(found.releases):
                raise PlaceError(f"no release of {package.name} has a verdict{said}.")
            raise DoesNotReproduce(
                f"no release of {package.name} from {found.releases[0]} to {found.releases[-1]} fails"
                + (
                    f"; {len(silent)} of {len(found.releases)} have no verdict{said}."
                    if silent
                    else "."
                )
                + " Try older releases (--from), or the options and inputs with which it failed."
            )
        found.tell(console)
        return call.result.end(why=found.doubt())
