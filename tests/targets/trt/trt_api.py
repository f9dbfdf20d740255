"""What three versions of TensorRT have, as read from their own bindings, and what the adapter uses of it.

``api/VERSION.json`` lists each public class with its members or its enumeration's entries, and each public function.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ADAPTER = Path(__file__).parents[3] / "bisect_trt" / "targets" / "trt"
VERSIONS = ("8.6.0", "10.16.1.11", "11.4.0.106")
OLD, WEAK, STRONG = VERSIONS
"""The last without strong typing; the last with weak typing beside it; one with nothing but strong typing."""
MODULE = "the module"
OURS = "TensorRt"
"""The class of ``targets/trt/api.py`` that holds what a process has of TensorRT."""

BRANCHES: Mapping[str, tuple[str, ...]] = {
    "ILayer.precision": (OLD, WEAK),
    "ILayer.set_output_type": (OLD, WEAK),
    "ILayer.precision_is_set": (OLD, WEAK),
    "ILayer.reset_precision": (OLD, WEAK),
    "ILayer.output_type_is_set": (OLD, WEAK),
    "ILayer.get_output_type": (OLD, WEAK),
    "ILayer.reset_output_type": (OLD, WEAK),
    "NetworkDefinitionCreationFlag.EXPLICIT_BATCH": (OLD, WEAK),
    "NetworkDefinitionCreationFlag.STRONGLY_TYPED": (WEAK, STRONG),
    "BuilderFlag.FP16": (OLD, WEAK),
    "BuilderFlag.BF16": (WEAK,),
    "BuilderFlag.FP8": (OLD, WEAK),
    "DataType.BF16": (WEAK, STRONG),
    "BuilderFlag.INT8": (OLD, WEAK),
    "IBuilderConfig.int8_calibrator": (OLD, WEAK),
    "IInt8EntropyCalibrator2": (OLD, WEAK),
    "IInt8EntropyCalibrator2.get_batch_size": (OLD, WEAK),
    "IInt8EntropyCalibrator2.get_batch": (OLD, WEAK),
    "IInt8EntropyCalibrator2.read_calibration_cache": (OLD, WEAK),
    "IInt8EntropyCalibrator2.write_calibration_cache": (OLD, WEAK),
    "BuilderFlag.OBEY_PRECISION_CONSTRAINTS": (OLD, WEAK),
    "BuilderFlag.PREFER_PRECISION_CONSTRAINTS": (OLD, WEAK),
    "INetworkDefinition.mark_debug": (WEAK, STRONG),
    "INetworkDefinition.mark_unfused_tensors_as_debug_tensors": (WEAK, STRONG),
    "IExecutionContext.set_debug_listener": (WEAK, STRONG),
    "IExecutionContext.set_all_tensors_debug_state": (WEAK, STRONG),
    "IExecutionContext.unfused_tensors_debug_state": (WEAK, STRONG),
    "IDebugListener": (WEAK, STRONG),
    "IDebugListener.process_debug_tensor": (WEAK, STRONG),
    "ParserError.node_name": (WEAK, STRONG),
    "ParserError.node_operator": (WEAK, STRONG),
    "ParserError.local_function_stack": (WEAK, STRONG),
    "BuilderFlag.EDITABLE_TIMING_CACHE": (WEAK, STRONG),
    "ITimingCache.query": (WEAK, STRONG),
    "ITimingCache.update": (WEAK, STRONG),
    "TimingCacheKey": (WEAK, STRONG),
    "TimingCacheKey.parse": (WEAK, STRONG),
    "TimingCacheValue": (WEAK, STRONG),
    "TimingCacheValue.tacticHash": (WEAK, STRONG),
    "IBuilderConfig.all_build_routes": (STRONG,),
    "IBuilderConfig.clear_quantization_flag": (OLD, WEAK),
    "BuilderFlag.ERROR_ON_TIMING_CACHE_MISS": (WEAK, STRONG),
    "OnnxParser.set_flag": (WEAK, STRONG),
    "OnnxParser.clear_flag": (WEAK, STRONG),
    "ICudaEngine.streamable_weights_size": (WEAK, STRONG),
    "ICudaEngine.get_weight_streaming_automatic_budget": (WEAK, STRONG),
    "ICudaEngine.weight_streaming_budget_v2": (WEAK, STRONG),
    "Runtime.dla_workspace_allocation_strategy": (STRONG,),
    "ExecutionContextAllocationStrategy": (WEAK, STRONG),
    "ExecutionContextAllocationStrategy.ON_PROFILE_CHANGE": (WEAK, STRONG),
    "ExecutionContextAllocationStrategy.USER_MANAGED": (WEAK, STRONG),
    "IExecutionContext.update_device_memory_size_for_shapes": (WEAK, STRONG),
    "IExecutionContext.set_device_memory": (WEAK, STRONG),
    "IAlgorithmContext.num_inputs": (OLD, WEAK),
    "IAlgorithm.get_algorithm_io_info": (OLD, WEAK),
    "IAlgorithmSelector": (OLD, WEAK),
    "IAlgorithmSelector.select_algorithms": (OLD, WEAK),
    "IBuilderConfig.algorithm_selector": (OLD, WEAK),
    "IBuilderConfig.set_quantization_flag": (OLD, WEAK),
}
"""Names that only some versions have: those whose branch of the adapter uses them. All others are used on each."""

DYNAMIC: Mapping[str, tuple[str, ...]] = {
    "getattr(trt.BuilderFlag, name.upper())": ("TF32", "FP16", "BF16", "FP8", "INT8"),
    "getattr(tensorrt.trt.BuilderFlag, f'{wanted.upper()}_PRECISION_CONSTRAINTS')": (
        "OBEY_PRECISION_CONSTRAINTS",
        "PREFER_PRECISION_CONSTRAINTS",
    ),
    "tensorrt.has('BuilderFlag', name.upper())": ("TF32", "FP16", "BF16", "FP8", "INT8"),
    "getattr(self.trt, enum, None)": (),
    "hasattr(config, name)": (),
}
"""Names that are put together when the adapter runs: what can come out of each expression."""

VIRTUAL: Mapping[str, tuple[str, ...]] = {
    "ILogger": ("__init__", "log"),
    "IOutputAllocator": ("__init__", "reallocate_output", "reallocate_output_async", "notify_shape"),
    "IDebugListener": ("__init__", "process_debug_tensor"),
    "IAlgorithmSelector": ("__init__", "select_algorithms", "report_algorithms"),
    "IInt8EntropyCalibrator": ("__init__",),
    "IInt8MinMaxCalibrator": ("__init__",),
    "IInt8LegacyCalibrator": ("__init__",),
    "IInt8EntropyCalibrator2": (
        "__init__",
        "get_batch_size",
        "get_batch",
        "read_calibration_cache",
        "write_calibration_cache",
    ),
}
"""What Python classes override: bindings from 10 on do not list that. ``reallocate_output_async`` came with 10."""

VARIABLES: Mapping[str, str] = {
    "tensorrt": OURS,
    "_tensorrt": OURS,
    "network": "INetworkDefinition",
    "config": "IBuilderConfig",
    "parser": "OnnxParser",
    "_parser": "OnnxParser",
    "engine": "ICudaEngine",
    "_engine": "ICudaEngine",
    "context": "IExecutionContext",
    "_context": "IExecutionContext",
    "inspector": "EngineInspector",
    "layer": "ILayer",
    "tensor": "ITensor",
    "profile": "IOptimizationProfile",
    "timing_cache": "ITimingCache",
    "builder": "Builder",
    "runtime": "Runtime",
}
"""What a variable or an attribute of this name is, where its assignment does not tell."""

NOT_TENSORRTS = {("inspect.py", "layer")}
"""Variables of these names that are something of our own."""

UNTYPED: Mapping[str, Mapping[str, str]] = {
    "trt": {"api.py": MODULE},
    "library": {},
    "module": {},
    "enum": {},
    "logger": {},
    "shape": {},
    "severity": {},
    "addr": {},
    "location": {},
    "type": {},
    "pointer": {},
    "kind": {},
    "precision": {},
    "names": {},
    "avoided": {},
    "base": {},
    "pinned": {},
    "where": {},
    "recorder": {},
    "choice": {},
    "choices": {},
    "contexts": {},
}
"""Other parameters of type ``Any``: what they are, in the files where they are TensorRT's."""

FIELDS: Mapping[str, Mapping[str, str]] = {
    OURS: {"trt": MODULE, "builder": "Builder", "runtime": "Runtime"},
}
RETURNS: Mapping[str, str] = {
    f"{OURS}.parser": "OnnxParser",
    "Builder.create_builder_config": "IBuilderConfig",
    "Builder.create_network": "INetworkDefinition",
    "Builder.create_optimization_profile": "IOptimizationProfile",
    "IBuilderConfig.create_timing_cache": "ITimingCache",
    "IBuilderConfig.get_timing_cache": "ITimingCache",
    "INetworkDefinition.get_layer": "ILayer",
    "INetworkDefinition.get_input": "ITensor",
    "INetworkDefinition.get_output": "ITensor",
    "ILayer.get_input": "ITensor",
    "ILayer.get_output": "ITensor",
    "OnnxParser.get_error": "ParserError",
    "Runtime.deserialize_cuda_engine": "ICudaEngine",
    "Runtime.load_runtime": "Runtime",
    "ICudaEngine.create_execution_context": "IExecutionContext",
    "ICudaEngine.create_engine_inspector": "EngineInspector",
}
"""What TensorRT's methods give."""

_PYTHONS_OWN = {"__version__", "__members__", "__init__", "name", "__name__"}


@dataclass(frozen=True)
class Api:
    """One version's names: of each class or enumeration its members; of a function nothing."""

    version: str
    names: Mapping[str, frozenset[str]]
    enums: frozenset[str]

    @classmethod
    def read(cls, version: str) -> Api:
        plain = json.loads((Path(__file__).parent / "api" / f"{version}.json").read_text())["names"]
        names = {name: frozenset(entry.get("enum") or entry.get("members") or ()) for name, entry in plain.items()}
        return cls(version, names, frozenset(name for name, entry in plain.items() if "enum" in entry))

    def has(self, use: str) -> bool:
        """Whether it has ``Name`` or ``Name.member``."""
        name, _, member = use.partition(".")
        if name not in self.names:
            return False
        if not member or member in self.names[name] or member in VIRTUAL.get(name, ()):
            return True
        return member in _PYTHONS_OWN and (name in self.enums or member == "__init__")


APIS = {version: Api.read(version) for version in VERSIONS}


@dataclass
class Uses:
    """What a file uses of TensorRT.

    Attributes:
        names: ``Name`` or ``Name.member``, with the places.
        unknown: What this cannot tell: to be added to a table above.
    """

    names: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


def find_uses(source: str, file: str) -> Uses:
    """Read a file of the adapter."""
    uses = Uses()
    _Reader(file, uses).visit(ast.parse(source))
    return uses


class _Reader(ast.NodeVisitor):
    """Follows TensorRT's objects through assignments, attributes and calls, one function at a time."""

    def __init__(self, file: str, uses: Uses) -> None:
        self._file = file
        self._uses = uses
        self._scopes: list[dict[str, str | None]] = [{}]
        self._classes: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        scope: dict[str, str | None] = {"self": OURS} if self._classes == [OURS] else {}
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            kind = ast.unparse(argument.annotation) if argument.annotation is not None else ""
            if argument.arg != "self":
                scope[argument.arg] = self._parameter(argument.arg, kind, node)
        self._scopes.append(scope)
        self.generic_visit(node)
        self._scopes.pop()

    def _parameter(self, name: str, kind: str, node: ast.FunctionDef) -> str | None:
        if kind == OURS:
            return OURS
        if kind != "Any":
            return None
        if name not in VARIABLES and name not in UNTYPED:
            self._uses.unknown.append(f"{self._file}:{node.lineno}: what is the parameter {name} of {node.name}?")
        return VARIABLES.get(name, UNTYPED.get(name, {}).get(self._file))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            kind = self._kind(base)
            defined = {entry.name for entry in node.body if isinstance(entry, ast.FunctionDef)}
            for name in VIRTUAL.get(kind or "", ()):
                self._use(f"{kind}.{name}", node)
                if name not in defined:
                    self._uses.unknown.append(f"{self._file}:{node.lineno}: {node.name} does not override {name}")
        self._classes.append(node.name)
        self.generic_visit(node)
        self._classes.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._assign(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if node.value is not None:
            self._assign(node.target, node.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._assign(one, other)
        elif isinstance(target, ast.Name):
            self._scopes[-1][target.id] = self._kind(value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        owner = self._kind(node.value)
        if owner == MODULE and node.attr not in _PYTHONS_OWN:
            self._use(node.attr, node)
        elif owner not in (None, MODULE, OURS):
            self._use(f"{owner}.{node.attr}", node)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            owner, name = self._kind(node.args[0]), node.args[1]
        elif (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "has"
            and len(node.args) == 2
            and isinstance(node.args[0], ast.Constant)
        ):
            owner, name = str(node.args[0].value), node.args[1]
        else:
            return
        if owner in (None, OURS):
            return
        prefix = "" if owner == MODULE else f"{owner}."
        if isinstance(name, ast.Constant):
            self._use(f"{prefix}{name.value!s}", node)
        elif (text := ast.unparse(node)) in DYNAMIC:
            for each in DYNAMIC[text]:
                self._use(f"{prefix}{each}", node)
        else:
            self._uses.unknown.append(f"{self._file}:{node.lineno}: what can {text} be?")

    def _use(self, name: str, node: ast.AST) -> None:
        line = getattr(node, "lineno", 0)
        self._uses.names.setdefault(name, []).append(f"{self._file}:{line}")

    def _kind(self, node: ast.expr) -> str | None:
        """What an expression is: a class of TensorRT, the module, our ``TensorRt``, or nothing of these."""
        if isinstance(node, ast.Name):
            for scope in reversed(self._scopes):
                if node.id in scope:
                    return scope[node.id]
            return None if (self._file, node.id) in NOT_TENSORRTS else VARIABLES.get(node.id)
        if isinstance(node, ast.Attribute):
            return self._kind_of_attribute(node)
        if isinstance(node, ast.Call):
            return self._kind_of_call(node)
        return None

    def _kind_of_attribute(self, node: ast.Attribute) -> str | None:
        owner = self._kind(node.value)
        if owner == MODULE:
            return node.attr if any(node.attr in api.names for api in APIS.values()) else None
        if owner in FIELDS:
            return FIELDS[owner or ""].get(node.attr)
        return VARIABLES.get(node.attr) if owner is None else None

    def _kind_of_call(self, node: ast.Call) -> str | None:
        if isinstance(node.func, ast.Name):
            if node.func.id == "getattr" and isinstance(node.args[1], ast.Constant):
                return str(node.args[1].value) if self._kind(node.args[0]) == MODULE else None
            return {"tensorrt": OURS, "load_tensorrt": MODULE}.get(node.func.id)
        if isinstance(node.func, ast.Attribute):
            owner = self._kind(node.func.value)
            if owner == MODULE:  # a class of its own is called: an instance
                return node.func.attr
            return RETURNS.get(f"{owner}.{node.func.attr}")
        return None


def missing(uses: Uses) -> Iterator[str]:
    """What a file uses and a version whose branch uses it does not have."""
    for name, places in uses.names.items():
        for version in BRANCHES.get(name, BRANCHES.get(name.partition(".")[0], VERSIONS)):
            if not APIS[version].has(name):
                yield f"{', '.join(places)}: TensorRT {version} has no {name}"
