"""ONNX's reference evaluator as a target: the standard, for the arbitration of a minimal case."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_trt.aliases import Fields, Plain
from bisect_trt.targets.base import Target, TargetSettings
from bisect_trt.targets.messages import BuildError, Feed, RunError

if TYPE_CHECKING:
    from onnx import ModelProto


class EvaluatorTarget(Target):
    """ONNX's ``ReferenceEvaluator``: NumPy, and slow."""

    name = "onnx"
    title = "ONNX's reference evaluator"
    needs = "onnx"
    selectable = False
    stays = True

    def make_runner(self, settings: TargetSettings) -> EvaluatorRunner:
        """Return the runner; it has no settings."""
        return EvaluatorRunner()

    def describe(self, settings: TargetSettings) -> str:
        """Return its name."""
        return self.title


class EvaluatorRunner:
    """ONNX's ``ReferenceEvaluator``; its facts are its version."""

    def __init__(self) -> None:
        """Read the version."""
        import onnx  # noqa: PLC0415 - a command line is read without

        self.facts = {"version": onnx.__version__}

    def load(self, path: Path, feed: Feed, hints: Plain) -> EvaluatorSession:
        """Prepare a model.

        Args:
            path: The ONNX file.
            feed: Not used.
            hints: ``content`` is the serialized model where it is not in the file, ``weights`` the
                folder of its weights.

        Raises:
            BuildError: The evaluator has no implementation of an operator.
        """
        import onnx  # noqa: PLC0415 - as above

        try:
            content = hints.get("content")
            model = (
                onnx.load_from_string(content)
                if content
                else onnx.load(str(path), load_external_data=False)
            )
            weights = hints.get("weights", str(path.absolute().parent))
            onnx.external_data_helper.load_external_data_for_model(model, weights)
            return EvaluatorSession(model)
        except Exception as error:
            # The evaluator raises the exceptions of NumPy and of its own code.
            raise BuildError(f"{type(error).__name__}: {error}") from error


_WIDE = (
    "InstanceNormalization",
    "LayerNormalization",
    "LpNormalization",
    "ReduceL2",
    "ReduceLogSumExp",
    "RMSNormalization",
)
"""Operators that compute values past the range of fp16 from inputs and for outputs within it."""


def _in_fp32(base: Any, schema: Any) -> type[Any]:  # noqa: ANN401 - of ONNX
    """Return an operator that computes in fp32 where its inputs are of 16 bits: their squares overflow."""
    import numpy as np  # noqa: PLC0415 - as above

    def run(op: Any, x: Any, *others: Any, **attributes: Any) -> tuple[Any, ...]:  # noqa: ANN401 - of NumPy's arrays
        wide = np.float32 if x.dtype.itemsize == 2 else x.dtype
        floats = [
            each.astype(wide) if getattr(each, "dtype", None) == x.dtype else each
            for each in others
        ]
        first, *statistics = base._run(op, x.astype(wide), *floats, **attributes)
        return (first.astype(x.dtype), *statistics)

    return type(schema.name, (base,), {"_run": run, "op_schema": schema})


def _mended(opset: int) -> list[type[Any]]:
    """Return implementations in place of the evaluator's own ones that are wrong in an opset."""
    import numpy as np  # noqa: PLC0415 - as above
    import onnx  # noqa: PLC0415 - as above
    from onnx.reference.op_run import OpRun  # noqa: PLC0415 - as above
    from onnx.reference.ops._op_list import load_op  # noqa: PLC0415 - as above

    newest = onnx.defs.onnx_opset_version()

    def along_axis(name: str, compute: Any) -> type[Any]:  # noqa: ANN401 - of NumPy's arrays
        """Return an operator; before opset 13 all dimensions from its axis on, by default 1, count as one."""

        def run(op: OpRun, x: Any, axis: int = -1) -> tuple[Any]:  # noqa: ANN401 - as above
            if opset >= 13:
                return (compute(x, axis),)
            # The evaluator fills in the default of the newest version.
            first = (
                axis if any(parameter.name == "axis" for parameter in op.onnx_node.attribute) else 1
            )
            rows = x.reshape(*x.shape[: first % max(x.ndim, 1)], -1)
            return (compute(rows, -1).reshape(x.shape),)

        return type(name, (OpRun,), {"op_domain": "", "_run": run})

    def softmax(x: Any, axis: int) -> Any:  # noqa: ANN401 - as above
        powers = np.exp(x - x.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)

    def log_softmax(x: Any, axis: int) -> Any:  # noqa: ANN401 - as above
        less = x - x.max(axis, keepdims=True)
        return less - np.log(np.exp(less).sum(axis, keepdims=True))

    def hardmax(x: Any, axis: int) -> Any:  # noqa: ANN401 - as above
        places = np.arange(x.shape[axis]).reshape(-1, *[1] * (x.ndim - 1 - axis % x.ndim))
        return (places == np.expand_dims(x.argmax(axis), axis)).astype(x.dtype)

    # The evaluator's own one is the logarithm of numbers that are 0 already.
    mended = [along_axis("LogSoftmax", log_softmax)]
    if opset < 13:
        mended += [along_axis("Softmax", softmax), along_axis("Hardmax", hardmax)]
    # Newer versions compute the same. DequantizeLinear: the older refuses types and shapes of
    # scales. BatchNormalization: the older normalizes with the statistics of its input, as in
    # training.
    newer = {"DequantizeLinear": 19, "BatchNormalization": 14}
    used = [name for name, since in newer.items() if opset < since]
    # ONNX Runtime's quantizer writes types of 16 bits before opset 21 with its own operators, which
    # compute as ONNX's.
    domains = [(name, "") for name in used]
    domains += [(name, "com.microsoft") for name in ("QuantizeLinear", "DequantizeLinear")]
    mended += [
        _in_fp32(load_op("", name, opset), onnx.defs.get_schema(name, opset))
        for name in _WIDE
        if onnx.defs.has(name, opset)
    ]
    return mended + [
        type(name, (load_op("", name, newest),), {"op_domain": domain}) for name, domain in domains
    ]


class EvaluatorSession:
    """A loaded model; it returns all outputs."""

    def __init__(self, model: ModelProto) -> None:
        """``model`` has its weights inside."""
        from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - as above

        from bisect_trt.onnxlib.inputs import input_infos  # noqa: PLC0415 - as above
        from bisect_trt.onnxlib.network import Network  # noqa: PLC0415 - as above
        from bisect_trt.onnxlib.nodes import opset_of  # noqa: PLC0415 - as above

        opset = opset_of(model) or 1
        self._evaluator: Any = ReferenceEvaluator(model, new_ops=_mended(opset))
        self.inputs = input_infos(Network(model))
        self.skipped = dict[str, str]()

    def run(self, inputs: Feed) -> Fields:
        """Return all outputs, by name.

        Raises:
            RunError: It fails.
        """
        import numpy as np  # noqa: PLC0415 - as above

        from bisect_trt.tensors.info import members  # noqa: PLC0415 - as above

        try:
            # Inf and NaN are the subject of an arbitration, not a reason for warnings.
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                values = self._evaluator.run(None, dict(inputs))
        except Exception as error:  # as above
            raise RunError(f"{type(error).__name__}: {error}") from error
        outputs = zip(self._evaluator.output_names, values, strict=True)
        return {key: array for name, value in outputs for key, array in members(name, value)}
