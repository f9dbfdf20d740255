"""Input samples from a Python script of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bisect_trt.errors import UsageError
from bisect_trt.tensors.user_script import script_attribute, split_script, user_code

DEFAULT_FUNCTION = "load_data"
_KIND = "data-loader"


def run_data_loader(script: str, most: int | None = None) -> list[dict[str, NDArray[Any]]]:
    """Run a script and collect the samples that it gives.

    The script is imported as a module, with its folder on the import path. The function takes no arguments and returns
    or yields samples, each a mapping of input name to array; a variable that holds them is taken as well.

    Args:
        script: ``FILE`` or ``FILE:FUNCTION``; without a function, ``load_data``.
        most: How many samples to take at most; a function may go on yielding for ever then.

    Returns:
        At least one sample.

    Raises:
        UsageError: If there is no such file or function, the script raises, or what it gives is no sample.
    """
    path, function = split_script(script, DEFAULT_FUNCTION, _KIND)
    samples: list[dict[str, NDArray[Any]]] = []
    with user_code(path, _KIND):
        loader = script_attribute(path, function, _KIND)
        given = loader() if callable(loader) else loader
        if isinstance(given, Mapping) or not hasattr(given, "__iter__"):
            raise UsageError(
                f"'{function}' of {path} gives a {type(given).__name__}; it must yield or return a list of samples, "
                "each a dict of input name to array"
            )
        for sample in given:
            if not isinstance(sample, Mapping):
                raise UsageError(
                    f"'{function}' of {path} gives a {type(sample).__name__} as sample {len(samples)}; "
                    "each must be a dict of input name to array"
                )
            samples.append({str(name): np.asarray(values) for name, values in sample.items()})
            if len(samples) == most:
                break
    if not samples:
        raise UsageError(f"'{function}' of {path} gives no sample; it must yield at least one")
    return samples
