"""Run a model on the target and on the reference, and compare."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.graph.mark import mark_outputs
from bisect_trt.probing.worker import WorkerDied
from bisect_trt.reporting.console import Console
from bisect_trt.reporting.result import Result
from bisect_trt.runtimes.reference import reference_settings
from bisect_trt.runtimes.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import load_npz, save_npz
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.subject import Subject

MARK_ALL = ("mark", "all")


@dataclass(frozen=True)
class CompareSettings:
    """What to compare, and what to keep.

    Attributes:
        target: The runtime under suspicion.
        tolerance: How far it may be off.
        onnx_outputs: Tensors to compare instead of the model's outputs; ``("mark", "all")`` for every one.
        fail_fast: Whether to stop at the first output that does not match.
        timeout: Seconds the target may take.
        save_inputs: Where the inputs are written to.
        save_outputs: Where the target's outputs are written to.
        load_outputs: Saved outputs to compare with instead of the reference's.
    """

    target: TargetSettings
    tolerance: ToleranceOptions
    onnx_outputs: tuple[str, ...] = ()
    fail_fast: bool = False
    timeout: float | None = None
    save_inputs: Path | None = None
    save_outputs: Path | None = None
    load_outputs: Path | None = None


def compare(subject: Subject, settings: CompareSettings, console: Console, result: Result) -> Result:
    """Compare every output on every input sample.

    Raises:
        UsageError: An output or a tolerance names no tensor.
        UnavailableError: The reference cannot run the model.
    """
    names = choose_outputs(subject, settings.onnx_outputs)
    settings.tolerance.check_names(names)
    model = subject.workspace.scratch("compared.onnx")
    model.write_bytes(mark_outputs(subject.network, names, {}).SerializeToString())
    console.step(f"{settings.target.describe()} against the reference, {len(names)} output(s)")
    comparisons: list[TensorComparison] = []
    for number in range(len(subject.samples)):
        seen = _compare_sample(subject, settings, model, names, number)
        tell(seen, f"sample {number + 1}: " if len(subject.samples) > 1 else "", console)
        comparisons += seen
        if settings.fail_fast and not all(comparison.passed for comparison in seen):
            break
    failed = sum(not comparison.passed for comparison in comparisons)
    result.extra["comparisons"] = [comparison.to_json() for comparison in comparisons]
    result.status = "not_reproduced" if failed else "found"
    result.minimality = "1-minimal"
    console.answer(f"{failed} of {len(comparisons)} do not match." if failed else f"All {len(comparisons)} match.")
    return result


def choose_outputs(subject: Subject, wanted: Sequence[str]) -> list[str]:
    """The tensors to compare.

    Raises:
        UsageError: One does not exist.
    """
    network = subject.network
    if not wanted:
        return network.outputs
    if tuple(wanted) == MARK_ALL:
        return list(dict.fromkeys([*network.computed, *network.outputs]))
    for name in wanted:
        if name not in network.producer:
            raise UsageError(f"--onnx-outputs: the model makes no tensor '{name}' (or write: --onnx-outputs mark all).")
    return list(wanted)


def _compare_sample(
    subject: Subject, settings: CompareSettings, model: Path, names: Sequence[str], number: int
) -> list[TensorComparison]:
    inputs, golden, outputs = (subject.workspace.scratch(f"{name}.npz") for name in ("inputs", "golden", "outputs"))
    save_npz(inputs, subject.samples[number])
    _keep(inputs, settings.save_inputs, number, subject)
    if settings.load_outputs is not None:
        golden = _per_sample(settings.load_outputs, number, subject)
        load_npz(golden)
    else:
        run = {"op": "collect", "model": str(model), "inputs": str(inputs), "to": str(golden)}
        reply = _ask(subject, {**run, "target": reference_settings().to_json()}, None)
        if "error" in reply:
            raise UnavailableError(f"the reference cannot run {subject.settings.path}: {reply['message']}.")
    request: dict[str, Any] = {"op": "compare", "model": str(model), "inputs": str(inputs), "golden": str(golden)}
    request |= {"target": settings.target.to_json(), "tolerance": settings.tolerance.to_json(), "names": list(names)}
    request |= {"fail_fast": settings.fail_fast, "save_outputs": str(outputs)}
    reply = _ask(subject, request, settings.timeout)
    if "error" in reply:
        raise UnavailableError(f"the target cannot run {subject.settings.path}: {reply['message']}.")
    _keep(outputs, settings.save_outputs, number, subject)
    return [TensorComparison.from_json(entry) for entry in reply["comparisons"]]


def _ask(subject: Subject, request: dict[str, Any], timeout: float | None) -> dict[str, Any]:
    try:
        return subject.workers.ask(request, timeout)
    except WorkerDied as death:
        return {"error": "run", "message": death.end.describe()}


def _keep(source: Path, target: Path | None, number: int, subject: Subject) -> None:
    if target is not None:
        path = _per_sample(target, number, subject)
        try:
            shutil.copyfile(source, path)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}; name another file.") from error


def _per_sample(path: Path, number: int, subject: Subject) -> Path:
    """``x.npz`` for one sample; ``x-1.npz``, ``x-2.npz``, ... for several."""
    return path if len(subject.samples) == 1 else path.with_name(f"{path.stem}-{number + 1}{path.suffix}")


def tell(comparisons: Sequence[TensorComparison], prefix: str, console: Console) -> None:
    """One line an output."""
    for comparison in comparisons:
        word = "match   " if comparison.passed else "MISMATCH"
        console.say(f"  {prefix}{word} '{comparison.name}': {comparison.describe()}")
