"""The answers of the corpus stay: the same verdicts to the same questions, and no question more.

Rows stand in ``rows.py``: a model of ``models.py``, command lines and what of the answer has to
stay. What came of each when it was recorded stands in ``recorded/``, a file a row. Each is run in
this process, with the workers and check commands of ``seam.py``, and compared.

To add a row: write it into ``rows.py`` and run ``python tests/answers/record.py NAME``; read what
it wrote before it is committed. A row may change only if its feature was dropped or its questions
became fewer; then record it anew, and let the commit say why. ``runs``, how many models the target
under test ran or built, may become fewer by itself, and a tenth more: a crash is seen twice where
the worker had served others.

A question is a verdict and the nodes of its candidate; ``+N`` says that it has so many nodes of
other names. How they are titled is not held, nor are sentences.
"""

from __future__ import annotations

import difflib
from typing import Any

import pytest

from answers.record import recorded, replay
from answers.rows import ROWS, Row

pytestmark = (
    pytest.mark.any_version
)  # recorded with one release of ONNX Runtime; others have other optimizers


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_answer_stays(row: Row) -> None:
    """Run a row and compare what comes of it with what is recorded."""
    before = recorded(row)
    now = replay(row)
    assert before is not None, f"not recorded: python tests/answers/record.py {row.name}"
    changed = [
        line
        for old, new in zip(before["lines"], now["lines"], strict=True)
        for line in _changes(old, new)
    ]
    said = "\n".join(line["said"] for line in now["lines"])
    assert not changed, "\n".join([row.name, *changed, "", said])


def _changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What is not as it was, a line each."""
    found = [
        f"  {name}: was {old[name]}, now {new.get(name)}"
        for name in old
        if name not in ("questions", "runs", "files") and old[name] != new.get(name)
    ]
    # Those with workers run ahead as far as there is time.
    if new["runs"] > 1.1 * old["runs"] + 1 and "--workers 2" not in old["argv"]:
        found.append(f"  runs of the target: were {old['runs']}, now {new['runs']}")
    found += [
        f"  file {name}: was {old['files'].get(name)}, now {new['files'].get(name)}"
        for name in sorted({*old["files"], *new["files"]})
        if old["files"].get(name) != new["files"].get(name)
    ]
    lines = difflib.SequenceMatcher(None, old["questions"], new["questions"], autojunk=False)
    for kind, start, end, at, to in lines.get_opcodes():
        if kind != "equal":
            was = old["questions"][start:end] or "none"
            now = new["questions"][at:to] or "none"
            found.append(f"  question {start + 1}: was {was}, now {now}")
    return [f"{old['argv']}:", *found] if found else []
