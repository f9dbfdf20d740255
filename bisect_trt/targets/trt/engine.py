"""Engines: their layers, the ONNX nodes behind each and the precision that each runs in, and how an engine runs."""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bisect_trt.aliases import Plain, Sizes
from bisect_trt.targets.messages import Feed, Found, RunError, layer_times, profiled
from bisect_trt.targets.trt.config import layer_parts
from bisect_trt.targets.trt.network import LAYER_SUFFIX, ParsedNetwork
from bisect_trt.targets.trt.process import UNNAMED_LAYER, Cuda, TensorRt
from bisect_trt.tensors.info import TensorInfo, dtype_from_name

_METADATA = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
"""A layer's origin, since TensorRT 10."""
_LOGGED = re.compile(
    r"^Name: (.*?), LayerType: ([^,\n]*), Inputs: .*?(?:TacticName: ([^,\n]*).*?)?(?:Metadata: (.*))?$",
    re.MULTILINE,
)
"""A layer in the log of a build."""
_REGION = re.compile(r"\{ForeignNode\[(.*?)\.\.\.(.*?)\]\}")
"""A region that Myelin compiled as a whole: its first and its last layer."""
_SINGLE = re.compile(r"\{ForeignNode\[(.*?)\]\}")
_FORMATS = {
    "FP32|Float": "float32",
    "FP16|Half": "float16",
    "BFloat16|BF16": "bfloat16",
    "Int8|INT8": "int8",
    "FP8": "fp8",
    "Int32|INT32": "int32",
    "Int64|INT64": "int64",
    "Bool|BOOL": "bool",
}
"""Types in the inspector's descriptions, such as
``Two wide channel vectorized row major FP16 format``."""
DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "FP8": "float8_e4m3fn",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}
"""NumPy's names of TensorRT's types."""


def to_dtype(kind: Any) -> Any:
    """Return NumPy's type for a ``DataType`` of TensorRT's."""
    return dtype_from_name(DTYPES[kind.name])


class Origins:
    """The ONNX nodes that the names in an engine come from."""

    def __init__(
        self, nodes: Sequence[Sequence[Any]] = (), layers: Sequence[tuple[str, int | None]] = ()
    ) -> None:
        """Collect the names of ``nodes`` (see ``ParsedNetwork``), and of the network's layers, each with its node's place."""
        self._made = [list(node[3]) if len(node) > 3 else list(node[1]) for node in nodes]
        # A name may be several things; the last one set here counts. A weight is its first
        # reader's.
        read = [
            (name, place)
            for place, node in enumerate(nodes)
            for name in (node[2] if len(node) > 2 else ())
        ]
        outputs = [(name, place) for place, node in enumerate(nodes) for name in node[1]]
        node_names = [(node[0], place) for place, node in enumerate(nodes)]
        self._places = dict(
            [
                *reversed(read),
                *outputs,
                *((n, place) for n, place in layers if place is not None),
                *node_names,
            ]
        )
        self._places.pop("", None)

    @classmethod
    def of(cls, parsed: ParsedNetwork) -> Origins:
        """Return the origins of the engine of a network."""
        names = [layer.name for layer in parsed.layers()]
        return cls(parsed.nodes, list(zip(names, parsed.places(), strict=True)))

    def place(self, name: str) -> int | None:
        """Return the place of the node that a layer, a node or a tensor of this name belongs to."""
        return self._places.get(name, self._places.get(LAYER_SUFFIX.sub("", name)))

    def tensors(self, place: int) -> list[str]:
        """Return what a node makes, by the names in the original; nothing for a Cast that was added."""
        return self._made[place]

    def named(self, entry: Plain) -> set[int]:
        """Return the nodes in a layer's name and metadata, one by one, and the first and last of regions."""
        name = str(entry["Name"])
        words = [*_METADATA.findall(str(entry.get("Metadata", ""))), name]
        words += [end for ends in _REGION.findall(name) for end in ends]
        single_layers = _SINGLE.sub(r"\1", _REGION.sub("", name))
        words += [
            single_layers,
            *UNNAMED_LAYER.findall(single_layers),
            *layer_parts(UNNAMED_LAYER.sub("", single_layers)),
        ]
        return {place for word in words if (place := self.place(word.strip())) is not None}

    def region(self, first: str, last: str) -> set[int]:
        """Return the nodes from one layer to another in the graph's order; one of them if the other is not known."""
        ends = [place for place in map(self.place, (first, last)) if place is not None]
        return set(range(min(ends), max(ends) + 1)) if ends else set()


def read_layers(layers: Sequence[Plain | str], origins: Origins) -> list[Found]:
    """Return the layers in the inspector's JSON, which holds names alone without detailed verbosity.

    The name of a region has its first and last layer. A node between them that another layer names
    is that layer's.

    Returns:
        Of each layer ``name``, ``kind``, ``precisions``, ``tensors`` (of its nodes), ``tactic`` and
        ``formats``.
    """
    entries: list[Plain] = [
        {"Name": layer} if isinstance(layer, str) else layer for layer in layers
    ]
    named = [origins.named(entry) for entry in entries]
    claimed = set().union(*named)
    result = []
    for entry, named_nodes in zip(entries, named, strict=True):
        spans = [origins.region(first, last) for first, last in _REGION.findall(str(entry["Name"]))]
        # A region spans all nodes between its ends, except those that other layers name.
        nodes = sorted(named_nodes | (set().union(*spans) - claimed))
        output_formats = [
            str(output.get("Format/Datatype", "")) for output in entry.get("Outputs", [])
        ]
        tactic = [
            str(entry[key])
            for key in ("TacticValue", "TacticName")
            if entry.get(key) not in (None, "")
        ]
        ends = [end for side in ("Inputs", "Outputs") for end in entry.get(side, [])]
        result.append(
            {
                "name": str(entry["Name"]),
                "kind": str(entry.get("LayerType", "")),
                "precisions": list(dict.fromkeys(map(_precision, output_formats))),
                "tensors": [name for place in nodes for name in origins.tensors(place)],
                "tactic": " ".join(tactic) or None,
                "formats": [str(end.get("Format/Datatype", end.get("Format", ""))) for end in ends],
            }
        )
    return result


def layers_of_network(parsed: ParsedNetwork) -> list[Found]:
    """Return the layers of a network, as :func:`read_layers` does for an engine."""
    origins = Origins(parsed.nodes)
    result = []
    for layer, place in zip(parsed.layers(), parsed.places(), strict=True):
        outputs = [layer.get_output(index) for index in range(layer.num_outputs)]
        kinds = [
            DTYPES.get(output.dtype.name, output.dtype.name.lower())
            for output in outputs
            if output is not None
        ]
        tensors = [] if place is None else origins.tensors(place)
        kind = str(layer.type).rpartition(".")[2]
        precisions = list(dict.fromkeys(kinds))
        result.append(
            {"name": layer.name, "kind": kind, "precisions": precisions, "tensors": tensors}
        )
    return result


def _precision(text: str) -> str:
    """Return ``float32`` for ``Row major linear FP32``."""
    return next(
        (kind for words, kind in _FORMATS.items() if re.search(rf"\b({words})\b", text)), text
    )


def inspect_engine(trt: Any, engine: Any) -> str:
    """Return what the engine inspector reports, as JSON."""
    return str(
        engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    )


def layers_in(inspected: str, origins: Origins) -> list[Found]:
    """Return the layers of what :func:`inspect_engine` returned; none if it cannot be read, which is no failure of the model."""
    try:
        return read_layers(json.loads(inspected, strict=False).get("Layers", []), origins)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        print(f"TensorRT: the engine inspector's report cannot be read ({error!r})", flush=True)
        return []


def fused_nodes(listed: str, parsed: ParsedNetwork) -> list[Found]:
    """Return the layers that a build logged, or that the inspector reports, with the ONNX nodes of each.

    A node in a body is named without the nodes around it.

    Returns:
        Of each layer that runs nodes ``kind``, ``tactic``, and the names of its ``nodes``, sorted.
    """
    entries = [
        {"Name": name, "LayerType": kind, "TacticName": tactic or "", "Metadata": origins or ""}
        for name, kind, tactic, origins in _LOGGED.findall(listed)
    ]
    if not entries:
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
            # The keys differ between releases, and without detailed verbosity layers are plain
            # names.
            entries = json.loads(listed, strict=False)["Layers"]
    origins = Origins.of(parsed)
    result = []
    for entry in entries:
        layer, *_ = read_layers([entry], origins)
        paths = [path.split(" | ") for path in _METADATA.findall(str(dict(entry).get("Metadata")))]
        # The metadata of a node in a body has the If or the Loop around it too.
        around = {outer.rpartition(" (")[0] for path in paths for outer in path[1:]}
        named = {path[0] for path in paths} or {
            node[0] for node in parsed.nodes if {*node[1]} & {*layer["tensors"]}
        }
        if named - around:
            layer = {"kind": layer["kind"], "tactic": layer["tactic"]}
            result.append({**layer, "nodes": sorted(named - around)})
    return result


def describe_engine(trt: Any, engine: Any) -> Found:
    """Return the inputs, outputs and layers of an engine.

    Returns:
        ``version`` of TensorRT; ``inputs`` and ``outputs``, each with ``name``, ``dtype``,
        ``shape`` (-1 where it varies) and, of inputs that vary, the smallest, usual and largest
        shape of each of the ``profiles``; ``layers`` in the order they run, as :func:`read_layers`
        returns them.
    """
    tensors: dict[str, list[Found]] = {"INPUT": [], "OUTPUT": []}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        shape = [int(dim) for dim in engine.get_tensor_shape(name)]
        plain = {
            "name": name,
            "dtype": to_dtype(engine.get_tensor_dtype(name)).name,
            "shape": shape,
        }
        mode = str(engine.get_tensor_mode(name).name)
        if mode == "INPUT" and -1 in shape:
            ranges = [
                engine.get_tensor_profile_shape(name, place)
                for place in range(engine.num_optimization_profiles)
            ]
            plain["profiles"] = [
                [[int(dim) for dim in dims] for dims in shapes] for shapes in ranges
            ]
        tensors[mode].append(plain)
    layers = layers_in(inspect_engine(trt, engine), Origins())
    ends = {"inputs": tensors["INPUT"], "outputs": tensors["OUTPUT"]}
    return {"version": str(trt.__version__), **ends, "layers": layers}


_ALIGNMENT = 256
"""Bytes that the address of every tensor is a multiple of."""


@dataclass
class Built:
    """A serialised engine, the network that it was built of, and the timing cache, if any.

    The recorded tactics that layers took: name, ``LAYER=TACTIC``, the number of choices. The options
    that the compiler ignored, with its reasons.
    """

    plan: Any
    parsed: ParsedNetwork
    took: list[list[Any]]
    timings: Any
    ignored: Mapping[str, str] = field(default_factory=dict)


class TrtSession:
    """An engine with its execution context; see :class:`~bisect_trt.targets.runtime.RuntimeSession`.

    Attributes:
        ran_s: Seconds of the last run on the GPU, without copies, between two CUDA events.
    """

    def __init__(
        self, process: TensorRt, engine: Any, types: Mapping[str, str], built: Built | None = None
    ) -> None:
        """Make an execution context.

        Args:
            process: This process's TensorRT.
            engine: A deserialised engine.
            types: NumPy's types of the model's outputs; TensorRT computes int64 as int32 before 10.
            built: The build that made it; ``None`` if it is prebuilt.

        Raises:
            RunError: There is no execution context.
        """
        self.engine = engine
        self.skipped = {} if built is None else built.parsed.skipped
        self._trt = process.trt
        self._log = process.log
        self._cuda = process.cuda
        self._types = types
        # Nothing else of the build is kept: its network has all weights.
        self._origins = None if built is None else Origins.of(built.parsed)
        self._took = [] if built is None else built.took
        self.ran_s = 0.0
        self._debugged: Found = {}
        self._log.errors.clear()
        self._context = engine.create_execution_context()
        if self._context is None:
            raise self._log.failure(RunError, "no execution context could be made")
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        self._inputs = [
            name for name in names if engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT
        ]
        self._outputs = [name for name in names if name not in self._inputs]
        self.inputs = [
            TensorInfo(
                name,
                self._dtype(name),
                tuple(None if dim < 0 else dim for dim in engine.get_tensor_shape(name)),
            )
            for name in self._inputs
        ]

    def layers(self) -> list[Found]:
        """Return the engine's layers in the order they run, with the tactics that can be pinned where those were recorded."""
        if self._origins is None:
            return []
        inspected = layers_in(inspect_engine(self._trt, self.engine), self._origins)
        # The selector knows tactics that can be pinned, the inspector what they run; neither
        # knows both.
        took = {
            name: {"tactic": chosen[len(name) + 1 :], "pins": count > 1}
            for name, chosen, count in self._took
        }
        plain: Found = {"kind": "", "precisions": [], "tensors": []}
        recorded = [{"name": name, **plain, **chosen} for name, chosen in took.items()]
        inspected_names = {layer["name"] for layer in inspected}
        return [{**layer, **took.get(layer["name"], {})} for layer in inspected] + [
            layer for layer in recorded if layer["name"] not in inspected_names
        ]

    def listen(self) -> None:
        """From now on also return the tensors that the compiler has kept; see :func:`make_listener`."""
        # The context does not hold the listener.
        self._listener = make_listener(self._trt, self._cuda, self._debugged)
        self._context.set_debug_listener(self._listener)
        self._context.unfused_tensors_debug_state = True

    def _dtype(self, name: str) -> Any:
        return to_dtype(self.engine.get_tensor_dtype(name))

    def run(self, inputs: Feed) -> Found:
        """Return all outputs, by name.

        Raises:
            RunError: It fails, or an input does not fit.
        """
        fitted = {name: self._fitted(name, inputs) for name in self._inputs}
        for name, value in fitted.items():
            if self._context.set_input_shape(name, value.shape) is False:
                raise self._log.failure(
                    RunError, f"the engine does not take the shape {list(value.shape)} of '{name}'"
                )
        self._debugged.clear()
        outputs = self._execute(fitted)
        for name in self._types.keys() & outputs.keys():
            # Engines widen integers and booleans at their ends; the model's types are compared.
            outputs[name] = outputs[name].astype(dtype_from_name(self._types[name]), copy=False)
        return {**self._debugged, **{name: outputs[name] for name in self._outputs}}

    def profile(self, inputs: Feed) -> Found:
        """Return the time of each layer."""
        times = dict[str, list[float]]()
        report = {"report_layer_time": lambda _, name, ms: times.setdefault(name, []).append(ms)}
        self._context.profiler = type("Profiler", (self._trt.IProfiler,), report)()
        profiled(lambda: self.run(inputs))
        return layer_times(times, {layer["name"]: layer["tensors"] for layer in self.layers()})

    def _execute(self, inputs: Feed) -> Found:
        """Return the outputs as the engine makes them."""
        context = self._context
        cuda = self._cuda
        # An output whose size is not known before it runs reports it, and gets its memory then.
        shapes = {name: tuple(context.get_tensor_shape(name)) for name in self._outputs}
        grown = {
            name: make_allocator(self._trt, cuda)
            for name, shape in shapes.items()
            if min(shape, default=0) < 0
        }
        outputs = {
            name: np.empty(shapes[name], self._dtype(name)) for name in shapes if name not in grown
        }
        arrays = {**inputs, **outputs}
        on_host = self._trt.TensorLocation.HOST
        on_gpu = [name for name in arrays if self.engine.get_tensor_location(name) != on_host]
        with self._memory(
            {name: arrays[name].nbytes for name in on_gpu}, grown.values()
        ) as addresses:
            for name, array in arrays.items():
                context.set_tensor_address(name, addresses.get(name, array.ctypes.data))
            for name in [name for name in on_gpu if name in inputs]:
                cuda.upload(addresses[name], inputs[name])
            for name, allocator in grown.items():
                context.set_output_allocator(name, allocator)
            self._log.errors.clear()
            cuda.record(0)
            if not context.execute_async_v3(cuda.stream):
                raise self._log.failure(RunError, "the engine does not run and gives no reason")
            cuda.record(1)
            cuda.synchronize()
            self.ran_s = cuda.elapsed()
            for name in [name for name in on_gpu if name in outputs]:
                outputs[name] = cuda.download(
                    addresses[name], outputs[name].dtype, outputs[name].shape
                )
            late = {
                name: cuda.download(a.address, self._dtype(name), a.shape)
                for name, a in grown.items()
            }
        return {**outputs, **late}

    def _fitted(self, name: str, inputs: Feed) -> Any:
        """Return an input, contiguous and of the type that the engine takes."""
        if name not in inputs:
            raise RunError(f"the engine wants an input '{name}', and there is none of that name")
        value = inputs[name]
        dtype = self._dtype(name)
        if value.dtype != dtype:
            fitted = value.astype(dtype)
            if value.dtype.kind in "iu" and not np.array_equal(fitted, value):
                raise RunError(
                    f"the input '{name}' holds values past {dtype.name}, which TensorRT takes"
                )
            value = fitted
        return np.ascontiguousarray(value).reshape(value.shape)

    @contextlib.contextmanager
    def _memory(self, sizes: Mapping[str, int], allocators: Any) -> Iterator[dict[str, int]]:
        """Lend GPU memory for some tensors in one piece; take it back, and what allocators have taken."""
        offsets = {}
        end = 0
        for name, size in sizes.items():
            # Aligned: vectorised kernels read whole blocks from the address of a tensor.
            offsets[name] = end
            end += -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
        base = self._cuda.malloc(end)
        try:
            yield {name: base + offset for name, offset in offsets.items()}
        finally:
            for allocator in allocators:
                allocator.release()
            self._cuda.free(base)


def make_allocator(trt: Any, cuda: Cuda) -> Any:
    """Return an ``IOutputAllocator``: memory for an output of a size that depends on the input values."""
    base: Any = trt.IOutputAllocator

    class Allocator(base):  # type: ignore[misc]  # TensorRT ships no types
        def __init__(self) -> None:
            base.__init__(self)
            self.address = self.size = 0
            self.shape: Sizes = ()

        def reallocate_output(self, name: str, memory: int, size: int, alignment: int) -> int:
            # TensorRT may ask again for more within one run; a smaller request needs no new memory.
            if size > self.size or not self.address:
                self.release()
                self.address = cuda.malloc(size)
                self.size = size
            return self.address

        def reallocate_output_async(
            self, name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, name: str, shape: Any) -> None:
            self.shape = tuple(shape)

        def release(self) -> None:
            if self.address:
                cuda.free(self.address)
            self.address = self.size = 0

    return Allocator()


def make_listener(trt: Any, cuda: Cuda, arrays: Found) -> Any:
    """Return an ``IDebugListener`` that copies the tensors that it hears of.

    Args:
        trt: The module.
        cuda: The CUDA runtime.
        arrays: Gets them by the compiler's names, which are the model's where it has not renamed them.
    """
    base: Any = trt.IDebugListener

    class Listener(base):  # type: ignore[misc]  # TensorRT ships no types
        def __init__(self) -> None:
            base.__init__(self)

        def process_debug_tensor(
            self, address: int, location: Any, kind: Any, shape: Any, name: str, stream: int
        ) -> bool:
            dtype = to_dtype(kind)
            if location == trt.TensorLocation.HOST:
                array = np.empty(tuple(shape), dtype)
                ctypes.memmove(array.ctypes.data, address, array.nbytes)
            else:
                # On the engine's stream, so after the kernel that makes the tensor.
                array = cuda.download(address, dtype, tuple(shape))
            arrays[name] = array
            return True

    return Listener()
