"""Tactics that layers take or avoid, by the algorithm selector of TensorRT 8.6 to 10."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from trt_standin import OLD, STRONG, WEAK, make_module, plain, trt_target

from bisect_trt.errors import UnknownNameError
from bisect_trt.targets.trt.config import make_selector, tactic_selector

PINS = ("conv=1:2",)
CONV = SimpleNamespace(name="conv")
POOL = SimpleNamespace(name="pool")


def choice(implementation: int, tactic: int) -> Any:
    def ends(index: int) -> Any:
        return SimpleNamespace(
            dtype="DataType.FLOAT", strides=(index, 1), vectorized_dim=-1, components_per_element=1
        )

    variant = SimpleNamespace(implementation=implementation, tactic=tactic)
    return SimpleNamespace(algorithm_variant=variant, get_algorithm_io_info=ends)


def report(chooser: Any, **took: Any) -> None:
    layers = [
        SimpleNamespace(name=name.replace("_", " + "), num_inputs=1, num_outputs=2) for name in took
    ]
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


@pytest.mark.parametrize("version", [OLD, WEAK])
def test_tactics_are_selected_where_they_are_pinned_avoided_or_recorded(version: str) -> None:
    module = make_module(version)
    assert tactic_selector(module, plain(trt_target())) is None
    for own in ({"pin_tactics": PINS}, {"avoid_tactics": PINS}, {"record": "here"}):
        assert tactic_selector(module, plain(trt_target(**own))) is not None
    assert tactic_selector(module, plain(trt_target()), record=True) is not None


def test_tensorrt_11_has_no_selector() -> None:
    module = make_module(STRONG)
    assert tactic_selector(module, plain(trt_target(record="here")), record=True) is None
    for own in ({"pin_tactics": PINS}, {"avoid_tactics": PINS}):
        with pytest.raises(UnknownNameError):
            tactic_selector(module, plain(trt_target(**own)))
