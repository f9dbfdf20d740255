"""Places: a target in another interpreter is the same target; the zip application needs nothing of ours there."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import shlex
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import text_model
from conftest import CommandLine
from support import line, marked, save, wait_for

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console
from bisect_trt.session.subject import ModelSettings, Subject
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.runtime import Runtime
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.worker.channel import ConnectionLost, ProcessDied
from bisect_trt.worker.connection import Connection, RemoteRunner, application
from bisect_trt.worker.place import OLDEST, Place, make_place
from bisect_trt.worker.pool import WorkerPool
from bisect_trt.worker.protocol import Compare, Failed, Look, Sample

ALLOWED = {*sys.stdlib_module_names, "numpy", "ml_dtypes", "onnxruntime", "openvino", "tensorrt"}
HERE = f"python={sys.executable}"


def place(word: str = HERE) -> Place:
    return make_place(word, lambda packages: packages)


def connect(at: Place | None = None) -> Connection:
    return Connection(at or place())


def runtime(target: TargetSettings, connection: Connection) -> Runtime:
    """A target in a place."""
    return Runtime(target, RemoteRunner(target, connection))


@pytest.fixture(autouse=True)
def _trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place on this machine can import ``trouble``."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def connection() -> Iterator[Connection]:
    connected = connect()
    yield connected
    connected.close()


def overflowing() -> onnx.ModelProto:
    """Overflows in fp16."""
    weight = {"w": np.full((300, 100), 300.0)}
    return text_model(
        "(float[2, 300] x) => (float[2, 100] y)", "m = MatMul(x, w) y = Mul(m, m)", weight, opset=17
    )


def sent_modules() -> dict[str, str]:
    archive = zipfile.ZipFile(io.BytesIO(application()))
    found = {
        name.removesuffix(".py").replace("/", "."): archive.read(name).decode()
        for name in archive.namelist()
    }
    return {name: source for name, source in found.items() if not name.endswith("__init__")}


@pytest.mark.parametrize("module", sorted(sent_modules()))
def test_the_application_imports_only_what_is_in_it(module: str) -> None:
    """Imports that only a type checker sees, or that may fail, may be of anything."""
    sent = sent_modules()
    tree = ast.parse(sent[module], feature_version=OLDEST)

    def is_checked(node: ast.AST) -> bool:
        guard = (
            node.test
            if isinstance(node, ast.If)
            else node.items[0]
            if isinstance(node, ast.With)
            else node
        )
        word = "TYPE_CHECKING" if isinstance(node, ast.If) else "ImportError"
        return isinstance(node, ast.If | ast.With | ast.Try) and word in ast.dump(guard)

    skipped = {id(inner) for node in filter(is_checked, ast.walk(tree)) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        imported = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
        )
        for name in imported:
            known = name in sent or any(each.startswith(f"{name}.") for each in sent)
            assert known or name.partition(".")[0] in ALLOWED, f"{module} imports {name}"


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("fp16", [False, True])
def test_a_runtime_in_a_place_gives_what_the_same_gives_here(
    connection: Connection, tmp_path: Path, fp16: bool, beside: bool
) -> None:
    path = tmp_path / "model.onnx"
    more: Any = (
        {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
        if beside
        else {}
    )
    onnx.save(overflowing(), path, **more)
    target = TargetSettings("onnxrt", fp16=fp16)
    feed = {"x": np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)}
    there = runtime(target, connection)
    session: Any = there.load(path, feed)
    expected = Runtime(target).load(path, feed)
    np.testing.assert_array_equal(session.run(feed)["y"], expected.run(feed)["y"])
    assert session.inputs == list(expected.inputs)
    assert there.facts["version"]
    assert len(session.times(feed, 3)) == 3


def test_a_file_goes_over_once(connection: Connection, tmp_path: Path) -> None:
    onnx.save(
        overflowing(),
        tmp_path / "a.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    there = runtime(TargetSettings("onnxrt"), connection)
    sent = list[int]()
    call = connection.call

    def counted(method: str, arguments: Any = None, payload: Any = ()) -> Any:
        sent.append(sum(map(len, payload)))
        return call(method, arguments, payload)

    connection.call = counted  # type: ignore[method-assign]
    for number in range(3):
        sent.clear()
        there.load(tmp_path / "a.onnx")
        assert (sum(sent) > 120_000) == (number == 0)


def test_a_refusal_is_the_same_refusal(connection: Connection, tmp_path: Path) -> None:
    model = overflowing()
    model.graph.node[1].op_type = "NoSuchOperator"
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    with pytest.raises(BuildError) as there:
        runtime(TargetSettings("onnxrt"), connection).load(path)
    with pytest.raises(BuildError) as here:
        Runtime(TargetSettings("onnxrt")).load(path)
    assert there.value.sign(["y", "m"]) == here.value.sign(["y", "m"])


def run_there(connection: Connection, code: str) -> None:
    connection.call("make", {"module": "trouble", "settings": {"code": code}})


def test_a_crash_is_reported_and_the_next_call_is_answered(connection: Connection) -> None:
    for before in ("pass", "os.fork() or (os.setsid(), time.sleep(1000))"):
        for number in (signal.SIGSEGV, signal.SIGKILL):
            with pytest.raises(ProcessDied) as death:
                run_there(
                    connection,
                    f"print('last words', flush=True); {before}; os.kill(os.getpid(), {int(number)})",
                )
            assert death.value.code == -number
            assert "last words" in connection.printed
            assert (
                connection.call("facts", {"packages": ["numpy"]})["facts"]["packages"]["numpy"]
                == np.__version__
            )


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found by /proc")
def test_a_call_that_a_dying_process_has_read_is_not_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that is stopped reads the call before it dies, or does not; both end the call."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv("PLACE_TEST", mark)
    connection = Connection(place())
    try:
        for number in range(6):
            assert connection.call("facts", {"packages": []})["facts"]
            running = max(
                pid
                for pid, words in marked(f"PLACE_TEST={mark}").items()
                if b"bisect-trt-worker" in words
            )
            if number % 2:  # it wakes with the call in its pipe, and with the signal
                os.kill(running, signal.SIGSTOP)
                threading.Timer(0.1, os.kill, (running, signal.SIGSEGV)).start()
                threading.Timer(0.2, os.kill, (running, signal.SIGCONT)).start()
            else:
                os.kill(running, signal.SIGSEGV)
            with pytest.raises(ProcessDied):
                connection.call("facts", {"packages": []})
    finally:
        connection.close()


def test_nothing_of_a_process_that_crashed_is_read_by_the_next(connection: Connection) -> None:
    """Neither its model, nor files beside it, nor what it left in its working folder or as a file to send back."""

    def load(code: str, weights: str) -> dict[str, Any]:
        digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in (code, weights)}
        connection.has({digest: name.encode() for name, digest in digests.items()})
        settings = {"code": "pass", "engine": {"file_back": "engine"}}
        known = {"module": "trouble", "settings": settings, "hints": {}, "back": ["engine"]}
        return connection.call(
            "load", {**known, "model": digests[code], "beside": {"w.bin": digests[weights]}}
        )

    crash = "os.kill(os.getpid(), signal.SIGSEGV)"
    leave = "Path('cache').touch(); Path(settings['engine']).touch()"
    for number in range(3):
        code = f"pass  # model {number}"
        assert load(code, "weights")["skipped"] == {"model.onnx": code, "w.bin": "weights"}
        with pytest.raises(ProcessDied):
            load(f"{leave}; {crash}  # {number}", f"weights {number}")
        loaded = load(code, f"weights of {number}")
        assert loaded["skipped"] == {"model.onnx": code, "w.bin": f"weights of {number}"}
        assert loaded["back"] == {}


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found by /proc")
@pytest.mark.parametrize("end", ["close", "kill"])
def test_nothing_is_left_in_a_place(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when the driver's end closes nor when the watching process is killed, whatever is running there."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv("PLACE_TEST", mark)
    connection = connect()
    connection.call("facts", {"packages": []})
    process = connection._process
    assert process is not None

    def ask_and_be_ended() -> None:
        with pytest.raises((ConnectionLost, ProcessDied)):
            run_there(connection, "time.sleep(1000)")

    asked = threading.Thread(target=ask_and_be_ended)
    asked.start()
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL if end == "kill" else signal.SIGTERM)
    wait_for(lambda: not marked(f"PLACE_TEST={mark}"))
    asked.join()
    connection.close()


@pytest.mark.parametrize("command", ["{} -", "sh -c 'exec {} -'", "{} -i", "env A=1 {} -"])
def test_a_command_that_reads_its_program_from_stdin(command: str) -> None:
    connected = connect(place(f"command={command.format(sys.executable)}"))
    assert connected.call("facts", {"packages": []})["facts"]["Python"]
    connected.close()


def test_an_old_python_is_refused() -> None:
    with pytest.raises(
        UnavailableError, match=r"has Python 3\.8\.18, and a worker needs 3\.10 or later"
    ):
        connect(Place("python", "python=old", ("echo", "@bisect-trt-worker 3.8.18"))).call(
            "facts", {"packages": []}
        )


PYTHONS = [
    path
    for minor in (8, 10, 13)
    for path in sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3"))[-1:]
]


@pytest.mark.skipif(not PYTHONS, reason="no other Python is here")
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_another_python(python: Path) -> None:
    """One without NumPy starts, and says that NumPy is missing; an older one is refused."""
    connected = connect(place(f"python={python}"))
    if "3.8." in str(python):
        with pytest.raises(UnavailableError, match=r"needs 3\.10"):
            connected.call("facts", {"packages": []})
        return
    assert connected.call("facts", {"packages": []})["facts"]["Python"].startswith("3.1")
    with pytest.raises(UnavailableError, match="NumPy"):
        RemoteRunner(TargetSettings("onnxrt"), connected)
    connected.close()


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chain whose middle overflows in fp16."""
    folder = tmp_path_factory.mktemp("places")
    steps = (
        [("Add", "one")] * 2
        + [("Add", "big"), ("Mul", "n2_out"), ("Sqrt", "")]
        + [("Add", "one")] * 2
    )
    nodes = line((op, reads, f"n{number}") for number, (op, reads) in enumerate(steps))
    weights = {"one": 1.0, "big": 3000.0}
    save(
        folder / "m.onnx",
        nodes,
        weights,
        inputs={"x": [4]},
        outputs={nodes[-1].output[0]: [4]},
        opset=17,
    )
    return folder


@pytest.fixture
def run(cli: CommandLine, failing: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line, where there is a model that fails."""
    monkeypatch.chdir(failing)
    return cli


def test_the_answer_is_that_of_this_interpreter_for_any_places(
    run: CommandLine, failing: Path
) -> None:
    three = ["--on", HERE, "--on", f"command={sys.executable} -", "--workers", "3"]
    places: list[list[str]] = [[], ["--on", HERE], three]
    answers = []
    decisions = []
    for number, words in enumerate(places):
        argv = [
            "reduce",
            "m.onnx",
            "--onnxrt",
            "--fp16",
            "-o",
            f"r{number}.onnx",
            "--json",
            f"{number}.json",
            *words,
        ]
        result = run(*argv).ended(0).result
        answers.append((result["culprits"], result["minimality"]))
        lines = (failing / result["artifacts"]["run"] / "journal.jsonl").read_text().splitlines()
        verdicts = [entry for entry in map(json.loads, lines) if entry["event"] == "verdict"]
        decisions.append([(entry["key"], entry["verdict"]) for entry in verdicts])
        assert all((entry["place"] is None) == (not words) for entry in verdicts)
        assert len(result.get("places", [])) == len(words) // 2 - (number == 2)
    assert answers[0] == answers[1] == answers[2]
    assert decisions[0] == decisions[1] == decisions[2]


def test_a_probe_is_repeated_in_the_place_where_it_ran(run: CommandLine) -> None:
    run("repeat", "m.onnx", "--onnxrt", "--fp16", "-n", "1", "--on", HERE).ended(0)
    shown = run("log", "1").ended(0).out
    (line,) = (line for line in shown.splitlines() if line.startswith("again by hand: "))
    assert line.count(f"--on {HERE} ") == 1
    assert HERE in run(*shlex.split(line)[4:]).ended(1).out


def test_places_get_the_lowest_ir_version_and_so_do_the_files_that_are_written(
    run: CommandLine, failing: Path
) -> None:
    """Only where runtimes are asked that may be older than this file says."""
    model = onnx.load(failing / "m.onnx")
    model.ir_version = 10
    onnx.save(model, failing / "newer.onnx")
    words = (
        "reduce",
        "newer.onnx",
        "--onnxrt",
        "--fp16",
        "-o",
        "low.onnx",
        "--json",
        "low.json",
        "--on",
        HERE,
    )
    done = run(*words).ended(0)
    assert done.result["ir_version"] == {"file": 10, "written": 8}
    assert done.err.count("reject IR version 10") == 1
    assert onnx.load(failing / "low.onnx").ir_version == 8
    assert onnx.load(failing / "newer.onnx").ir_version == 10
    for older, version in ((False, 10), (True, 8)):
        source = ModelSettings(failing / "newer.onnx", older=older)
        with Subject(source, Workspace(failing / f"{older}"), Console(-1)) as subject:
            cuts = [subject.original.proto, subject.cut(frozenset({0, 1})).proto, source.load()]
            assert [proto.ir_version for proto in cuts] == [version] * 3
            assert (subject.ir_version is not None) == older


def test_unlike_places_are_refused(run: CommandLine, tmp_path: Path) -> None:
    """A place whose GPU differs, as far as its nvidia-smi says."""
    tool = tmp_path / "bin/nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho '0, Tesla X, 1.0'\n")
    tool.chmod(0o755)
    path = f"PATH={tool.parent}:{os.environ['PATH']}"
    other = f"command={shlex.join(['env', path, sys.executable, '-'])}"
    words = ["run", "m.onnx", "--onnxrt", "--on", HERE, "--on", other]
    done = run(*words).ended(2)
    assert "GPU: none and Tesla X" in done.err


def test_a_place_that_is_lost_is_asked_last(tmp_path: Path) -> None:
    """What was asked of it is asked elsewhere, and so is what comes after."""
    gone = Place("command", "command=gone", ("sh", "-c", "echo out of order >&2; exit 3"))
    seen: list[Place] = []
    with WorkerPool(tmp_path, places=(gone, place())) as workers:
        for _ in range(3):
            reply = workers.ask(Look(TargetSettings(), (), start=False), on_place=seen.append)
            assert not isinstance(reply, Failed)
    assert seen == [gone, *[place()] * 3]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found by /proc")
def test_a_session_that_is_kept_goes_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs, golden = (tmp_path / name for name in ("model.onnx", "inputs.npz", "golden.npz"))
    onnx.save(text_model("(float[2] x) => (float[2] y)", "y = Neg(x)", opset=17), model)
    np.savez(inputs, x=np.ones(2, np.float32))
    np.savez(golden, y=-np.ones(2, np.float32))
    request = Compare(
        TargetSettings("onnxrt"), model, (Sample(inputs, golden),), ToleranceOptions(), same=True
    )
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv("PLACE_TEST", mark)
    with WorkerPool(tmp_path, places=(place(),)) as workers:
        for _ in range(3):
            reply = workers.ask(request)
            assert not isinstance(reply, Failed)
            assert all(each.passed for each in reply.comparisons)
            running = max(
                pid
                for pid, words in marked(f"PLACE_TEST={mark}").items()
                if b"bisect-trt-worker" in words
            )
            os.kill(running, signal.SIGSEGV)


def test_a_place_is_for_something(failing: Path) -> None:
    import bisect_trt

    checks: tuple[Any, ...] = (bool, "true {model}")
    for number, check in enumerate(checks):
        with pytest.raises(UsageError, match="--on"):
            bisect_trt.reduce(failing / "m.onnx", check, on=[HERE], run=failing / f"run{number}")
