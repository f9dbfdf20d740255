"""Whatever a version of TensorRT can be told of a build can be said, here and in ``reproduce.py``; the rest is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trt_api import APIS, OLD, STRONG, VERSIONS, WEAK
from trt_standin import StandIn, make_module, make_tensorrt, trt_target

from bisect_trt.errors import UsageError
from bisect_trt.targets.chosen import Choice
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.switches import Looked, Tier
from bisect_trt.targets.trt.config import check_settings, make_config
from bisect_trt.targets.trt.knobs import ENUMS, NoSuch, lift, missed, selector, set_parser_flags, turn
from bisect_trt.targets.trt.options import OWN_OPTIONS
from bisect_trt.targets.trt.settings import TrtSettings

METHODS = ("add_", "all_", "can_", "clear_", "create_", "get_", "is_", "num_", "reset", "set_")
OBJECTS = ("algorithm_selector", "int8_calibrator", "progress_monitor", "profile_stream", "flags")
"""Attributes that are no words: what makes them is asked for otherwise."""


def configure(version: str, **own: Any) -> StandIn:  # noqa: ANN401 - fields of TrtSettings
    config = make_config(trt_target(**own), make_tensorrt(version))
    assert isinstance(config, StandIn)
    return config


def members(kind: str) -> Iterator[Any]:
    for version in VERSIONS:
        for name in sorted(APIS[version].names.get(kind, ())):
            yield pytest.param(version, name, id=f"{version}-{name}")


@pytest.mark.parametrize(("version", "name"), list(members("BuilderFlag")))
def test_every_builder_flag_can_be_set(version: str, name: str) -> None:
    calls = configure(version, builder_flags=(name.lower(),)).calls
    assert ("set_flag", make_module(version).BuilderFlag[name]) in calls


@pytest.mark.parametrize(("version", "name"), list(members("PreviewFeature")))
def test_every_preview_feature_can_be_turned(version: str, name: str) -> None:
    calls = configure(version, preview_features=(name,)).calls
    turned = {call[1].name: call[2] for call in calls if call[0] == "set_preview_feature"}
    assert turned == {each: each == name for each in APIS[version].names["PreviewFeature"]}


@pytest.mark.parametrize(("version", "name"), list(members("MemoryPoolType")))
def test_every_memory_pool_can_be_limited(version: str, name: str) -> None:
    calls = configure(version, pool_limits=((name.lower(), 1 << 20),)).calls
    assert ("set_memory_pool_limit", make_module(version).MemoryPoolType[name], 1 << 20) in calls


@pytest.mark.parametrize(("version", "name"), list(members("IBuilderConfig")))
def test_every_attribute_of_the_configuration_can_be_set(version: str, name: str) -> None:
    if name.startswith(METHODS) or name in OBJECTS or name in OWN_OPTIONS:
        return
    module = make_module(version)
    if name == "quantization_flags":
        config = configure(version, builder_settings=((name, "calibrate_before_fusion"),))
        assert ("set_quantization_flag", module.QuantizationFlag.CALIBRATE_BEFORE_FUSION) in config.calls
    elif name in ENUMS:
        member = next(iter(getattr(module, ENUMS[name])))
        assert configure(version, builder_settings=((name, member.name.lower()),)).values[name] == member
    elif name == "plugins_to_serialize":
        assert configure(version, builder_settings=((name, "a.so,b.so"),)).values[name] == ["a.so", "b.so"]
    else:
        assert configure(version, builder_settings=((name, "3"),)).values[name] == 3


@pytest.mark.parametrize(("version", "name"), list(members("OnnxParserFlag")))
def test_every_flag_of_the_parser_can_be_set(version: str, name: str) -> None:
    parser = StandIn(version, "OnnxParser")
    set_parser_flags(make_module(version), parser, (name.lower(),))
    assert parser.calls == [("set_flag", make_module(version).OnnxParserFlag[name])]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"builder_flags": ("NO_SUCH",)}, "--builder-flag: this is TensorRT .*no 'NO_SUCH'; it has: "),
        (
            {"builder_settings": (("no_such", "1"),)},
            "--builder-set: the builder configuration has no attribute 'no_such'",
        ),
        (
            {"builder_settings": (("set_flag", "1"),)},
            "--builder-set: the builder configuration has no attribute 'set_flag'",
        ),
        ({"builder_settings": (("engine_capability", "x"),)}, "--builder-set engine_capability: .* has no 'x'"),
        ({"preview_features": ("NO_SUCH",)}, "--preview-features: .* has no 'NO_SUCH'"),
    ],
)
def test_what_a_version_has_not_is_refused(version: str, own: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        configure(version, **own)


def test_a_selector_of_tactics_is_refused_where_there_is_none() -> None:
    with pytest.raises(UsageError, match=r"TensorRT 11.* has no algorithm selector"):
        configure(STRONG, avoid_tactics=("conv=1:2",))
    with pytest.raises(NoSuch, match=r"--onnx-flags: this is TensorRT 8.6.0, which has no 'native_instancenorm'"):
        set_parser_flags(make_module(OLD), StandIn(OLD, "OnnxParser"), ("native_instancenorm",))


def choice(implementation: int, tactic: int) -> SimpleNamespace:
    return SimpleNamespace(algorithm_variant=SimpleNamespace(implementation=implementation, tactic=tactic))


def test_a_layer_does_not_take_what_is_avoided_unless_it_has_nothing_else() -> None:
    chooser = selector(make_module(OLD), ("conv=1:2", "pool=5:6"))
    conv, pool = SimpleNamespace(name="conv"), SimpleNamespace(name="pool")
    assert chooser.select_algorithms(conv, [choice(1, 2), choice(1, 3)]) == [1]
    assert chooser.select_algorithms(pool, [choice(5, 6)]) == [0]
    chooser.report_algorithms([conv, pool], [choice(1, 3), choice(5, 6)])
    assert chooser.took == [["conv", "conv=1:3", 2], ["pool", "pool=5:6", 1]]


def test_a_layer_takes_what_is_pinned_or_the_build_is_refused() -> None:
    chooser = selector(make_module(OLD), (), ("conv=1:2", "pool=5:6"))
    conv, pool = SimpleNamespace(name="conv"), SimpleNamespace(name="pool")
    assert chooser.select_algorithms(conv, [choice(1, 1), choice(1, 2)]) == [1]
    assert chooser.select_algorithms(pool, [choice(5, 7), choice(5, 8)]) == [0, 1]
    chooser.report_algorithms([conv], [choice(1, 2)])
    assert chooser.missed == []
    chooser.report_algorithms([conv, pool], [choice(1, 2), choice(5, 8)])
    assert chooser.missed == ["pool=5:8"]


def test_a_layer_that_has_lost_its_company_has_no_pin_to_hold_it() -> None:
    chooser = selector(make_module(OLD), (), ("PWN(conv + relu)=1:2", "pool=5:6"))
    alone, other, pool = (SimpleNamespace(name=name) for name in ("conv", "copy", "pool"))
    for where in (alone, other):
        chooser.select_algorithms(where, [choice(1, 1), choice(1, 2)])
    chooser.report_algorithms([alone, other, pool], [choice(1, 2), choice(1, 1), choice(5, 6)])
    assert chooser.missed == ["conv=1:2"]
    # Where there is but one kernel for it, it has chosen nothing.
    chooser = selector(make_module(OLD), (), ("PWN(conv + relu)=1:2",))
    chooser.select_algorithms(alone, [choice(1, 1)])
    chooser.report_algorithms([alone], [choice(1, 1)])
    assert chooser.missed == []


def test_what_is_told_to_run_in_another_type_is_not_held() -> None:
    settings = {**asdict(TrtSettings(pin_tactics=("conv + relu=1:2", "pool=5:6")))}
    config = StandIn(OLD, "IBuilderConfig")
    turn(make_module(OLD), config, settings)
    lift(["relu"])
    chooser = config.values["algorithm_selector"]
    both, pool = SimpleNamespace(name="conv + relu"), SimpleNamespace(name="pool")
    assert chooser.select_algorithms(both, [choice(1, 1), choice(1, 2)]) == [0, 1]
    assert chooser.select_algorithms(pool, [choice(5, 5), choice(5, 6)]) == [1]
    chooser.report_algorithms([both, pool], [choice(1, 1), choice(5, 6)])
    assert missed(settings) is None
    chooser.report_algorithms([pool], [choice(5, 5)])
    assert missed(settings) == "a layer cannot be held to the tactic that is pinned: it takes pool=5:5"


def test_timings_are_what_is_left_to_be_held_to() -> None:
    tensorrt = make_tensorrt(OLD)
    with pytest.raises(UsageError, match=r"--pin: this is TensorRT 8.6.0, and its build of this model chose no tactic"):
        check_settings(trt_target(pin_timings="timings"), tensorrt)
    for version in (WEAK, STRONG):
        check_settings(trt_target(pin_timings="timings"), make_tensorrt(version))
    target, folder = trt_target("fp16"), Path("/pinned")
    choices = [Choice("a", "tactic", "1:2", pins=True), Choice("b", "format", "linear")]
    assert target.target.held_to(target, choices, folder) == trt_target("fp16", pin_tactics=("a=1:2",))
    assert target.target.held_to(target, choices[1:], folder) == trt_target("fp16", pin_timings="/pinned/timing.cache")


def test_pins_are_refused_where_there_is_no_selector() -> None:
    with pytest.raises(UsageError, match=r"--pin-tactic: this is TensorRT 11.* has no algorithm selector"):
        configure(STRONG, pin_tactics=("conv=1:2",))


TRACE = {
    "sources": ["CUBLAS", "CUDNN"],
    "flags": ["REFIT", "SPARSE_WEIGHTS"],
    "previews": {"PROFILE_SHARING_0806": False},
    "tactics": [["conv", "conv=1:2", 4], ["pool", "pool=5:6", 1]],
}


def turned(settings: TargetSettings) -> dict[str, TargetSettings]:
    found = settings.target.switches(settings, Looked(TRACE))
    assert len({each.name for each in found}) == len(found)
    return {each.name: each.turn(settings) for each in found}


def test_each_switch_turns_what_it_says() -> None:
    found = turned(trt_target("fp16", "tf32", builder_flags=("SPARSE_WEIGHTS",)))
    own = {name: settings.of(TrtSettings) for name, settings in found.items()}
    assert own["tactic:conv"].avoid_tactics == ("conv=1:2",)
    assert "tactic:pool" not in found
    assert own["tactic-source:CUBLAS"].tactic_sources == ("CUDNN",)
    assert own["option:SPARSE_WEIGHTS"].builder_flags == ()
    assert own["option:REFIT"].builder_flags == ("SPARSE_WEIGHTS", "REFIT")
    assert own["option:builder_optimization_level=0"].builder_optimization_level == 0
    assert own["option:max_aux_streams=0"].builder_settings == (("max_aux_streams", "0"),)
    assert own["preview-feature:PROFILE_SHARING_0806"].preview_features == ("PROFILE_SHARING_0806",)
    assert not found["precision:fp16"].fp16
    assert not found["precision:tf32"].tf32


def test_switches_that_are_turned_together_all_are() -> None:
    settings = trt_target("fp16")
    found = [each for each in settings.target.switches(settings, Looked(TRACE)) if each.tier is not Tier.WHOLE]
    for switch in found:
        settings = switch.turn(settings)
    own = settings.of(TrtSettings)
    assert own.tactic_sources == ()
    assert own.avoid_tactics == ("conv=1:2",)
    assert own.builder_flags == ("REFIT",)


@pytest.mark.parametrize("version", [OLD, WEAK])
def test_every_switch_is_one_that_the_version_takes(version: str) -> None:
    settings = trt_target("fp16")
    for switch in settings.target.switches(settings, Looked(TRACE)):
        make_config(switch.turn(settings), make_tensorrt(version))


def test_each_switch_is_said_as_code_and_as_options() -> None:
    settings = trt_target("fp16")
    for switch in settings.target.switches(settings, Looked(TRACE)):
        now = switch.turn(settings)
        snippet, plain = settings.target.snippet(now), settings.target.snippet(settings)
        assert snippet is not None
        assert snippet != plain or switch.name.startswith("preview"), switch.name
        assert now.flags() != settings.flags(), switch.name
