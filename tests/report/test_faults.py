"""The sentence of each rule by which a side is wrong."""

from __future__ import annotations

import pytest
from msgspec import structs

from bisect_trt.report.faults import Difference, Fault, Lost, Rule

FAULT = Fault(
    Rule.ALONE,
    target="T",
    reference="R",
    arbiter="A",
    message="m",
    low="fp16",
    op="ArgMax",
    node="n",
    decisions=2,
    seen=Difference(passed=False, severity=8.0, largest=4.0, kind=""),
    own=Difference(passed=False, severity=2.0, largest=1.0, kind=""),
    beside=Difference(passed=False, severity=6.0, largest=3.0, kind=""),
    alone=Difference(passed=False, severity=4.0, largest=2.0, kind=""),
    lost=Lost("underflow", "t", 1e-9, 0.0, 65504.0, "Exp 'e'", stored=False),
    releases=("T 2", "1"),
)


@pytest.mark.parametrize("rule", Rule)
def test_every_rule_has_one_sentence_and_the_figures_of_it(rule: Rule) -> None:
    fault = structs.replace(FAULT, rule=rule)
    assert fault.sentence.endswith(".")
    assert "None" not in fault.sentence
    assert fault.to_part().whose == fault.whose
    assert (" is newer than the reference (1)" in fault.sentence) == (fault.whose == "unknown")


def test_a_difference_without_a_size_is_named() -> None:
    shape = Difference(passed=False, severity=float("inf"), largest=float("inf"), kind="shape")
    fault = structs.replace(FAULT, rule=Rule.TARGET_OFF, beside=shape)
    assert "T is off by its shape, and R by 1." in fault.sentence
    assert "becomes 0, as all below 3e-8" in structs.replace(FAULT, rule=Rule.LOST).sentence
