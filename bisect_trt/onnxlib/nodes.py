"""Nodes and graphs as ONNX's messages: walks, reads, small edits in place, and a node's origin in the exported program.

PyTorch's exporter writes the origin (module path, class, source line) into a node's
``metadata_props``: the keys ``pkg.torch.onnx.name_scopes``, ``pkg.torch.onnx.class_hierarchy`` and
``pkg.torch.onnx.stack_trace``, in older releases ``namespace`` alone. The TorchScript exporter puts
the path into the node's name, ``/encoder/layers.0/norm/Pow``.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, numpy_helper

DEFAULT_DOMAINS = ("", "ai.onnx")
"""The names of ONNX's own domain."""
IR_WITHOUT_INITIALIZER_INPUTS = 4
"""Before IR version 4 every initializer has to be listed among the graph's inputs."""
QUANTIZE = "QuantizeLinear"
DEQUANTIZE = "DequantizeLinear"
_DOMAINS = ("", "ai.onnx", "com.microsoft")
"""ONNX Runtime's domain has the two operators for types that older operator sets lack."""
Types = Mapping[str, int]
"""ONNX's element types (``TensorProto.DataType``) by tensor."""
_M = TypeVar("_M", bound=Message)
_HELD = {
    "value_float": onnx.AttributeProto.FLOAT,
    "value_floats": onnx.AttributeProto.FLOATS,
    "value_int": onnx.AttributeProto.INT,
    "value_ints": onnx.AttributeProto.INTS,
}
"""Attributes of numbers that a Constant may have since opset 12."""


def clone(message: _M) -> _M:
    """Return a copy of a message."""
    copy: _M = type(message)()
    copy.CopyFrom(message)
    return copy


def keep_only(field: Any, entries: Iterable[Any]) -> None:  # noqa: ANN401 - protobuf's containers have no common type
    """Make these the only entries of a repeated field; they may be its own."""
    selected = list(entries)
    if len(selected) != len(field) or any(
        selected_entry is not current
        for selected_entry, current in zip(selected, field, strict=True)
    ):
        del field[:]
        field.extend(selected)


def drop(field: Any, names: Collection[str]) -> None:  # noqa: ANN401 - as above
    """Remove the entries with these names from a repeated field."""
    keep_only(field, [entry for entry in field if entry.name not in names])


def add_initializers(model: onnx.ModelProto, tensors: Iterable[TensorProto]) -> None:
    """Store weights in a model; in an old IR version they become inputs too."""
    for tensor in tensors:
        model.graph.initializer.append(tensor)
        if model.ir_version < IR_WITHOUT_INITIALIZER_INPUTS:
            model.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node: branches of an If, bodies of Loop and Scan."""
    for parameter in node.attribute:
        if parameter.HasField("g"):
            yield parameter.g
        yield from parameter.graphs


def inner_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield these nodes and the nodes of their bodies; without recursion, since bodies may be nested deeply."""
    waiting = [iter(nodes)]
    while waiting:
        for node in waiting.pop():
            yield node
            waiting += [iter(body.node) for body in bodies(node)]


def is_quantize(node: onnx.NodeProto) -> bool:
    """Return whether a node is a QuantizeLinear."""
    return node.op_type == QUANTIZE and node.domain in _DOMAINS


def is_dequantize(node: onnx.NodeProto) -> bool:
    """Return whether a node is a DequantizeLinear."""
    return node.op_type == DEQUANTIZE and node.domain in _DOMAINS


def is_end(node: onnx.NodeProto) -> bool:
    """Return whether a node quantizes or dequantizes."""
    return is_quantize(node) or is_dequantize(node)


def opset_of(model: onnx.ModelProto) -> int | None:
    """Return the opset of ONNX's own domain; ``None`` if the model has only others."""
    return next(
        (int(opset.version) for opset in model.opset_import if opset.domain in DEFAULT_DOMAINS),
        None,
    )


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, its functions and its bodies."""
    yield from inner_nodes(model.graph.node)
    for function in model.functions:
        yield from inner_nodes(function.node)


def function_key(message: onnx.NodeProto | onnx.FunctionProto) -> tuple[str, str, str]:
    """Return domain, name and overload of a function, or of the function that a node calls."""
    name = message.op_type if isinstance(message, onnx.NodeProto) else message.name
    # Functions have overloads since IR version 10.
    return message.domain, name, str(getattr(message, "overload", ""))


def share_names(model: onnx.ModelProto) -> bool:
    """Return whether two nodes of the graph have one name, which ONNX Runtime refuses and TensorRT takes."""
    names = [node.name for node in model.graph.node if node.name]
    return len(set(names)) < len(names)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, those that its bodies capture included; no empty names."""
    yield from (name for name in node.input if name)
    for body in bodies(node):
        local = defined_names(body)
        for inner in body.node:
            yield from (name for name in reads(inner) if name not in local)
        yield from (value.name for value in body.output if value.name not in local)


def defined_names(body: onnx.GraphProto) -> set[str]:
    """Return the tensors that a body defines."""
    names = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    return names | {name for inner in body.node for name in inner.output}


def captured_names(node: onnx.NodeProto) -> set[str]:
    """Return all tensor names in a node's bodies: those they capture and their own."""
    return {name for body in bodies(node) for name in mentioned_names(body)}


def mentioned_names(graph: onnx.GraphProto) -> set[str]:
    """Return every tensor name in a graph and in the bodies within it."""
    names = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        names.update(node.input, node.output, captured_names(node))
    return names - {""}


def rename_reads(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Return a copy of a node that reads other tensors, in its bodies too."""
    new = clone(node)
    new.input[:] = [names.get(name, name) for name in node.input]
    for body in bodies(new):
        local = defined_names(body)
        # A body's own tensor of that name is another one.
        outer = {name: new_name for name, new_name in names.items() if name not in local}
        keep_only(body.node, [rename_reads(inner, outer) for inner in body.node])
        for value in body.output:
            value.name = outer.get(value.name, value.name)
    return new


def last_alias(aliases: Mapping[str, str], name: str) -> str:
    """Return the end of a chain of aliases that begins with a name."""
    while name in aliases:
        name = aliases[name]
    return name


def free_name(stem: str, used: Collection[str]) -> str:
    """Return an unused name: the stem, with a number appended if needed."""
    numbered = (f"{stem}_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([stem], numbered) if name not in used)


def label(node: onnx.NodeProto) -> str:
    """Return a node's name for messages: its own, or its first output's."""
    return node.name or first_output(node) or "?"


def first_output(node: onnx.NodeProto) -> str:
    """Return the name of a node's first output, which identifies it: ONNX lets node names be empty."""
    return next(filter(None, node.output), "")


def addressed(graph: onnx.GraphProto, path: str = "") -> Iterator[tuple[str, onnx.NodeProto]]:
    """Yield each node of a graph and of its bodies with its address.

    An address is the first outputs of the nodes around and of the node, with slashes between.
    """
    for node in graph.node:
        yield path + first_output(node), node
        for body in bodies(node):
            yield from addressed(body, f"{path}{first_output(node)}/")


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:  # noqa: ANN401 - of many types
    """Return the value of an attribute, bytes for a string; the default for a value of another type or a function's parameter.

    Args:
        node: The node.
        name: The name of the attribute.
        default: The value if it is missing; its type is the one to accept.
    """
    matches = (
        parameter
        for parameter in node.attribute
        if parameter.name == name and parameter.type and not parameter.ref_attr_name
    )
    value = next(map(onnx.helper.get_attribute_value, matches), default)
    return value if default is None or isinstance(value, type(default)) else default


def held(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the tensor of a Constant; ``None`` for other nodes, and for text and sparse tensors."""
    if node.op_type != "Constant" or node.domain not in DEFAULT_DOMAINS:
        return None
    for parameter in node.attribute:
        if parameter.name == "value" and parameter.HasField("t"):
            tensor: onnx.TensorProto = parameter.t
            return tensor
        if (
            parameter.name in _HELD
            and parameter.type == _HELD[parameter.name]
            and not parameter.ref_attr_name
        ):
            kind = np.float32 if "float" in parameter.name else np.int64
            return numpy_helper.from_array(
                np.array(onnx.helper.get_attribute_value(parameter), kind)
            )
    return None


_RANDOM = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
    }
)
_TRAINING_MODE = 2
"""The input of Dropout that enables it, from opset 12 on; it is disabled by default."""


def drawing_nodes(model: onnx.ModelProto) -> list[int]:
    """Return the nodes that draw random numbers, by number, those that do in a body or a function too.

    A Dropout does unless its training mode is known to be off.
    """
    # Deferred, because it reads all constants and few models have a Dropout.
    switched_off = cache(partial(_false_constants, model))

    def draws(node: onnx.NodeProto) -> bool:
        flags = node.input[_TRAINING_MODE:] if node.op_type == "Dropout" else ()
        return node.op_type in _RANDOM or any(name and name not in switched_off() for name in flags)

    has_one = containing(model, draws)
    return [index for index, node in enumerate(model.graph.node) if has_one([node])]


def containing(
    model: onnx.ModelProto, wanted: Callable[[onnx.NodeProto], bool]
) -> Callable[[Iterable[onnx.NodeProto]], bool]:
    """Return a function: whether some nodes of a model have a wanted one among them, in a body, or in a function they call."""
    functions: set[tuple[str, str, str]] = set()

    def has_one(nodes: Iterable[onnx.NodeProto]) -> bool:
        return any(wanted(node) or function_key(node) in functions for node in inner_nodes(nodes))

    # Functions call functions, so callers of callers are added until none is new.
    while (
        callers := {
            function_key(function) for function in model.functions if has_one(function.node)
        }
        - functions
    ):
        functions |= callers
    return has_one


def _false_constants(model: onnx.ModelProto) -> set[str]:
    constants = (
        (node.output[0], tensor) for node in all_nodes(model) if (tensor := held(node)) is not None
    )
    stored = [
        *((tensor.name, tensor) for tensor in model.graph.initializer if not tensor.external_data),
        *constants,
    ]
    flags = {name: tensor for name, tensor in stored if tensor.data_type == TensorProto.BOOL}
    return {name for name, tensor in flags.items() if not numpy_helper.to_array(tensor).any()}


PACKAGE = "pkg.torch.onnx."
"""The prefix of the keys of PyTorch's exporter."""
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)
INSIDE_TORCH = re.compile(
    r"(?:site|dist)-packages[\\/](?:torch|onnxscript)[\\/]|[\\/]torch[\\/](?:nn|onnx|jit|export|_\w+)[\\/]"
)
"""Frames of PyTorch's own layers, which are skipped."""
_TEXT_LIMIT = 1 << 16
"""The longest text that is read; exporters write less."""


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """The module of PyTorch that a node was exported from.

    Attributes:
        path: From the model's root, as ``get_submodule`` takes it, and empty for the root.
        cls: ``package.module.Class``, where known.
        source: ``file:line`` of the model's code, where known.
    """

    path: str
    cls: str | None = msgspec.field(default=None, name="class")
    source: str | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of the model, as a result has it."""

    name: str
    op: str
    outputs: tuple[str, ...]
    module: Module | None = None


def module_of(node: onnx.NodeProto) -> Module | None:
    """Return the origin of a node, if its file names it."""
    entries = {
        entry.key: entry.value for entry in node.metadata_props if len(entry.value) <= _TEXT_LIMIT
    }
    scopes = _scopes(entries)
    if scopes is not None:
        source = _innermost(entries.get(f"{PACKAGE}stack_trace", ""))
        return Module(path=scopes[0], cls=scopes[1], source=source)
    path = _path_of(node)
    return None if path is None else Module(path=path)


def describe_module(module: Module) -> str:
    """Return what :func:`module_of` returns as text: ``model.norm (RMSNorm), net.py:7``."""
    words = module.path or "the root"
    source = module.source
    if module.cls:
        words += f" ({module.cls.rpartition('.')[2]})"
    if source and Path(source).is_relative_to(Path.cwd()):
        source = str(Path(source).relative_to(Path.cwd()))
    return f"{words}, {source}" if source else words


def in_module(node: Node) -> str:
    """Return the module of a result's node as text, `` in module model.norm (RMSNorm), net.py:7``; empty without its class."""
    module = node.module
    traced = module is not None and (module.cls or module.source)
    return f" in module {describe_module(module)}" if module is not None and traced else ""


def _scopes(entries: Mapping[str, str]) -> tuple[str, str | None] | None:
    """Return path and class of the innermost module: the last of the scopes is the node's own operator."""
    scopes = _texts(entries.get(f"{PACKAGE}name_scopes"))
    kinds = _texts(entries.get(f"{PACKAGE}class_hierarchy"))
    if scopes is None and "namespace" in entries:
        pairs = [part.partition(": ") for part in entries["namespace"].split("/")]
        scopes = [name.strip() for name, _, _ in pairs]
        kinds = [kind.strip() for _, _, kind in pairs]
    if not scopes:
        return None
    # An operator of the root, or a node of an optimizer.
    if len(scopes) == 1:
        return "", None
    kind = kinds[-2] if kinds is not None and len(kinds) == len(scopes) else None
    # Strict export writes ``L['self'].blocks[0].norm`` for ``blocks.0.norm``.
    path = re.sub(r"^L\[['\"]self['\"]\]\.?", "", scopes[-2])
    path = re.sub(r"(?:^|\.)_modules\[['\"]([^'\"]+)['\"]\]", r".\1", path)
    path = re.sub(r"\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", path)
    return re.sub(r"@\d+$", "", path).strip("."), kind or None


def _texts(entries: str | None) -> list[str] | None:
    """Return the list of strings in a Python literal."""
    try:
        value = ast.literal_eval(entries) if entries else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return [str(item) for item in value] if isinstance(value, list | tuple) else None


def _path_of(node: onnx.NodeProto) -> str | None:
    """Return the path at the start of the name of a TorchScript exporter's node."""
    name = next((name for name in (node.name, *node.output[:1]) if name.startswith("/")), "")
    parts: list[str] = []
    for scope in name.strip("/").split("/")[:-1]:
        # A child of a Sequential has the Sequential's name before its own.
        if parts and scope.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(scope)
    return ".".join(parts) or None


def _innermost(trace: str) -> str | None:
    """Return the model's line of a stack trace with its innermost frame last."""
    frames = [f"{match['file']}:{match['line']}" for match in _FRAME.finditer(trace)][::-1]
    return next(
        (frame for frame in frames if not INSIDE_TORCH.search(frame)), frames[0] if frames else None
    )
