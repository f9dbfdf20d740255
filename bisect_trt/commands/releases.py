"""``releases``: the release since which a model fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bisect_trt.errors import (
    BisectError,
    ConflictError,
    MissingOptionError,
    PlaceError,
    UnknownNameError,
)
from bisect_trt.onnxlib.network import Network
from bisect_trt.options.searches import Releases
from bisect_trt.options.shared import Data, Search
from bisect_trt.probe.prober import DoesNotReproduce
from bisect_trt.report.releases import BY_EVALUATOR, NONE_PASSES, Boundaries
from bisect_trt.report.reproducer import EARLIER, INPUTS, MODEL
from bisect_trt.report.result import Result
from bisect_trt.session.call import Call
from bisect_trt.steps.release_boundary import (
    Range,
    ask_releases,
    in_releases,
    list_releases,
)
from bisect_trt.steps.second_opinion import Disagreement, ask_evaluator
from bisect_trt.targets.base import Package, TargetSettings
from bisect_trt.targets.options import Target
from bisect_trt.tensors.files import numbered


def _require_nodes(network: Network, names: Sequence[str]) -> None:
    """Check that a model has nodes of these names.

    Raises:
        UsageError: It has not.
    """
    present = {node.name for node in network.nodes}
    for name in (name for name in names if name not in present):
        raise UnknownNameError(f"--fusion {name}: the model has no such node.", name, present)


def _package(named: str | None, target: TargetSettings | None, *, has_check: bool) -> Package:
    """Return the package with the releases: the one that is named, or the target's.

    Raises:
        UsageError: There is none, or no check command for the one that is named.
    """
    if named:
        if not has_check:
            raise MissingOptionError(
                "--package needs a --check command; add one, or name a target instead."
            )
        return Package(named)
    package = None if target is None else target.target.package(target)
    if package is None:
        raise MissingOptionError(
            "no package: name a target that is a package with releases, such as --onnxrt, or --package NAME with a "
            "--check command."
        )
    return package


def run(call: Call) -> Result:
    """Find the releases in which a failure appeared and was fixed, for a model or the folder of a reproducer.

    With ``--repeat`` each release is probed up to that many times.
    """
    options = call[Releases]
    console = call.console
    _open_reproducer(call, options.model if call.source is None else call.source.named)
    target = call[Target].settings()
    package = _package(options.package, target, has_check=call.has_check)
    wanted = Range.read(options.from_, options.to)
    if options.fusion and not (target and target.target.compiles):
        raise ConflictError("--fusion: only TensorRT reports its fusions; drop it.")
    check = call.check(target)
    opened = call.open(check)
    # A command decides by itself; the target only names the package.
    check = replace(check, target=None) if check.argv else check
    with (
        opened.subject(check.timeout, check.target, older=True) as subject,
        opened.searching(check, subject, target, elsewhere=True) as session,
    ):
        _require_nodes(subject.network, options.fusion)
        elsewhere = in_releases(session.prober.check, subject, target, fusion=options.fusion)
        pythons = list_releases(package.index_name, wanted)
        console.step(
            f"{'Probe' if options.find_all else 'Bisect'} {len(pythons)} releases of {package.name}: {next(iter(pythons))} to "
            f"{[*pythons][-1]}"
        )
        model = subject.original
        # The evaluator judges one sample, and knows nothing of a user's check.
        asks = not check.argv and len(subject.samples) == 1
        doubt = ask_evaluator(subject) if asks else None
        if isinstance(doubt, Disagreement):
            console.answer(BY_EVALUATOR.format(doubt.sentence))
            call.result.reference_doubt = doubt.sentence
            model = replace(model, values=doubt.values)
        boundaries = ask_releases(
            session,
            elsewhere,
            package,
            pythons,
            model,
            beside=options.beside,
            every=options.find_all,
            runs=call[Search].repeat or 1,
        )
        if options.find_all:
            console.table(("release", "verdict", "reason"), boundaries.rows(), len(pythons))
        if boundaries.history.oldest is None:
            raise _none_fails(boundaries)
        why = boundaries.doubt()
        if call.has_check and not boundaries.any_passes:
            # A check that cannot run fails in every release too.
            why = NONE_PASSES
            console.answer(f"Unproven: {why}.")
        return call.result.end(why=why)


def _none_fails(boundaries: Boundaries) -> BisectError:
    is_unknown = len(boundaries.unresolved) == len(boundaries.releases)
    return (PlaceError if is_unknown else DoesNotReproduce)(boundaries.describe_none())


def _open_reproducer(call: Call, folder: Path) -> None:
    """Take the model of a reproducer's folder, and its inputs where none are given."""
    model = folder / MODEL
    if not model.is_file():
        return
    call.options.change(Releases, model=model)
    values = call[Data].given
    if call.source is not None:
        values = values or call.source.inputs is not None
        call.source = replace(call.source, model=model)
    # In the order in which reproduce.py runs them.
    files = [*numbered(folder / EARLIER.replace("-{}", "")), folder / INPUTS]
    if not values:
        call.options.change(Data, load_inputs=[*filter(Path.is_file, files)])
