"""What the command line does, from Python; :mod:`bisect_trt` has these names too (docs/api.md).

Each function runs the same engine as the command of its name, takes its options by keyword (``input_shapes=`` for
``--input-shapes``) and returns the result that ``--json`` writes. Nothing is printed unless ``verbose`` is set, nothing ends
the process, and mistakes raise :class:`~bisect_trt.errors.UsageError` or :class:`~bisect_trt.errors.UnavailableError`.
"""

from bisect_trt.api.looks import assert_matches, compare, diagnose, layerwise, workaround
from bisect_trt.api.searches import cause, precision, reduce, releases, repeat, samples, sweep

__all__ = [
    "assert_matches",
    "cause",
    "compare",
    "diagnose",
    "layerwise",
    "precision",
    "reduce",
    "releases",
    "repeat",
    "samples",
    "sweep",
    "workaround",
]
