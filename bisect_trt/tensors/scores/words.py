"""Word error rate: by how many words that were put in, left out or replaced a text differs from the true one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from bisect_trt.tensors.info import is_string
from bisect_trt.tensors.scores.terms import Array, Labels, Metric, Outputs, Terms, chosen_output, is_floating, of_label

_PADDING = (-1, -100)
"""Numbers that stand for no word at all."""
_BLANK = 0
"""CTC's token for none."""
Text = Sequence[Hashable]


def word_errors(name: str, output: str | None) -> Metric:
    """Edits from the true words to those of the output, over how many true words there are, in all samples together.

    Strings are cut at blanks. Integers are a word each, -1 and -100 none. Floating-point numbers are the logits of CTC, with
    the blank first: of each place the likeliest token, of equal neighbours one (A. Graves et al., 2006). Without labels the
    truth is what the reference says.
    """
    return Metric(name, lower_is_better=True, of_sample=partial(_word_errors, name, output))


def _word_errors(what: str, output: str | None, seen: Outputs, reference: Outputs, labels: Labels) -> Terms:
    name = chosen_output(output, reference, what, floating=False)
    ours, label, theirs = reference[name], of_label(labels, name), seen.get(name)
    true = texts(ours) if label is None else texts(label)
    said = [] if theirs is None else texts(theirs)
    if len(true) == 1 and len(said) != 1:  # one text, of several parts
        said = [[word for text in said for word in text]]
    count = float(sum(map(len, true)))
    pairs = [(one, said[place] if place < len(said) else []) for place, one in enumerate(true)]
    errors = float(sum(edits(one, other) for one, other in pairs))
    # No text has more words than there are places for them; of strings nobody knows.
    most = float("inf") if is_string(ours.dtype) else _places(ours) + count
    return Terms(errors, count, 0.0, most)


def _places(values: Array) -> float:
    return float(values.size / values.shape[-1] if is_floating(values) and values.ndim > 1 else values.size)


def texts(values: Array) -> list[Text]:
    """The texts in an array: a string each, or a row of words each."""
    if values.dtype.kind in "USO" or is_string(values.dtype):
        return [_decoded(text).split() for text in values.reshape(-1).tolist()]
    if is_floating(values):
        tokens = values.argmax(axis=-1)
        return [_collapsed(row) for row in tokens.reshape(-1, tokens.shape[-1] if tokens.ndim else 1).tolist()]
    rows = np.asarray(values).reshape(-1, values.shape[-1] if values.ndim else 1)
    return [[word for word in row if word not in _PADDING] for row in rows.tolist()]


def _decoded(text: Any) -> str:  # noqa: ANN401 - of an array of strings
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def _collapsed(row: Sequence[int]) -> list[int]:
    heard = [token for place, token in enumerate(row) if not place or token != row[place - 1]]
    return [token for token in heard if token != _BLANK]


def edits(one: Text, other: Text) -> int:
    """The fewest words put in, left out or replaced (V. Levenshtein, 1966)."""
    row = list(range(len(other) + 1))
    for place, word in enumerate(one, 1):
        corner, row[0] = row[0], place
        for column, written in enumerate(other, 1):
            corner, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, corner + (word != written))
    return row[-1]
