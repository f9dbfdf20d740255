"""What is read from a model before anything is cut, and which models are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from building import BARE, proto_of, tensor_info, text_model
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.inputs import input_infos
from bisect_trt.onnxlib.network import Network, depth_first_order
from bisect_trt.onnxlib.shapes import (
    element_dtype,
    element_type,
    fix_input_shapes,
    input_sizes,
    to_info,
    value_info,
)
from bisect_trt.tensors.info import TensorInfo

X = tensor_info("x", TensorProto.FLOAT, [2])
node = helper.make_node
Graph = list[list[int]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """The parents of each of some nodes, numbered in no order."""
    count = draw(st.integers(1, 30))
    number = draw(st.permutations(range(count)))
    parents: Graph = [[] for _ in range(count)]
    for place in range(count):
        if place:
            chosen = draw(st.lists(st.sampled_from(range(place)), max_size=3))
            parents[number[place]] = [number[other] for other in chosen]
    return parents


def ordered(parents: Graph) -> list[int]:
    return depth_first_order(len(parents), parents.__getitem__)


@settings(deadline=None)
@given(graphs())
def test_each_comes_after_its_parents(parents: Graph) -> None:
    order = ordered(parents)
    assert sorted(order) == list(range(len(parents)))
    place = {each: number for number, each in enumerate(order)}
    assert all(place[parent] < place[each] for each in order for parent in parents[each])


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 6))
def test_a_branch_stays_in_one_piece(branches: int, length: int) -> None:
    # Written breadth first: node k of each branch before node k + 1 of any; the last joins them.
    parents = [
        [place - branches] if place >= branches else [] for place in range(branches * length)
    ]
    parents.append(list(range(branches * (length - 1), branches * length)))
    order = ordered(parents)[:-1]
    chains = [
        [each % branches for each in order[start : start + length]]
        for start in range(0, len(order), length)
    ]
    assert all(len(set(chain)) == 1 for chain in chains)


def test_a_long_chain_needs_no_deep_stack() -> None:
    assert ordered([[place - 1] if place else [] for place in range(20_000)]) == list(range(20_000))


def test_a_cycle_names_a_node_that_is_on_it() -> None:
    # "behind" comes first, depends on the cycle and is not on it.
    nodes = [
        node("Neg", ["b"], ["y"], name="behind"),
        node("Relu", ["x"], ["before"], name="before"),
        node("Add", ["before", "c"], ["b"], name="one"),
        node("Exp", ["b"], ["c"], name="two"),
    ]
    itself = [node("Neg", ["a"], ["a"]), node("Relu", ["x"], ["y"])]
    for cycle, named in ((nodes, "(Add 'one'|Exp 'two')"), (itself, "Neg 'a'")):
        with pytest.raises(
            UnavailableError, match=f"cycle through {named}.* so the model is not valid ONNX"
        ):
            Network(proto_of(cycle, [X], ["y"]))


def test_a_function_that_calls_itself_is_no_endless_question() -> None:
    again = '<domain: "own", opset_import: ["own" : 1]> Again () => (r) { r = own.Again() }'
    model = text_model(
        "(float[2] x) => (float[2] y)", "r = own.Again() y = Add(x, r)", functions=again
    )
    assert Network(model).constant == [True, False]


# Fixed shapes for inputs whose shape is free.


FLOAT = TensorProto.FLOAT
Shape = Sequence[int | str | None] | None


def with_inputs(shapes: Mapping[str, Shape]) -> ModelProto:
    inputs = [tensor_info(name, FLOAT, shape) for name, shape in shapes.items()]
    return proto_of([node("Sum", list(shapes), ["y"])], inputs, [BARE(name="y")])


def fixed(model: ModelProto) -> dict[str, Shape]:
    return {info.name: info.shape for info in input_infos(Network(model))}


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.lists(st.integers(0, 5) | st.none() | st.sampled_from(["n", "m", ""]), max_size=3)
        | st.none(),
        min_size=1,
    ),
    st.data(),
)
def test_free_dimensions(
    shapes: dict[str, list[int | str | None] | None], data: st.DataObject
) -> None:
    given_names = data.draw(st.sets(st.sampled_from(sorted(shapes))))
    given_shapes = {
        name: data.draw(
            st.lists(st.integers(0, 9), min_size=len(shape or "?"), max_size=len(shape or "?"))
        )
        if shape != []
        else []
        for name, shape in shapes.items()
        if name in given_names
    }
    model = with_inputs(shapes)
    assumed = input_sizes(model, given_shapes).assumed
    fix_input_shapes(model, given_shapes)
    named: dict[str, set[int]] = {}
    for name, sizes in given_shapes.items():
        for dim, size in zip(shapes[name] or (), sizes, strict=False):
            if isinstance(dim, str) and dim:
                named.setdefault(dim, set()).add(size)
    for name, shape in fixed(model).items():
        if name in given_shapes:
            assert shape == tuple(given_shapes[name])
            assert name not in assumed
            continue
        old: Sequence[int | str | None] = (None,) if shapes[name] is None else shapes[name] or ()
        assert shape is not None
        assert len(shape) == len(old)
        for was, dim in zip(old, shape, strict=True):
            allowed = {was} if isinstance(was, int) else named.get(was or "", {1})
            assert dim in allowed
        told = any(not isinstance(dim, int) and (dim or "") not in named for dim in old)
        assert (name in assumed) == told
        assert assumed.get(name, shape) == shape


def test_inputs_that_are_no_tensors() -> None:
    value = helper.make_tensor_sequence_value_info("s", FLOAT, ["n"])
    model = proto_of([node("SequenceLength", ["s"], ["y"])], [value], ["y"])
    assert input_sizes(model, {}).shapes == {}
    with pytest.raises(UsageError, match="'s' is no plain tensor"):
        input_infos(Network(model))
    model.graph.input[0].CopyFrom(tensor_info("s", FLOAT, [1]))
    model.graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(UnavailableError, match="99"):
        input_infos(Network(model))


@pytest.mark.parametrize("name", TensorProto.DataType.keys())
def test_every_element_type_there_and_back(name: str) -> None:
    kind = TensorProto.DataType.Value(name)
    if name == "UNDEFINED":
        assert to_info(tensor_info("t", kind, [1])) is None
        return
    try:
        dtype = element_dtype(kind)
    except UnavailableError as error:
        assert "ml_dtypes" in str(error) or name.lower() in str(error).lower()  # noqa: PT017 - installed or not
        assert to_info(tensor_info("t", kind, [1])) is None
        return
    assert element_type(dtype) == kind
    value = value_info("t", {"t": TensorInfo("t", dtype, (2, "n", None))}, {})
    assert value.type.tensor_type.elem_type == kind
    assert to_info(value) == TensorInfo("t", dtype, (2, "n", None))


def test_what_inference_knows() -> None:
    body = "a = Relu(x) s = SplitToSequence(a) b = own.Mystery(a) y = Neg(b)"
    model = text_model("(float[2] x) => (float[n] y)", body, opset=17)
    network = Network(model)
    infos = network.infos
    assert {name: info.shape for name, info in infos.items()} == {"x": (2,), "a": (2,), "y": ("n",)}
    assert network.inferred["s"].type.WhichOneof("value") == "sequence_type"
    # It gives up as a whole on a model that it does not know; what is declared is still known.
    model.opset_import[0].domain = "another"
    assert Network(model).infos.keys() == {"x", "y"}
