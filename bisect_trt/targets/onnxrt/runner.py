"""Opens and runs models in ONNX Runtime: for the local worker, remote workers and ``reproduce.py``.

It needs NumPy, ONNX Runtime and the modules that are sent with it. ONNX Runtime is imported when it
is first used, because a script or a remote worker without it reports that in one sentence.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import json
import os
import pathlib
import pkgutil
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bisect_trt.aliases import Fields, Plain
from bisect_trt.errors import (
    ConflictError,
    MissingOptionError,
    RuntimeMissingError,
    UnavailableError,
    UnknownNameError,
)
from bisect_trt.targets.messages import (
    TINY_MODEL,
    BuildError,
    Feed,
    Found,
    RunError,
    clean_message,
    layer_times,
    load_package,
    profiled,
    set_option,
)
from bisect_trt.tensors.info import (
    TensorInfo,
    dtype_from_name,
    is_extension,
    members,
    storage_dtype,
)

EXECUTION_PROVIDER = "ExecutionProvider"
FATAL_ONLY = 4
_NO_TENSORRT = re.compile("Please install TensorRT libraries")
"""ONNX Runtime's message where the libraries of its TensorRT provider are missing."""
_NO_BACKEND = re.compile("Could not determine default backend path")
"""QNN's message on a machine without its hardware, where no backend is named."""
_PROVIDER = re.compile(r"^def get_library_path\b", re.MULTILINE)
"""The function of a package of an execution provider that names its library."""
VERBOSE = ("log_severity_level", "0")
"""The session option that logs every graph pass."""
_RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"
"""The session option that records which provider runs which node: since ONNX Runtime 1.24."""
_NO_FALLBACK = "session.disable_cpu_ep_fallback"
"""The session option that refuses a model of which a node would run on the CPU provider."""
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
"""The folder of the weights of a model in memory: a setting since ONNX Runtime 1.21, ignored
before."""
_ORT_TYPES = (
    "float", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "double", "uint32",
    "uint64", "complex64", "complex128", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
    "uint4", "int4", "float4e2m1", "float8e8m0", "uint2", "int2",
)  # fmt: skip
"""ONNX Runtime's names of element types, in the order of ONNX's numbers, which begin with 1
(onnx.proto, ``DataType``)."""
_OTHERWISE = {
    "float": "float32",
    "double": "float64",
    "float4e2m1": "float4_e2m1fn",
    "float8e8m0": "float8_e8m0fnu",
}
"""Those that NumPy and ``ml_dtypes`` call otherwise; an 8-bit float there has a ``_`` after
``float8``."""


class OrtRunner:
    """ONNX Runtime with its settings; its facts are its version, and the execution providers that it uses."""

    def __init__(self, settings: Plain) -> None:
        """Set it up with the fields of ``OnnxRuntimeSettings``; lists may replace tuples.

        Raises:
            UnavailableError: ONNX Runtime or a provider is missing, or a library cannot be loaded.
            UsageError: ONNX Runtime does not take an option.
        """
        onnxruntime = load_onnxruntime()
        self._settings = settings
        # A search is about Inf and NaN; a warning for each of them is noise.
        onnxruntime.set_default_logger_severity(FATAL_ONLY)
        prepare(settings)
        self._providers = find_providers(settings["providers"] or ["cpu"])
        if settings["provider_options"] or settings["session_options"]:
            try:
                self._open(TINY_MODEL)
            except BuildError as error:
                pairs = [*settings["provider_options"], *settings["session_options"]]
                rejected = ", ".join(f"{name}:{value}" for name, value in pairs)
                raise ConflictError(
                    f"ONNX Runtime {onnxruntime.__version__} does not take {rejected}: {error.message}; correct or drop it."
                ) from error
        self.facts = {
            "lowers_by": "cast",
            "version": onnxruntime.__version__,
            "providers": self._providers,
            "available": [*onnxruntime.get_available_providers(), *provider_packages()],
        }

    def load(self, path: pathlib.Path, feed: Feed, hints: Plain) -> OrtSession:
        """Open a model.

        Args:
            path: The ONNX file.
            feed: Not used.
            hints: ``content`` is the serialized model where it is not in the file, ``weights`` the
                folder of its weights.

        Raises:
            BuildError: ONNX Runtime refuses the model.
            UnavailableError: A provider is installed and cannot be used.
        """
        content = hints.get("content")
        if content is None:
            # ONNX Runtime opens no path that is not UTF-8.
            readable = str(path).encode(errors="replace").decode() == str(path)
            return OrtSession(self._open(str(path) if readable else path.read_bytes()))
        folder = hints.get("weights")
        version = tuple(int(part) for part in load_onnxruntime().__version__.split(".")[:2])
        if folder is None or version >= (1, 21):
            return OrtSession(self._open(content, folder))
        # The model has to lie beside its weights: beside links to them, since the folder may be one
        # of the user's.
        with tempfile.TemporaryDirectory(prefix="bisect_trt_") as link_folder:
            for file in pathlib.Path(folder).absolute().iterdir():
                (pathlib.Path(link_folder) / file.name).symlink_to(file)
            with tempfile.NamedTemporaryFile(dir=link_folder, suffix=".onnx") as model:
                model.write(content)
                model.flush()
                return OrtSession(self._open(model.name))

    def trace(self, path: pathlib.Path, feed: Feed, hints: Plain) -> Fields:
        """Return which graph passes ran and which of them changed the model; see :func:`heard`.

        Args:
            path: The ONNX file.
            feed: Not used.
            hints: ``content`` is the serialized model where it is not in the file, ``weights`` the
                folder of its weights.
        """
        log, session = listen(lambda: self._set(VERBOSE).load(path, feed, hints))
        return {**heard(log), "refused": session is None}

    def placement(self, path: pathlib.Path, feed: Feed, hints: Plain) -> Fields:
        """Return the nodes with the provider that runs each; none with the providers of this build alone.

        They are the nodes of the graph when it was divided, after the first optimizations. A node
        has a ``reason`` if the provider says why it does not take it.

        Args:
            path: The ONNX file.
            feed: Not used.
            hints: ``content`` is the serialized model where it is not in the file, ``weights`` the
                folder of its weights.
        """
        plugged = _plugged(self._providers)
        if not plugged:
            return {}
        log, opened = listen(lambda: self._set(VERBOSE).load(path, feed, hints))
        parts = [] if opened is None else opened.session.get_provider_graph_assignment_info()
        reasons = read_refusals(log)
        return {
            "layers": [
                {
                    "name": node.name,
                    "kind": node.op_type,
                    "provider": part.ep_name,
                    # A provider may refuse a node at first, and take it in another group.
                    "reason": ""
                    if part.ep_name in plugged
                    else reasons.get((node.op_type, node.name), ""),
                }
                for part in parts
                for node in part.get_nodes()
            ]
        }

    def profile(self, path: pathlib.Path, feed: Feed, hints: Plain) -> Found:
        """Return the time of each node that runs, by ONNX Runtime's profiler, with the tensors that it makes.

        Args:
            path: The ONNX file.
            feed: The values to run it with: arrays by input name.
            hints: ``content`` is the serialized model where it is not in the file, ``weights`` the
                folder of its weights.
        """
        with tempfile.TemporaryDirectory(prefix="bisect_trt_") as folder:
            outputs_of_nodes = dict[str, list[str]]()
            written = f"{folder}/optimized.onnx"
            # Nodes that a provider compiles cannot be written.
            with contextlib.suppress(ImportError, BuildError):
                import onnx

                self._set(("optimized_model_filepath", written)).load(path, feed, hints)
                nodes = onnx.load(written, load_external_data=False).graph.node
                outputs_of_nodes.update((node.name, list(node.output)) for node in nodes)
            options = ("enable_profiling", "1"), ("profile_file_prefix", f"{folder}/profile")
            session = self._set(*options).load(path, feed, hints)
            inputs = {info.name: feed[info.name] for info in session.inputs}
            profiled(lambda: session.run(inputs))
            return read_events(
                json.loads(pathlib.Path(session.session.end_profiling()).read_text()),
                outputs_of_nodes,
            )

    def _set(self, *options: tuple[str, str]) -> OrtRunner:
        """Return the same with more options of the session."""
        return OrtRunner(
            {**self._settings, "session_options": [*self._settings["session_options"], *options]}
        )

    def _open(self, model: str | bytes, weights: str | None = None) -> Any:
        onnxruntime = load_onnxruntime()
        options, arguments = prepare(self._settings)
        if weights is not None:
            options.add_session_config_entry(_WEIGHTS_FOLDER, weights)
        if self._settings["all_on_ep"] and model is not TINY_MODEL:
            options.add_session_config_entry(_NO_FALLBACK, "1")
        try:
            # ONNX Runtime's own fallback prints, goes on with the CPU and does not tell the caller.
            session = onnxruntime.InferenceSession(
                model, options, **arguments, enable_fallback=False
            )
        except Exception as error:
            # The exceptions of ONNX Runtime have no common base.
            if _NO_TENSORRT.search(str(error)):
                raise _unusable(["TensorrtExecutionProvider"]) from error
            if _NO_BACKEND.search(str(error)):
                raise MissingOptionError(
                    "QNN has no default backend on this machine; give --provider-option backend_type:htp, and soc_model "
                    "and htp_arch of the device that HTP's simulator is to compute as."
                ) from error
            raise BuildError(str(error)) from error
        # A provider of a package is left out where it takes no node; it says itself what it lacks.
        expected = set(self._providers).difference(_plugged(self._providers))
        left_out = sorted(expected.difference(session.get_providers()))
        if left_out:
            raise _unusable(left_out)
        return session


make = OrtRunner


def _unusable(providers: Sequence[str]) -> UnavailableError:
    return RuntimeMissingError(
        f"ONNX Runtime cannot use {', '.join(providers)} here: no GPU, no driver, or libraries of another version."
    )


def load_onnxruntime() -> Any:
    """Import ONNX Runtime; see :func:`load_package`."""
    install = (
        "install it there: pip install onnxruntime, or onnxruntime-gpu where there is an NVIDIA GPU"
    )
    return load_package("onnxruntime", "ONNX Runtime", install)


class OrtSession:
    """A loaded model.

    Attributes:
        session: ONNX Runtime's own.
        inputs: What it has to be fed.
        names: Of its outputs that are arrays.
        ignored: Inputs that it is given and does not have.
        elements: ONNX's element types of the outputs that are tensors, by name.
        skipped: Outputs that are not available as NumPy arrays (bfloat16 in old releases), with
            their type.
    """

    def __init__(self, session: Any) -> None:
        """Read its inputs and outputs.

        Raises:
            BuildError: An input has a type that NumPy does not have.
        """
        self.session = session
        self.ignored = frozenset[str]()
        outputs = {value.name: type_of(value.type) for value in session.get_outputs()}
        self.elements = {
            name: ort_type.element for name, ort_type in outputs.items() if ort_type.element
        }
        self.skipped = {
            name: f"a {ort_type.kind}, which NumPy has no arrays of"
            for name, ort_type in outputs.items()
            if ort_type.element and ort_type.dtype is None
        }
        self.names = [name for name in outputs if name not in self.skipped]
        self._optional = {name for name in self.names if outputs[name].kind.startswith("optional(")}
        self._raw_outputs = {name: outputs[name].dtype for name in self.names if outputs[name].raw}
        self.inputs = list[TensorInfo]()
        self._raw_inputs = dict[str, int]()
        for value in session.get_inputs():
            ort_type = type_of(value.type)
            if ort_type.dtype is None:
                raise BuildError(
                    f"input '{value.name}' is a {value.type}, which ONNX Runtime {load_onnxruntime().__version__} cannot be fed "
                    "from a NumPy array; a later version can if it is bfloat16 or float8"
                )
            # It gives no dimensions for a scalar and for an unknown rank alike.
            self.inputs.append(TensorInfo(value.name, ort_type.dtype, tuple(value.shape) or None))
            if ort_type.raw:
                self._raw_inputs[value.name] = ort_type.element

    def run(self, inputs: Feed) -> Found:
        """Return all outputs by name, and the members of a sequence, a map or an optional by names of :func:`members`.

        Raises:
            RunError: It fails.
        """
        if not self.names:
            return {}
        accepted = {name: value for name, value in inputs.items() if name not in self.ignored}
        try:
            raw = self._raw_inputs or self._raw_outputs
            values = (
                self._run_with_values(accepted) if raw else self.session.run(self.names, accepted)
            )
        except Exception as error:  # as above
            raise RunError(str(error)) from error
        arrays = Fields()
        for name, value in zip(self.names, values, strict=True):
            # NumPy has a value of an optional as a plain array, and no runtime takes that for it.
            arrays.update(members(name, {"value": value} if name in self._optional else value))
        return arrays

    def _run_with_values(self, inputs: Feed) -> list[Any]:
        """Run the model with inputs or outputs of types that are exchanged by their bits; returns the outputs."""
        # What an OrtValue is made of has to stay alive until the model has run.
        arrays = {name: np.asarray(values, order="C") for name, values in inputs.items()}
        bits = {
            name: arrays[name].view(storage_dtype(arrays[name].dtype))
            for name in arrays.keys() & self._raw_inputs
        }
        kinds = load_onnxruntime().OrtValue
        fed = {
            name: kinds.ortvalue_from_numpy_with_onnx_type(bits[name], self._raw_inputs[name])
            if name in bits
            else kinds.ortvalue_from_numpy(value)
            for name, value in arrays.items()
        }
        outputs = zip(self.names, self.session.run_with_ort_values(self.names, fed), strict=True)
        dtypes = self._raw_outputs
        return [
            _to_array(value, dtypes[name]) if name in dtypes else value.numpy()
            for name, value in outputs
        ]


def prepare(settings: Plain) -> tuple[Any, Fields]:
    """Return the options of a session, and its further arguments by name.

    Raises:
        UnavailableError: This ONNX Runtime has no such provider, or cannot load a library.
        UsageError: There is no such session option or level, or a value is none that it takes.
    """
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    set_entry(options, "graph_optimization_level", settings["graph_optimization_level"])
    for name, value in settings["session_options"]:
        set_entry(options, name, value)
    for path in settings["custom_op_libraries"]:
        try:
            options.register_custom_ops_library(str(pathlib.Path(path).absolute()))
        except Exception as error:
            # The exceptions of ONNX Runtime have no common base.
            raise RuntimeMissingError(
                f"ONNX Runtime cannot load the custom-op library {path}: {clean_message(str(error))}."
            ) from error
    names = find_providers(settings["providers"] or ["cpu"])
    provider_options = dict(settings["provider_options"])
    if provider_options and names[0] == "CPU" + EXECUTION_PROVIDER:
        raise UnknownNameError(
            f"--provider-option {next(iter(provider_options))}: ONNX Runtime's CPU provider has no options; leave it out."
        )
    arguments: Fields = {}
    if _plugged(names):
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name in names]
        options.add_provider_for_devices(devices[:1], provider_options)
        options.add_session_config_entry(_RECORD_PLACEMENT, "1")
    else:
        arguments["providers"] = names
        arguments["provider_options"] = [provider_options, *({} for _ in names[1:])]
    if settings["disabled_optimizers"]:
        arguments["disabled_optimizers"] = list(settings["disabled_optimizers"])
    return options, arguments


def set_entry(options: Any, name: str, value: str) -> None:
    """Set an attribute of the session's options, or, where the name has dots, an entry of their configuration.

    Args:
        options: ONNX Runtime's ``SessionOptions``; they are changed.
        name: The name of the attribute or entry.
        value: Its value, as text.

    Raises:
        UsageError: There is no such attribute, or it takes other values.
    """
    if "." in name:
        options.add_session_config_entry(name, value)
    else:
        set_option(
            options, name, value, f"the session option {name}", "ONNX Runtime's SessionOptions"
        )


def find_providers(requested: Any) -> list[str]:
    """Execution providers by ONNX Runtime's names, given long or short ones in any case.

    One that ONNX Runtime does not hold is looked for among the packages that hold one, or is given
    with its library, as ``NAME=FILE``; it is registered.

    Raises:
        UnavailableError: There is no such provider here, or ONNX Runtime does not load it.
        UsageError: A provider of a package is given beside another one.
    """
    onnxruntime = load_onnxruntime()
    short = {short_name(name): name for name in onnxruntime.get_available_providers()}
    names = [
        short[short_name(name)] if short_name(name) in short else _register(name)
        for name in requested
    ]
    # ONNX Runtime assigns devices of plug-in packages by another call than built-in providers.
    if _plugged(names) and len(set(names)) > 1:
        raise ConflictError(
            f"{', '.join(names)}: a provider of a package runs with the CPU provider alone; give it alone."
        )
    return list(dict.fromkeys(names))


def _plugged(names: Iterable[str]) -> list[str]:
    """Return the providers among some that come from libraries that were registered."""
    devices: Sequence[Any] = getattr(load_onnxruntime(), "get_ep_devices", list)()
    libraries = {device.ep_name for device in devices if "library_path" in device.ep_metadata}
    return [name for name in names if name in libraries]


def provider_packages() -> list[str]:
    """Return the packages on Python's path that hold an execution provider."""
    return _packages_on(tuple(sys.path))


@functools.cache
def _packages_on(path: tuple[str, ...]) -> list[str]:
    """Look through all packages of a path, which takes as long as a small model."""
    return [
        module.name
        for module in pkgutil.iter_modules(path)
        if module.name.startswith("onnxruntime_")
        and (spec := importlib.util.find_spec(module.name))
        and _PROVIDER.search(pathlib.Path(spec.origin or "").read_text("utf-8", "replace"))
    ]


@functools.cache
def _register(requested: str) -> str:
    """Register a provider of a package, or of the library in ``NAME=FILE``; returns its name.

    A package holds one if its module has ``get_ep_name`` and ``get_library_path``: the convention
    of ONNX Runtime's documentation, "Plugin Execution Provider Libraries: Packaging".

    Raises:
        UnavailableError: There is none of this name, or ONNX Runtime does not load it.
    """
    onnxruntime = load_onnxruntime()
    name, _, library = requested.partition("=")
    wanted = short_name(name).replace("-", "_")
    package = next((module for module in provider_packages() if wanted in module), None)
    if not library and package is not None:
        module = importlib.import_module(package)
        name = module.get_ep_name()
        library = module.get_library_path()
    if library and not hasattr(onnxruntime, "register_execution_provider_library"):
        raise RuntimeMissingError(
            f"ONNX Runtime {onnxruntime.__version__} cannot load the execution provider {name}: it is too old; upgrade it."
        )
    if not library:
        available = [*map(short_name, onnxruntime.get_available_providers()), *provider_packages()]
        raise RuntimeMissingError(
            f"ONNX Runtime has no execution provider '{name}' here; it has: {', '.join(sorted(available))}."
        )
    try:
        onnxruntime.register_execution_provider_library(name, library)
    except Exception as error:
        # The exceptions of ONNX Runtime have no common base.
        raise RuntimeMissingError(
            f"ONNX Runtime cannot load the execution provider {name} from {library}: {clean_message(str(error))}."
        ) from error
    if not _plugged([name]):
        raise RuntimeMissingError(
            f"The execution provider {name} finds no device here that it can use."
        )
    return str(name)


def short_name(name: str) -> str:
    """``cuda`` for ``CUDAExecutionProvider``."""
    return name.lower().removesuffix(EXECUTION_PROVIDER.lower())


class OrtType(NamedTuple):
    """A type by ONNX Runtime's name; of a tensor of a known type ONNX's number of the elements (else 0), and NumPy's type.

    NumPy's is ``None`` if ONNX Runtime does not exchange it as arrays. It is ``raw`` if it is
    exchanged by its bits, as the types are that NumPy itself lacks.
    """

    kind: str
    element: int = 0
    dtype: Any = None
    raw: bool = False


def type_of(kind: str) -> OrtType:
    """Return the type that ONNX Runtime calls so, such as ``tensor(float)``."""
    name = kind[len("tensor(") :].rstrip(")").lower()
    if not kind.startswith("tensor(") or name not in _ORT_TYPES:
        return OrtType(kind)
    element = _ORT_TYPES.index(name) + 1
    if name == "string":
        return OrtType(kind, element, np.dtype(np.str_))
    numpy_name = _OTHERWISE.get(name, name.replace("float8e", "float8_e"))
    try:
        dtype = dtype_from_name(numpy_name)
    except UnavailableError:
        # The type needs ml_dtypes, which is not installed.
        return OrtType(kind, element)
    if not is_extension(dtype):
        return OrtType(kind, element, dtype)
    # ONNX Runtime 1.18 takes no types that NumPy lacks; no release takes those of less than a byte.
    feeds = hasattr(
        getattr(load_onnxruntime(), "OrtValue", None), "ortvalue_from_numpy_with_onnx_type"
    )
    byte_sized = not numpy_name.endswith(("int2", "int4", "float4_e2m1fn"))
    return OrtType(kind, element, dtype if feeds and byte_sized else None, raw=True)


def _to_array(value: Any, dtype: np.dtype[Any]) -> Any:
    """A copy of a tensor on the CPU."""
    shape = tuple(value.shape())
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    # The memory belongs to the OrtValue, which ends with this call.
    copy = bytearray(ctypes.string_at(value.data_ptr(), size))
    return np.frombuffer(copy, np.uint8).view(dtype).reshape(shape)


def listen(load: Callable[[], Any]) -> tuple[str, Any]:
    """Return ONNX Runtime's log while a session is opened, and the session; ``None`` if the model is refused."""
    session = None
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        # ONNX Runtime logs from C++ to descriptor 2, which sys.stderr does not control.
        os.dup2(log.fileno(), 2)
        try:
            session = load()
        except BuildError:
            pass
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        log.seek(0)
        return log.read().decode(errors="replace"), session


def heard(log: str) -> dict[str, list[str]]:
    """Return the passes in ONNX Runtime's most verbose log that ``ran``, and that ``changed`` the model; none before 1.17."""
    ran: dict[str, bool] = {}
    for name in re.findall(r"Applying graph transformer (\S+) on step", log):
        # A pass is logged once for each level, and may change the model at one of them.
        ran.setdefault(name, False)
    for name, changed in re.findall(r"GraphTransformer (\S+) modified: (\d)", log):
        ran[name] = ran.get(name, False) or changed == "1"
    if not ran:
        return {}
    return {"ran": list(ran), "changed": [name for name, changed in ran.items() if changed]}


def read_refusals(log: str) -> dict[tuple[str, str], str]:
    """Return why a provider takes no node of an operator and name, from ONNX Runtime's most verbose log.

    QNN's provider writes a block for each group of nodes that it validates.
    """
    reasons = dict[tuple[str, str], str]()
    for block in re.findall(r"Validation FAILED for .*\n((?:\t.*\n)+)", log):
        # The provider ends its reason with a sentence that repeats that the node is not taken.
        reason = re.search(r"REASON : (.+?)(?:\.\S+ node `.*)?\n", block)
        for node in re.findall(r"Operator type: (\S+) Node name: (.*) Node index", block):
            reasons[node] = reason[1] if reason else ""
    return reasons


def read_events(events: Iterable[Plain], outputs_of_nodes: Mapping[str, Sequence[str]]) -> Found:
    """Return the profile in the events of ONNX Runtime's profiler; the time of a Loop includes its body."""
    times = dict[str, list[float]]()
    ends = dict[int, int]()
    suffix = "_kernel_time"
    # A body's nodes run within the time of their Loop or If: only outer events count.
    runs = (
        node_event
        for node_event in events
        if node_event.get("cat") == "Node" and node_event["name"].endswith(suffix)
    )
    for event in sorted(runs, key=lambda node_event: (node_event["ts"], -node_event["dur"])):
        if event["ts"] >= ends.get(event["tid"], 0):
            ends[event["tid"]] = event["ts"] + event["dur"]
            times.setdefault(event["name"].removesuffix(suffix), []).append(event["dur"] / 1e3)
    return layer_times(times, outputs_of_nodes)
