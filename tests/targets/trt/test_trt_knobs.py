"""Whatever a version of TensorRT can be told of a build can be said, here and in ``reproduce.py``; the rest is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from polygraphy.backend.trt import Algorithm, TacticReplayData
from trt_api import APIS, OLD, STRONG, VERSIONS, WEAK
from trt_standin import StandIn, make_module, make_tensorrt, trt_target

from bisect_trt.errors import UsageError
from bisect_trt.targets.choices import Choice
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.switches import Looked, Tier
from bisect_trt.targets.trt.config import check_settings, make_config
from bisect_trt.targets.trt.knobs import (
    ENUMS,
    NoSuch,
    calibrator_base,
    forget_int8,
    make_context,
    plug_instancenorm,
    set_parser_flags,
)
from bisect_trt.targets.trt.options import OWN_OPTIONS, Calibrator
from bisect_trt.targets.trt.selector import lift, missed, replay, select, selector
from bisect_trt.targets.trt.settings import TrtSettings

METHODS = ("add_", "all_", "can_", "clear_", "create_", "get_", "is_", "num_", "reset", "set_")
OBJECTS = ("algorithm_selector", "int8_calibrator", "progress_monitor", "profile_stream", "flags")
"""Attributes that are no words: what makes them is asked for otherwise."""


def configure(version: str, **own: Any) -> StandIn:
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


ATTRIBUTES: dict[str, str] = {
    "engine_capability": "standard",
    "profiling_verbosity": "none",
    "runtime_platform": "same_as_build",
    "tiling_optimization_level": "full",
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_attributes_with_options_of_their_own(version: str, name: str) -> None:
    settings = asked(**{name: ATTRIBUTES[name]}).of(TrtSettings)
    assert settings.builder_settings == ((name, ATTRIBUTES[name]),)
    option = f"--{name.replace('_', '-')}"
    if version == OLD and name in ("runtime_platform", "tiling_optimization_level"):
        with pytest.raises(
            UsageError, match=f"{option} or .*: this is TensorRT 8.6.0, which has no such setting; leave it out"
        ):
            configure(version, builder_settings=settings.builder_settings)
        return
    assert configure(version, builder_settings=settings.builder_settings).values[name].name == ATTRIBUTES[name].upper()
    with pytest.raises(UsageError, match=f"{option} or .*: this is TensorRT .* has no 'odd'"):
        configure(version, builder_settings=((name, "odd"),))


@pytest.mark.parametrize("version", VERSIONS)
def test_flags_of_int8_are_those_that_are_named(version: str) -> None:
    named, none = (asked(quantization_flags=[word]).of(TrtSettings) for word in ("calibrate_before_fusion", "none"))
    assert none.builder_settings == (("quantization_flags", "none"),)
    if version == STRONG:
        assert configure(version, builder_settings=none.builder_settings)
        with pytest.raises(UsageError, match=r"--quantization-flags or .*: this is TensorRT 11.* it has: none"):
            configure(version, builder_settings=named.builder_settings)
        return
    flag = make_module(version).QuantizationFlag.CALIBRATE_BEFORE_FUSION
    assert ("set_quantization_flag", flag) in configure(version, builder_settings=named.builder_settings).calls
    assert ("clear_quantization_flag", flag) in configure(version, builder_settings=none.builder_settings).calls
    snippet = trt_target(builder_settings=named.builder_settings)
    assert "config.set_quantization_flag(trt.QuantizationFlag.CALIBRATE_BEFORE_FUSION)" in str(
        snippet.target.snippet(snippet)
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_how_engines_on_a_dla_share_memory(version: str) -> None:
    tensorrt, settings = make_tensorrt(version), asked(dla_workspace_allocation_strategy="shared_static")
    if version == STRONG:
        check_settings(settings, tensorrt)
        assert tensorrt.runtime.values["dla_workspace_allocation_strategy"].name == "SHARED_STATIC"
        return
    with pytest.raises(
        UsageError, match=r"--dla-workspace-allocation-strategy: this is TensorRT .* has no 'shared_static'"
    ):
        check_settings(settings, tensorrt)


def test_the_restricted_scope_is_a_flag() -> None:
    assert asked(trt_safety_restricted=True).of(TrtSettings).builder_flags == ("SAFETY_SCOPE",)


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
    select(make_module(OLD), config, settings)
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


def test_what_layers_took_is_said_as_polygraphy_reads_it(tmp_path: Path) -> None:
    class Tensors:
        algorithm_variant = SimpleNamespace(implementation=1, tactic=2)

        def get_algorithm_io_info(self, index: int) -> Any:
            return SimpleNamespace(
                dtype="DataType.FLOAT", strides=(index, 1), vectorized_dim=-1, components_per_element=1
            )

    settings = {**asdict(TrtSettings(save_tactics="tactics.json"))}
    config = StandIn(OLD, "IBuilderConfig")
    select(make_module(OLD), config, settings)
    where = SimpleNamespace(name="conv", num_inputs=1, num_outputs=2)
    config.values["algorithm_selector"].report_algorithms([where], [Tensors()])
    written = json.loads(replay())
    layer = written["replay"]["conv"]
    assert [each["strides"] for each in layer["inputs"]] == [[0, 1]]
    assert [each["strides"] for each in layer["outputs"]] == [[1, 1], [2, 1]]
    for each in (*layer["inputs"], *layer["outputs"]):  # those take TensorRT itself to be read
        assert each.pop("polygraphy_class") == "TensorInfo"
    written["replay"]["conv"] |= {"inputs": [], "outputs": []}
    (tmp_path / "tactics.json").write_text(json.dumps(written))
    found = TacticReplayData.load(str(tmp_path / "tactics.json"))
    assert {name: (each.implementation, each.tactic) for name, each in found.items()} == {"conv": (1, 2)}


def asked(**options: Any) -> TargetSettings:
    made: Any = Target
    settings: TargetSettings = made(trt=True, **options).required()
    return settings


def test_what_polygraphy_saved_is_pinned(tmp_path: Path) -> None:
    path = tmp_path / "tactics.json"
    TacticReplayData().add("conv + relu", Algorithm(1, -2, [], [])).save(str(path))
    settings = asked(load_tactics=path)
    assert settings.of(TrtSettings).pin_tactics == ("conv + relu=1:-2",)
    assert settings.flags() == ["--trt", "--pin-tactic", "conv + relu=1:-2"]
    path.write_text("[]")
    with pytest.raises(UsageError, match=r"--load-tactics: .* is no tactic replay of Polygraphy's"):
        asked(load_tactics=path)


class Parts(StandIn):
    """An engine with two profiles, whose weights are 1000 bytes."""

    def __init__(self, version: str) -> None:
        made = StandIn(version, "IExecutionContext")
        known = {"num_optimization_profiles": 2, "create_execution_context": lambda *how: self.made(made, how)}
        streaming = {"streamable_weights_size": 1000, "get_weight_streaming_automatic_budget": lambda: 77}
        super().__init__(version, "ICudaEngine", {**known, **streaming})

    def made(self, context: StandIn, how: tuple[Any, ...]) -> StandIn:
        self.calls.append(how)
        return context


@pytest.mark.parametrize(("said", "size"), [("-2", 1000), ("-1", 77), ("40%", 400), ("123", 123)])
def test_weights_that_the_gpu_holds(said: str, size: int) -> None:
    engine = Parts(WEAK)
    make_context(make_module(WEAK), engine, vars(TrtSettings(weight_streaming_budget=said)), 0)
    assert engine.values["weight_streaming_budget_v2"] == size


@pytest.mark.parametrize("version", [WEAK, STRONG])
def test_when_memory_is_taken_and_which_profile_is_run(version: str) -> None:
    module = make_module(version)
    strategies = module.ExecutionContextAllocationStrategy
    user, change = strategies.USER_MANAGED, strategies.ON_PROFILE_CHANGE
    said: Any
    for said, how in ((None, ()), ("static", ()), ("profile", (change,)), ("runtime", (user,))):
        engine = Parts(version)
        context = make_context(module, engine, vars(TrtSettings(allocation_strategy=said, optimization_profile=1)), 7)
        assert engine.calls == [how]
        assert context.calls == [("set_optimization_profile_async", 1, 7)]
    with pytest.raises(NoSuch, match="--optimization-profile 2: the engine's profiles are numbered from 0 to 1"):
        make_context(module, Parts(version), vars(TrtSettings(optimization_profile=2)), 7)


def test_what_a_version_cannot_say_of_running() -> None:
    for name, value in (("weight_streaming_budget", "-1"), ("allocation_strategy", "runtime")):
        target = trt_target().with_own(**{name: value})
        said = f"--{name.replace('_', '-')} needs TensorRT 10.1 or later, and this is TensorRT 8.6.0; leave it out"
        with pytest.raises(UsageError, match=said):
            check_settings(target, make_tensorrt(OLD))
        check_settings(target, make_tensorrt(WEAK))
    with pytest.raises(UsageError, match=r"--save-tactics needs TensorRT 8.6 to 10, .* this is TensorRT 11"):
        check_settings(trt_target(save_tactics="tactics.json"), make_tensorrt(STRONG))
    with pytest.raises(
        NoSuch, match=r"--plugin-instancenorm: this is TensorRT 8.6.0, which has no 'NATIVE_INSTANCENORM'"
    ):
        plug_instancenorm(make_module(OLD), StandIn(OLD, "OnnxParser"))
    parser = StandIn(STRONG, "OnnxParser")
    plug_instancenorm(make_module(STRONG), parser)
    assert parser.calls == [("clear_flag", make_module(STRONG).OnnxParserFlag.NATIVE_INSTANCENORM)]


@pytest.mark.parametrize("version", [OLD, WEAK])
def test_each_calibrator_is_the_one_that_is_asked_for(version: str) -> None:
    module = make_module(version)
    for name in Calibrator:
        base = calibrator_base(module, vars(TrtSettings(calib_base_cls=name.value, quantile=0.25)))
        assert issubclass(base, getattr(module, name.value))
        if name is Calibrator.LEGACY:
            assert base.get_quantile(None) == 0.25
            assert base.get_regression_cutoff(None) == 0.5
            assert base.read_histogram_cache(None, 3) is base.write_histogram_cache(None, 3, 3) is None
    assert calibrator_base(module, vars(TrtSettings())) is module.IInt8EntropyCalibrator2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"calib_base_cls": Calibrator.MIN_MAX},
            "say how ranges for INT8 are found, which is not asked for; add --int8",
        ),
        ({"int8": True, "quantile": 0.0}, "are of one calibrator; add --calib-base-cls IInt8LegacyCalibrator"),
        ({"optimization_profile": 1}, "an engine that is built here has one, 0"),
        ({"save_tactics": Path("tactics.json")}, "--save-tactics is for `run` alone"),
    ],
)
def test_options_that_others_rule_out(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(**options)


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


ROUTES = {
    "tuner_options": [
        {"option": "-fuse", "allowed_values": "[on|off]", "default_value": "on"},
        {"option": "-depth", "allowed_values": "[1...9]", "default_value": "3"},
        {"option": "-kind", "allowed_values": "one of [a|b|c]", "default_value": "b"},
    ]
}


def test_knobs_of_build_routes_are_turned_one_by_one() -> None:
    settings = trt_target(builder_settings=(("build_route", "-kind=a -other=1"),))
    found = {
        each.name: each.turn
        for each in settings.target.switches(settings, Looked({"routes": json.dumps(ROUTES)}))
        if each.kind == "build-route"
    }
    assert set(found) == {"build-route:-fuse=off", "build-route:-kind=b", "build-route:-kind=c"}
    both = found["build-route:-kind=c"](found["build-route:-fuse=off"](settings))
    assert both.of(TrtSettings).builder_settings == (("build_route", "-other=1 -fuse=off -kind=c"),)
    assert configure(STRONG, builder_settings=both.of(TrtSettings).builder_settings).values == {
        **configure(STRONG).values,
        "build_route": "-other=1 -fuse=off -kind=c",
    }
    for text in ("", "no JSON", "{}", "[]"):
        kinds = {each.kind for each in settings.target.switches(settings, Looked({"routes": text}))}
        assert "build-route" not in kinds


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


@pytest.mark.parametrize("version", [OLD, WEAK])
@pytest.mark.parametrize(
    ("kinds", "calibrator", "stays"),
    [
        (("QUANTIZE", "DEQUANTIZE", "CONVOLUTION"), None, True),
        (("DEQUANTIZE", "CONVOLUTION"), None, True),
        (("CONVOLUTION",), None, False),
        (("CONVOLUTION",), "one", True),
        ((), None, False),
    ],
)
def test_int8_stays_where_something_is_quantized_or_ranges_are_given(
    version: str, kinds: tuple[str, ...], calibrator: str | None, stays: bool
) -> None:
    """TensorRT 8.6 refused a model whose pairs had all been taken out: "no scaling factors detected"."""
    trt = make_module(version)
    layers = [StandIn(version, "ILayer", {"type": trt.LayerType[kind]}) for kind in kinds]
    network = StandIn(version, "INetworkDefinition", {"num_layers": len(layers), "get_layer": layers.__getitem__})
    asked = {"get_flag": lambda flag: flag is trt.BuilderFlag.INT8, "int8_calibrator": calibrator}
    config = StandIn(version, "IBuilderConfig", asked)
    forget_int8(trt, config, network)
    assert config.calls == ([] if stays else [("clear_flag", trt.BuilderFlag.INT8)])


@pytest.mark.parametrize("version", VERSIONS)
def test_int8_that_is_not_asked_for_is_not_looked_for(version: str) -> None:
    config = StandIn(version, "IBuilderConfig", {"get_flag": lambda _: False})
    forget_int8(make_module(version), config, StandIn(version, "INetworkDefinition"))
    assert config.calls == []


def test_int8_without_ranges_is_refused_in_a_sentence() -> None:
    plain, quantized = {"Conv", "Relu"}, {"Conv", "DequantizeLinear"}
    target = trt_target("int8")
    with pytest.raises(UsageError, match="no QuantizeLinear or DequantizeLinear node, and no ranges are given"):
        target.target.check_model(target, plain)
    target.target.check_model(target, quantized)
    target.target.check_model(trt_target("fp16"), plain)
    for known in ({"calibration_data": ("x.npz",)}, {"calibration_cache": "c"}, {"load_engine": "m.engine"}):
        target.target.check_model(trt_target("int8", **known), plain)
