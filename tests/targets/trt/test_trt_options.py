"""Options into builder configurations, on each version.

On a stand-in of the module, generated from the API lists: a real ``IBuilderConfig`` exists only where there is a GPU. It
refuses names that the version does not have, so an option on the wrong branch fails here as it would there.
"""

from __future__ import annotations

from typing import Any

import pytest
from trt_api import OLD, STRONG, VERSIONS, WEAK
from trt_standin import StandIn, make_tensorrt, trt_target

from bisect_trt.errors import UsageError
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.config import (
    check_settings,
    is_strongly_typed,
    lowers_by_cast,
    make_config,
    network_flags,
)

on_each = pytest.mark.parametrize("version", VERSIONS)
before_11 = pytest.mark.parametrize("version", [OLD, WEAK])


def configure(settings: TargetSettings, version: str) -> StandIn:
    """The configuration, once the settings were found good."""
    tensorrt = make_tensorrt(version)
    check_settings(settings, tensorrt)
    config = make_config(settings, tensorrt)
    assert isinstance(config, StandIn)
    return config


def flags(config: StandIn) -> set[str]:
    """The builder flags that were set."""
    return {call[1].name for call in config.calls if call[0] == "set_flag"}


def refuse(settings: TargetSettings, version: str) -> str:
    with pytest.raises(UsageError) as error:
        configure(settings, version)
    return str(error.value)


@on_each
def test_tf32_is_off_unless_asked_for(version: str) -> None:
    plain, asked = configure(trt_target(), version), configure(trt_target("tf32"), version)
    for config in (plain, asked):
        assert ("clear_flag", make_tensorrt(version).trt.BuilderFlag.TF32) in config.calls
    assert flags(plain) == set()
    assert flags(asked) == {"TF32"}
    assert [call[0] for call in asked.calls].index("clear_flag") < [call[0] for call in asked.calls].index("set_flag")


@before_11
@pytest.mark.parametrize("name", ["fp16", "int8", "fp8"])
def test_before_11_a_precision_is_a_flag(version: str, name: str) -> None:
    settings = trt_target(name)
    assert flags(configure(settings, version)) == {name.upper()}
    assert not lowers_by_cast(settings, make_tensorrt(version).version)
    assert not is_strongly_typed(settings, make_tensorrt(version).version)


def test_bf16_is_a_flag_where_there_is_one() -> None:
    assert flags(configure(trt_target("bf16"), WEAK)) == {"BF16"}
    assert refuse(trt_target("bf16"), OLD) == (
        "--bf16 is nothing that this build can be asked for, and this is TensorRT 8.6.0; leave it out."
    )


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_from_11_on_half_precision_is_written_into_the_graph(name: str) -> None:
    settings = trt_target(name)
    assert lowers_by_cast(settings, (11, 4, 0))
    assert flags(configure(settings, STRONG)) == set()


@pytest.mark.parametrize("name", ["int8", "fp8"])
@pytest.mark.parametrize(("version", "typed"), [(STRONG, False), (WEAK, True)])
def test_eight_bits_are_the_graphs_business_in_a_strongly_typed_network(
    name: str, version: str, *, typed: bool
) -> None:
    message = refuse(trt_target(name, strongly_typed=typed), version)
    assert message.startswith(f"--{name} is nothing that this build can be asked for, and this is TensorRT {version}; ")
    assert message.endswith("quantise the model with Q/DQ nodes instead.")


@pytest.mark.parametrize(
    ("settings", "version", "cast", "strong"),
    [
        (trt_target("fp16", lowering="cast"), OLD, True, False),
        (trt_target("fp16", lowering="cast"), WEAK, True, True),
        (trt_target("fp16", lowering="layer"), WEAK, False, False),
        (trt_target("fp16", strongly_typed=True), WEAK, True, True),
        (trt_target(strongly_typed=True), WEAK, False, True),
        (trt_target(lowering="cast"), WEAK, False, False),
        (trt_target("tf32"), STRONG, False, True),
    ],
)
def test_who_lowers_and_who_types(settings: TargetSettings, version: str, *, cast: bool, strong: bool) -> None:
    tensorrt = make_tensorrt(version)
    check_settings(settings, tensorrt)
    assert lowers_by_cast(settings, tensorrt.version) is cast
    assert is_strongly_typed(settings, tensorrt.version) is strong
    names = tensorrt.trt.NetworkDefinitionCreationFlag
    bits = network_flags(settings, tensorrt)
    assert bool(bits >> int(getattr(names, "STRONGLY_TYPED", 31)) & 1) is strong
    assert bool(bits >> int(getattr(names, "EXPLICIT_BATCH", 31)) & 1) is (version != STRONG)


@before_11
def test_constraints(version: str) -> None:
    plain = trt_target("fp16")
    assert flags(configure(plain, version)) == {"FP16"}
    for name in ("obey", "prefer"):
        config = configure(trt_target("fp16", precision_constraints=name), version)
        assert flags(config) == {"FP16", f"{name.upper()}_PRECISION_CONSTRAINTS"}
    # What is kept in fp32 would be a wish without.
    assert "OBEY_PRECISION_CONSTRAINTS" in flags(configure(trt_target("fp16", keep=("y",)), version))
    preferred = trt_target("fp16", keep=("y",), precision_constraints="prefer")
    assert "PREFER_PRECISION_CONSTRAINTS" in flags(configure(preferred, version))


def test_casts_in_the_graph_are_obeyed_where_types_are_no_more_than_hints() -> None:
    lowered = trt_target("fp16", lowering="cast")
    assert flags(configure(lowered, OLD)) == {"FP16", "OBEY_PRECISION_CONSTRAINTS"}
    assert flags(configure(lowered, WEAK)) == set()


@on_each
def test_limits_and_levels(version: str) -> None:
    trt = make_tensorrt(version).trt
    config = configure(
        trt_target(
            pool_limits=(("workspace", 1 << 32), ("TACTIC_DRAM", 5)),
            tactic_sources=("edge_mask_convolutions", "JIT_CONVOLUTIONS"),
            builder_optimization_level=2,
            hardware_compatibility_level="ampere_plus",
            version_compatible=True,
        ),
        version,
    )
    sources = trt.TacticSource
    bits = 1 << int(sources.EDGE_MASK_CONVOLUTIONS) | 1 << int(sources.JIT_CONVOLUTIONS)
    assert ("set_memory_pool_limit", trt.MemoryPoolType.WORKSPACE, 1 << 32) in config.calls
    assert ("set_memory_pool_limit", trt.MemoryPoolType.TACTIC_DRAM, 5) in config.calls
    assert ("set_tactic_sources", bits) in config.calls
    assert config.values == {
        "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
        "builder_optimization_level": 2,
        "hardware_compatibility_level": trt.HardwareCompatibilityLevel.AMPERE_PLUS,
    }
    assert flags(config) == {"VERSION_COMPATIBLE"}


@on_each
def test_no_tactic_source_at_all(version: str) -> None:
    assert ("set_tactic_sources", 0) in configure(trt_target(tactic_sources=()), version).calls
    assert "set_tactic_sources" not in {call[0] for call in configure(trt_target(), version).calls}


@pytest.mark.parametrize(
    ("version", "option", "given", "has"),
    [
        (OLD, "--pool-limit", {"pool_limits": (("tactic_shared_memory", 1),)}, "dla_global_dram"),
        (STRONG, "--tactic-sources", {"tactic_sources": ("cublas",)}, "edge_mask_convolutions, jit_convolutions"),
        (
            OLD,
            "--hardware-compatibility-level",
            {"hardware_compatibility_level": "same_compute_capability"},
            "ampere_plus, none",
        ),
    ],
)
def test_an_entry_that_a_version_lacks(version: str, option: str, given: dict[str, Any], has: str) -> None:
    message = refuse(trt_target(**given), version)
    assert message.startswith(f"{option}: this TensorRT has no '")
    assert has in message


@pytest.mark.parametrize(
    ("settings", "version", "message"),
    [
        (
            trt_target("fp16", lowering="layer"),
            STRONG,
            "--lowering layer needs TensorRT 8.6 to 10, and this is TensorRT 11.4.0.106; use --lowering cast.",
        ),
        (
            trt_target(strongly_typed=True),
            OLD,
            "--strongly-typed needs TensorRT 9 or later, and this is TensorRT 8.6.0; leave it out.",
        ),
        (
            trt_target(precision_constraints="obey"),
            STRONG,
            "--precision-constraints needs TensorRT 8.6 to 10, and this is TensorRT 11.4.0.106; its types are the graph's.",
        ),
        (
            trt_target(precision_constraints="prefer", strongly_typed=True),
            WEAK,
            (
                "--precision-constraints is about types that TensorRT chooses, and in a strongly typed network the graph's "
                "types run; drop it."
            ),
        ),
        (
            trt_target("fp16", "bf16"),
            STRONG,
            "--fp16 and --bf16 are two types, and a Cast in the graph is to one; drop one of them.",
        ),
    ],
)
def test_what_a_version_cannot_do_is_said(settings: TargetSettings, version: str, message: str) -> None:
    assert refuse(settings, version) == message
