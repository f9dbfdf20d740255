"""How ``reproduce.py`` runs a model on ONNX's reference evaluator; its source goes into that file."""

from __future__ import annotations

import pathlib
from typing import Any, Mapping

from bisect_trt.targets.signatures import clean_message, mask_message
from bisect_trt.targets.standalone import Refused


def run(path: pathlib.Path, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """The outputs of the model, by name."""
    import onnx
    import onnx.reference

    print(f"onnx {onnx.__version__}")
    try:
        session = onnx.reference.ReferenceEvaluator(onnx.load(str(path)))
    except Exception as error:
        raise Refused("build", f"{type(error).__name__}: {error}") from error
    try:
        return dict(zip(session.output_names, session.run(None, dict(inputs))))
    except Exception as error:
        raise Refused("run", f"{type(error).__name__}: {error}") from error


def sign(refused: Refused, names: list[str]) -> str:
    """The signature of a refusal."""
    return mask_message(clean_message(refused.message), names)
