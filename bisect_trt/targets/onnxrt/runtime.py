"""ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray

from bisect_trt.errors import UnavailableError
from bisect_trt.graph.externals import has_external_data
from bisect_trt.graph.lower import lower_fp16, lower_roundtrip, tensor_dtypes
from bisect_trt.targets.interpreter import Interpreter, low_type
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.onnxrt.session import OnnxRuntimeSession
from bisect_trt.targets.onnxrt.settings import OnnxRuntimeSettings
from bisect_trt.targets.onnxrt.values import element_type
from bisect_trt.targets.settings import TargetSettings

CPU = "CPUExecutionProvider"
_SUFFIX = "ExecutionProvider"
_FATAL_ONLY = 4
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""Where the weights of a model in memory lie: a setting since ONNX Runtime 1.21, ignored before."""
_VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


def provider_names(wanted: Sequence[str]) -> list[str]:
    """ONNX Runtime's names of providers, from long or short ones in any case; the CPU provider for none.

    Raises:
        UnavailableError: This build of ONNX Runtime has no such provider.
    """
    available = onnxruntime.get_available_providers()
    short = {name.lower().removesuffix(_SUFFIX.lower()): name for name in available}
    names = []
    for name in wanted or [CPU]:
        found = short.get(name.lower().removesuffix(_SUFFIX.lower()))
        if found is None:
            raise UnavailableError(
                f"ONNX Runtime has no execution provider '{name}' here; it has: {', '.join(sorted(short))}."
            )
        if found not in names:
            names.append(found)
    return names


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
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # each of ONNX's formats raises its own
        raise BuildError(f"{path} cannot be read as an ONNX model: {error}") from error
    used = provider_names(settings.of(OnnxRuntimeSettings).providers) if providers is None else list(providers)
    lower = lower_roundtrip if used == [CPU] else lower_fp16
    return lower(model, settings.keep, _types_onnx_cannot_infer(model, path), low)


def _types_onnx_cannot_infer(model: onnx.ModelProto, path: Path) -> dict[str, int]:
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
        session = _open_in_memory(marked, path, [CPU], optimize=False)
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
            UnavailableError: It has no such provider here.
        """
        self._settings = settings
        self._own = settings.of(OnnxRuntimeSettings)
        self._providers = provider_names(self._own.providers)
        # Inf and NaN are what a search is about; onnxruntime need not warn of each.
        onnxruntime.set_default_logger_severity(_FATAL_ONLY)

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
        if lowered is None:
            source = str(model) if _is_text(model) else model.read_bytes()
            session = _open(source, self._providers, optimize=self._own.optimize)
        else:
            session = _open_in_memory(lowered, model, self._providers, optimize=self._own.optimize)
        return OnnxRuntimeSession(session)


def _is_text(path: Path) -> bool:
    """Whether a path is UTF-8; ONNX Runtime opens no others."""
    return str(path).encode(errors="replace").decode() == str(path)


def _open_in_memory(
    proto: onnx.ModelProto, path: Path, providers: Sequence[str], *, optimize: bool
) -> onnxruntime.InferenceSession:
    """Open a model that has no file; weights outside it lie beside ``path``."""
    try:
        content = proto.SerializeToString()
    except Exception as error:  # protobuf's own
        raise BuildError(f"{path} is over 2 GB with its weights inside: save them as external data") from error
    folder = path.absolute().parent
    if _VERSION >= (1, 21) or not has_external_data(proto):
        return _open(content, providers, optimize=optimize, weights=folder)
    # Its weights lie beside the original, so it has to lie there too; under a name that nothing else has.
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".bisect_trt_", suffix=".onnx") as beside:
            beside.write(content)
            beside.flush()
            return _open(beside.name, providers, optimize=optimize)
    except OSError as error:
        raise UnavailableError(
            f"{folder} cannot be written ({error.strerror}), which ONNX Runtime {onnxruntime.__version__} needs for a "
            "model with weights in a file of their own; update it to 1.21 or later."
        ) from error


def _open(
    model: str | bytes, providers: Sequence[str], *, optimize: bool, weights: Path | None = None
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    if weights is not None:
        options.add_session_config_entry(_WEIGHTS_FOLDER, str(weights))
    try:
        # Without its fallback, which prints, goes on with the CPU and does not say so to the caller.
        session = onnxruntime.InferenceSession(model, options, providers=list(providers), enable_fallback=False)
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
