"""How ``reproduce.py`` runs a model through a tool; its source goes into that file, so it needs nothing of bisect-trt.

It has Python 3.8's syntax, as all that goes there.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any, Mapping

from bisect_trt.targets.signatures import clean_message, mask_message
from bisect_trt.targets.standalone import Refused
from bisect_trt.targets.through.tool import ToolFailed, run_tool, same_ends


def run(path: pathlib.Path, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of the tool's model by name, run by ONNX Runtime as it stands."""
    import onnxruntime

    print(f"onnxruntime {onnxruntime.__version__}")
    os.chdir(path.parent)  # what came along is named from here
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with tempfile.TemporaryDirectory() as folder:
        try:
            written = run_tool(path, pathlib.Path(folder), settings)
        except ToolFailed as error:
            raise Refused("build", clean_message(str(error))) from error
        try:
            session = onnxruntime.InferenceSession(str(written), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            text = clean_message(str(error))
            raise Refused("build", f"the model that the tool writes does not load: {text}") from error
    names, fed = [each.name for each in session.get_outputs()], [each.name for each in session.get_inputs()]
    if wrong := same_ends(inputs, fed, names, settings["outputs"]):
        raise Refused("build", wrong)
    try:
        return dict(zip(names, session.run(names, {name: inputs[name] for name in fed})))
    except Exception as error:
        text = clean_message(str(error))
        raise Refused("run", text) from error


def sign(refused: Refused, names: list[str]) -> str:
    """The signature of a refusal."""
    return mask_message(refused.message, names)
