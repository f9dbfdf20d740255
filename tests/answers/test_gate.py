"""The few rows of the corpus that are run before anything lands; ``test_answers.py`` runs all."""

from __future__ import annotations

import pytest

from answers.rows import GATE, ROWS, Row
from answers.test_answers import hold

pytestmark = pytest.mark.any_version  # recorded with one release of ONNX Runtime; others have other optimizers

_ROWS = [row for row in ROWS if row.name in GATE]


@pytest.mark.parametrize("row", _ROWS, ids=[row.name for row in _ROWS])
def test_the_answer_stays(row: Row) -> None:
    hold(row)
