"""Any set of units of any model is a model that reproduces the original's activations."""

from __future__ import annotations

from cutting import cutter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto
from random_models import feeds, models

quick = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(model=models(), data=st.data())
def test_any_set_of_units_reproduces_its_activations(model: ModelProto, data: st.DataObject) -> None:
    whole = cutter(model, feeds())
    units = range(len(model.graph.node))
    for bare in (True, False):
        chosen = data.draw(st.sets(st.sampled_from(units), min_size=1))
        whole.check(chosen, bare=bare)
    whole.check(units)
