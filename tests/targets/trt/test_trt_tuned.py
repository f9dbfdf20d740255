"""Tactics by an edited timing cache, on a stand-in for TensorRT 11 that times kernels and says so as that does."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trt_api import OLD, STRONG, WEAK
from trt_standin import make_module, make_tensorrt, trt_target

from bisect_trt.errors import UsageError
from bisect_trt.targets.choices import TACTIC, Choice, choices_of_layers
from bisect_trt.targets.trt import sent
from bisect_trt.targets.trt.builder import _build, timings
from bisect_trt.targets.trt.parse import Parsed
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.targets.trt.tuned import CannotTake, Timed, build_edited, by_cache, edits, listen, timed

PINS = ("conv=0xa1:0x1", "conv=0xa1:0x2")


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
class Cache:
    """Entries by key, as whole numbers."""

    entries: dict[int, int] = field(default_factory=dict)

    def update(self, key: int, value: Any) -> bool:
        known = key in self.entries
        self.entries[key] = value.tacticHash
        return known

    def query(self, key: int) -> Any:
        return Value(self.entries[key], 1.0)

    def serialize(self) -> bytes:
        return repr(self.entries).encode()


@dataclass
class Value:
    tacticHash: int  # noqa: N815 - TensorRT's
    timingMSec: float  # noqa: N815 - as above


@dataclass
class Eleven:
    """Builder, configuration and package in one: layers by name, with their keys and what their kernels take."""

    layers: dict[str, tuple[str, dict[str, float]]]
    refuses: tuple[int, ...] = ()
    cache: Cache = field(default_factory=Cache)
    built: int = 0
    plain_only: bool = False
    edits: bool = False
    BuilderFlag: Any = make_module(STRONG).BuilderFlag

    TimingCacheValue = Value

    class TimingCacheKey:
        parse = staticmethod(lambda text: int(text, 16) if len(text) == 34 else None)

    def create_timing_cache(self, content: bytes) -> Cache:
        assert content == b""
        return self.cache

    def set_timing_cache(self, cache: Cache, *, ignore_mismatch: bool) -> None:
        assert cache is self.cache
        assert not ignore_mismatch

    def get_timing_cache(self) -> Cache:
        return self.cache

    def set_flag(self, flag: Any) -> None:
        assert flag.name == "EDITABLE_TIMING_CACHE"
        self.edits = True

    def clear_flag(self, flag: Any) -> None:
        assert flag.name == "EDITABLE_TIMING_CACHE"
        self.edits = False

    def build_serialized_network(self, network: str, config: Eleven) -> str | None:
        assert (network, config) == ("network", self)
        self.built += 1
        if self.plain_only and self.edits:
            listen("Autotuning op conv(key: 0xa1)")
            return None
        for name, (key, costs) in self.layers.items():
            if int(key, 16) not in self.cache.entries:
                fastest = min(costs, key=lambda each: costs[each])
                for line in said(name, key, costs, fastest):
                    listen(line)
                self.cache.entries[int(key, 16)] = int(fastest, 16)
        return None if set(self.refuses) & set(self.cache.entries.values()) else "plan"


def build(trt: Eleven, **own: Any) -> dict[str, str]:
    """What each layer takes in a build."""
    assert build_edited(trt, trt, "network", trt, vars(TrtSettings(**own)), b"") == "plan"
    return {name: word for name, word, _ in timed()}


def eleven(**more: Any) -> Eleven:
    layers = {"conv": ("0x00a1", {"0x1": 0.3, "0x02": 0.1}), "soft max": ("0xb2", {"0x7": 1.0})}
    return Eleven(layers, **more)


def test_what_a_build_timed_and_chose_is_heard() -> None:
    trt = eleven()
    assert build(trt) == {"conv": "conv=0xa1:0x2", "soft max": "soft max=0xb2:0x7"}
    assert [count for *_, count in timed()] == [2, 1]
    assert trt.built == 1
    for line in said("late", "0xc3", {"0x1": 1.0}, "0x1"):
        listen(line)
    assert len(timed()) == 2, "of another build"


def test_a_build_that_is_only_to_say_what_it_chose_fails_for_nothing_that_it_is_asked() -> None:
    """Where it cannot be built with a cache that may be edited it is built without; no line of a log raises, whatever it says."""
    trt = eleven(plain_only=True)
    assert build(trt, record="here") == {}
    assert (trt.built, trt.edits) == (2, False)
    assert build_edited(trt, trt, "network", trt, vars(TrtSettings(pin_tactics=PINS[:1])), b"") is None
    again = eleven()
    first = Eleven.build_serialized_network

    class Late(Eleven):
        def build_serialized_network(self, network: str, config: Eleven) -> str | None:
            for line in (
                " 0, 0.5, 1.0, 0.8, kernel, 0x1,",
                " 0, -, 1.0, 0.8, kernel, 0x1,",
                "(tactic hash, cost(in ms)):0x1, 1",
            ):
                listen(line)
            return first(self, network, config)

    assert build(Late(again.layers), record="here")["conv"] == PINS[1]


def test_an_edited_timing_cache_is_no_other_builds() -> None:
    trt, tensorrt = eleven(), make_tensorrt(STRONG)
    tensorrt.trt, tensorrt.builder = trt, trt
    settings = trt_target(pin_tactics=PINS[:1])
    assert _build(trt, Parsed("network", onnx.ModelProto()), settings, tensorrt) == "plan"
    assert timings(settings, tensorrt) == trt.cache.serialize()
    assert not tensorrt.timing_caches, "a build that is held to nothing would take what others were held to"


def test_a_place_is_not_held_to_timings_that_it_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", make_module(STRONG))
    with pytest.raises(UsageError, match="--pin: the build there chose no tactic that could be pinned"):
        sent.There(vars(TrtSettings(pin_timings="timing.cache")))


@pytest.mark.parametrize("pin", PINS)
def test_a_layer_takes_what_it_is_held_to(pin: str) -> None:
    trt = eleven()
    assert build(trt, pin_tactics=(pin, "soft max=0xb2:0x9", "gone=0xd4:0x1"))["conv"] == pin
    assert trt.cache.entries[0xA1] == int(pin[-1])
    assert trt.built == (1 if pin == PINS[1] else 2), "what it takes anyway is not built twice"


def test_a_layer_avoids_a_tactic_where_it_has_another() -> None:
    assert build(eleven(), avoid_tactics=("conv=0xa1:0x2", "soft max=0xb2:0x7")) == {
        "conv": "conv=0xa1:0x1",
        "soft max": "soft max=0xb2:0x7",
    }
    assert build(eleven(), avoid_tactics=PINS)["conv"] == "conv=0xa1:0x2"


@pytest.mark.parametrize(
    ("trt", "pin", "why"),
    [
        (eleven(), "conv=0xa1:0x5", "it takes conv=0xa1:0x2"),
        (eleven(), "conv=0xa2:0x1", "it takes conv=0xa1:0x2"),
        (eleven(refuses=(1,)), "conv=0xa1:0x1", "no engine can be built with 0x1"),
    ],
)
def test_a_build_that_cannot_be_held_is_no_build(trt: Eleven, pin: str, why: str) -> None:
    with pytest.raises(CannotTake, match=why):
        build(trt, pin_tactics=(pin,))


def test_layers_that_share_an_entry_cannot_be_held_apart() -> None:
    ops = {name: Timed("0xa1", {"0x1": 1.0, "0x2": 2.0}, "0x1") for name in ("one", "other")}
    with pytest.raises(CannotTake, match="other shares its entry 0xa1 with a layer that is held to 0x2"):
        edits(ops, ("one=0xa1:0x2", "other=0xa1:0x1"), ())


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(1, 4), min_size=1, unique=True)),
    st.sets(st.tuples(st.sampled_from("abc"), st.integers(1, 4))),
)
def test_what_is_avoided_is_taken_only_where_there_is_nothing_else(
    tactics: dict[str, list[int]], avoided: set[tuple[str, int]]
) -> None:
    ops = {
        name: Timed(f"0xf{name}", {hex(each): float(each) for each in of_it}, hex(min(of_it)))
        for name, of_it in tactics.items()
    }
    changed = edits(ops, (), [f"{name}=0xf{name}:{each:#x}" for name, each in avoided])
    for name, op in ops.items():
        left = {each for each in tactics[name] if (name, each) not in avoided}
        assert changed.get(op.key, op.selected) == hex(min(left or tactics[name]))


def test_the_timing_cache_is_edited_where_nothing_else_holds_tactics() -> None:
    asked = (
        vars(TrtSettings(pin_tactics=PINS[:1])),
        vars(TrtSettings(avoid_tactics=PINS)),
        vars(TrtSettings(record="here")),
    )
    for own in asked:
        assert [by_cache(make_module(version), own) for version in (OLD, WEAK, STRONG)] == [False, False, True]
    for own in (vars(TrtSettings()), vars(TrtSettings(pin_tactics=("conv=1:2",), record="here"))):
        assert not by_cache(make_module(STRONG), own)


def test_what_a_build_in_a_place_chose_is_said_as_another_one_is_held_to_it() -> None:
    build(eleven(), record="here")
    engine = SimpleNamespace(num_io_tensors=0)
    session = sent.Session(make_module(STRONG), engine, [], {"outputs": []}, vars(TrtSettings()), timed())
    choices = choices_of_layers(session.layers())
    assert choices == [Choice("conv", TACTIC, "0xa1:0x2"), Choice("soft max", TACTIC, "0xb2:0x7")]
    assert [each.pins for each in choices] == [True, False]
