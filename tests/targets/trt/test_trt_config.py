"""Options into builder configurations, on each version; what a version does not have is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from trt_standin import (
    APIS,
    OLD,
    STRONG,
    VERSIONS,
    WEAK,
    HostCudart,
    StandIn,
    World,
    plain,
    trt_target,
)

from bisect_trt.errors import UsageError
from bisect_trt.targets.base import Looked, TargetSettings
from bisect_trt.targets.messages import set_option
from bisect_trt.targets.trt import config as config_module
from bisect_trt.targets.trt.config import check_settings, make_config, set_ranges
from bisect_trt.targets.trt.engine import DTYPES
from bisect_trt.targets.trt.process import Cuda
from bisect_trt.targets.trt.settings import TrtSettings

on_each = pytest.mark.parametrize("version", VERSIONS)
before_11 = pytest.mark.parametrize("version", [OLD, WEAK])


def configure(settings: TargetSettings, version: str) -> World:
    """The world whose configuration was made, once the settings were found good."""
    world = World(version)
    builder = StandIn(version, "Builder", {"create_builder_config": world.make_config})
    check_settings(world.trt, plain(settings))
    make_config(world.trt, builder, plain(settings))
    return world


def members(kind: str) -> Iterator[Any]:
    for version in VERSIONS:
        for name in sorted(APIS[version].get(kind, {}).get("enum", ())):
            yield pytest.param(version, name, id=f"{version}-{name}")


@pytest.mark.parametrize(
    ("version", "settings", "flags"),
    [
        *[
            (version, trt_target(name), {name.upper()})
            for version in (OLD, WEAK)
            for name in ("fp16", "int8", "fp8")
        ],
        *[(version, trt_target("tf32"), {"TF32"}) for version in VERSIONS],
        *[(version, trt_target(), set()) for version in VERSIONS],
        (WEAK, trt_target("bf16"), {"BF16"}),
        (STRONG, trt_target("fp16"), set()),
        (WEAK, trt_target("fp16", strongly_typed=True), set()),
        (
            OLD,
            trt_target("fp16", keep=("y",), builder_flags=("PREFER_PRECISION_CONSTRAINTS",)),
            {"FP16", "PREFER_PRECISION_CONSTRAINTS"},
        ),
        (OLD, trt_target("fp16", keep=("y",)), {"FP16", "OBEY_PRECISION_CONSTRAINTS"}),
        (WEAK, replace(trt_target("fp16"), held=True), {"FP16", "PREFER_PRECISION_CONSTRAINTS"}),
        (STRONG, trt_target("fp16", keep=("y",)), set()),
    ],
)
def test_precisions_are_flags_where_tensorrt_chooses(
    version: str, settings: TargetSettings, flags: set[str]
) -> None:
    world = configure(settings, version)
    assert world.set_flags == flags
    assert world.config.calls[0] == ("clear_flag", world.trt.BuilderFlag.TF32)


@pytest.mark.parametrize(
    ("version", "settings", "message"),
    [
        (OLD, trt_target("bf16"), "--bf16 is no option of this build, .* 8.6.0; leave it out"),
        (STRONG, trt_target("int8"), "--int8 is no option .*; quantize the model with Q/DQ nodes instead"),
        (WEAK, trt_target("fp8", strongly_typed=True), "--fp8 is no option .*; quantize the model"),
        (STRONG, trt_target("fp16", "bf16"), "--fp16 and --bf16 are two types"),
        (OLD, trt_target(strongly_typed=True), "--strongly-typed needs TensorRT 9 or later, and this is TensorRT 8.6.0"),
        (OLD, trt_target(pool_limits=(("tactic_shared_memory", 1),)), "--pool-limit: .* it has: dla_global_dram"),
        (STRONG, trt_target(tactic_sources=("cublas",)), "--tactic-sources: .* it has: edge_mask_convolutions"),
        (OLD, trt_target(builder_flags=("NO_SUCH",)), r"--builder-flag: .* has no 'NO_SUCH'; it has: .*REFIT"),
        (WEAK, trt_target(builder_settings=(("set_flag", "1"),)), "--builder-set set_flag: .* has no such attribute"),
        (OLD, trt_target(builder_settings=(("runtime_platform", "x"),)), "TensorRT 8.6.0 has no such attribute"),
    ],
)  # fmt: skip
def test_what_a_version_does_not_have_is_refused(
    version: str, settings: TargetSettings, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        configure(settings, version)


@pytest.mark.parametrize(("version", "name"), [*members("BuilderFlag"), *members("OnnxParserFlag")])
def test_every_flag_can_be_set(version: str, name: str) -> None:
    world = configure(trt_target(builder_flags=(name.lower(),)), version)
    ours, parsers = config_module.builder_flags(world.trt, plain(trt_target(builder_flags=(name,))))
    assert [flag.name for flag in (*ours, *parsers)] == [name]
    assert world.set_flags == {flag.name for flag in ours}


@on_each
def test_limits_and_attributes(version: str) -> None:
    attributes = [
        ("max_aux_streams", "0"),
        ("hardware_compatibility_level", "ampere_plus"),
        ("profiling_verbosity", "none"),
    ]
    world = configure(
        trt_target(
            pool_limits=(("workspace", 1 << 32),),
            tactic_sources=("edge_mask_convolutions", "JIT_CONVOLUTIONS"),
            builder_optimization_level=2,
            builder_settings=tuple(attributes),
        ),
        version,
    )
    trt = world.trt
    calls = world.config.calls
    values = world.config.values
    bits = 1 << int(trt.TacticSource.EDGE_MASK_CONVOLUTIONS) | 1 << int(
        trt.TacticSource.JIT_CONVOLUTIONS
    )
    assert ("set_memory_pool_limit", trt.MemoryPoolType.WORKSPACE, 1 << 32) in calls
    assert ("set_tactic_sources", bits) in calls
    assert (values["builder_optimization_level"], values["max_aux_streams"]) == (2, 0)
    assert values["hardware_compatibility_level"].name == "AMPERE_PLUS"
    assert values["profiling_verbosity"].name == "NONE"
    none = configure(trt_target(tactic_sources=()), version).config.calls
    assert ("set_tactic_sources", 0) in none


@pytest.mark.parametrize(
    ("current", "word", "value"),
    [
        (3, "0x10", 16),
        (True, "off", False),
        (0.5, "2", 2.0),
        ("a", "b", "b"),
        ([], "a,b", ["a", "b"]),
    ],
)
def test_words_for_values(current: object, word: str, value: object) -> None:
    owner = SimpleNamespace(each=current)
    set_option(owner, "each", word, "--each", "it")
    assert owner.each == value


def test_types_are_known_by_the_names_that_versions_give_them() -> None:
    every = {name for names in APIS.values() for name in names["DataType"]["enum"]}
    assert every - set(DTYPES) <= {"E8M0", "FP4", "INT4"}, "never those of an input or output"


@before_11
@pytest.mark.parametrize(
    ("kinds", "cache", "stays"),
    [
        (("QUANTIZE", "CONVOLUTION"), None, True),
        (("CONVOLUTION",), None, False),
        (("CONVOLUTION",), "ranges", True),
    ],
)
def test_int8_stays_where_something_is_quantized_or_ranges_are_given(
    version: str, kinds: tuple[str, ...], cache: str | None, stays: bool
) -> None:
    """TensorRT 8.6 refused a model whose pairs had all been taken out: "no scaling factors detected"."""
    settings = trt_target("int8", calibration_cache=cache)
    world = configure(settings, version)
    layers = [world.layer(kind, [], [], kind) for kind in kinds]
    network = StandIn(
        version, "INetworkDefinition", {"num_layers": len(layers), "get_layer": layers.__getitem__}
    )
    set_ranges(world.trt, world.config, network, plain(settings), None)
    assert (("clear_flag", world.trt.BuilderFlag.INT8) not in world.config.calls) is stays
    assert (world.config.values["int8_calibrator"] is not None) is (cache is not None)


@before_11
def test_samples_are_handed_out_by_name_and_ranges_kept(version: str, tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}.npz") for number in range(3)]
    for number, file in enumerate(files):
        np.savez(file, a=np.full((2, 3), number, np.float32), b=np.arange(4))
    cudart = HostCudart()
    cache = tmp_path / "ranges"
    made = config_module.make_calibrator(World(version).trt, Cuda(cudart), files, cache)
    for number in range(3):
        b, a = made.get_batch(["b", "a"])
        assert np.frombuffer(cudart.held[a], np.float32).tolist() == [number] * 6
        assert np.frombuffer(cudart.held[b], np.int64).tolist() == [0, 1, 2, 3]
        assert len(cudart.held) == 2
    assert made.get_batch(["b", "a"]) is None
    assert not cudart.held
    assert made.read_calibration_cache() is None
    made.write_calibration_cache(memoryview(b"ranges"))
    assert made.read_calibration_cache() == cache.read_bytes() == b"ranges"


def test_int8_without_ranges_is_refused() -> None:
    target = trt_target("int8")
    conv = {"Conv", "Relu"}
    with pytest.raises(
        UsageError, match="no QuantizeLinear or DequantizeLinear node, and no ranges are given"
    ):
        target.target.check_model(target, conv)
    target.target.check_model(target, {"Conv", "DequantizeLinear"})
    for known in (
        {"calibration_data": ("x.npz",)},
        {"calibration_cache": "c"},
        {"load_engine": "m.engine"},
    ):
        target.target.check_model(trt_target("int8", **known), conv)


TRACE = {
    "sources": ["CUBLAS", "CUDNN"],
    "flags": ["REFIT", "SPARSE_WEIGHTS"],
    "tactics": [["conv", "conv=1:2", 4], ["pool", "pool=5:6", 1]],
}


def test_each_switch_turns_what_it_says() -> None:
    settings = trt_target("fp16", "tf32", builder_flags=("SPARSE_WEIGHTS",))
    found = {
        each.name: each.turn(settings) for each in settings.target.switches(settings, Looked(TRACE))
    }
    own = {name: turned.of(TrtSettings) for name, turned in found.items()}
    assert own["tactic:conv"].avoid_tactics == ("conv=1:2",)
    assert "tactic:pool" not in found
    assert own["tactic-source:CUBLAS"].tactic_sources == ("CUDNN",)
    assert own["option:SPARSE_WEIGHTS"].builder_flags == ()
    assert own["option:REFIT"].builder_flags == ("SPARSE_WEIGHTS", "REFIT")
    assert own["option:builder_optimization_level=0"].builder_optimization_level == 0
    assert own["option:max_aux_streams=0"].builder_settings == (("max_aux_streams", "0"),)
    assert not found["precision:fp16"].fp16
    assert not found["precision:tf32"].tf32


@before_11
def test_every_switch_is_one_that_the_version_takes_and_is_said(version: str) -> None:
    settings = trt_target("fp16")
    for switch in settings.target.switches(settings, Looked(TRACE)):
        now = switch.turn(settings)
        configure(now, version)
        assert now.flags() != settings.flags(), switch.name
