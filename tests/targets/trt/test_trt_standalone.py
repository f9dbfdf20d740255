"""``reproduce.py`` sets TensorRT up as the adapter does: on the stand-in, both are asked for the same."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from test_trt_network import norm
from trt_api import VERSIONS
from trt_standin import StandIn, make_tensorrt, trt_target

from bisect_trt.errors import UsageError
from bisect_trt.graph.lower import first_output
from bisect_trt.targets.base import Minimal
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt import standalone
from bisect_trt.targets.trt.config import check_settings, lowers_by_cast, make_config, network_flags
from bisect_trt.targets.trt.layers import constrain

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "precision_constraints": st.sampled_from(["none", "prefer", "obey"]),
    "lowering": st.sampled_from([None, "cast", "layer"]),
    "pool_limits": st.sampled_from([(), (("workspace", 1 << 30), ("TACTIC_DRAM", 7))]),
    "tactic_sources": st.sampled_from([None, (), ("cublas", "CUDNN")]),
    "builder_optimization_level": st.sampled_from([None, 0, 5]),
    "strongly_typed": st.booleans(),
    "version_compatible": st.booleans(),
    "hardware_compatibility_level": st.sampled_from([None, "none", "ampere_plus"]),
}


@st.composite
def targets(draw: st.DrawFn) -> TargetSettings:
    low = draw(st.lists(st.sampled_from(["tf32", "fp16", "bf16", "fp8", "int8"]), unique=True))
    changed = draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=4))
    target = trt_target(
        *low, keep=draw(st.sampled_from([(), ("p",), ("p", "s")])), **{n: draw(FIELDS[n]) for n in changed}
    )
    return TargetSettings(**{**vars(target), "held": draw(st.booleans())})


def told(thing: StandIn) -> tuple[Any, ...]:
    """What an object was told, in no order: some of it is said one after the other there, and at once here."""
    return sorted(map(repr, thing.calls)), {name: value for name, value in thing.values.items() if not callable(value)}


@given(targets(), st.sampled_from(VERSIONS))
def test_the_same_settings_make_the_same_build(settings: TargetSettings, version: str) -> None:
    tensorrt = make_tensorrt(version)
    trt = tensorrt.trt
    try:
        check_settings(settings, tensorrt)
        wanted = make_config(settings, tensorrt)
    except UsageError:
        assume(False)
    model, network, layers = norm(version)
    constrain(network, model, settings, tensorrt)
    nodes = tuple((node.name, tuple(node.output)) for node in model.graph.node)
    lowered = lowers_by_cast(settings, tensorrt.version)
    assert all(first_output(node) for node in model.graph.node)
    said = settings.target.script(settings, Minimal("m.onnx", lowered=lowered, nodes=nodes)).settings

    config = StandIn(version, "IBuilderConfig")
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    bits, strong, by_reading = standalone.typing_of(trt, said)
    standalone.set_precision(trt, config, said, strong, by_reading)
    standalone.set_limits(trt, config, said)
    _, again, told_layers = norm(version)
    if not strong or by_reading:
        standalone.constrain(trt, again, said, by_reading)
    assert bits == network_flags(settings, tensorrt)
    assert told(config) == told(wanted)
    assert [told(each) for each in told_layers] == [told(each) for each in layers]
