"""The HTML report of a result: sections from templates, one page without anything loaded from outside.

Jinja2 escapes all text; :func:`~bisect_trt.report.text.clean` removes characters that no page may
hold.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.bccache
import msgspec
from markupsafe import Markup, escape

from bisect_trt.errors import RunFolderError
from bisect_trt.onnxlib.nodes import in_module
from bisect_trt.report import charts
from bisect_trt.report.parts import GraphTensor, QuantizedGroup, ReportParts, SweptSizes
from bisect_trt.report.result import Result
from bisect_trt.report.summary import describe_steps, grouped, headline, steps_table, summary
from bisect_trt.report.text import clean, number, plural, seconds, shorten, template
from bisect_trt.tensors.files import replacing

_BADGES = {
    "found": ("Proven", "good"),
    "not_reproduced": ("Does not reproduce", "neutral"),
    "inconclusive": ("Unproven", "doubt"),
    "interrupted": ("Stopped early", "doubt"),
    "error": ("Error", "bad"),
}
_DAMAGED = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError),
    *(msgspec.ValidationError, jinja2.TemplateError),
)
_SIZE_VERDICTS = {
    "PASS": ("passes", "pass"),
    "FAIL": ("fails", "fail"),
    "UNRESOLVED": ("not known", "unresolved"),
}


def _badge(result: Result) -> tuple[str, str]:
    """Return how a run ended, in a word or two, and the CSS class."""
    command = result.command
    status = result.status
    if status == "found" and (command == "extract" or result.latency):
        return "Done", "good"
    if command in ("run", "layerwise") and status in ("found", "not_reproduced"):
        return (
            ("All match", "good")
            if (status == "found") == (command == "run")
            else ("Mismatch", "bad")
        )
    # An answer without its proof looks like one that is not there yet.
    unproven = status == "found" and result.minimality != "1-minimal"
    return _BADGES.get("inconclusive" if unproven else status, (status, "neutral"))


def _script_data(value: object) -> Markup:
    """Return a value as JSON for a script element: no ``<`` can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _breakable(text: str) -> Markup:
    """Return a name that may be broken after its slashes."""
    return Markup("/<wbr>").join(escape(clean(part)) for part in text.split("/"))


def _by_cost(groups: Sequence[QuantizedGroup]) -> list[QuantizedGroup]:
    """Return quantized groups: those in floats first, then by their error."""
    return sorted(
        groups,
        key=lambda group: (not group.kept, -(group.error_alone_quantized or 0), group.id),
    )


def _kind(tensor: GraphTensor) -> str:
    """Return the type and shape of a tensor, such as ``float32[1, 64]``."""
    if tensor.dtype is None:
        return "type unknown"
    return f"{tensor.dtype}[{'?' if tensor.shape is None else ', '.join(map(str, tensor.shape))}]"


def _printable(value: object) -> object:
    return (
        clean(value)
        if isinstance(value, str) and not isinstance(value, Markup)
        else ""
        if value is None or value is msgspec.UNSET
        else value
    )


class _Compiled(jinja2.FileSystemBytecodeCache):
    """Compiled templates in the user's temporary folder; compiling them takes a quarter of a second in each process."""

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        """Keep a compiled template, if there is room."""
        with contextlib.suppress(OSError):
            super().dump_bytecode(bucket)


def templates(**options: Any) -> jinja2.Environment:  # noqa: ANN401 - of Jinja2
    """Return an environment of the package's templates with these options of Jinja2."""
    cache = None
    # There may be no folder that only this user can write to.
    with contextlib.suppress(OSError, RuntimeError):
        cache = _Compiled()
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(template), bytecode_cache=cache, **options
    )


@functools.cache
def environment() -> jinja2.Environment:
    """Return the environment of all templates of the report."""
    html = templates(autoescape=True, finalize=_printable)
    html.filters |= {
        "badge": _badge,
        "breakable": _breakable,
        "grouped": grouped,
        "in_module": lambda entry: in_module(entry).strip(),
        "kind": _kind,
        "number": number,
        "plural": plural,
        "script_data": _script_data,
        "seconds": seconds,
        "shorten": shorten,
        "sorted_groups": _by_cost,
    }
    html.globals["size_verdicts"] = _SIZE_VERDICTS
    return html


def macro(name: str, *values: object, file: str = "report.html") -> Markup:
    """Return what a macro of a template prints."""
    return Markup(getattr(environment().get_template(file).module, name)(*values))


def _size_grid(sweep: SweptSizes) -> tuple[list[int], list[tuple[int, list[str | None]]]] | None:
    """Return the columns, and the rows with the verdict of each size, of a sweep over two dimensions."""
    if len(sweep.dimensions) != 2:
        return None
    down, across = (dimension.name for dimension in sweep.dimensions)
    verdicts = {(entry.sizes[down], entry.sizes[across]): entry.verdict for entry in sweep.map}
    rows, columns = (sorted({sizes[place] for sizes in verdicts}) for place in (0, 1))
    return columns, [(row, [verdicts.get((row, column)) for column in columns]) for row in rows]


def _curves(result: Result, report: ReportParts) -> Iterator[tuple[str, str, Markup]]:
    """Yield the sections with the error over steps and along the network."""
    if loop := result.steps:
        drawn = {
            name: charts.curve_chart(charts.error_curve(series.errors))
            for name, series in loop.ways.items()
        }
        yield "steps", "Steps", macro("steps", describe_steps(loop), steps_table(loop), drawn)
    if curve := report.curve:
        yield "error", "Error", macro("error", curve, charts.curve_chart(curve))


def _sections(result: Result) -> Iterator[tuple[str, str, Markup]]:
    """Yield anchor, name in the navigation and content of each section that has something to show."""
    report = result.page
    probes = report.probes or []
    told = report.story.steps if report.story else ()
    steps = [step for step in told if step.title or step.lines]
    yield "answer", "Answer", macro("answer", result, headline(result), summary(result))
    # Where a wrong output was seen with marks, an error began somewhere.
    hidden = bool(result.tensors and not result.origins and probes and probes[0].fails)
    if graph := report.graph:
        section = macro("graph_section", graph, GraphTensor(), hidden, file="graph.html")
        yield "graph", "Nodes", section
    yield from _curves(result, report)
    if result.latency and result.latency.rows:
        yield "latency", "Latency", macro("latency", result.latency)
    if result.metric:
        yield "metric", "Metric", macro("metric", result.metric)
    if (sweep := result.sweep) and sweep.dimensions:
        yield "sweep", "Sizes", macro("sweep", sweep, _size_grid(sweep))
    if result.cells:
        yield "matrix", "Matrix", macro("matrix", result.axes, result.cells)
    if result.builds and result.interval:
        yield "builds", "Builds", macro("builds", result)
    if findings := macro("findings", result):
        yield "findings", "Findings", findings
    if steps or probes:
        yield (
            "search",
            "Search",
            macro("search", steps, probes, result.probes["run"] - len(probes)),
        )
    if report.commands:
        yield "commands", "Commands", macro("commands", report.commands)
    entries = [*(report.environment or {}).items(), ("model SHA-256", result.model.sha256)]
    yield "environment", "Environment", macro("environment", [(k, str(v)) for k, v in entries if v])


def render(result: Result) -> str:
    """Return the page of a result.

    Raises:
        UnavailableError: The result is damaged.
    """
    try:
        sections = list(_sections(result))
        created = result.page.created
        foot = f"Made by bisect-trt{' on ' + created.replace('T', ' ') if created else ''} from result.json."
        links = [(f"#{anchor}", name) for anchor, name, _ in sections]
        main = Markup("").join(section for _, _, section in sections)
        files = ["report.js"]
        if result.report and result.report.graph:
            files.insert(0, "vendor/dagre.min.js")
        code = "\n".join(map(template, files))
        # The page runs its own script and no other: a report may come from a stranger.
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
        page = environment().get_template("page.html")
        title = shorten(headline(result), 100)
        style = Markup(template("report.css"))
        return page.render(
            policy=Markup(policy),
            title=title,
            style=style,
            links=links,
            main=main,
            foot=foot,
            script=Markup(code),
        )
    except _DAMAGED as error:
        raise RunFolderError(
            f"the result is damaged ({type(error).__name__}: {error}); run the command again."
        ) from error


def write_report(result: Result, path: Path) -> None:
    """Write the page of a result.

    Raises:
        UnavailableError: As :func:`render`.
        UsageError: The file cannot be written.
    """
    page = render(result)
    with replacing(path) as file:
        # A path need not be text.
        file.write(page.encode(errors="backslashreplace"))
