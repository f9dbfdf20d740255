"""One failure of several: it is reported, and ``--all`` finds each."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CommandLine
from support import chain, has, node_names, read_json, script

OPTIONS = ("-o", "out.onnx", "--no-shrink", "--json", "r.json")


@pytest.fixture
def model(here: Path) -> Path:
    return chain(here / "model.onnx", 16)


def failing_with_any(*causes: tuple[str, ...]) -> list[str]:
    """A check that fails while the model has all nodes of one of the sets."""
    body = " || ".join(f"{{ {has(*cause)}; }}" for cause in causes)
    return ["--check", "./" + script(Path("check"), f"{{ {body}; }} && exit 1; exit 0"), "{model}"]


def names(failure: dict[str, list[dict[str, str]]]) -> list[str]:
    return [culprit["name"] for culprit in failure["culprits"]]


def test_each_is_found(cli: CommandLine, model: Path) -> None:
    causes = [("<1>",), ("<4>", "<7>"), ("<10>", "<12>", "<13>")]
    result = cli("reduce", model, *OPTIONS, "--all", *failing_with_any(*causes)).ended(0).result
    assert sorted(names(failure) for failure in result["failures"]) == sorted(map(list, causes))
    assert result["more_failures"] is False
    assert all(failure["minimality"] == "1-minimal" for failure in result["failures"])
    assert [failure["reduced"] for failure in result["failures"]] == ["out.onnx", "out-2.onnx", "out-3.onnx"]
    for failure in result["failures"]:
        assert node_names(Path(failure["reduced"])) == names(failure)
        assert Path(failure["reduced"]).with_suffix(".inputs.npz").exists()


def test_there_is_a_limit(cli: CommandLine, model: Path) -> None:
    cli("reduce", model, *OPTIONS, "--all", *failing_with_any(*((f"<{place}>",) for place in range(16))))
    result = read_json(Path("r.json"))
    assert (len(result["failures"]), result["more_failures"]) == (10, True)


def test_a_budget_keeps_what_was_found(cli: CommandLine, model: Path) -> None:
    check = failing_with_any(("<2>",), ("<9>",))
    result = cli("reduce", model, *OPTIONS, *check).ended(0).result
    assert ([names(failure) for failure in result["failures"]], result["more_failures"]) == ([["<2>"]], True)
    probes = result["probes"]["run"]
    # Without --all the question is left out where the budget is spent; with it the other failure is missing.
    assert cli("reduce", model, *OPTIONS, "--overwrite", "--max-probes", str(probes - 1), *check).status == 0
    assert read_json(Path("r.json"))["more_failures"] is None
    result = (
        cli("reduce", model, *OPTIONS, "--overwrite", "--all", "--max-probes", str(probes + 1), *check).ended(3).result
    )
    assert (len(result["failures"]), result["more_failures"]) == (1, True)
    assert node_names(Path("out.onnx")) == names(result["failures"][0])
