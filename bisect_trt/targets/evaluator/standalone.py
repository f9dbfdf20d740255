"""How ``reproduce.py`` runs a model on ONNX's reference evaluator; its source goes into that file."""

from __future__ import annotations

import pathlib
from typing import Any, Mapping

from bisect_trt.targets.signatures import clean_message, mask_message
from bisect_trt.targets.standalone import Refused


def evaluator(model: Any) -> Any:
    """ONNX's evaluator of a model, with what it has not of itself: DequantizeLinear before opset 19.

    Newer ones take more types and shapes of scales, and make the same of the older's.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.ops._op_list import load_op

    older = any(opset.domain in ("", "ai.onnx") and opset.version < 19 for opset in model.opset_import)
    newest = load_op("", "DequantizeLinear", onnx.defs.onnx_opset_version())
    added = [type("DequantizeLinear", (newest,), {"op_domain": ""})] if older else None
    return ReferenceEvaluator(model, new_ops=added)


def run(path: pathlib.Path, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - it has none
    """The outputs of the model, by name."""
    import onnx

    print(f"onnx {onnx.__version__}")
    try:
        session = evaluator(onnx.load(str(path)))
    except Exception as error:
        raise Refused("build", f"{type(error).__name__}: {error}") from error
    try:
        return dict(zip(session.output_names, session.run(None, dict(inputs))))
    except Exception as error:
        raise Refused("run", f"{type(error).__name__}: {error}") from error


def sign(refused: Refused, names: list[str]) -> str:
    """The signature of a refusal."""
    return mask_message(clean_message(refused.message), names)
