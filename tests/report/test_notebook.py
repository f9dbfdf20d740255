"""A command in the kernel of a notebook, where there is one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from support import overflowing


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
    NotebookClient(
        book, timeout=240, startup_timeout=240, resources={"metadata": {"path": str(here)}}
    ).execute()
    progress, result = book.cells[0].outputs
    assert (
        progress.output_type == "display_data"
    )  # one output, which is updated and empty in the end
    assert not progress.data["text/plain"]
    assert result.output_type == "execute_result"
    assert result.data["text/plain"].startswith("<DiagnoseAnswer: found, 1-minimal")
    assert "Mul" in result.data["text/html"]
