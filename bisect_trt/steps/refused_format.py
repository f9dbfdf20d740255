"""A runtime that refuses every model of a format: no node is to blame, and an older opset or a newer release reads it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from bisect_trt.errors import FormatRefusedError, UnsuitableModelError
from bisect_trt.onnxlib.cleanup import in_opset
from bisect_trt.onnxlib.nodes import opset_of
from bisect_trt.probe.ledger import Record
from bisect_trt.report.sentences import RUNS_UNCOMPARED
from bisect_trt.session.session import Session
from bisect_trt.targets.base import too_new

if TYPE_CHECKING:
    from bisect_trt.steps.arbiter import Arbiter

_OLDEST_OPSET = 7
"""The oldest opset that ONNX Runtime supports."""


def require_format(session: Session, record: Record, arbiter: Arbiter | None = None) -> None:
    """Check that a failing original is not refused for its format, which a model of Identity nodes has too.

    Args:
        session: The session of a search.
        record: The probe of the original.
        arbiter: Asks newer releases, if a target is compared.

    Raises:
        FormatRefusedError: It is. The older opsets that onnx.version_converter writes have been tried.
    """
    subject = session.subject
    probe = session.prober.probe
    if not too_new(record.message):
        return
    proto = subject.network.proto
    session.console.say(f"  the file may be too new: {record.message}")
    session.console.step("Is every model of this format refused?")
    # Another IR version than the file's may be refused in other words.
    if not too_new(probe(subject.identity).message):
        session.console.say("  no: Identity nodes are not")
        if not subject.lowering:
            return
        lower = probe(replace(subject.original, made=proto, title="with a lower IR version"))
        if lower.fails:
            return
        session.result.suggest(subject.lowering)
        raise FormatRefusedError(
            f"the file is refused only for its IR version. `{subject.lowering}` writes it with another, and then: {lower.message}"
        )
    tried = "; ".join(_try_opsets(session, arbiter)) or "there is none"
    error = FormatRefusedError(
        f"Every model of this format is refused, Identity nodes alone too: IR version {proto.ir_version}, opset "
        f"{opset_of(proto)}. No node is to blame: use a release that reads it, or an older opset: {tried}."
    )
    if arbiter is not None:
        arbiter.refuse(str(error))
    raise error


def _try_opsets(session: Session, arbiter: Arbiter | None) -> Iterator[str]:
    """Yield what each older opset ends with, until one passes, or cannot be written; suggest how to go on with one."""
    subject = session.subject
    proto = subject.network.proto
    # A reference that refuses the file too has no values that an older opset is compared with.
    compared = arbiter is None or subject.reference.refused is None
    success = "passes" if compared else RUNS_UNCOMPARED
    passes = False
    readable: int | None = None
    last: str | None = None
    for opset in range((opset_of(proto) or 0) - 1, _OLDEST_OPSET - 1, -1):
        try:
            made = in_opset(proto, opset)
        except UnsuitableModelError as error:
            yield str(error).rstrip(".")
            break
        older = replace(subject.original, made=made, title=f"the original in opset {opset}")
        record = session.prober.probe(older)
        passes = record.passes
        ending = success if passes else f"ends with: {textwrap.shorten(record.message, 100)}"
        yield f"opset {opset} {'ends with the same' if record.message == last else ending}"
        last = record.message
        if passes or (readable is None and not too_new(record.message)):
            readable = opset
        if passes:
            break
    if readable is None:
        return
    suffix = f"opset{readable}"
    command = subject.sanitizing(suffix, "--opset", str(readable))
    # It fails for another reason, which the same command finds in the lowered file.
    if not passes and arbiter is not None:
        again = session.command(session.result.command, arbiter.check, subject.sanitized(suffix))
        # `sanitize` ends with an error where the reference refuses the file too.
        command = f"{command}; {again}"
    session.result.suggest(command)
