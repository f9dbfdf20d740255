"""Runs ModelOpt's AutoCast on a model; for a Python of its own, which has ``nvidia-modelopt[onnx]``.

python autocast.py MODEL INPUTS OUTPUT [bf16]
"""

from __future__ import annotations

import sys

import onnx

if __name__ == "__main__":
    from modelopt.onnx.autocast import convert_to_mixed_precision  # type: ignore[import-not-found]

    model, inputs, output, *low = sys.argv[1:]
    # All its rules at their defaults; the values it goes by are those that the model is fed.
    mixed = convert_to_mixed_precision(
        onnx_path=model,
        low_precision_type=low[0] if low else "fp16",
        keep_io_types=True,
        calibration_data=inputs,
    )
    onnx.save(mixed, output)
