"""What a check may do, from its options to the answer; ``tests/probe/test_command_check.py`` has each row of the table.

A chain of two nodes is reduced. The check does one thing on the whole, so that the search starts, and another on a part.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import CommandLine
from support import chain, has, node_names, read_json, script

pytestmark = pytest.mark.any_version

FAIL, PASS, UNRESOLVED = "fail", "pass", "unresolved"
ABORT, KILL, HANG = "ulimit -c 0; kill -ABRT $$", "kill -KILL $$", "exec sleep 60"
BOOM = "echo 'boom 17' >&2"


def probe_parts(cli: CommandLine, options: str, whole: str, part: str) -> tuple[int, dict[str, int]]:
    """The exit status, and how many parts of the model got which verdict."""
    model = chain(Path("model.onnx"), 2)
    check = script(Path("check"), f"if {has('<0>', '<1>')}; then {whole}; else {part}; fi")
    words = ["-o", "out.onnx", "--json", "r.json", *options.split(), "--check", f"./{check}", "{model}"]
    ran = cli("reduce", model, *words)
    assert "Traceback" not in ran.err
    result = read_json(Path("r.json"))
    return ran.status, {verdict: result["probes"][verdict] for verdict in (FAIL, PASS, UNRESOLVED)}


@pytest.mark.parametrize(
    ("options", "whole", "part", "verdict"),
    [
        ("--ignore-fail-code 6 7", "exit 1", "exit 7", PASS),
        ("", "exit 1", "exit 125", UNRESOLVED),
        # Signals count where the original ends the same way.
        ("", "exit 1", ABORT, UNRESOLVED),
        ("", ABORT, ABORT, FAIL),
        ("", ABORT, KILL, UNRESOLVED),
        ("--fail-regex boom", f"{BOOM}; exit 1", f"{BOOM}; {ABORT}", UNRESOLVED),
        # Conditions: every kind that is given must be met, one of each is enough.
        ("--fail-regex bang b[o]+m.17", f"{BOOM}; exit 1", "echo 'boom 17'; exit 0", FAIL),
        ("--fail-regex bang --fail-regex boom", f"{BOOM}; exit 1", "echo bang; exit 1", FAIL),
        ("--fail-code 3 4 --fail-regex boom", f"{BOOM}; exit 3", f"{BOOM}; exit 4", FAIL),
        ("--fail-code 3 --fail-regex boom", f"{BOOM}; exit 3", "exit 3", UNRESOLVED),
        ("--fail-code 3", "exit 3", "exit 0", PASS),
        # No conditions.
        ("", "exit 1", "exit 0", PASS),
        ("", "exit 1", "exit 9", FAIL),
        ("", ABORT, "exit 1", FAIL),
    ],
)
def test_verdict(cli: CommandLine, options: str, whole: str, part: str, verdict: str) -> None:
    status, seen = probe_parts(cli, options, whole, part)
    # A kill from outside says nothing, so that nothing is proven.
    assert status == (3 if part == KILL else 0)
    # The whole fails: at first and, if no part does, once more as the result that was read back.
    assert seen.pop(FAIL) >= 2
    left = len(node_names(Path("out.onnx")))
    if verdict == FAIL:
        assert seen == {PASS: 0, UNRESOLVED: 0}
        assert left == 1
    else:
        assert seen.pop(verdict) >= 1
        assert set(seen.values()) == {0}
        assert left == 2


@pytest.mark.parametrize(
    ("whole", "part", "verdict"),
    [("exit 1", HANG, UNRESOLVED), (HANG, HANG, FAIL), (HANG, KILL, UNRESOLVED)],
)
def test_a_time_out_counts_where_the_original_ends_so_too(
    cli: CommandLine, whole: str, part: str, verdict: str
) -> None:
    # Two probes show it; what does not hang ends in that time on a busy machine too.
    status, seen = probe_parts(cli, "--timeout 1.5 --max-probes 2 --workers 1", whole, part)
    assert status == 3
    seen[FAIL] -= 1
    assert seen == {**dict.fromkeys((FAIL, PASS, UNRESOLVED), 0), verdict: 1}


@pytest.mark.parametrize(
    ("options", "whole"),
    [
        ("", "exit 0"),
        ("", "exit 125"),
        ("--fail-code 3", "exit 1"),
    ],
)
def test_an_original_that_does_not_fail_so_ends_the_run(cli: CommandLine, options: str, whole: str) -> None:
    status, seen = probe_parts(cli, options, whole, "exit 1")
    assert status == 1
    assert seen[FAIL] == 0
    assert not Path("out.onnx").exists()
    result = read_json(Path("r.json"))
    assert (result["status"], result["probes"]["run"]) == ("not_reproduced", 1)


def test_another_way_to_break_is_shown_once(cli: CommandLine) -> None:
    model = chain(Path("model.onnx"), 8)
    body = f"if {has('<1>', '<6>')}; then echo boom; else echo 'the other thing'; fi; exit 1"
    check = f"./{script(Path('check'), body)}"
    ran = cli("reduce", model, "-o", "out.onnx", "--fail-regex", "boom", "--check", check, "{model}").ended(0)
    assert ran.out.count("UNRESOLVED") > 1
    assert ran.out.count("the other thing") == 1
