"""How ``reproduce.py`` runs a model on ONNX Runtime; its source goes into that file, so it needs nothing of bisect-trt.

It has Python 3.8's syntax, as all that goes there.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any, Mapping

from bisect_trt.targets.onnxrt.opening import prepare, used
from bisect_trt.targets.signatures import clean_message, mask_message
from bisect_trt.targets.standalone import Refused


def run(path: pathlib.Path, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of the model, by name."""
    import onnxruntime

    print(f"onnxruntime {onnxruntime.__version__}")
    os.chdir(path.parent)  # libraries that came along are named from here
    options, arguments = prepare(settings)
    try:
        session = onnxruntime.InferenceSession(str(path), options, **arguments)
    except Exception as error:
        raise Refused("build", str(error)) from error
    left_out = [name for name in used(settings) if name not in session.get_providers()]
    if left_out:
        raise RuntimeError("onnxruntime cannot use {} here".format(", ".join(left_out)))
    names = [output.name for output in session.get_outputs()]
    try:
        return dict(zip(names, session.run(names, dict(inputs))))
    except Exception as error:
        raise Refused("run", str(error)) from error


def sign(refused: Refused, names: list[str]) -> str:
    """The signature of a refusal."""
    return mask_message(clean_message(refused.message), names)
