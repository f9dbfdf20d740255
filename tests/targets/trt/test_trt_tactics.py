"""Tactics that layers are held to: by the algorithm selector of 8.6 to 10, and by an edited timing cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trt_standin import OLD, STRONG, VERSIONS, WEAK, make_module, plain, trt_target

from bisect_trt.errors import UsageError
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.trt.log import Log
from bisect_trt.targets.trt.tactics import (
    TimedLayer,
    TimingEditor,
    make_selector,
    tactic_chooser,
)

PINS = ("conv=0xa1:0x1", "conv=0xa1:0x2")
CONV, POOL = SimpleNamespace(name="conv"), SimpleNamespace(name="pool")


def choice(implementation: int, tactic: int) -> Any:
    def ends(index: int) -> Any:
        return SimpleNamespace(dtype="DataType.FLOAT", strides=(index, 1), vectorized_dim=-1, components_per_element=1)

    variant = SimpleNamespace(implementation=implementation, tactic=tactic)
    return SimpleNamespace(algorithm_variant=variant, get_algorithm_io_info=ends)


def report(chooser: Any, **took: Any) -> None:
    layers = [SimpleNamespace(name=name.replace("_", " + "), num_inputs=1, num_outputs=2) for name in took]
    chooser.report_algorithms(layers, list(took.values()))


def test_a_layer_does_not_take_what_is_avoided_unless_it_has_nothing_else() -> None:
    chooser = make_selector(make_module(OLD), ("conv=1:2", "pool=5:6"), ())
    assert chooser.select_algorithms(CONV, [choice(1, 2), choice(1, 3)]) == [1]
    assert chooser.select_algorithms(POOL, [choice(5, 6)]) == [0]
    report(chooser, conv=choice(1, 3), pool=choice(5, 6))
    assert chooser.took == [["conv", "conv=1:3", 2], ["pool", "pool=5:6", 1]]


def test_a_layer_takes_what_is_pinned_or_it_is_missed() -> None:
    chooser = make_selector(make_module(OLD), (), ("conv=1:2", "pool=5:6"))
    assert chooser.select_algorithms(CONV, [choice(1, 1), choice(1, 2)]) == [1]
    assert chooser.select_algorithms(POOL, [choice(5, 7), choice(5, 8)]) == [0, 1]
    report(chooser, conv=choice(1, 2))
    assert chooser.missed() == []
    report(chooser, pool=choice(5, 8))
    assert chooser.missed() == ["pool=5:8"]


def test_a_layer_that_is_fused_otherwise_has_no_pin_to_hold_it() -> None:
    for choices, missed in (([choice(1, 1), choice(1, 2)], ["conv=1:2"]), ([choice(1, 2)], [])):
        chooser = make_selector(make_module(OLD), (), ("PWN(conv + relu)=1:2", "pool=5:6"))
        chooser.select_algorithms(CONV, choices)
        report(chooser, conv=choice(1, 2), pool=choice(5, 6))
        assert chooser.missed() == missed


def test_a_layer_that_is_told_another_type_is_not_held() -> None:
    chooser = make_selector(make_module(OLD), (), ("conv + relu=1:2", "pool=5:6"))
    chooser.lifted.update(["relu"])
    both = SimpleNamespace(name="conv + relu")
    assert chooser.select_algorithms(both, [choice(1, 1), choice(1, 2)]) == [0, 1]
    report(chooser, conv_relu=choice(1, 1), pool=choice(5, 6))
    assert chooser.missed() == []


def test_which_way_a_version_holds_tactics() -> None:
    kinds = [type(tactic_chooser(make_module(each), plain(trt_target(pin_tactics=PINS)))).__name__ for each in VERSIONS]
    assert kinds == ["Selector", "Selector", "TimingEditor"]
    for version in VERSIONS:
        assert tactic_chooser(make_module(version), plain(trt_target())) is None
    assert isinstance(tactic_chooser(make_module(STRONG), plain(trt_target(record="here"))), TimingEditor)
    assert tactic_chooser(make_module(WEAK), plain(trt_target()), record=True) is not None
    with pytest.raises(UsageError, match=r"--pin-tactic: TensorRT 11.* has no algorithm selector"):
        tactic_chooser(make_module(STRONG), plain(trt_target(pin_tactics=("conv=1:2",))))


def said(name: str, key: str, costs: dict[str, float], selected: str) -> list[str]:
    """The verbose log of one layer, as NVIDIA's sample reads it."""
    fastest = min(costs.values())
    rows = [
        f" {place}, {cost:.5f}, {cost / fastest:.2f}, 0.883, sm90_xmma_{place}, {tactic},"
        for place, (tactic, cost) in enumerate(costs.items())
    ]
    return [
        f"Autotuning op {name}(key: {key})",
        "tactic_id, cost(in ms), cost/fastest_cost, prediction_correlation, kernel_name, tactic_hash, tactic_debug_string",
        *rows,
        f"The selected tactic is (tactic hash, cost(in ms)):{selected}, {fastest}",
    ]


@dataclass
class Value:
    tacticHash: int  # noqa: N815 - TensorRT's
    timingMSec: float  # noqa: N815 - as above


@dataclass
class Eleven:
    """Builder, configuration, timing cache and package in one: layers by name, with their keys and kernels.

    Attributes:
        refuses: Tactics with which nothing can be built.
        edits: Whether the timing cache may be edited; ``plain_only`` if nothing can be built then.
    """

    layers: dict[str, tuple[str, dict[str, float]]]
    refuses: tuple[int, ...] = ()
    plain_only: bool = False
    built: int = 0
    edits: bool = False
    log: Log = field(default_factory=Log)
    entries: dict[int, int] = field(default_factory=dict)
    BuilderFlag: Any = make_module(STRONG).BuilderFlag
    TimingCacheValue = Value

    class TimingCacheKey:
        parse = staticmethod(lambda text: int(text, 16) if len(text) == 34 else None)

    def create_timing_cache(self, content: bytes) -> Eleven:
        assert content == b""
        return self

    def set_timing_cache(self, cache: Eleven, *, ignore_mismatch: bool) -> None:
        assert cache is self
        assert not ignore_mismatch

    def update(self, key: int, value: Any) -> bool:
        known = key in self.entries
        self.entries[key] = value.tacticHash
        return known

    def query(self, key: int) -> Any:
        return Value(self.entries[key], 1.0)

    def set_flag(self, flag: Any) -> None:
        assert flag.name == "EDITABLE_TIMING_CACHE"
        self.edits = True

    def clear_flag(self, flag: Any) -> None:
        assert flag.name == "EDITABLE_TIMING_CACHE"
        self.edits = False

    def build_serialized_network(self, network: str, config: Eleven) -> str | None:
        assert (network, config) == ("network", self)
        self.built += 1
        tell = self.log.listener or (lambda _: None)
        for line in (
            " 0, 0.5, 1.0, 0.8, kernel, 0x1,",
            "(tactic hash, cost(in ms)):0x1, 1",
        ):  # of nothing that was begun
            tell(line)
        if self.plain_only and self.edits:
            tell("Autotuning op conv(key: 0xa1)")
            return None
        for name, (key, costs) in self.layers.items():
            if int(key, 16) not in self.entries:
                fastest = min(costs, key=lambda each: costs[each])
                for line in said(name, key, costs, fastest):
                    tell(line)
                self.entries[int(key, 16)] = int(fastest, 16)
        return None if set(self.refuses) & set(self.entries.values()) else "plan"


def eleven(**more: Any) -> Eleven:
    layers = {"conv": ("0x00a1", {"0x1": 0.3, "0x02": 0.1}), "soft max": ("0xb2", {"0x7": 1.0})}
    return Eleven(layers, **more)


def build(trt: Eleven, avoided: tuple[str, ...] = (), pinned: tuple[str, ...] = ()) -> dict[str, str]:
    """What each layer takes in a build."""
    editor = TimingEditor(trt, avoided, pinned)
    assert editor.build(trt, "network", trt, b"", trt.log) == "plan"
    assert trt.log.listener is None
    return {name: word for name, word, _ in editor.took}


def test_what_a_build_timed_and_chose_is_heard() -> None:
    trt = eleven()
    assert build(trt) == {"conv": "conv=0xa1:0x2", "soft max": "soft max=0xb2:0x7"}
    assert trt.built == 1


def test_a_build_that_is_only_to_say_what_it_chose_fails_for_nothing_that_it_is_asked() -> None:
    trt = eleven(plain_only=True)
    assert build(trt) == {}
    assert (trt.built, trt.edits) == (2, False)
    assert TimingEditor(trt, (), PINS[:1]).build(trt, "network", trt, b"", trt.log) is None


@pytest.mark.parametrize("pin", PINS)
def test_a_layer_takes_what_it_is_held_to(pin: str) -> None:
    trt = eleven()
    assert build(trt, pinned=(pin, "soft max=0xb2:0x9", "gone=0xd4:0x1"))["conv"] == pin
    assert trt.entries[0xA1] == int(pin[-1])
    assert trt.built == (1 if pin == PINS[1] else 2), "what it takes anyway is not built twice"


def test_a_layer_avoids_a_tactic_where_it_has_another() -> None:
    found = build(eleven(), ("conv=0xa1:0x2", "soft max=0xb2:0x7"))
    assert found == {"conv": "conv=0xa1:0x1", "soft max": "soft max=0xb2:0x7"}
    assert build(eleven(), PINS)["conv"] == "conv=0xa1:0x2"


@pytest.mark.parametrize(
    ("trt", "pin", "why"),
    [
        (eleven(), "conv=0xa1:0x5", "it takes conv=0xa1:0x2"),
        (eleven(), "conv=0xa2:0x1", "it takes conv=0xa1:0x2"),
        (eleven(refuses=(1,)), "conv=0xa1:0x1", "not 0x1, with which no engine can be built"),
    ],
)
def test_a_build_that_cannot_be_held_is_no_build(trt: Eleven, pin: str, why: str) -> None:
    with pytest.raises(BuildError, match=why) as error:
        build(trt, pinned=(pin,))
    assert error.value.signature == "pin"


def timed(tactics: dict[str, tuple[str, list[int]]], avoided: list[str], pinned: list[str]) -> TimingEditor:
    """An editor that has timed layers: by name the key and the tactics, of which smaller ones are faster."""
    editor = TimingEditor(None, avoided, pinned)
    for name, (key, of_it) in tactics.items():
        editor.layers[name] = TimedLayer(key)
        editor.layers[name].costs = {hex(each): float(each) for each in of_it}
        editor.layers[name].taken = hex(min(of_it))
    return editor


def test_layers_that_share_an_entry_cannot_be_held_apart() -> None:
    layers = {name: ("0xa1", [1, 2]) for name in ("one", "other")}
    with pytest.raises(BuildError, match="it takes other=0xa1:0x2"):
        timed(layers, [], ["one=0xa1:0x2", "other=0xa1:0x1"]).edits()


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(1, 4), min_size=1, unique=True)),
    st.sets(st.tuples(st.sampled_from("abc"), st.integers(1, 4))),
)
def test_what_is_avoided_is_taken_only_where_there_is_nothing_else(
    tactics: dict[str, list[int]], avoided: set[tuple[str, int]]
) -> None:
    keys = {name: f"0xf{name}" for name in tactics}
    words = [f"{name}=0xf{name}:{each:#x}" for name, each in avoided]
    changed = timed({name: (keys[name], of_it) for name, of_it in tactics.items()}, words, []).edits()
    for name, of_it in tactics.items():
        left = {each for each in of_it if (name, each) not in avoided}
        assert changed.get(keys[name], hex(min(of_it))) == hex(min(left or of_it))
