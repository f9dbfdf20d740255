"""A check for ``--check``: OpenVINO's outputs beside the golden ones. ``python openvino_check.py MODEL INPUTS GOLDEN``.

Exit status 9 if an output is off by more than a twentieth of its root mean square; whatever else goes wrong is
Python's 1. It is run by the Python of the release under suspicion, which has NumPy and OpenVINO and nothing else.
"""

from __future__ import annotations

import sys

import numpy as np
import openvino


def main(model: str, inputs: str, golden: str) -> int:
    """Run and compare."""
    core = openvino.Core()
    read = core.read_model(model)
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    with np.load(inputs) as fed:
        results = compiled({port.get_any_name(): fed[port.get_any_name()] for port in compiled.inputs})
    # Compiling gives tensors that are equal one name; places stay.
    places = {name: place for place, port in enumerate(read.outputs) for name in port.get_names()}
    with np.load(golden) as expected:
        for name in expected.files:  # outputs that depend on no input are not in it
            wanted = expected[name].astype(np.float64)
            off = np.abs(results[places[name]] - wanted).max() / max(np.sqrt(np.mean(wanted**2)), 1e-30)
            if off > 0.05:
                print(f"{name} is off by {off:.3g} of its root mean square")
                return 9
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
