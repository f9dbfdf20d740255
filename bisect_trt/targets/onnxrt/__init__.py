"""ONNX Runtime as a target and as the reference: its settings, its options, the plug-in and its switches.

The switches are graph optimizers, session options and optimization levels. Names and operators of
the optimizers: ``onnxruntime/core/optimizer`` of the releases 1.15 to 1.31
(``graph_transformer_utils.cc`` has the list); names of options:
``onnxruntime_session_options_config_keys.h``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bisect_trt.aliases import Names, Plain
from bisect_trt.errors import ConflictError
from bisect_trt.options.reading import Pairs, existing_file, once, pair
from bisect_trt.options.spec import option
from bisect_trt.targets.base import (
    LIKELY,
    Looked,
    OwnSettings,
    Package,
    Switch,
    Target,
    TargetSettings,
    Tier,
    precision_switches,
)
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.runtime import content_of, load_proto, low_type
from bisect_trt.targets.switches import adding, left_out, setting

if TYPE_CHECKING:
    from onnx import ModelProto


ALL = "ORT_ENABLE_ALL"
OFF = "ORT_DISABLE_ALL"
_LEVEL_TITLES = {ALL: "all graph optimisations", OFF: "graph optimisations off"}

_LEVELS = {
    "off": OFF,
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": ALL,
}


def level(value: Any) -> str:  # noqa: ANN401 - whatever was given
    """A level of graph optimisation by ONNX Runtime's name, given that or a short one."""
    name = _LEVELS.get(str(value).lower(), str(value).upper())
    if name not in _LEVELS.values():
        raise ValueError(
            f"one of {', '.join(_LEVELS)}, or ONNX Runtime's own names of them ({ALL})"
        )
    return name


@dataclass(frozen=True)
class OnnxRuntimeSettings(OwnSettings):
    """The settings of ONNX Runtime."""

    providers: Annotated[
        Names,
        option(
            "--providers",
            "--ep",
            metavar="NAME",
            help="ONNX Runtime's execution providers: cpu, cuda, ...; one of a package: qnn, webgpu, ...; or NAME=LIBRARY.",
        ),
    ] = ()
    provider_options: Annotated[
        Pairs,
        option(
            "--provider-option",
            metavar="K:V",
            help="An option of the first of them.",
            read=pair,
            check=once("--provider-option"),
        ),
    ] = ()
    all_on_ep: Annotated[
        bool,
        option(
            help="A node that falls back to the CPU is a failure (session.disable_cpu_ep_fallback)."
        ),
    ] = False
    session_options: Annotated[
        Pairs,
        option(
            "--session-option",
            metavar="K:V",
            help="An attribute of ONNX Runtime's SessionOptions, or, as in session.disable_prepacking:1, an entry of its "
            "configuration.",
            read=pair,
            check=once("--session-option"),
        ),
    ] = ()
    graph_optimization_level: Annotated[
        str,
        option(
            metavar="LEVEL", help="ONNX Runtime's: off, basic, extended, layout or all.", read=level
        ),
    ] = ALL
    disabled_optimizers: Annotated[
        Names,
        option(
            "--disable-optimizer",
            metavar="NAME",
            help="Leave a graph optimizer of ONNX Runtime's out: GemmTransposeFusion, ...",
        ),
    ] = ()
    custom_op_libraries: Annotated[
        Names,
        option(
            "--custom-op-library",
            metavar="FILE",
            help="Kernels for ONNX Runtime, and for the reference.",
            read=existing_file,
        ),
    ] = ()

    def checked(self, given: Sequence[str], *, engines: bool) -> OnnxRuntimeSettings:
        """Check that at most one precision is given.

        Raises:
            UsageError: Two are.
        """
        if {"--fp16", "--bf16"} <= {*given}:
            raise ConflictError(
                "--fp16 and --bf16 lower the same nodes of ONNX Runtime's model; give one of them."
            )
        return self


class OnnxRuntimeTarget(Target):
    """ONNX Runtime with some execution providers."""

    name = "onnxrt"
    title = "ONNX Runtime"
    own = OnnxRuntimeSettings
    help = "ONNX Runtime, all graph optimisations on."
    needs = "onnxruntime"
    emulator = "ONNX Runtime's CPU provider"
    writes_casts = True
    sent = ("bisect_trt.targets.onnxrt.runner",)
    packages = tuple(
        Package(name) for name in ("onnxruntime", "onnxruntime-gpu", "onnxruntime-qnn")
    )
    files = ("custom_op_libraries",)

    def package(self, settings: TargetSettings) -> Package:
        """The build for CPUs, where it runs on nothing else; the package of a provider that is not built in."""
        return self.builds(settings)[0 if self.emulates_low(settings) else -1]

    def builds(self, settings: TargetSettings) -> Sequence[Package]:
        """The builds of the runtime, or the package of a provider that is not built in, which has a version of its own."""
        providers = {_short(name) for name in settings.of(OnnxRuntimeSettings).providers}
        plugged = [package for package in self.packages[2:] if package.name[12:] in providers]
        return plugged or self.packages[:2]

    def lower(self, settings: TargetSettings, model: Path, facts: Plain) -> ModelProto | None:
        """Return the model with Casts to the low precision; ``None`` if it runs unchanged.

        The CPU provider would run fp16 nodes in fp32, and no bf16 nodes at all, so there they are
        emulated by round trips. QNN computes in fp16 itself, so it runs the model as it is.

        Args:
            settings: The settings of the target.
            model: The ONNX file.
            facts: ``providers`` has the execution providers in use.
        """
        if not (settings.fp16 or settings.bf16) or self.computes_low(settings):
            return None
        from bisect_trt.onnxlib.lower import lower_fp16  # noqa: PLC0415 - as above
        from bisect_trt.onnxlib.roundings import lower_roundtrip  # noqa: PLC0415 - a command line is read without

        proto = load_proto(model)
        lower = (
            lower_roundtrip if list(facts["providers"]) == ["CPUExecutionProvider"] else lower_fp16
        )
        libraries = settings.of(OnnxRuntimeSettings).custom_op_libraries
        return lower(
            proto,
            settings.keep,
            _types_onnx_cannot_infer(proto, model, libraries),
            low_type(settings),
        )

    def describe(self, settings: TargetSettings) -> str:
        """Its providers, whether it optimises, and its precisions."""
        options = settings.of(OnnxRuntimeSettings)
        words = [", ".join(options.providers) or "CPU"]
        words += [
            _LEVEL_TITLES.get(options.graph_optimization_level, options.graph_optimization_level)
        ]
        words += (
            [f"without {', '.join(options.disabled_optimizers)}"]
            if options.disabled_optimizers
            else []
        )
        words += [
            f"{name}={value}"
            for name, value in (*options.provider_options, *options.session_options)
        ]
        words += [Path(path).name for path in options.custom_op_libraries]
        return f"{self.title} ({', '.join([*words, *settings.low_precisions])})"

    def switches(self, settings: TargetSettings, looked: Looked) -> list[Switch]:
        """Its graph optimizers one by one, then options, then levels and precisions."""
        options = settings.of(OnnxRuntimeSettings)
        switches = (
            list(_optimizers(options, looked)) if options.graph_optimization_level != OFF else []
        )
        switches += [*_options(options), *_levels(options), *precision_switches(settings)]
        if options.providers:
            cpu_only = setting(providers=(), provider_options=())
            switches.append(Switch("provider:cpu", cpu_only, Tier.WHOLE, how="used alone"))
        return sorted(switches, key=lambda candidate: candidate.tier)

    def reference(self, settings: TargetSettings, plain: TargetSettings) -> TargetSettings:
        """With the same kernels for operators of others."""
        return plain.with_own(
            custom_op_libraries=settings.of(OnnxRuntimeSettings).custom_op_libraries
        )

    def finds_weights(self, settings: TargetSettings) -> bool:
        """With its own providers."""
        options = settings.of(OnnxRuntimeSettings)
        return {_short(name) for name in options.providers} <= {"cpu", "cuda"}

    def emulates_low(self, settings: TargetSettings) -> bool:
        """On its CPU provider."""
        options = settings.of(OnnxRuntimeSettings)
        return all(_short(name) == "cpu" for name in options.providers)

    def computes_low(self, settings: TargetSettings) -> bool:
        """On QNN: HTP computes in fp16 (``enable_htp_fp16_precision``)."""
        return "qnn" in map(_short, settings.of(OnnxRuntimeSettings).providers)

    def reports_placement(self, settings: TargetSettings) -> bool:
        """Beside its CPU provider."""
        return not self.emulates_low(settings)


def _types_onnx_cannot_infer(model: ModelProto, path: Path, libraries: Names) -> dict[str, int]:
    """Return element types of tensors behind operators that ONNX Runtime knows and ONNX does not (``com.microsoft``)."""
    import onnx  # noqa: PLC0415 - a command line is read without

    from bisect_trt.onnxlib.network import Network  # noqa: PLC0415 - as above
    from bisect_trt.targets.onnxrt.runner import OrtRunner  # noqa: PLC0415 - as above

    types = Network(model).element_types
    unknown = {
        name for node in model.graph.node for name in node.output if name and name not in types
    }
    if not unknown:
        return {}
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    unknown -= {value.name for value in model.graph.output}
    marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(unknown))
    kernels = TargetSettings(
        own=OnnxRuntimeSettings(graph_optimization_level=OFF, custom_op_libraries=libraries)
    )
    try:
        session = OrtRunner(kernels.target.plain(kernels)).load(path, {}, content_of(marked, path))
    except BuildError:
        # ONNX Runtime does not know these operators either: their consumers stay in fp32.
        return {}
    return session.elements


def _short(provider: str) -> str:
    """``cuda`` for ``CUDAExecutionProvider``."""
    return provider.lower().removesuffix("executionprovider")


OPTIMIZER = "optimizer"
_GROUP = re.compile(r"Level\d_RuleBasedTransformer")
"""A pass that applies rules, which the log does not name; each rule is disabled by its own name."""
RULES: Mapping[str, Names] = {
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
"""The rules of the rule-based passes, with the operators that each is about; the first has to be
there for it to apply."""
_PASSES = (
    "AttentionFusion", "Avx2WeightS8ToU8Transformer", "BiasDropoutFusion", "BiasGeluFusion",
    "BiasSkipLayerNormFusion", "BiasSoftmaxFusion", "CommonSubexpressionElimination", "ConstantFolding",
    "ConstantSharing", "ConvActivationFusion", "ConvAddActivationFusion", "DoubleQDQPairsRemover",
    "DynamicQuantizeMatMulFusion", "EmbedLayerNormFusion", "EnsureUniqueDQForNodeUnit", "FastGeluFusion",
    "FreeDimensionOverrideTransformer", "FuseFp16InitializerToFp32NodeTransformer", "GatherSliceToSplitFusion",
    "GatherToSliceFusion", "GatherToSplitFusion", "GeluFusion", "GeluFusionL1", "GeluFusionL2",
    "GemmActivationFusion", "GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion", "LayerNormFusion",
    "LayerNormFusionL1", "LayerNormFusionL2", "MatMulActivationFusion", "MatMulAddFusion",
    "MatMulIntegerToFloatFusion", "MatMulNBitsFusion", "MatMulScaleFusion", "MatmulTransposeFusion",
    "NchwcTransformer", "NhwcTransformer", "QDQFinalCleanupTransformer", "QDQPropagationTransformer",
    "QDQS8ToU8Transformer", "QDQSelectorActionTransformer", "QuickGeluFusion", "ReshapeFusion", "RocmBlasAltImpl",
    "SimplifiedLayerNormFusion", "SkipLayerNormFusion", "SliceConcatToSpaceToDepthFusion", "TransposeOptimizer",
    "TransposeOptimizer_CPUExecutionProvider", "WeightBiasQuantization", "WhereDummyDq",
)  # fmt: skip
"""The other passes, for a session that opens no log of them: one that crashes, or is older than
1.17."""
FIXED = (
    "CastFloat16Transformer",
    "InsertCastTransformer",
    "MemcpyTransformer",
    "RemoveDuplicateCastTransformer",
)
"""Passes that run whatever is disabled: without them a session would have no kernels for what is in
the graph."""
_LOWER_LEVELS = ((OFF, "off"), ("ORT_ENABLE_BASIC", "basic"), ("ORT_ENABLE_EXTENDED", "extended"))
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
    ("session.qdq_matmulnbits_accuracy_level", "1"),
)
"""Options of a session, and what each is turned to; one that this release does not know changes
nothing.

Not ``session.set_denormal_as_zero``: only the first session of a process decides about it, and then
for the thread that made it, NumPy's arithmetic there with it. In a worker its effect would depend
on the earlier sessions of that worker.
"""


def _optimizers(options: OnnxRuntimeSettings, looked: Looked) -> Iterator[Switch]:
    """Those that changed the model, as far as that is known: a pass that throws does not say that it changed anything."""
    trace = looked.trace or {}
    # A pass that throws ends the session before later passes are logged, so all stay possible.
    complete = bool(trace.get("ran")) and not trace.get("refused")
    changed = [*trace.get("changed", ()), *(() if complete else _PASSES)]
    # Rules of a group are logged under the group's name.
    rules = any(_GROUP.fullmatch(name) for name in changed) or not complete
    applied = [
        name for name, operators in RULES.items() if rules and operators[0] in looked.operators
    ]
    for name in dict.fromkeys([*changed, *applied]):
        if name not in (*options.disabled_optimizers, *FIXED) and not _GROUP.fullmatch(name):
            weight = LIKELY if _concerns(RULES.get(name, ()), looked.suspects) else 1.0
            yield Switch(
                f"{OPTIMIZER}:{name}", adding("disabled_optimizers", name), Tier.PASS, weight
            )


def _concerns(operators: Sequence[str], suspects: frozenset[str]) -> bool:
    """Whether a pass is about what is suspected: about nothing else, or about several of its operators."""
    about = suspects.intersection(operators)
    return bool(about) and (len(about) > 1 or operators[0] in about)


def _options(options: OnnxRuntimeSettings) -> Iterator[Switch]:
    """Options that are given, each left out; then those that are not, each turned."""
    session_options = dict(options.session_options)
    yield from left_out(options, "disabled_optimizers", OPTIMIZER, "enabled again")
    if options.graph_optimization_level != ALL:
        turn = setting(graph_optimization_level=ALL)
        yield Switch("option:graph_optimization_level=all", turn, weight=LIKELY)
    yield from left_out(options, "session_options")
    yield from left_out(options, "provider_options", "provider-option")
    for tier, pairs, within in ((Tier.OPTION, _OPTIONS, None), (Tier.WHOLE, _KINDS, OPTIMIZER)):
        for name, value in pairs:
            if name not in session_options:
                yield Switch(
                    f"option:{name}={value}",
                    adding("session_options", (name, value)),
                    tier,
                    within=within,
                )


def _levels(options: OnnxRuntimeSettings) -> Iterator[Switch]:
    """Yield the levels of optimisation below the given one; off first, since that has none of the optimizers."""
    level_now = options.graph_optimization_level
    for level, word in takewhile(lambda lower: lower[0] != level_now, _LOWER_LEVELS):
        turn = setting(graph_optimization_level=level)
        covers, within = (OPTIMIZER, None) if level == OFF else (None, OPTIMIZER)
        yield Switch(
            f"option:graph_optimization_level={word}",
            turn,
            Tier.WHOLE,
            covers=covers,
            within=within,
        )
