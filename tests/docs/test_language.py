"""Text of the package and of the pages has none of the constructions that ``language.py`` lists."""

from __future__ import annotations

from pathlib import Path

import pytest
from language import ROOT, files, found

pytestmark = pytest.mark.any_version


@pytest.mark.parametrize("path", list(files()), ids=lambda path: str(path.relative_to(ROOT)))
def test_text_is_plain_english(path: Path) -> None:
    assert list(found(path)) == []


def test_a_construction_is_found_in_docstrings_messages_and_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("language.ROOT", tmp_path)
    (tmp_path / "m.py").write_text(
        '"""How it works."""\n\nraise ValueError(f"the tensor whose name is {x}")\n'
    )
    (tmp_path / "p.md").write_text("```\nTo mend it\n```\n\nTo mend it: `to mend`\n")
    assert [line.split(":")[1] for line in found(tmp_path / "m.py")] == ["1", "3"]
    assert [line.split(":")[1] for line in found(tmp_path / "p.md")] == ["5"]
