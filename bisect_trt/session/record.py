"""Ends a run: its exit status, its ``result.json``, and the report with the nodes around the culprit."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Thread

import onnx
from msgspec import convert
from msgspec.structs import asdict, replace

from bisect_trt.aliases import Names
from bisect_trt.errors import BisectError
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import Node
from bisect_trt.probe.ledger import Record
from bisect_trt.report.charts import error_curve, short_number
from bisect_trt.report.console import Console
from bisect_trt.report.outcomes import describe_comparison
from bisect_trt.report.parts import (
    LIST_PROBES,
    REPRODUCE_ALONE,
    CommandLine,
    Comparison,
    DrawnNode,
    ErrorText,
    Graph,
    GraphNode,
    GraphTensor,
    ProbeLine,
)
from bisect_trt.report.result import REPORT_FILE, RESULT_FILE, Result, environment
from bisect_trt.report.text import shorten
from bisect_trt.session.session import Session
from bisect_trt.session.subject import Subject
from bisect_trt.targets.base import TargetSettings
from bisect_trt.tensors.comparison import ValueRange
from bisect_trt.tensors.info import tensor_stats
from bisect_trt.worker.deadline import BudgetSpent

MOST_PROBES = 2000
"""Probes in the report; of a longer search the first and the last."""
_REASON_LENGTH = 400
_PRINTED_LENGTH = 200
MOST_NODES = 40
"""Nodes in the report."""
_STEPS_DRAWN = 2
_MOST_DRAWN = 60
"""Neighbours of the answer in the picture: steps each way, and nodes in all."""
_MOST_ELEMENTS = 1 << 23
"""Elements of tensors that are read for their ranges: a few hundredths of a second."""
_SHOWN_INPUTS = 64
"""Inputs of a node that are listed."""
_ATTRIBUTE_LENGTH = 120
_SHOWN_VALUES = 32


@contextmanager
def recorded(session: Session, target: TargetSettings | None = None) -> Iterator[None]:
    """Fill in the result when the work ends, however it ends."""
    subject = session.subject
    result = session.result
    console = session.console
    prober = session.probing
    subject.record(result, prober)
    try:
        yield
    finally:
        subject.record(result, prober)
        try:
            report = result.reported()
            report.target = target.describe() if target is not None else None
            report.graph = graph_of(subject, result)
            report.curve = error_curve(result.tensors) if result.tensors else None
            report.probes = report.probes or []
            if prober is not None:
                report.exhausted = prober.ledger.exhausted
                report.probes = _probes(prober.ledger.records, console)
        except Exception as error:
            # The answer is worth more than the report.
            console.warn(
                f"the report has no nodes ({type(error).__name__}: {error}); please report this."
            )


def _probes(records: list[Record], console: Console) -> list[ProbeLine]:
    """Return the probes for the report, each with its step."""
    half = MOST_PROBES // 2
    chosen = records if len(records) <= MOST_PROBES else [*records[:half], *records[-half:]]
    return [
        ProbeLine(
            **asdict(replace(record, reason=shorten(record.reason, _REASON_LENGTH))),
            printed=shorten(record.said, _PRINTED_LENGTH),
            step=console.step_of(record.number),
        )
        for record in chosen
    ]


def prepare_report() -> None:
    """Import what the report needs, in a thread beside a probe that is waited for."""

    def prepare() -> None:
        from bisect_trt.report import page  # noqa: PLC0415 - as below

        page.environment()
        environment()

    Thread(target=prepare, daemon=True).start()


def leave_record(
    result: Result,
    folder: Path | None,
    argv: Names,
    console: Console,
    report: Path | None,
) -> bytes | None:
    """Write ``result.json`` and ``report.html`` to a run's folder; warn if one cannot be written.

    Args:
        result: The result.
        folder: The folder of the run, if there is one.
        argv: The command line that the report shows.
        console: Warns of a file that cannot be written.
        report: Another file for the report (``--report``).

    Returns:
        The content of ``result.json``, if it was written.
    """
    from bisect_trt.report.page import write_report  # noqa: PLC0415 - Jinja2 is not needed before the first probe

    places = [place for place in (folder and folder / REPORT_FILE, report) if place is not None]
    if not places:
        return None
    result.artifacts["report"] = str(places[-1])
    parts = result.reported()
    parts.created = datetime.now().astimezone().isoformat(timespec="seconds")
    parts.story = console.story()
    parts.commands = _commands(result, folder, argv)
    parts.environment = {
        **{f"on {place['place']}": place["said"] for place in result.places or ()},
        **environment(),
        "working directory": str(Path.cwd()),
    }
    for file in () if folder is None else (folder / RESULT_FILE, folder / REPORT_FILE):
        if file.is_symlink() or file.is_fifo():
            # The file would be written to, and the folder may be a stranger's.
            file.unlink()
    try:
        content = None if folder is None else result.write(folder / RESULT_FILE)
        for place in places:
            write_report(result, place)
    except BisectError as error:
        result.artifacts["report"] = None
        console.warn(f"no report: {error}")
        return None
    return content


def _commands(result: Result, folder: Path | None, argv: Names) -> list[CommandLine]:
    commands = [("Run it again", ["bisect-trt", *argv])] if argv else []
    if result.artifacts.get("reproducer"):
        script = Path(str(result.artifacts["reproducer"])) / "reproduce.py"
        commands.insert(0, (REPRODUCE_ALONE, ["python", str(script)]))
    # A run that has tried everything has nothing to continue.
    error = result.error or None
    spent = error is not None and error.code == BudgetSpent.code
    unfinished = result.status in ("interrupted", "error") or spent
    if argv and unfinished and result.probes["run"] and not result.page.exhausted:
        commands.append(("Continue the run", ["bisect-trt", "resume", str(folder)]))
    if argv and result.probes["run"]:
        commands.append((LIST_PROBES, ["bisect-trt", "log", str(folder)]))
    if folder is not None:
        commands.append(("Write this page again", ["bisect-trt", "report", str(folder)]))
    return [
        CommandLine(what=purpose, command=shlex.join(words), resumes=words[1] == "resume")
        for purpose, words in commands
    ]


def graph_of(subject: Subject, result: Result) -> Graph:
    """Return the nodes of the answer for the report, and the tensors that these read and make; the model is not run."""
    network = subject.network
    entries = [*(result.comparisons or ()), *(result.tensors or ())]
    passed = {entry.name: entry for entry in entries if entry.passed}
    # Of several input samples the first that fails counts.
    comparisons = passed | {entry.name: entry for entry in reversed(entries) if not entry.passed}
    origins = [origin.node for origin in result.origins or ()]
    wrong = [entry.name for entry in result.comparisons or () if not entry.passed]
    groups = (_outputs(result.culprits), _outputs(origins), wrong, network.outputs)
    producers = filter(None, map(network.producers_of, groups))
    shown = list(dict.fromkeys(next(producers, [network.order[-1]])))[:MOST_NODES]
    names = dict.fromkeys(
        name for node in shown for name in (*network.made(node), *network.reads[node])
    )
    ranges = _ranges(subject, [name for name in names if name not in network.initializers])
    infos = (
        subject.infos if subject.has_reference else network.infos
    )  # the reference is not run for this

    def source(name: str) -> str:
        maker = network.producer.get(name)
        weight = "weight" if maker is None or network.constant[maker] else "node"
        return "input" if name in network.inputs else weight

    def describe(node: int) -> GraphNode:
        proto = network.nodes[node]
        outputs = network.made(node)
        reads = network.reads[node]
        return GraphNode(
            name=proto.name,
            op=proto.op_type,
            domain=proto.domain,
            attributes=attribute_texts(proto),
            inputs=tuple((name, source(name)) for name in reads[:_SHOWN_INPUTS]),
            outputs=tuple(outputs),
            written=network.written(node),
        )

    def tensor(name: str) -> GraphTensor:
        part = GraphTensor(reference=ranges.get(name))
        if info := infos.get(name):
            shape = info.shape and tuple("?" if dim is None else dim for dim in info.shape)
            part = replace(part, dtype=info.dtype.name, shape=shape)
        if comparison := comparisons.get(name):
            own = _error(comparison.own) if comparison.own else None
            target = comparison.target_range
            part = replace(part, error=_error(comparison), own=own, target=target)
        return part

    drawn = _neighbourhood(network, shown)
    region = tuple(
        DrawnNode(
            name=network.nodes[node].name,
            op=network.nodes[node].op_type,
            answer=node in shown,
            inputs=tuple(name for name in network.reads[node] if source(name) != "weight"),
            outputs=network.made(node),
        )
        for node in network.in_order(drawn)
    )
    edges = dict.fromkeys(name for node in region for name in (*node.inputs, *node.outputs))
    return Graph(
        nodes=tuple(map(describe, shown)),
        tensors={name: tensor(name) for name in names | edges},
        region=region,
        continued=tuple(
            name
            for name in edges
            if name in network.returned or not drawn.issuperset(network.consumers.get(name, ()))
        ),
        total=network.constant.count(False),
    )


def _neighbourhood(network: Network, nodes: Sequence[int]) -> set[int]:
    """Return nodes and their neighbours in at most two steps each way, the nearest first, as far as a picture has room."""
    reached = dict.fromkeys(nodes)
    for _ in range(_STEPS_DRAWN):
        for node in list(reached):
            readers = network.readers_of(network.made(node))
            for neighbour in (*network.parents(node), *readers):
                if not network.constant[neighbour] and len(reached) < _MOST_DRAWN:
                    reached.setdefault(neighbour)
    return set(reached)


def _ranges(subject: Subject, names: Iterable[str]) -> dict[str, ValueRange]:
    """Return the ranges of the reference's values, of the nearest tensors first, as far as that is quick."""
    remaining = _MOST_ELEMENTS
    ranges = dict[str, ValueRange]()
    for name in names if subject.has_reference else ():
        info = subject.reference.infos.get(name)
        if info is None:
            continue
        size = math.prod(int(dim) for dim in info.shape or () if dim is not None)
        # Ranges are for a reader; reading gigabytes of activations for them is not worth the
        # wait.
        remaining -= size
        if remaining < 0 or not size:
            continue
        for value in subject.reference.select([name]).values():
            stats = tensor_stats(value).items()
            shown = {key: n if isinstance(n, int) else short_number(n) for key, n in stats}
            ranges[name] = convert(shown, ValueRange)
    return ranges


def _outputs(entries: Iterable[Node]) -> list[str]:
    return [entry.outputs[0] for entry in entries if entry.outputs]


def _error(comparison: Comparison) -> ErrorText:
    ratio = short_number(comparison.tolerance_ratio)
    return ErrorText(passed=comparison.passed, ratio=ratio, text=describe_comparison(comparison))


def attribute_texts(node: onnx.NodeProto) -> dict[str, str]:
    """Return a node's attributes in short, by name: of tensors and graphs only their kind."""

    def cut(text: str) -> str:
        return text if len(text) <= _ATTRIBUTE_LENGTH else f"{text[:_ATTRIBUTE_LENGTH]}..."

    def word(value: object) -> str:
        if isinstance(value, bytes):
            # Plug-ins keep megabytes of state in one.
            return value[: _ATTRIBUTE_LENGTH + 1].decode("utf-8", errors="replace")
        return f"{value:.7g}" if isinstance(value, float) else str(value)

    def text(attribute: onnx.AttributeProto) -> str:
        kind = onnx.AttributeProto.AttributeType.Name(attribute.type).lower().replace("_", " ")
        if kind.rstrip("s") in ("tensor", "graph", "sparse tensor", "type proto"):
            return f"<{kind}>"
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, (bytes, int, float)):
            return cut(word(value))
        return f"[{cut(', '.join([*map(word, value[:_SHOWN_VALUES]), *['...'] * (len(value) > _SHOWN_VALUES)]))}]"

    return {attribute.name: text(attribute) for attribute in node.attribute}
