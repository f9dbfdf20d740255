"""Runs onnxconverter-common's auto_mixed_precision on a model; for a Python of its own.

python converter.py MODEL INPUTS OUTPUT
"""

from __future__ import annotations

import sys

import numpy as np
import onnx

if __name__ == "__main__":
    from onnxconverter_common import auto_mixed_precision  # type: ignore[import-not-found]

    model, inputs, output = sys.argv[1:]
    with np.load(inputs) as file:
        feeds = dict(file)
    # Its own tolerances, as its documentation has them; it runs the model on ONNX Runtime's CPU
    # provider.
    mixed = auto_mixed_precision.auto_convert_mixed_precision(
        onnx.load(model), feeds, rtol=0.01, atol=0.001, keep_io_types=True
    )
    onnx.save(mixed, output)
