"""The worker process: runs models, one request at a time, so that a crash is never the driver's end.

Requests and replies are lines on two pipes of their own (see ``worker/protocol.py``); stdout and stderr are left to the
runtimes. Only what a runtime needs is imported, ONNX not at all. It is long because each request has its method here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bisect_trt.errors import BisectError, UnavailableError
from bisect_trt.probe.outcome import LOST
from bisect_trt.probe.times import account, spending
from bisect_trt.targets.base import Runtime, Session, make_runtime
from bisect_trt.targets.messages import BuildError, RunError, names_of
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import load_npz, save_npz
from bisect_trt.tensors.store import StoreWriter
from bisect_trt.worker.channel import Closed, receive, send
from bisect_trt.worker.codec import decode_order, encode
from bisect_trt.worker.facts import forget_peak, status_bytes
from bisect_trt.worker.protocol import (
    BEGUN,
    READY,
    About,
    Answer,
    Build,
    Collect,
    Compare,
    Compared,
    Describe,
    Described,
    Died,
    Done,
    Execute,
    Executed,
    Failed,
    Look,
    Looked,
    Lower,
    Lowered,
    Measure,
    Measured,
    Misuse,
    Order,
    Reply,
    Request,
    Series,
    Started,
    Trace,
    Traced,
)
from bisect_trt.worker.sessions import (
    Feed,
    compare_sample,
    feed_of,
    median_ms,
    median_of,
    run,
    shapes_of,
)

if TYPE_CHECKING:
    from bisect_trt.worker.remote import Connection

_MOST_RUNTIMES = 16
_RUN = (Build, Collect, Compare, Measure, Series)
"""What has a model run or built."""


class Worker:
    """Serves requests; runtimes stay loaded between them."""

    def __init__(self, place: Connection | None = None, ready: Callable[[], object] = bool) -> None:
        """``place`` is where targets run, if that is not here; ``ready`` is called when the runtime asked for is there."""
        self._place = place
        self._ready = ready
        self._runtimes: dict[TargetSettings, Runtime] = {}
        self._last: tuple[object, Session] | None = None
        self._serve: dict[type[Request[Any]], Callable[[Any], Reply]] = {
            About: self._about,
            Build: self._build,
            Collect: self._collect,
            Compare: self._compare,
            Describe: self._describe,
            Execute: self._execute,
            Look: self._look,
            Lower: self._lower,
            Measure: self._measure,
            Series: self._series,
            Trace: self._trace,
        }

    def serve(self, order: Order) -> Answer:
        """Answer one request; whatever goes wrong is an answer too."""
        try:
            forget_peak()
            os.chdir(order.cwd)
            _print_to(order.log)
            reply = self._asked(order.request)
        except (BuildError, RunError) as error:
            kind: Literal["build", "run"] = "build" if isinstance(error, BuildError) else "run"
            names = _names(getattr(order.request, "model", None))
            reply = Failed(kind, error.message, f"{kind}: {error.sign(names)}", error.poisoned)
        except BisectError as error:
            reply = Misuse(int(error.status), str(error))
        except MemoryError:
            reply = Failed("run", "out of memory", "run: out of memory")
        except Exception as error:
            traceback.print_exc()
            name = type(error).__name__
            reply = Failed("run", f"{name}: {error}", f"run: {name}")
        if self._place is not None:
            return self._there(reply)
        gpu = max((runtime.gpu_memory() for runtime in self._runtimes.values()), default=0)
        return Answer(reply, status_bytes("VmRSS:"), gpu, status_bytes("VmHWM:"))

    def close(self) -> None:
        """Leave the place."""
        if self._place is not None:
            self._place.close()

    def _asked(self, request: Request[Any]) -> Reply:
        if self._place is None:
            return self._served(request)
        from bisect_trt.worker.channel import ChannelLost, ProcessDied  # noqa: PLC0415 - for a place alone
        from bisect_trt.worker.remote import RemoteError  # noqa: PLC0415 - as above

        try:
            return self._served(request)
        except ChannelLost as lost:
            self._runtimes.clear()
            return Failed("lost", str(lost), LOST)
        except ProcessDied as death:
            self._runtimes.clear()
            return Died(death.code, death.over_memory)
        except RemoteError as error:
            return Failed("run", str(error), f"run: {error.name}")

    def _served(self, request: Request[Any]) -> Reply:
        if isinstance(request, _RUN):
            self._runtime(request.target)
            self._ready()
        return self._serve[type(request)](request)

    def _there(self, reply: Reply) -> Answer:
        """An answer with what the process in the place holds; what was printed there goes to the log."""
        assert self._place is not None
        sys.stdout.write(self._place.printed)
        sys.stdout.flush()
        self._place.printed = ""
        memory, own = self._place.memory, status_bytes("VmHWM:")
        peak = own + (memory.get("peak", 0) if self._place.place.local else 0)
        return Answer(reply, memory.get("host", 0), memory.get("gpu", 0), peak)

    def _runtime(self, settings: TargetSettings) -> Runtime:
        if settings not in self._runtimes:
            if len(self._runtimes) >= _MOST_RUNTIMES:  # a search for precision has another for each candidate
                self._runtimes.clear()
            with spending("building"):
                self._runtimes[settings] = self._make(settings)
        return self._runtimes[settings]

    def _make(self, settings: TargetSettings) -> Runtime:
        if self._place is None:
            return make_runtime(settings)
        from bisect_trt.worker.remote import RemoteRuntime  # noqa: PLC0415 - as above

        return RemoteRuntime(settings, self._place)

    def _about(self, request: About) -> Started:
        return Started(self._runtime(request.target).lowers_by)

    def _build(self, request: Build) -> Done:
        with spending("building"):
            self._runtime(request.target).build(request.model, request.to, load_npz(request.inputs))
        return Done()

    def _describe(self, request: Describe) -> Described:
        runtime: Any = self._runtime(request.target)
        return Described(runtime.describe_engine())

    def _look(self, request: Look) -> Looked:
        """Only in a place; here ``doctor`` looks."""
        assert self._place is not None
        found = self._place.call("facts", {"packages": list(request.packages)})[0]["facts"]
        runtime: Any = self._runtime(request.target) if request.start else None
        return Looked(found, {} if runtime is None else dict(runtime.facts))

    def _execute(self, request: Execute) -> Executed:
        """Only in a place."""
        from bisect_trt.worker.remote import execute  # noqa: PLC0415 - as above

        assert self._place is not None
        with spending("running"):
            return execute(self._place, request)

    def _lower(self, request: Lower) -> Lowered:
        model = self._runtime(request.target).lowered(request.model)
        if model is not None:
            request.to.write_bytes(model.SerializeToString())
        return Lowered(model is not None)

    def _trace(self, request: Trace) -> Traced:
        trace = getattr(self._runtime(request.target), "trace", None)  # plug-ins may be older than this request
        return Traced({} if trace is None else trace(request.model, load_npz(request.inputs)))

    def _collect(self, request: Collect) -> Done:
        feed: Feed = load_npz(request.inputs)
        with spending("building"):
            session = self._runtime(request.target).load(request.model, feed)
        outputs = run(session, feed, request.feeds)
        if request.to.suffix == ".npz":
            save_npz(request.to, outputs)
            return Done()
        with StoreWriter(request.to, append=request.append) as writer:
            for name, value in outputs.items():
                writer.add(name, value)
        return Done()

    def _series(self, request: Series) -> Done:
        runtime = self._runtime(request.target)
        sessions: dict[object, Session] = {}
        for number, (inputs, to) in enumerate(zip(request.inputs, request.to)):  # noqa: B905 - there are as many
            feed = load_npz(inputs)
            key = {"one": 0, "each": number, "shapes": shapes_of(feed)}[request.sessions]
            if key not in sessions:
                with spending("building"):
                    sessions[key] = runtime.load(request.model, feed)
            save_npz(to, run(sessions[key], feed))
        return Done()

    def _compare(self, request: Compare) -> Compared:
        with spending("building"):
            session = self._prepare(request)
        if session is None:
            return Compared(unsupported=True)
        comparisons: list[TensorComparison] = []
        for number, sample in enumerate(request.samples, 1):
            with spending("comparing"):
                seen = compare_sample(session, request, sample, number)
            comparisons += [each.of_sample(number) for each in seen] if len(request.samples) > 1 else seen
            if not request.every and not all(each.passed for each in seen):
                break
        with spending("running"):
            latency = None if request.warm_up is None else median_ms(session, request)
        layers = tuple(session.layers()) if request.layers else ()
        return Compared(tuple(comparisons), dict(session.skipped), layers, latency)

    def _measure(self, request: Measure) -> Measured:
        from bisect_trt.tensors.metrics import Evaluation  # noqa: PLC0415 - as above
        from bisect_trt.worker.measuring import Piece, measure  # noqa: PLC0415 - few workers measure

        first = load_npz(Evaluation.open(request.scoring.data).inputs(0))
        with spending("building"):
            rest = None if request.reference is None else make_runtime(request.reference)
            before, after = (
                None if rest is None or path is None else rest.load(path, first)
                for path in (request.before, request.after)
            )
            piece = Piece(before, after)
            fed = piece.feed(first)
            session = self._runtime(request.target).load(request.model, fed)
        measured = measure(lambda feed: piece.run(session, feed), request.scoring)
        with spending("running"):
            latency = None if request.warm_up is None else median_of(session, fed, request.warm_up)
        return replace(measured, layers=tuple(session.layers()) if request.layers else (), latency_ms=latency)

    def _prepare(self, request: Compare) -> Session | None:
        runtime, first = self._runtime(request.target), request.samples[0]
        if request.unfused:
            return runtime.load_unfused(request.model, load_npz(first.inputs))
        feed = feed_of(request, first)
        if not request.same:
            return runtime.load(request.model, feed)
        known = request.target, request.model.read_bytes(), shapes_of(feed)
        if self._last is None or self._last[0] != known:
            self._last = None  # it goes before the next one comes
            self._last = known, runtime.load(request.model, feed)
        return self._last[1]


def _names(model: Path | None) -> list[str]:
    """The names in a model that failed; none where it cannot be read."""
    if model is None:
        return []
    try:
        import onnx  # noqa: PLC0415 - only where something has failed, and it may not be there

        return list(names_of(onnx.load(str(model), load_external_data=False).graph))
    except Exception:  # that it cannot be read is what the failure is about, then
        return []


def _print_to(log: Path) -> None:
    """Send what this process and its runtimes print to a file."""
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


def main() -> None:
    """Serve requests from the pipe named on the command line until it closes, once the modules named after it are there."""
    requests, replies = int(sys.argv[1]), int(sys.argv[2])
    # Ctrl-C goes to the driver, which decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    place = next((word for word in sys.argv[3:] if word.startswith("{")), None)
    for name in sys.argv[3:] if place is None else ():
        # What is wrong with it is said by the request that needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    connection = None if place is None else _connection(json.loads(place))
    worker = Worker(connection, lambda: send(replies, READY))
    with contextlib.suppress(Closed):
        while True:
            header, _ = receive(requests)
            send(replies, BEGUN)
            send(replies, encode(_answer(worker, header)))
    worker.close()


def _connection(plain: dict[str, Any]) -> Connection:
    from bisect_trt.worker.place import Place  # noqa: PLC0415 - for a place alone
    from bisect_trt.worker.remote import Connection  # noqa: PLC0415 - as above

    return Connection(Place.from_json(plain.pop("place")), plain)


def _answer(worker: Worker, header: dict[str, Any]) -> Answer:
    try:
        order = decode_order(header)
    except UnavailableError as error:
        return Answer(Misuse(int(error.status), str(error)))
    with account() as spent:
        answer = worker.serve(order)
    return replace(answer, spent=spent)


if __name__ == "__main__":
    main()
