"""ONNX Runtime.

A worker that runs models as they lie in their files needs no ONNX, which takes longer to import than ONNX Runtime: what does
need it is in ``memory.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.targets.base import ELSEWHERE
from bisect_trt.targets.interpreter import Interpreter, load_proto
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.onnxrt.listening import ALOUD, listen
from bisect_trt.targets.onnxrt.opening import FATAL_ONLY, TINY_MODEL, Misnamed, Missing, prepare, used
from bisect_trt.targets.onnxrt.session import OnnxRuntimeSession
from bisect_trt.targets.onnxrt.settings import OnnxRuntimeSettings
from bisect_trt.targets.settings import TargetSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""Where the weights of a model in memory lie: a setting since ONNX Runtime 1.21, ignored before."""


@contextlib.contextmanager
def said_as_ours() -> Iterator[None]:
    """What the settings name wrongly, as errors of ours."""
    try:
        yield
    except Missing as error:
        raise UnavailableError(f"{error}.") from error
    except Misnamed as error:
        raise UsageError(f"{error}.") from error


class OnnxRuntime(Interpreter):
    """ONNX Runtime with some providers."""

    name = "ONNX Runtime"

    def __init__(self, settings: TargetSettings) -> None:
        """Set it up.

        Raises:
            UnavailableError: It has no such provider here, or cannot load a library.
            UsageError: It has no such option, or the option no such value.
        """
        self._settings = settings
        self._own = settings.of(OnnxRuntimeSettings)
        # Inf and NaN are what a search is about; onnxruntime need not warn of each.
        onnxruntime.set_default_logger_severity(FATAL_ONLY)
        with said_as_ours():
            prepare(asdict(self._own))
        if self._own.provider_options or self._own.session_options:
            try_options(self._own)

    def lowered(self, model: Path) -> ModelProto | None:
        """See :func:`~bisect_trt.targets.onnxrt.memory.target_model`."""
        if not self._settings.low_precisions:
            return None
        from bisect_trt.targets.onnxrt.memory import target_model  # noqa: PLC0415 - as the module says

        return target_model(model, self._settings)

    def load(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> OnnxRuntimeSession:
        """Prepare a model; ``feed`` makes no difference.

        Raises:
            BuildError: ONNX Runtime refuses it, or it cannot be lowered.
            UnavailableError: A provider is installed and cannot be used.
        """
        lowered = self.lowered(model)
        if lowered is None and not model.with_name(ELSEWHERE).exists():
            source = str(model) if _is_text(model) else model.read_bytes()
            return OnnxRuntimeSession(open_session(source, self._own))
        from bisect_trt.targets.onnxrt.memory import open_in_memory  # noqa: PLC0415 - as the module says

        proto = load_proto(model) if lowered is None else lowered
        return OnnxRuntimeSession(open_in_memory(proto, model, self._own))

    def trace(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Any]:
        """Which passes over the graph ran, and which of them changed it; see :func:`heard`."""
        named = (*self._own.session_options, ALOUD)
        loud = OnnxRuntime(self._settings.with_own(session_options=named))
        return listen(lambda: loud.load(model, feed))


def _is_text(path: Path) -> bool:
    """Whether a path is UTF-8; ONNX Runtime opens no others."""
    return str(path).encode(errors="replace").decode() == str(path)


def try_options(own: OnnxRuntimeSettings) -> None:
    """Make sure that ONNX Runtime takes the options of a provider and of a session, whatever the model.

    Raises:
        UsageError: It refuses them with a model that nothing is wrong with.
    """
    try:
        open_session(TINY_MODEL, own)
    except BuildError as error:
        said = [f"{name}:{value}" for name, value in (*own.provider_options, *own.session_options)]
        raise UsageError(
            f"ONNX Runtime {onnxruntime.__version__} does not take {', '.join(said)}: {error.message}; mend or drop it."
        ) from error


def open_session(
    model: str | bytes, own: OnnxRuntimeSettings, *, weights: Path | None = None
) -> onnxruntime.InferenceSession:
    """Open a model: a file, or what is in one, whose weights may lie in a folder that is named.

    Raises:
        BuildError: ONNX Runtime refuses it.
        UnavailableError: A provider is installed and cannot be used.
        UsageError: There is no such option, or it takes no such value.
    """
    settings = asdict(own)
    with said_as_ours():
        options, arguments = prepare(settings)
        providers = used(settings)
    if weights is not None:
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(weights))
    try:
        # Without its fallback, which prints, goes on with the CPU and does not say so to the caller.
        session = onnxruntime.InferenceSession(model, options, **arguments, enable_fallback=False)
    except Exception as error:  # its exceptions have no common base, and each means the same
        if "Please install TensorRT libraries" in str(error):
            raise _unusable(["TensorrtExecutionProvider"]) from error
        raise BuildError(str(error)) from error
    left_out = [name for name in providers if name not in session.get_providers()]
    if left_out:
        raise _unusable(left_out)
    return session


def _unusable(providers: Sequence[str]) -> UnavailableError:
    return UnavailableError(
        f"ONNX Runtime cannot use {', '.join(providers)} here: no GPU, no driver, or libraries of another version."
    )
