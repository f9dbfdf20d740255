"""``reduce`` from the outside: what it finds, and what it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from building import ort_run
from conftest import CommandLine
from light import Light
from support import arrays, chain, has, node_names, script

OPTIONS = ("-o", "out.onnx", "--no-shrink", "--json", "r.json")


@pytest.fixture
def model(here: Path) -> Path:
    return chain(here / "model.onnx", 12)


def failing_with(*tags: str) -> list[str]:
    """A check that fails while the model has all of the nodes."""
    return failing_with_any(tags)


def failing_with_any(*causes: tuple[str, ...]) -> list[str]:
    """A check that fails while the model has all nodes of one of the sets."""
    body = " || ".join(f"{{ {has(*cause)}; }}" for cause in causes)
    return ["--check", "./" + script(Path("check"), f"{{ {body}; }} && exit 1; exit 0"), "{model}"]


def test_one_node_of_a_real_network(light: Light, cli: CommandLine) -> None:
    (required,) = light.choose(1, seed=0)
    result = cli("reduce", light.path, *OPTIONS, *failing_with(required)).ended(0).result
    assert light.left(Path("out.onnx")) == [required]
    original = next(node for node in onnx.load(str(light.path)).graph.node if node.name == required)
    assert result["culprits"] == [
        {"name": required, "op": original.op_type, "outputs": list(original.output)}
    ]
    assert result["minimality"] == "1-minimal"
    assert result["model"]["units"] == len(light.computing)
    # Bisection, the proof and the re-check; not one probe a node.
    assert result["probes"]["run"] <= np.log2(len(light.computing)) + 6


@pytest.mark.parametrize("option", ["--no-shrink", "--overwrite"])
def test_the_result_runs_on_the_values_beside_it(
    cli: CommandLine, model: Path, option: str
) -> None:
    words = ("-o", "out.onnx", option, "--json", "r.json", *failing_with("<3>", "<4>"))
    artifacts = cli("reduce", model, *words).ended(0).result["artifacts"]
    onnx.checker.check_model("out.onnx", full_check=True)
    inputs = arrays(artifacts["inputs"])
    golden = arrays(artifacts["golden"])
    (given,) = ort_run(Path("out.onnx"), inputs).values()
    np.testing.assert_array_equal(given, golden["t4"])
    np.testing.assert_array_equal(given, inputs["t2"] + 2)
    assert given.shape == ((2, 3) if option == "--no-shrink" else (1, 1))


def test_artifacts_are_sorted(cli: CommandLine, model: Path) -> None:
    body = f"echo log > a.log; echo $# > b.txt; {has('<7>')} && exit 1; {has('<2>')} && exit 125; exit 0"
    check = ["--check", "./" + script(Path("check"), body), "{model}"]
    options = [
        "--artifacts",
        "a.log",
        "b.txt",
        "never.txt",
        "--artifacts-dir",
        "kept",
        "--json",
        "r.json",
    ]
    probes = cli("reduce", model, "-o", "out.onnx", *options, *check).ended(0).result["probes"]
    for verdict, folder in (("fail", "bad"), ("pass", "good")):
        for name in ("a.log", "b.txt"):
            assert len(list(Path("kept", folder).glob(f"*{name}"))) == probes[verdict]
    assert not Path("a.log").exists()
    assert not list(Path("kept").rglob("*never*"))


def test_free_dimensions_become_1_with_a_warning(cli: CommandLine, model: Path) -> None:
    proto = onnx.load(str(model))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(proto, str(model))
    ran = cli("reduce", model, "-o", "one.onnx", "--no-shrink", *failing_with("<3>")).ended(0)
    assert "'x'" in ran.err
    assert "[1, 3]" in ran.err
    ran = cli(
        "reduce",
        model,
        "-o",
        "five.onnx",
        "--no-shrink",
        "--input-shapes",
        "x:5x3",
        *failing_with("<3>"),
    )
    assert (ran.status, ran.err) == (0, "")
    for name, batch in (("one", 1), ("five", 5)):
        (value,) = onnx.load(f"{name}.onnx").graph.input
        assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [batch, 3]


# One failure of several: it is reported, and ``--all`` finds each.


@pytest.fixture
def long_model(here: Path) -> Path:
    return chain(here / "model.onnx", 16)


def names(failure: dict[str, list[dict[str, str]]]) -> list[str]:
    return [culprit["name"] for culprit in failure["culprits"]]


def test_each_is_found(cli: CommandLine, long_model: Path) -> None:
    causes = [("<1>",), ("<4>", "<7>"), ("<10>", "<12>", "<13>")]
    result = (
        cli("reduce", long_model, *OPTIONS, "--all", *failing_with_any(*causes)).ended(0).result
    )
    assert sorted(names(failure) for failure in result["failures"]) == sorted(map(list, causes))
    assert result["more_failures"] is False
    assert all(failure["minimality"] == "1-minimal" for failure in result["failures"])
    assert [failure["reduced"] for failure in result["failures"]] == [
        "out.onnx",
        "out-2.onnx",
        "out-3.onnx",
    ]
    for failure in result["failures"]:
        assert node_names(Path(failure["reduced"])) == names(failure)
        assert Path(failure["reduced"]).with_suffix(".inputs.npz").exists()


def test_there_is_a_limit(cli: CommandLine, long_model: Path) -> None:
    every = failing_with_any(*((f"<{place}>",) for place in range(16)))
    result = cli("reduce", long_model, *OPTIONS, "--all", *every).result
    assert (len(result["failures"]), result["more_failures"]) == (10, True)


def test_a_budget_keeps_what_was_found(cli: CommandLine, long_model: Path) -> None:
    check = failing_with_any(("<2>",), ("<9>",))
    result = cli("reduce", long_model, *OPTIONS, *check).ended(0).result
    assert ([names(failure) for failure in result["failures"]], result["more_failures"]) == (
        [["<2>"]],
        True,
    )
    probes = result["probes"]["run"]
    # The proof has asked about the rest before the budget is spent; with --all the other failure is
    # missing.
    again = (long_model, *OPTIONS, "--overwrite", "--max-probes")
    assert cli("reduce", *again, str(probes - 1), *check).ended(0).result["more_failures"] is True
    result = cli("reduce", *again, str(probes + 1), "--all", *check).ended(3).result
    assert (len(result["failures"]), result["more_failures"]) == (1, True)
    assert node_names(Path("out.onnx")) == names(result["failures"][0])


# Checks that fail only sometimes, and answers that could be smaller: what is said of the proof.


ALONE = (*OPTIONS, "--workers", "1")


def changing(first: str, again: str) -> list[str]:
    """A check that says of a candidate it has seen before what the second condition says."""
    known = 'sum=$(md5sum < "$1"); grep -qsF "$sum" seen'
    body = f'if {known}; then {again} && exit 1; else echo "$sum" >> seen; {first} && exit 1; fi; exit 0'
    return ["--check", "./" + script(Path("check"), body), "{model}"]


def test_a_pass_that_does_not_hold_is_said(cli: CommandLine, model: Path) -> None:
    """The part without the first node passed, and fails when it is asked about again."""
    ran = cli("reduce", model, *ALONE, *changing(has("<3>", "<7>"), has("<7>")))
    assert node_names(Path("out.onnx")) == ["<7>"]
    assert "--repeat 20" in ran.result["why"]
    # What failed alone is proven all the same.
    assert (ran.status, ran.result["minimality"]) == (0, "1-minimal")


def test_a_failure_that_was_seen_once_is_not_put_down_to_serialization(
    cli: CommandLine, model: Path
) -> None:
    check = script(Path("check"), "[ -e seen ] && exit 0; touch seen; exit 1")
    ran = cli("reduce", model, *ALONE, "--check", f"./{check}", "{model}").refused(
        "BT3003", "--repeat 20"
    )
    assert (ran.result["status"], Path("out.onnx").exists()) == ("inconclusive", False)


def test_a_rate_that_falls_from_the_original_to_the_answer_leaves_no_proof(
    cli: CommandLine, model: Path
) -> None:
    """The original fails each time, what is cut out of it in every third run."""
    seldom = (
        f"echo >> runs; [ $(( $(wc -l < runs) % 3 )) = 0 ] && {has('<3>', '<7>')} && exit 1; exit 0"
    )
    check = script(
        Path("check"), f"{has(*(f'<{number}>' for number in range(12)))} && exit 1; {seldom}"
    )
    result = (
        cli("reduce", model, *ALONE, "--repeat", "20", "--check", f"./{check}", "{model}")
        .ended(3)
        .result
    )
    assert result["minimality"] == "unproven"
    assert "flaky" in result["why"]


def test_measuring_the_original_keeps_to_the_budget(cli: CommandLine, model: Path) -> None:
    check = script(Path("check"), f"echo >> runs; {has('<3>')} && exit 1; exit 0")
    words = ["--repeat", "1000000", "--max-time", "2", "--check", f"./{check}", "{model}"]
    ran = cli("reduce", model, *ALONE, *words)
    assert ran.status not in (0, 1)
    assert "(--max-time 2)" in ran.error
    assert Path("runs").read_text()
