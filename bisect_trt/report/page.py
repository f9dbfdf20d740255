"""The HTML report of a result: sections from templates, one page without anything loaded from outside.

Jinja2 escapes all text; :func:`~bisect_trt.report.text.clean` removes characters that no page may
hold.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.bccache
import msgspec
from markupsafe import Markup, escape

from bisect_trt.errors import RunFolderError
from bisect_trt.onnxlib.nodes import in_module
from bisect_trt.report import charts
from bisect_trt.report.parts import GraphTensor, QuantizedGroup, SweptSizes
from bisect_trt.report.result import Result
from bisect_trt.report.summary import describe_steps, grouped, headline, steps_table, summary
from bisect_trt.report.text import clean, number, plural, seconds, shorten, template
from bisect_trt.tensors.files import replacing

_DAMAGED = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError),
    *(msgspec.ValidationError, jinja2.TemplateError),
)


def _breakable(text: str) -> Markup:
    """Return a name that may be broken after its slashes."""
    return Markup("/<wbr>").join(escape(clean(part)) for part in text.split("/"))


def _by_cost(groups: Sequence[QuantizedGroup]) -> list[QuantizedGroup]:
    """Return quantized groups: those in floats first, then by their error."""
    return sorted(
        groups,
        key=lambda group: (not group.kept, -(group.error_alone_quantized or 0), group.id),
    )


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
    html.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    html.filters |= {
        "breakable": _breakable,
        "curve_chart": charts.curve_chart,
        "describe_steps": describe_steps,
        "error_curve": charts.error_curve,
        "grouped": grouped,
        "in_module": lambda entry: in_module(entry).strip(),
        "number": number,
        "plural": plural,
        "seconds": seconds,
        "shell": shlex.join,
        "shorten": shorten,
        "size_grid": _size_grid,
        "sorted_groups": _by_cost,
        "steps_table": steps_table,
    }
    return html


def _size_grid(sweep: SweptSizes) -> tuple[list[int], list[tuple[int, list[str | None]]]] | None:
    """Return the columns, and the rows with the verdict of each size, of a sweep over two dimensions."""
    if len(sweep.dimensions) != 2:
        return None
    down, across = (dimension.name for dimension in sweep.dimensions)
    verdicts = {(entry.sizes[down], entry.sizes[across]): entry.verdict for entry in sweep.map}
    rows, columns = (sorted({sizes[place] for sizes in verdicts}) for place in (0, 1))
    return columns, [(row, [verdicts.get((row, column)) for column in columns]) for row in rows]


def render(result: Result) -> str:
    """Return the page of a result.

    Raises:
        UnavailableError: The result is damaged.
    """
    try:
        files = ["report.js"]
        if result.page.graph:
            files.insert(0, "vendor/dagre.min.js")
        code = "\n".join(map(template, files))
        # The page runs its own script and no other: a report may come from a stranger.
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
        page = environment().get_template("page.html")
        return page.render(
            result=result,
            report=result.page,
            headline=headline(result),
            rows=summary(result),
            unknown=GraphTensor(),
            policy=Markup(policy),
            style=Markup(template("report.css")),
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
