"""ONNX Runtime."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.graph.externals import ELSEWHERE, has_external_data, weights_folder
from bisect_trt.graph.lower import lower_fp16, lower_roundtrip, tensor_dtypes
from bisect_trt.targets.interpreter import Interpreter, load_proto, low_type
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.onnxrt.listening import ALOUD, listen
from bisect_trt.targets.onnxrt.opening import (
    EXECUTION_PROVIDER,
    FATAL_ONLY,
    TINY_MODEL,
    Misnamed,
    Missing,
    prepare,
    used,
)
from bisect_trt.targets.onnxrt.session import OnnxRuntimeSession
from bisect_trt.targets.onnxrt.settings import OFF, OnnxRuntimeSettings
from bisect_trt.targets.onnxrt.values import element_type
from bisect_trt.targets.settings import TargetSettings

_CPU = f"CPU{EXECUTION_PROVIDER}"
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""Where the weights of a model in memory lie: a setting since ONNX Runtime 1.21, ignored before."""
_VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    """What the settings name wrongly, as errors of ours."""
    try:
        yield
    except Missing as error:
        raise UnavailableError(f"{error}.") from error
    except Misnamed as error:
        raise UsageError(f"{error}.") from error


def target_model(
    path: Path, settings: TargetSettings, providers: Sequence[str] | None = None
) -> onnx.ModelProto | None:
    """The lowered form of a model that the target really runs; ``None`` if that is the model itself.

    On the CPU provider fp16 is emulated by round trips, because it would run fp16 nodes in fp32 (see
    ``graph.lower_roundtrip``), and so is bf16, which it would not run; other providers get real nodes of that type.

    Args:
        path: The ONNX file.
        settings: The target.
        providers: The providers that run it, if not those of this process.
    """
    low = low_type(settings)
    if low is None:
        return None
    model = load_proto(path)
    own = settings.of(OnnxRuntimeSettings)
    with _ours():
        run_by = used(asdict(own)) if providers is None else list(providers)
    lower = lower_roundtrip if run_by == [_CPU] else lower_fp16
    kernels = OnnxRuntimeSettings(graph_optimization_level=OFF, custom_op_libraries=own.custom_op_libraries)
    return lower(model, settings.keep, _types_onnx_cannot_infer(model, path, kernels), low)


def _types_onnx_cannot_infer(model: onnx.ModelProto, path: Path, kernels: OnnxRuntimeSettings) -> dict[str, int]:
    """Element types of tensors behind operators that ONNX Runtime knows and ONNX does not, ``com.microsoft``'s first."""
    known = tensor_dtypes(model)
    unknown = {name for node in model.graph.node for name in node.output if name and name not in known}
    if not unknown:
        return {}
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    unknown -= {value.name for value in model.graph.output}
    marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(unknown))
    try:
        session = _open_in_memory(marked, path, kernels)
    except BuildError:  # operators that it does not know either: their consumers stay in fp32
        return {}
    types = {value.name: element_type(value.type) for value in session.get_outputs()}
    return {name: element for name, element in types.items() if element is not None}


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
        with _ours():
            prepare(asdict(self._own))
        if self._own.provider_options or self._own.session_options:
            try_options(self._own)

    def lowered(self, model: Path) -> onnx.ModelProto | None:
        """See :func:`target_model`."""
        return target_model(model, self._settings)

    def load(self, model: Path, feed: Mapping[str, NDArray[Any]] | None = None) -> OnnxRuntimeSession:  # noqa: ARG002
        """Prepare a model; ``feed`` makes no difference.

        Raises:
            BuildError: ONNX Runtime refuses it, or it cannot be lowered.
            UnavailableError: A provider is installed and cannot be used.
        """
        lowered = self.lowered(model)
        if lowered is None and model.with_name(ELSEWHERE).exists():
            session = _open_in_memory(load_proto(model), model, self._own)
        elif lowered is None:
            source = str(model) if _is_text(model) else model.read_bytes()
            session = _open(source, self._own)
        else:
            session = _open_in_memory(lowered, model, self._own)
        return OnnxRuntimeSession(session)

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
        _open(TINY_MODEL, own)
    except BuildError as error:
        said = [f"{name}:{value}" for name, value in (*own.provider_options, *own.session_options)]
        raise UsageError(
            f"ONNX Runtime {onnxruntime.__version__} does not take {', '.join(said)}: {error.message}; mend or drop it."
        ) from error


def _open_in_memory(proto: onnx.ModelProto, path: Path, own: OnnxRuntimeSettings) -> onnxruntime.InferenceSession:
    """Open a model that has no file; weights outside it lie beside ``path``, or where candidates there have theirs."""
    try:
        content = proto.SerializeToString()
    except Exception as error:  # protobuf's own
        raise BuildError(f"{path} is over 2 GB with its weights inside: save them as external data") from error
    folder = weights_folder(proto, path)
    if _VERSION >= (1, 21) or not has_external_data(proto):
        return _open(content, own, weights=folder)
    # Its weights lie beside the original, so it has to lie there too; under a name that nothing else has.
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".bisect_trt_", suffix=".onnx") as beside:
            beside.write(content)
            beside.flush()
            return _open(beside.name, own)
    except OSError as error:
        raise UnavailableError(
            f"{folder} cannot be written ({error.strerror}), which ONNX Runtime {onnxruntime.__version__} needs for a "
            "model with weights in a file of their own; update it to 1.21 or later."
        ) from error


def _open(model: str | bytes, own: OnnxRuntimeSettings, *, weights: Path | None = None) -> onnxruntime.InferenceSession:
    settings = asdict(own)
    with _ours():
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
