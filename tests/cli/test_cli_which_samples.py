"""``samples``: which of many inputs fail, and the smallest that still fails."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import TensorProto, helper, numpy_helper
from support import TARGET, arrays, chain, read_json, script

import bisect_trt

GUILTY = 17
"""The one token whose embedding is past fp16 when it is squared."""


@pytest.fixture
def tokens(here: Path) -> Path:
    """Root of the sum of squares of embeddings of [n, s] tokens; samples of different lengths beside it."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((50, 8)).astype(np.float32)
    table[GUILTY] = 300
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], name="embed"),
        helper.make_node("Mul", ["e", "e"], ["squares"], name="square"),
        helper.make_node("ReduceSum", ["squares", "axis"], ["sum"], keepdims=0, name="sum"),
        helper.make_node("Sqrt", ["sum"], ["y"], name="root"),
    ]
    weights = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([2]), "axis")]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "s"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "s"])
    graph = helper.make_graph(nodes, "g", [ids], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), "model.onnx")
    for number in range(1, 13):
        values = rng.integers(1, 50, (2, int(rng.integers(3, 12))))
        values[values == GUILTY] = 18
        if number in (3, 6, 8, 12):
            values[1, 2] = GUILTY
        np.savez(here / f"x-{number}.npz", ids=values)
    return here / "model.onnx"


def test_the_token_is_found_and_is_all_that_is_left(cli: CommandLine, tokens: Path) -> None:
    ran = cli("samples", tokens, *TARGET, "--load-inputs", "x.npz", "--json", "r.json").ended(0)
    found = ran.result
    samples = found["samples"]
    assert (samples["failing"], samples["total"], samples["unresolved"]) == ([3, 6, 8, 12], 12, [])
    np.testing.assert_array_equal(arrays("minimal-input.npz")["ids"], [[GUILTY]])
    least = samples["minimal_input"]
    assert (least["kept"], least["minimality"], found["minimality"]) == (1, "1-minimal", "1-minimal")
    assert least["elements_kept"] == [{"input": "ids", "index": [0, 0], "value": GUILTY}]
    # What it says shows the failure does.
    assert f"To reproduce it: {least['command']}" in ran.out
    assert cli(*shlex.split(least["command"])[1:]).status == 1


def test_a_check_command_and_a_budget(cli: CommandLine, here: Path, tokens: Path) -> None:
    Path("seen.py").write_text(
        f"import numpy, sys\nsys.exit(int((numpy.load(sys.argv[1])['ids'] == {GUILTY}).any()))\n", "utf-8"
    )
    check = script(here / "check.sh", 'python seen.py "$1"')
    options = ["--load-inputs", "x.npz", "--json", "r.json", "--max-probes", "15"]
    result = cli("samples", tokens, "-o", "least.npz", *options, "--check", check, "{inputs}").ended(3).result
    least = result["samples"]["minimal_input"]
    assert (result["status"], least["minimality"]) == ("inconclusive", "unproven")
    assert "the budget is spent (--max-probes 15)" in least["why"]
    assert (arrays("least.npz")["ids"] == GUILTY).any()
    assert "--check" in least["command"]
    options[-1] = "2"
    ran = cli("samples", tokens, "-o", "none.npz", *options, "--check", check, "{inputs}")
    seen = read_json(Path("r.json"))["samples"]
    assert (ran.status, [each["sample"] for each in seen["each"]]) == (3, [1, 2])
    assert f"So far {len(seen['failing'])} of 2 samples fail" in ran.out
    assert not Path("none.npz").exists()


def test_nan_inf_and_conditions_are_said_as_json_and_options_have_them(cli: CommandLine, here: Path) -> None:
    """Of a NaN and an Inf in one sample the check needs both; it says so in a word that has to be among what is run again."""
    model = chain(here / "m.onnx")
    (here / "check.py").write_text(
        "import sys, numpy\nx = numpy.load(sys.argv[1])['x']\n"
        "print('odd' if numpy.isnan(x).any() and numpy.isinf(x).any() else 'fine'); sys.exit(3)\n"
    )
    shape = [int(dim.dim_value) for dim in onnx.load(model).graph.input[0].type.tensor_type.shape.dim]
    x = np.ones(shape, np.float32)
    x.flat[:2] = np.nan, -np.inf
    np.savez("x.npz", x=x)
    check = ["--fail-regex", "odd", "--check", f"{sys.executable} check.py {{inputs}}"]
    cli("samples", model, "--load-inputs", "x.npz", "--json", "r.json", *check).ended(0)
    least = read_json(Path("r.json"))["samples"]["minimal_input"]
    assert {each["value"] for each in least["elements_kept"]} == {"nan", "-inf"}
    assert "--fail-regex odd --check" in least["command"]


def test_a_failure_that_comes_and_goes_proves_nothing(cli: CommandLine, here: Path) -> None:
    """A check that fails the first time it sees an input, and then never again."""
    (here / "check.py").write_text(
        "import sys, hashlib, pathlib\n"
        "seen = pathlib.Path(hashlib.sha256(pathlib.Path(sys.argv[1]).read_bytes()).hexdigest())\n"
        "first = not seen.exists(); seen.touch(); sys.exit(first)\n"
    )
    check = ["--workers", "1", "--check", f"{sys.executable} check.py {{inputs}}"]
    ran = cli("samples", chain(here / "m.onnx"), "--iterations", "2", "--json", "r.json", *check).ended(3)
    least = ran.result["samples"]["minimal_input"]
    assert "flaky" in least["why"]
    assert least["command"].startswith("bisect-trt repeat")
    assert f"To measure how often it fails: {least['command']}" in ran.out


DOUBLES = [np.linspace(-1, 1, 2 * rows).reshape(rows, 2) for rows in (3, 4, 5)]
for _values in DOUBLES[:2]:
    _values[-1, 1] = -0.0
WORDS = [
    np.array(each)
    for each in ([["a", "bc"]], [["odd", "a"], ["bc", "d"]], [["d", "e"]], [["e", "bc"], ["a", "odd"]], [["bc", ""]])
]


@pytest.mark.parametrize(
    ("dtype", "values", "failing", "index", "value"),
    [(TensorProto.DOUBLE, DOUBLES, [1, 2], [2, 1], "-0.0"), (TensorProto.STRING, WORDS, [2, 4], [0, 0], "odd")],
)
def test_a_negative_zero_is_no_zero_and_strings_are_values(
    here: Path, dtype: int, values: list[np.ndarray], failing: list[int], index: list[int], value: str
) -> None:
    """Both inputs have rows without a name for their number, side by side: they have to have as many."""
    ends = [helper.make_tensor_value_info(name, dtype, [None, 2]) for name in "aby"]
    node = helper.make_node("Concat", ["a", "b"], ["y"], axis=1, name="join")
    graph = helper.make_graph([node], "g", ends[:-1], ends[-1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), "joined.onnx")

    def fails(_: Path, inputs: dict[str, np.ndarray]) -> bool:
        b = inputs["b"]
        return "odd" in b if dtype == TensorProto.STRING else bool(np.any((b == 0) & np.signbit(b)))

    samples = [{"a": np.flip(each), "b": each} for each in values]
    found = bisect_trt.samples("joined.onnx", fails, inputs=samples, output=here / "least.npz")
    told = found.extra["samples"]
    assert (told["failing"], found.minimality) == (failing, "1-minimal")
    (kept,) = told["minimal_input"]["elements_kept"]
    assert (kept["input"], kept["index"], str(kept["value"])) == ("b", index, value)


def test_endings_without_a_failing_sample(cli: CommandLine, here: Path, tokens: Path) -> None:
    np.savez(here / "good.npz", ids=np.ones((2, 3), np.int64))
    np.savez(here / "none.npz", ids=np.full((2, 3), 99))
    ran = cli("samples", tokens, *TARGET, "--load-inputs", "good.npz").ended(1)
    assert "none of the 1 samples fails." in ran.err + ran.out
    ran = cli("samples", tokens, *TARGET, "--load-inputs", "none.npz").ended(4)
    assert "no sample has a verdict: the reference does not run it" in ran.err
    Path("minimal-input.npz").write_bytes(b"mine")
    ran = cli("samples", tokens, *TARGET, "--load-inputs", "good.npz").ended(2)
    assert "minimal-input.npz exists" in ran.err
