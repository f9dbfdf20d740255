"""The worker process: runs models, one request at a time, so that a crash is never the driver's end.

Requests and replies are lines on two pipes of their own (see ``probing/protocol.py``); stdout and stderr are left to the
runtimes. Only what a runtime needs is imported, ONNX not at all.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from bisect_trt.errors import BisectError, UnavailableError
from bisect_trt.probing.outcome import LOST
from bisect_trt.probing.protocol import (
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
    Sample,
    Series,
    Started,
    Trace,
    Traced,
    decode_order,
    encode,
)
from bisect_trt.probing.times import account, spending
from bisect_trt.targets.base import Runtime, Session, make_runtime
from bisect_trt.targets.messages import BuildError, RunError, names_of
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.compare import compare_all
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import NpzFile, load_npz, save_npz
from bisect_trt.tensors.saved import Selected
from bisect_trt.tensors.scores.evaluation import Evaluation
from bisect_trt.tensors.store import ActivationStore, StoreWriter
from bisect_trt.tensors.tolerance import Precision, Step

if TYPE_CHECKING:
    from bisect_trt.probing.places.connection import Connection

_MOST_RUNTIMES = 16
_RUN = (Build, Collect, Compare, Measure, Series)
"""What has a model run or built."""
TIMED_RUNS = 20
"""How often a model runs for the median of its latency."""
_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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
            _forget_peak()
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
        return Answer(reply, _status("VmRSS:"), gpu, _status("VmHWM:"))

    def begin(self) -> None:
        """A request has come; one that nobody waits for any more is given up by SIGUSR1."""
        if self._place is not None:
            self._place.wanted()

    def close(self) -> None:
        """Leave the place."""
        if self._place is not None:
            self._place.close()

    def _asked(self, request: Request[Any]) -> Reply:
        if self._place is None:
            return self._served(request)
        from bisect_trt.probing.places.connection import PlaceLost, ProcessDied  # noqa: PLC0415 - for a place alone
        from bisect_trt.probing.places.runtime import PlaceError  # noqa: PLC0415 - as above

        try:
            return self._served(request)
        except PlaceLost as lost:
            self._runtimes.clear()
            return Failed("lost", str(lost), LOST)
        except ProcessDied as death:
            self._runtimes.clear()
            return Died(death.code, death.over_memory)
        except PlaceError as error:
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
        memory, own = self._place.memory, _status("VmHWM:")
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
        from bisect_trt.probing.places.runtime import PlaceRuntime  # noqa: PLC0415 - as above

        return PlaceRuntime(settings, self._place)

    def _about(self, request: About) -> Started:
        return Started(self._runtime(request.target).lowers_by)

    def _build(self, request: Build) -> Done:
        with spending("building"):
            self._runtime(request.target).build(request.model, request.to, load_npz(request.inputs))
        return Done()

    def _describe(self, request: Describe) -> Described:
        runtime: Any = self._runtime(request.target)
        return Described(
            runtime.describe_engine() if request.model is None else runtime.describe_network(request.model)
        )

    def _look(self, request: Look) -> Looked:
        """Only in a place; here ``doctor`` looks."""
        assert self._place is not None
        found = self._place.ask("facts", {"packages": list(request.packages)}).header["facts"]
        runtime: Any = self._runtime(request.target) if request.start else None
        return Looked(found, {} if runtime is None else dict(runtime.facts))

    def _execute(self, request: Execute) -> Executed:
        """Only in a place."""
        from bisect_trt.probing.places.runtime import execute  # noqa: PLC0415 - as above

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
        outputs = _run(session, feed, request.feeds)
        if request.to.suffix == ".npz":
            save_npz(request.to, outputs)
            return Done()
        with StoreWriter(request.to, append=request.append) as writer:
            for name, value in outputs.items():
                writer.add(name, value)
        return Done()

    def _series(self, request: Series) -> Done:
        runtime, first = self._runtime(request.target), load_npz(request.inputs[0])
        sessions: dict[object, Session] = {}
        with spending("building"):
            beside = [runtime.load(request.model, first) for _ in range(request.beside)]
        with _running(beside, first):
            for number, (inputs, to) in enumerate(zip(request.inputs, request.to)):  # noqa: B905 - there are as many
                feed = load_npz(inputs)
                key = {"one": 0, "each": number, "shapes": _shapes(feed)}[request.sessions]
                if key not in sessions:
                    with spending("building"):
                        sessions[key] = runtime.load(request.model, feed)
                save_npz(to, _run(sessions[key], feed, None))
        return Done()

    def _compare(self, request: Compare) -> Compared:
        with spending("building"):
            session = self._prepare(request)
        if session is None:
            return Compared(unsupported=True)
        comparisons: list[TensorComparison] = []
        for number, sample in enumerate(request.samples, 1):
            with spending("comparing"):
                seen = _compare_sample(session, request, sample, number)
            comparisons += [each.of_sample(number) for each in seen] if len(request.samples) > 1 else seen
            if not request.every and not all(each.passed for each in seen):
                break
        with spending("running"):
            latency = None if request.warm_up is None else _median_ms(session, request)
        layers = tuple(session.layers()) if request.layers else ()
        return Compared(tuple(comparisons), dict(session.skipped), layers, latency)

    def _measure(self, request: Measure) -> Measured:
        from bisect_trt.probing.workers.measuring import Piece, measure  # noqa: PLC0415 - few workers measure

        first = load_npz(Evaluation.open(request.data).first)
        with spending("building"):
            rest = None if request.reference is None else make_runtime(request.reference)
            before, after = (
                None if rest is None or path is None else rest.load(path, first)
                for path in (request.before, request.after)
            )
            piece = Piece(before, after)
            fed = piece.feed(first)
            session = self._runtime(request.target).load(request.model, fed)
        measured = measure(lambda feed: piece.run(session, feed), request)
        with spending("running"):
            latency = None if request.warm_up is None else _median_of(session, fed, request.warm_up)
        return replace(measured, layers=tuple(session.layers()) if request.layers else (), latency_ms=latency)

    def _prepare(self, request: Compare) -> Session | None:
        runtime, first = self._runtime(request.target), request.samples[0]
        if request.unfused:
            return runtime.load_unfused(request.model, load_npz(first.inputs))
        feed = _feed(request, first)
        if not request.same:
            return runtime.load(request.model, feed)
        known = request.target, request.model.read_bytes(), _shapes(feed)
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


Feed = dict[str, Any]
"""Values by the names of inputs, some of them left on disk till used."""


def _feed(request: Compare, sample: Sample) -> Feed:
    """The values of a file; and activations of the reference, by the inputs that are ``fed`` them."""
    feed: Feed = load_npz(sample.inputs)
    if request.fed:
        reference = ActivationStore.open(sample.golden)
        feed |= {name: reference.get(tensor) for name, tensor in request.fed.items()}
    return feed


def _run(session: Session, feed: Feed, feeds: Path | None) -> Feed:
    """Run a model on values, of which there may be more than it takes, and on those of a store where one is named."""
    if feeds is not None:
        store = ActivationStore.open(feeds)
        feed |= {info.name: store.get(info.name) for info in session.inputs if info.name in store}
    names = {info.name for info in session.inputs}
    with spending("running"):
        return dict(session.run({name: value for name, value in feed.items() if name in names}))


def _shapes(feed: Feed) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The shapes of values, by name."""
    return tuple(sorted((name, value.shape) for name, value in feed.items()))


@contextlib.contextmanager
def _running(sessions: list[Session], feed: Feed) -> Iterator[None]:
    """Sessions that run on values again and again meanwhile, each in a thread of its own, which have begun to."""
    over, begun = threading.Event(), [threading.Event() for _ in sessions]

    def work(session: Session, first: threading.Event) -> None:
        while not over.is_set():
            with contextlib.suppress(Exception):  # it is there to be in the way, and nobody asks how it ends
                _run(session, feed, None)
            first.set()

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in zip(sessions, begun)]  # noqa: B905 - as many
    for thread, event in zip(threads, begun):  # noqa: B905 - as above
        thread.start()
        event.wait()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _median_ms(session: Session, request: Compare) -> float | None:
    """Milliseconds that one run takes after some to warm up, with inputs copied to the target and outputs back.

    ``None`` where it does not run again, and a check asks: that has seen what it makes, so it is no failure to build or run.
    """
    try:
        return _median_of(session, load_npz(request.samples[0].inputs), request.warm_up or 0, request.timed_for)
    except RunError as error:
        if request.timed_for is None or error.poisoned:
            raise
        print(f"it does not run again, so it is not timed: {error.message}", flush=True)
        return None


def _median_of(session: Session, feed: Feed, warm_up: int, timed_for: float | None = None) -> float:
    names = {info.name for info in session.inputs}
    feed = {name: value for name, value in feed.items() if name in names}
    there = getattr(session, "median_ms", None)
    if there is not None:
        return float(there(feed, warm_up, TIMED_RUNS))
    for _ in range(warm_up):
        session.run(feed)
    seconds: list[float] = []
    while len(seconds) < TIMED_RUNS and (not seconds or timed_for is None or sum(seconds) <= timed_for):
        began = time.perf_counter()
        session.run(feed)
        seconds.append(time.perf_counter() - began)
    return 1000 * median(seconds)


def _compare_sample(session: Session, request: Compare, sample: Sample, number: int) -> list[TensorComparison]:
    feed = _feed(request, sample)
    outputs = _run(session, feed, request.feeds)
    if request.keep_in is not None:
        with StoreWriter(request.keep_in, append=request.feeds is not None) as writer:
            for name in request.keep:
                writer.add(name, outputs[name])
    if request.save_outputs:
        save_npz(request.save_outputs[number - 1], outputs)
    reference = ActivationStore.open(sample.golden) if sample.golden.is_dir() else NpzFile(sample.golden)
    # A candidate's values are those of its outputs: one that the target does not hand out is missing, not unasked for.
    wanted: Iterable[str] = request.names or (outputs if sample.golden.is_dir() else reference)
    if request.unfused:
        wanted = [name for name in wanted if name in outputs]
    known = Selected(reference, [name for name in wanted if name in reference and name not in session.skipped])
    steps, lows = _grids(request.model, feed, reference)
    return compare_all(
        known, outputs, request.tolerance, fail_fast=request.fail_fast, details=request.details, steps=steps, lows=lows
    )


def _grids(model: Path, feed: Feed, golden: NpzFile | ActivationStore) -> tuple[dict[str, Step], dict[str, Precision]]:
    """The steps of the model's quantized tensors, of which some scales are computed; and what is rounded to 16 bits."""
    try:
        from bisect_trt.graph import halves, quantized  # noqa: PLC0415 - they need onnx, which may not be there
    except ImportError:
        return {}, {}

    def value(name: str) -> Any:  # noqa: ANN401 - an array, of either
        return next((values[name] for values in (feed, golden) if name in values), None)

    return quantized.quantization_steps(model, value), halves.low_precisions(model, feed)


def _status(field: str) -> int:
    """A number of bytes that the kernel has of this process; 0 where it does not say."""
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(field)), 0)


def _forget_peak() -> None:
    """Begin anew with the most memory that was held. Source: proc_pid_clear_refs(5)."""
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_text("5")


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
    if connection is not None:
        signal.signal(signal.SIGUSR1, lambda *_: connection.give_up())
    with os.fdopen(requests, "rb") as lines, os.fdopen(replies, "wb") as out:

        def say(line: bytes) -> None:
            out.write(line)
            out.flush()

        worker = Worker(connection, lambda: say(READY))
        for line in lines:
            worker.begin()
            say(BEGUN)
            say(encode(_answer(worker, line)))
    worker.close()


def _connection(plain: dict[str, Any]) -> Connection:
    from bisect_trt.probing.places.connection import Connection  # noqa: PLC0415 - for a place alone
    from bisect_trt.probing.places.place import Place  # noqa: PLC0415 - as above

    place = Place.from_json(plain["place"])
    if place.kind == "ray":
        from bisect_trt.probing.places.cluster import ClusterConnection  # noqa: PLC0415 - as above

        return ClusterConnection(place, session=plain["session"], memory_limit=plain["memory_limit"])
    return Connection(place, session=plain["session"], memory_limit=plain["memory_limit"])


def _answer(worker: Worker, line: bytes) -> Answer:
    try:
        order = decode_order(line)
    except UnavailableError as error:
        return Answer(Misuse(int(error.status), str(error)))
    with account() as spent:
        answer = worker.serve(order)
    return replace(answer, spent=spent)


if __name__ == "__main__":
    main()
