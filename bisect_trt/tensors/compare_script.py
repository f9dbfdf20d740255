"""The comparison by a script of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError
from bisect_trt.tensors.comparison import ComparisonKind, TensorComparison
from bisect_trt.tensors.named import quoted
from bisect_trt.tensors.user_script import script_attribute, split_script, user_code

DEFAULT_FUNCTION = "compare_outputs"
_KIND = "comparison"


class Outputs(dict[str, NDArray[Any]]):
    """The outputs of one run by name, with what Polygraphy's ``IterationResult`` has beside them.

    Attributes:
        runner_name: Which side they are of: ``target`` or ``reference``.
        runtime: Seconds the run took; not known.
    """

    def __init__(self, outputs: Mapping[str, NDArray[Any]], runner_name: str) -> None:
        super().__init__(outputs)
        self.runner_name = runner_name
        self.runtime = None


def check_script(script: str) -> Path:
    """The file of a script, found before anything else is done.

    Raises:
        UsageError: There is none.
    """
    return split_script(script, DEFAULT_FUNCTION, _KIND)[0]


def compare_by_script(
    script: str, reference: Mapping[str, NDArray[Any]], target: Mapping[str, NDArray[Any]]
) -> list[TensorComparison]:
    """Have a function of the user's compare the outputs.

    It is called with the target's and the reference's outputs (Polygraphy's ``--compare-func-script``: two mappings of
    name to array, with a ``runner_name``), and gives a mapping of output name to whether it matches.

    Args:
        script: ``FILE`` or ``FILE:FUNCTION``; without a function, ``compare_outputs``.
        reference: Name to values.
        target: Name to values.

    Returns:
        A comparison for each output that the function judges.

    Raises:
        UsageError: There is no such file or function, it raises, or what it gives is no such mapping.
    """
    path, function = split_script(script, DEFAULT_FUNCTION, _KIND)
    with user_code(path, _KIND):
        compare = script_attribute(path, function, _KIND)
        verdicts = compare(Outputs(target, "target"), Outputs(reference, "reference"))
        if not isinstance(verdicts, Mapping) or not verdicts:
            raise UsageError(
                f"'{function}' of {path} gives {verdicts!r:.60}; it must return a dict of output name to whether it matches"
            )
        judged = {str(name): bool(verdict) for name, verdict in verdicts.items()}
    if unknown := [name for name in judged if name not in reference]:
        raise UsageError(f"'{function}' of {path} judges {quoted(unknown)}; the outputs are {quoted(reference)}")
    return [
        TensorComparison(
            name=name,
            passed=passed,
            kind=ComparisonKind.MATCH if passed else ComparisonKind.MISMATCH,
            reason=f"{path.name} says that it {'matches' if passed else 'does not match'}",
            total=int(np.size(reference[name])),
        )
        for name, passed in judged.items()
    ]
