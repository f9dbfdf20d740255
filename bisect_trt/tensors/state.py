"""The state that a step takes from the outputs of the step before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from bisect_trt.errors import InputValuesError
from bisect_trt.tensors.files import Arrays, NpzFile, Values

GREEDY = re.compile(r"argmax\((.+)\)")
"""An output of which the place of the largest value is taken, the next token of greedy decoding."""


def state_after(state: Mapping[str, str], outputs: Path | Values | None) -> Arrays:
    """Return the inputs that a step takes from the outputs of the one before; none for the first step.

    Args:
        state: The output that each input takes, by input. ``argmax(NAME)`` is the place of the
            largest value in the last row of an output.
        outputs: The outputs of the step before, or their file.

    Raises:
        UsageError: An output is not there.
    """
    values: Arrays = {}
    if outputs is None:
        return values
    source = NpzFile(outputs) if isinstance(outputs, Path) else outputs
    for name, output in state.items():
        # The next token is the likeliest one of the last position.
        greedy = GREEDY.fullmatch(output)
        value = source.get(greedy[1] if greedy else output)
        if value is None:
            raise InputValuesError(
                f"a step does not return '{output}', which the next one takes as '{name}'; name another output with --state."
            )
        values[name] = value.argmax(-1)[..., -1:] if greedy else value
    return values
