"""Results and progress in a notebook: without IPython, and in a real kernel where there is one."""

from __future__ import annotations

import importlib.util
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support import overflowing

import bisect_trt
from bisect_trt.report.result import Result


class Frames(HTMLParser):
    """The pages in frames, and the tags with what they name from outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.pages: list[str] = []
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.pages += [value or "" for name, value in attrs if name == "srcdoc"]
        self.outside += [
            value for name, value in attrs if name in ("src", "href") and value and not value.startswith("#")
        ]
        self.outside += [name for name, _ in attrs if name.startswith("on")]


def test_a_result_shows_answer_graph_and_curve_and_nothing_from_outside(here: Path) -> None:
    result = bisect_trt.diagnose(overflowing(here / "model.onnx"), fp16=True, shrink=False)
    shown = result._repr_html_()
    assert shown is not None
    outer = Frames(shown)
    (page,) = outer.pages
    inner = Frames(page)
    assert "Mul 'big' fails alone" in shown.partition("<iframe")[0].replace("&#39;", "'")
    for anchor in ('id="answer"', 'id="graph"', 'id="error"'):
        assert anchor in page
    assert not outer.outside + inner.outside
    assert "script" not in outer.tags + inner.tags
    assert page.count("<svg") >= 2


@pytest.mark.parametrize("name", ["</iframe><script>x()</script>", '" onload="x()', "&quot;><img src=x onerror=y>"])
def test_no_name_leaves_the_frame(name: str) -> None:
    culprit = {"name": name, "op": name, "outputs": [name]}
    result = Result("reduce", "found", culprits=[culprit], minimality="1-minimal", why=name)
    shown = result._repr_html_()
    assert shown is not None
    outer = Frames(shown)
    inner = Frames(outer.pages[0])
    assert {"script", "img"}.isdisjoint(outer.tags + inner.tags)
    assert not outer.outside + inner.outside


def test_a_result_of_nothing_shows_its_status_and_a_damaged_one_nothing() -> None:
    assert "does not reproduce" in (
        Result("diagnose", "not_reproduced", why="it does not reproduce")._repr_html_() or ""
    )
    assert Result("run", model={"path": "x"})._repr_html_() is None


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("nbclient", "ipykernel", "nbformat"))),
    reason="nbclient or ipykernel is not installed",
)
def test_a_notebook_runs(here: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    overflowing(here / "model.onnx")
    code = "import bisect_trt\nbisect_trt.diagnose('model.onnx', fp16=True, shrink=False)"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(book, timeout=240, startup_timeout=240, resources={"metadata": {"path": str(here)}}).execute()
    result = book.cells[0].outputs[-1]
    assert result.output_type == "execute_result"
    assert "id=&#34;graph&#34;" in result.data["text/html"]
