"""A model that ONNX Runtime has loaded; in a worker here, or in a place that this is sent to.

So it has Python 3.8's syntax, and needs ONNX Runtime and NumPy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

import onnxruntime

from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.targets.onnxrt.values import dtype_of, element_type, is_numpy, is_raw, run_with_values
from bisect_trt.tensors.info import TensorInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bisect_trt.targets.base import Arrays


class OnnxRuntimeSession:
    """A loaded model.

    Attributes:
        inputs: What it has to be fed.
        names: Of its outputs that are arrays.
        skipped: Outputs that cannot be had as NumPy arrays (sequences, optionals, bfloat16), with their type.
    """

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        """``session`` is ONNX Runtime's own.

        Raises:
            BuildError: It has to be fed what NumPy has no arrays of.
        """
        self._session = session
        self.inputs = [_info(value) for value in session.get_inputs()]
        self.skipped = {
            value.name: f"a {value.type}, which NumPy has no arrays of"
            for value in session.get_outputs()
            if not is_numpy(value.type)
        }
        self.names = [value.name for value in session.get_outputs() if value.name not in self.skipped]
        fed = [value for value in session.get_inputs() if is_raw(value.type)]
        self._raw_inputs = {value.name: element_type(value.type) or 0 for value in fed}
        self._raw_outputs = {value.name: _info(value).dtype for value in session.get_outputs() if is_raw(value.type)}

    def layers(self) -> list[dict[str, Any]]:
        """None: it does not say."""
        return []

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """All outputs that are tensors.

        Raises:
            RunError: It fails.
        """
        if not self.names:
            return {}
        try:
            if self._raw_inputs or self._raw_outputs:
                values = run_with_values(self._session, self.names, inputs, self._raw_inputs, self._raw_outputs)
            else:
                values = self._session.run(self.names, dict(inputs))
        except Exception as error:  # as above
            raise RunError(str(error)) from error
        return dict(zip(self.names, values))


def _info(value: onnxruntime.NodeArg) -> TensorInfo:
    if not is_numpy(value.type):
        raise BuildError(
            f"input '{value.name}' is a {value.type}, which ONNX Runtime {onnxruntime.__version__} cannot be fed from a "
            "NumPy array; a later version can if it is bfloat16 or float8"
        )
    # It gives no dimensions for a scalar and for an unknown rank alike.
    return TensorInfo(value.name, dtype_of(value.type), tuple(value.shape) or None)
