"""Switches of ONNX Runtime: graph optimizers, session options, optimization levels.

Names and operators of the optimizers: ``onnxruntime/core/optimizer`` of the releases 1.15 to 1.31
(``graph_transformer_utils.cc`` has the list); the names of options: ``onnxruntime_session_options_config_keys.h``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bisect_trt.targets.onnxrt import ALL, OFF, OnnxRuntimeSettings
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.switches import LIKELY, Looked, Switch, Tier, adding, dropping, precision_switches, setting

OPTIMIZER = "optimizer"
_QDQ = ("QuantizeLinear", "DequantizeLinear")
_GROUP = re.compile(r"Level\d_RuleBasedTransformer")
"""A pass that applies rules, which the log does not name; each rule is disabled by its own name."""
RULES: Mapping[str, tuple[str, ...]] = {
    "EliminateIdentity": ("Identity",),
    "EliminateSlice": ("Slice",),
    "UnsqueezeElimination": ("Unsqueeze",),
    "EliminateDropout": ("Dropout",),
    "ExpandElimination": ("Expand",),
    "CastElimination": ("Cast",),
    "CastChainElimination": ("Cast",),
    "PreShapeNodeElimination": ("Cast", "Shape"),
    "NoopElimination": ("Add", "Sub", "Mul", "Div"),
    "DivMulFusion": ("Div", "Mul"),
    "FuseReluClip": ("Relu", "Clip"),
    "GemmSumFusion": ("Gemm", "Sum"),
    "GemmTransposeFusion": ("Gemm", "Transpose"),
    "NotWhereFusion": ("Where", "Not"),
    "ConvAddFusion": ("Conv", "Add"),
    "ConvMulFusion": ("Conv", "Mul"),
    "ConvBNFusion": ("Conv", "BatchNormalization"),
    "Pad_Fusion": ("Pad", "Conv", "AveragePool", "MaxPool"),
    "MatMul_BatchNormalization_Fusion": ("MatMul", "BatchNormalization"),
    "LabelEncoderFusion": ("LabelEncoder",),
    "ClipQuantRewrite": ("Clip", "QuantizeLinear"),
    "ReluQuantRewrite": ("Relu", "QuantizeLinear"),
}
"""The rules of the rule-based passes, with the operators that each is about; the first has to be there for it to apply."""
PASSES: Mapping[str, tuple[str, ...]] = {
    "AttentionFusion": ("MatMul", "Softmax"),
    "Avx2WeightS8ToU8Transformer": _QDQ,
    "BiasDropoutFusion": ("Add", "Dropout"),
    "BiasGeluFusion": ("Add", "Gelu"),
    "BiasSkipLayerNormFusion": ("Add", "LayerNormalization"),
    "BiasSoftmaxFusion": ("Add", "Softmax"),
    "CommonSubexpressionElimination": (),
    "ConstantFolding": (),
    "ConstantSharing": (),
    "ConvActivationFusion": ("Conv", "Relu", "Sigmoid", "Tanh", "Clip", "LeakyRelu", "HardSigmoid"),
    "ConvAddActivationFusion": ("Conv", "Add", "Relu"),
    "DoubleQDQPairsRemover": _QDQ,
    "DynamicQuantizeMatMulFusion": ("DynamicQuantizeLinear", "MatMulInteger"),
    "EmbedLayerNormFusion": ("Gather", "LayerNormalization"),
    "EnsureUniqueDQForNodeUnit": ("DequantizeLinear",),
    "FastGeluFusion": ("Tanh", "Pow"),
    "FreeDimensionOverrideTransformer": (),
    "FuseFp16InitializerToFp32NodeTransformer": ("Cast",),
    "GatherSliceToSplitFusion": ("Gather", "Slice"),
    "GatherToSliceFusion": ("Gather", "Range"),
    "GatherToSplitFusion": ("Gather",),
    "GeluFusion": ("Erf",),
    "GeluFusionL1": ("Erf",),
    "GeluFusionL2": ("Erf",),
    "GemmActivationFusion": ("Gemm", "Relu", "Sigmoid", "Tanh", "LeakyRelu"),
    "GroupQueryAttentionFusion": ("GroupQueryAttention", "RotaryEmbedding"),
    "GroupQueryAttentionPreNormFusion": ("GroupQueryAttention",),
    "LayerNormFusion": ("ReduceMean", "Pow", "Sqrt", "Div"),
    "LayerNormFusionL1": ("ReduceMean", "Pow", "Sqrt", "Div"),
    "LayerNormFusionL2": ("ReduceMean", "Pow", "Sqrt", "Div"),
    "MatMulActivationFusion": ("MatMul",),
    "MatMulAddFusion": ("MatMul", "Add"),
    "MatMulIntegerToFloatFusion": ("MatMulInteger", "Cast", "Mul"),
    "MatMulNBitsFusion": ("MatMulNBits", "Add"),
    "MatMulScaleFusion": ("MatMul", "Mul", "Div"),
    "MatmulTransposeFusion": ("MatMul", "Transpose"),
    "NchwcTransformer": ("Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "Resize", "Upsample"),
    "NhwcTransformer": ("QLinearConv", "Conv", "MaxPool", "AveragePool"),
    "QDQFinalCleanupTransformer": _QDQ,
    "QDQPropagationTransformer": (*_QDQ, "MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze"),
    "QDQS8ToU8Transformer": _QDQ,
    "QDQSelectorActionTransformer": _QDQ,
    "QuickGeluFusion": ("Sigmoid", "Mul"),
    "ReshapeFusion": ("Reshape", "Concat"),
    "RocmBlasAltImpl": (),
    "SimplifiedLayerNormFusion": ("ReduceMean", "Pow", "Sqrt", "Div"),
    "SkipLayerNormFusion": ("LayerNormalization", "Add"),
    "SliceConcatToSpaceToDepthFusion": ("Slice", "Concat"),
    "TransposeOptimizer": ("Transpose",),
    "TransposeOptimizer_CPUExecutionProvider": ("Transpose",),
    "WeightBiasQuantization": _QDQ,
    "WhereDummyDq": ("Where", "DequantizeLinear"),
}
"""The other passes, with the operators that each is about. Releases name them in their log, from 1.17 on."""
FIXED = ("CastFloat16Transformer", "InsertCastTransformer", "MemcpyTransformer", "RemoveDuplicateCastTransformer")
"""Passes that run whatever is disabled: without them a session would have no kernels for what is in the graph."""
_LEVELS = ((OFF, "off"), ("ORT_ENABLE_BASIC", "basic"), ("ORT_ENABLE_EXTENDED", "extended"))
_KINDS = (("session.disable_quant_qdq", "1"),)
"""Options that leave out several passes at once."""
_OPTIONS = (
    ("enable_mem_pattern", "0"),
    ("enable_mem_reuse", "0"),
    ("enable_cpu_mem_arena", "0"),
    ("intra_op_num_threads", "1"),
    ("execution_mode", "ORT_PARALLEL"),
    ("session.disable_prepacking", "1"),
    ("session.disable_aot_function_inlining", "1"),
    ("session.x64quantprecision", "1"),
)
"""Options of a session, and what each is turned to; one that this release does not know changes nothing.

Not ``session.set_denormal_as_zero``: only the first session of a process decides about it, and then for the thread that made
it, NumPy's arithmetic there with it. In a worker its effect would depend on the earlier sessions of that worker.
"""


def ort_switches(settings: TargetSettings, looked: Looked) -> list[Switch]:
    """All of them: optimizers, then options, then levels and precisions."""
    own = settings.of(OnnxRuntimeSettings)
    found = list(_optimizers(own, looked)) if own.graph_optimization_level != OFF else []
    found += [*_options(own), *_levels(own)]
    found += _providers(own)
    return sorted([*found, *precision_switches(settings)], key=lambda each: each.tier)


def _optimizers(own: OnnxRuntimeSettings, looked: Looked) -> Iterator[Switch]:
    """Those that touched the model, then all others that are known."""
    trace = looked.trace or {}
    ran, changed = list(trace.get("ran", ())), list(trace.get("changed", ()))
    says = bool(ran)
    rules = not says or any(_GROUP.fullmatch(name) for name in changed)
    names = dict.fromkeys([*ran, *PASSES, *RULES])
    for name in names:
        if name in own.disabled_optimizers or name in FIXED or _GROUP.fullmatch(name):
            continue
        among = rules and RULES[name][0] in looked.operators if name in RULES else False
        touched = among or (name not in RULES and (name in changed or not says))
        operators = RULES.get(name) or PASSES.get(name) or ()
        yield Switch(
            f"{OPTIMIZER}:{name}",
            adding("disabled_optimizers", name),
            Tier.PASS if touched else Tier.SPARE,
            LIKELY if _concerns(operators, looked.suspects) else 1.0,
        )


def _concerns(operators: Sequence[str], suspects: frozenset[str]) -> bool:
    """Whether a pass is about what is suspected: about nothing else, or about several of its operators."""
    about = suspects.intersection(operators)
    return bool(about) and (len(about) > 1 or operators[0] in about)


def _options(own: OnnxRuntimeSettings) -> Iterator[Switch]:
    """Options that are given, each left out; then those that are not, each turned."""
    given = dict(own.session_options)
    for name in given:
        yield Switch(f"option:{name}", dropping("session_options", name), weight=LIKELY, how="left out")
    for name, _ in own.provider_options:
        yield Switch(f"provider-option:{name}", dropping("provider_options", name), weight=LIKELY, how="left out")
    for tier, pairs, within in ((Tier.OPTION, _OPTIONS, None), (Tier.WHOLE, _KINDS, OPTIMIZER)):
        for name, value in pairs:
            if name not in given:
                yield Switch(f"option:{name}={value}", adding("session_options", (name, value)), tier, within=within)


def _levels(own: OnnxRuntimeSettings) -> Iterator[Switch]:
    """Yield the levels of optimisation below the given one; off first, since that has none of the optimizers."""
    names = [name for name, _ in _LEVELS]
    lower = names.index(own.graph_optimization_level) if own.graph_optimization_level in names else len(names)
    for level, word in _LEVELS[:lower]:
        turn = setting(graph_optimization_level=level)
        covers, within = (OPTIMIZER, None) if level == OFF else (None, OPTIMIZER)
        yield Switch(f"option:graph_optimization_level={word}", turn, Tier.WHOLE, covers=covers, within=within)


def _providers(own: OnnxRuntimeSettings) -> list[Switch]:
    """Return the switch to the CPU provider alone, if others are given."""
    if not own.providers:
        return []
    turn = setting(providers=(), provider_options=())
    return [Switch("provider:cpu", turn, Tier.WHOLE, how="used alone")]


def long_name(provider: str) -> str:
    """``CUDAExecutionProvider`` for ``cuda``."""
    if provider.endswith("ExecutionProvider"):
        return provider
    return {"tensorrt": "Tensorrt", "openvino": "OpenVINO"}.get(
        provider.lower(), provider.upper()
    ) + "ExecutionProvider"


def ort_snippet(settings: TargetSettings) -> tuple[str, ...]:
    """The lines that open such a session."""
    own = settings.of(OnnxRuntimeSettings)
    lines: list[str] = []
    arguments: dict[str, Any] = {}
    if own.graph_optimization_level != ALL:
        level = f"onnxruntime.GraphOptimizationLevel.{own.graph_optimization_level}"
        lines.append(f"options.graph_optimization_level = {level}")
    for name, value in own.session_options:
        entry = f"options.add_session_config_entry({name!r}, {value!r})"
        lines.append(entry if "." in name else f"options.{name} = {_literal(name, value)}")
    lines += [f"options.register_custom_ops_library({path!r})" for path in own.custom_op_libraries]
    if lines:
        lines.insert(0, "options = onnxruntime.SessionOptions()")
        arguments["sess_options"] = "options"
    if own.providers:
        arguments["providers"] = _quoted(map(long_name, own.providers))
    if own.disabled_optimizers:
        arguments["disabled_optimizers"] = _quoted(own.disabled_optimizers)
    words = ", ".join(["m", *(f"{name}={value}" for name, value in arguments.items())])
    lines.append(f"session = onnxruntime.InferenceSession({words})")
    return tuple(lines)


def _literal(name: str, value: str) -> str:
    """The value of an attribute of ``SessionOptions``, as code."""
    if name == "execution_mode":
        return f"onnxruntime.ExecutionMode.{value}"
    if name == "execution_order":
        return f"onnxruntime.ExecutionOrder.{value}"
    if name.startswith(("enable_", "use_")):
        return str(value.lower() in ("1", "true", "on"))
    return value if value.lstrip("-").isdigit() else repr(value)


def _quoted(names: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
