"""How ``reproduce.py`` runs a model on OpenVINO; its source goes into that file, so it needs nothing of bisect-trt.

It has Python 3.8's syntax, as all that goes there.
"""

from __future__ import annotations

import pathlib
from typing import Any, Mapping

from bisect_trt.targets.openvino.opening import compile_model, input_names, output_names, run_compiled, said
from bisect_trt.targets.signatures import mask_message
from bisect_trt.targets.standalone import Refused


def run(path: pathlib.Path, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of the model, by name."""
    import openvino

    print(f"openvino {openvino.__version__}")
    core = openvino.Core()
    try:
        model = core.read_model(str(path))
        compiled = compile_model(core, model, settings)
    except Exception as error:
        raise Refused("build", said(error)) from error
    try:
        return run_compiled(compiled, input_names(compiled, settings["inputs"]), output_names(model), inputs)
    except Exception as error:
        raise Refused("run", said(error)) from error


def sign(refused: Refused, names: list[str]) -> str:
    """The signature of a refusal."""
    return mask_message(refused.message, names)
