"""TensorRT in a place; see :mod:`bisect_trt.worker.host`. It has Python 3.8's syntax, and is sent there.

It builds and runs as ``reproduce.py`` does (:mod:`~bisect_trt.targets.trt.standalone`). What an engine is made of is not told,
since that takes the graph, and there is no ONNX there; but of a build that is recorded, which tactics its layers took.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.targets.messages import BuildError, RunError
from bisect_trt.targets.trt.knobs import NoSuch, check_running, prepare_runtime
from bisect_trt.targets.trt.selector import PIN_MISSED, PIN_REFUSED, took
from bisect_trt.targets.trt.standalone import Refused, build, execute, load_cudart, make_logger, why
from bisect_trt.targets.trt.tuned import timed
from bisect_trt.targets.trt.wording import is_poisoning, signature
from bisect_trt.tensors.info import TensorInfo

if TYPE_CHECKING:
    import pathlib

_OLDEST, _FIRST_STRONG, _STRONG_ONLY = (8, 6), (9, 0), (11, 0)


class There:
    """TensorRT, set up.

    Attributes:
        facts: Its version, and who lowers for it.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Set it up.

        Args:
            settings: Those of ``TargetSettings``, and the fields of ``TrtSettings``.

        Raises:
            UnavailableError: There is no TensorRT or no GPU.
            UsageError: An option that this TensorRT does not have.
        """
        try:
            import tensorrt
        except Exception as error:
            raise UnavailableError(
                f"TensorRT cannot be loaded by {sys.executable} there: {error!r}; name an interpreter that has it."
            ) from error
        self._trt, self._settings = tensorrt, settings
        version = tuple(int(part) for part in str(tensorrt.__version__).split(".")[:2])
        if version < _OLDEST:
            raise UnavailableError(f"TensorRT {tensorrt.__version__} is too old; install 8.6 or later there.")
        _check(settings, version, str(tensorrt.__version__))
        self._errors: list[str] = []
        self._logger = make_logger(tensorrt, self._errors)
        self._cudart = _cudart()
        for library in settings["plugins"]:
            try:
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise UsageError(
                    f"--plugins: {library} cannot be loaded there: {error}; build it for that machine."
                ) from error
        tensorrt.init_libnvinfer_plugins(self._logger, "")
        try:
            self._runtime = tensorrt.Runtime(self._logger)
            if settings["load_runtime"] is not None:
                self._runtime = self._runtime.load_runtime(settings["load_runtime"])
        except Exception as error:
            raise UnavailableError(f"TensorRT {tensorrt.__version__} cannot use the GPU there: {error}.") from error
        try:
            prepare_runtime(tensorrt, self._runtime, settings)
        except NoSuch as error:
            raise UsageError(f"TensorRT {tensorrt.__version__} is there: {error}.") from error
        by_cast = settings["lowering"] == "cast" or settings["strongly_typed"] or version >= _STRONG_ONLY
        self.facts = {"lowers_by": "cast" if by_cast else "layer", "version": str(tensorrt.__version__)}

    def gpu_memory(self) -> int:
        """Bytes of the GPU that are in use, by anybody."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if self._cudart.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
            return 0
        return total.value - free.value

    def load(
        self, path: pathlib.Path, feed: Mapping[str, Any], hints: Mapping[str, Any], unfused: bool
    ) -> Session | None:
        """Build a model, which is lowered already, or take the prebuilt engine; ``None`` for an unfused one.

        Raises:
            BuildError: TensorRT refuses it.
            UnavailableError: The prebuilt engine is not for this TensorRT.
        """
        if unfused:
            return None
        prebuilt = self._settings["load_engine"]
        if prebuilt is None:
            plan = self._plan(path, feed, hints)
        else:
            with open(prebuilt, "rb") as file:  # noqa: PTH123 - as TensorRT is given it
                plan = file.read()
        engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None and prebuilt is not None:
            raise UnavailableError(
                f"TensorRT {self._trt.__version__} cannot load the engine there; build it again for it."
            )
        if engine is None:
            raise RunError(why(self._errors, "the engine cannot be loaded, and TensorRT does not say why"))
        recorded = prebuilt is None and self._settings["record"] is not None
        tactics = (took() or timed()) if recorded else []
        return Session(self._trt, engine, self._errors, hints, self._settings, tactics)

    def build(self, path: pathlib.Path, to: pathlib.Path, feed: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
        """Write a model's engine to a file.

        Raises:
            BuildError: TensorRT refuses it.
        """
        to.write_bytes(bytes(memoryview(self._plan(path, feed, hints))))

    def _plan(self, path: pathlib.Path, feed: Mapping[str, Any], hints: Mapping[str, Any]) -> Any:
        low = [name for name in ("tf32", "fp16", "bf16", "fp8", "int8") if self._settings[name]]
        known = {"precisions": low, "lowered": hints["lowered"], "nodes": hints["nodes"]}
        try:
            plan = build(self._trt, self._logger, self._errors, path, feed, {**self._settings, **known})
        except Refused as refused:
            pin = refused.message.startswith(PIN_REFUSED)
            masked = PIN_MISSED if pin else signature(refused.message, hints["names"])
            raise BuildError(refused.message, signature=masked, poisoned=is_poisoning(self._errors)) from refused
        except NoSuch as error:
            raise UsageError(f"TensorRT {self._trt.__version__} is there: {error}.") from error
        if self._settings["save_engine"] is not None:
            with open(self._settings["save_engine"], "wb") as file:  # noqa: PTH123 - as above
                file.write(bytes(memoryview(plan)))
        return plan

    def describe_engine(self) -> dict[str, Any]:
        """Not there.

        Raises:
            UsageError: Always.
        """
        raise UsageError("an engine is looked into where its TensorRT is: run bisect-trt inspect there.")


class Session:
    """An engine.

    Attributes:
        inputs: What it has to be fed.
        skipped: Outputs of the model that the engine does not have.
    """

    def __init__(
        self,
        trt: Any,
        engine: Any,
        errors: list[str],
        hints: Mapping[str, Any],
        settings: Mapping[str, Any],
        tactics: list[list[Any]],
    ) -> None:
        """``hints`` say what the model gives back, ``tactics`` what its build chose, see :func:`took`."""
        import numpy as np

        self._tactics = tactics
        self._trt, self._engine, self._errors, self._settings = trt, engine, errors, settings
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        self.inputs = [
            TensorInfo(name, np.dtype(trt.nptype(engine.get_tensor_dtype(name))), tuple(engine.get_tensor_shape(name)))
            for name in names
            if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        ]
        self.skipped = {
            name: "an output that the engine does not have" for name in hints["outputs"] if name not in names
        }

    def layers(self) -> list[dict[str, Any]]:
        """The tactics that layers took, where the build was recorded."""
        plain = {"kind": "", "precisions": [], "tensors": []}
        return [
            {"name": name, "tactic": tactic[len(name) + 1 :], "pins": offered > 1, **plain}
            for name, tactic, offered in self._tactics
        ]

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """All its outputs, by name.

        Raises:
            RunError: It fails.
        """
        try:
            return execute(self._trt, self._engine, inputs, self._errors, self._settings)
        except Refused as refused:
            poisoned = is_poisoning([*self._errors, refused.message])
            raise RunError(refused.message, signature=signature(refused.message, ()), poisoned=poisoned) from refused


def _check(settings: Mapping[str, Any], version: tuple[int, ...], said: str) -> None:
    """Make sure that TensorRT there can do what is asked.

    Raises:
        UsageError: An option that it does not have.
    """
    if settings["strongly_typed"] and version < _FIRST_STRONG:
        raise UsageError(f"--strongly-typed needs TensorRT 9 or later, and {said} is there.")
    if settings["lowering"] == "layer" and version >= _STRONG_ONLY:
        raise UsageError(f"--lowering layer needs TensorRT 8.6 to 10, and {said} is there.")
    if settings["pin_timings"] is not None:
        raise UsageError(
            "--pin: the build there chose no tactic that could be pinned, and its timings stay there; leave --pin out."
        )
    try:
        check_running(settings, version, said)
    except NoSuch as error:
        raise UsageError(f"{error}.") from error


def _cudart() -> Any:
    """The CUDA runtime.

    Raises:
        UnavailableError: It is not there, or there is no GPU.
    """
    try:
        cudart = load_cudart()
    except RuntimeError as error:
        raise UnavailableError(f"{error}, on the machine of that place.") from error
    count = ctypes.c_int()
    if cudart.cudaGetDeviceCount(ctypes.byref(count)) or not count.value:
        raise UnavailableError("there is no NVIDIA GPU there that CUDA may use (nvidia-smi lists them).")
    return cudart


make = There
