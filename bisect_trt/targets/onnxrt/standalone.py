"""How ``reproduce.py`` runs a model on ONNX Runtime; its source goes into that file, so it needs nothing of bisect-trt.

It has Python 3.8's syntax, as all that goes there.
"""

from __future__ import annotations

import pathlib
from typing import Any, Mapping

from bisect_trt.targets.signatures import clean_message, mask_message
from bisect_trt.targets.standalone import Refused


def run(path: pathlib.Path, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of the model, by name."""
    import onnxruntime

    print(f"onnxruntime {onnxruntime.__version__}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not settings["optimize"]:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = find_providers(settings["providers"] or ["cpu"], onnxruntime.get_available_providers())
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:
        raise Refused("build", str(error)) from error
    left_out = [name for name in providers if name not in session.get_providers()]
    if left_out:
        raise RuntimeError("onnxruntime cannot use {} here".format(", ".join(left_out)))
    names = [output.name for output in session.get_outputs()]
    try:
        return dict(zip(names, session.run(names, dict(inputs))))
    except Exception as error:
        raise Refused("run", str(error)) from error


def find_providers(wanted: list[str], available: list[str]) -> list[str]:
    """Providers by their long names, given long or short ones in any case."""
    suffix = "executionprovider"
    by_short = {name.lower()[: -len(suffix)]: name for name in available}
    found = []
    for name in wanted:
        short = name.lower()
        short = short[: -len(suffix)] if short.endswith(suffix) else short
        if short not in by_short:
            raise RuntimeError(f"this onnxruntime has no execution provider '{name}'")
        found.append(by_short[short])
    return list(dict.fromkeys(found))


def sign(refused: Refused, names: list[str]) -> str:
    """The signature of a refusal."""
    return mask_message(clean_message(refused.message), names)
