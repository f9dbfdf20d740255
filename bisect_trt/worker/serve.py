"""The worker process: runs models, one request at a time, so that a crash does not end the driver.

Requests and replies go over two pipes of their own (see ``worker/protocol.py``); stdout and stderr
belong to the runtimes. Only what a runtime needs is imported, and ONNX only after a failure.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import structs

from bisect_trt.aliases import Fields, Plain, Sizes
from bisect_trt.errors import BisectError, kind_of
from bisect_trt.plugins import checked, plugin_of
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.messages import TINY_MODEL, BuildError, RunError, RuntimeFailure, names_of
from bisect_trt.targets.runtime import Runtime, RuntimeSession
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.files import NpzFile, load_npz, save_npz, shapes_of
from bisect_trt.tensors.kernel import forget_peak
from bisect_trt.tensors.state import state_after
from bisect_trt.tensors.store import ActivationStore, write_store
from bisect_trt.tensors.tolerance import Precision, Step
from bisect_trt.worker.channel import Closed, ConnectionLost, ProcessDied, receive, send
from bisect_trt.worker.host import fed_to, held, skipped
from bisect_trt.worker.place import Seen
from bisect_trt.worker.protocol import (
    BEGUN,
    LOADED,
    READY,
    About,
    Answered,
    BuildEngine,
    Collect,
    Compare,
    Compared,
    Describe,
    Failed,
    Look,
    Lower,
    Measure,
    Measured,
    OnModel,
    Order,
    Request,
    Sample,
    Score,
    Scored,
    Trace,
)

if TYPE_CHECKING:
    from bisect_trt.worker.connection import Connection
    from bisect_trt.worker.place import Place

_MOST_RUNTIMES = 16
_RUN = (BuildEngine, Collect, Compare, Measure, Score)
"""The requests that run or build a model."""
_FAILURES = (RuntimeFailure, ConnectionLost, ProcessDied, BisectError)
"""Errors that mean that a baseline does not run."""
_BUILDS = 3
"""The number of times that a slow build is timed."""
_IDLE_BLOCKS = 5
TIMED_RUNS = 20
_FEW_RUNS = 3
"""Number of runs that a model's latency is the shortest of, and of one that takes long."""
_EVENTS = 50
"""About the most events of a request that runs many samples: one takes as long as a small sample."""
Feed = dict[str, Any]
"""Values by the names of inputs, some of them left on disk till used."""


def feed_of(request: Compare, sample: Sample) -> Feed:
    """The values of a file; and activations of the reference, by the inputs that are ``fed`` them."""
    feed: Feed = load_npz(sample.inputs)
    if request.fed:
        reference = ActivationStore(sample.golden)
        feed |= {name: reference.get(tensor) for name, tensor in request.fed.items()}
    return feed | state_after(request.state, sample.before)


def run(session: RuntimeSession, feed: Plain) -> Feed:
    """Run a model on values, possibly more than its inputs."""
    return dict(checked(session.run, session.run(fed_to(session, feed)), dict))


def fastest_ms(session: RuntimeSession, feed: Feed) -> float | None:
    """Milliseconds of one run, with inputs copied to the target and outputs back: the fastest of some runs.

    Other processes only add time, and builds may run beside it. Of a slow model fewer runs are
    timed. A model that does not run again is no failure, since its outputs are known: ``None``.

    Raises:
        RunError: The runtime fails at everything else from now on.
    """
    from bisect_trt.worker.timing import Timed  # noqa: PLC0415 - few workers measure

    try:
        timed = Timed.of(session, feed)
        return 1000 * min(timed.times(TIMED_RUNS if timed.runs > 1 else _FEW_RUNS))
    except RunError as error:
        if error.poisoned:
            raise
        print(f"it does not run again, so it is not timed: {error.message}", flush=True)
        return None


def compare_sample(
    session: RuntimeSession, request: Compare, sample: Sample, number: int, own_state: Feed
) -> list[TensorComparison]:
    """Run a model on one sample, keep the requested outputs, and compare them with the reference's.

    Args:
        session: The loaded model.
        request: What to compare.
        sample: The files of the sample.
        number: Its number, from 1.
        own_state: What the model returned for the sample before, where it is fed back; this is
            replaced.
    """
    from bisect_trt.tensors.compare import compare_all  # noqa: PLC0415 - a worker for the reference alone starts without

    feed = feed_of(request, sample) | own_state
    outputs = run(session, feed)
    if request.feeds_back:
        own_state |= state_after(request.state, outputs)
    if request.save_outputs:
        save_npz(request.save_outputs[number - 1], outputs)
    reference = ActivationStore(sample.golden) if sample.golden.is_dir() else NpzFile(sample.golden)
    # A candidate's values are those of its outputs: one that the target does not hand out is
    # missing, not unasked for.
    wanted: Iterable[str] = request.names or (outputs if sample.golden.is_dir() else reference)
    compared: list[str] = []
    for name in wanted:
        if name in reference:
            compared += [] if name in skipped(session) else [name]
        elif name not in outputs:
            # A sequence, a map or an optional.
            both = dict.fromkeys([*reference, *outputs])
            compared += [member for member in both if member.startswith(f"{name}[")]
    steps, lows = _grids(request.model, feed, reference)
    return compare_all(
        reference,
        outputs,
        request.tolerance,
        compared,
        details=request.details,
        steps=steps,
        lows=lows,
    )


def _grids(
    model: Path, feed: Feed, golden: NpzFile | ActivationStore
) -> tuple[dict[str, Step], dict[str, Precision]]:
    """The steps of the model's quantized tensors, of which some scales are computed; and what is rounded to 16 bits."""
    try:
        from bisect_trt.onnxlib.roundings import find_roundings  # noqa: PLC0415 - it needs onnx, which may not be there
    except ImportError:
        return {}, {}

    def value(name: str) -> Any:  # noqa: ANN401 - an array, of either
        return next((values[name] for values in (feed, golden) if name in values), None)

    return find_roundings(model, feed, value)


class Worker:
    """Answers requests; runtimes stay loaded between them."""

    def __init__(
        self, place: Connection | None = None, tell: Callable[[Fields], object] = bool
    ) -> None:
        """Targets run in ``place`` if it is given; ``tell`` is called with the events of a request."""
        self._place = place
        self._tell = tell
        self._runtimes: dict[TargetSettings, Runtime] = {}
        self._last: tuple[object, RuntimeSession] | None = None
        self._beside: dict[Place | None, Connection | None] = {}
        self._idle: dict[object, tuple[float, ...]] = {}
        self._methods: dict[type[Request[Any]], Callable[[Any], Any]] = {
            About: lambda request: dict(self._runtime(request.target).facts),
            BuildEngine: self._build,
            Collect: self._collect,
            Compare: self._compare,
            Describe: lambda request: dict(self._runtime(request.target).runner.describe_engine()),
            Look: self._look,
            Lower: self._lower,
            Measure: self._measure,
            Score: self._score,
            Trace: self._trace,
        }

    def serve(self, order: Order) -> Answered:
        """Answer one request; any error is an answer too."""
        reply: Any
        try:
            forget_peak()
            os.chdir(order.cwd)
            _print_to(order.log)
            if not (isinstance(order.request, Compare) and order.request.same):
                # A place holds one model.
                self._last = None
            if isinstance(order.request, _RUN):
                self._runtime(order.request.target)
                self._tell(READY)
            reply = self._methods[type(order.request)](order.request)
        except (BuildError, RunError) as error:
            kind: Literal["build", "run"] = "build" if isinstance(error, BuildError) else "run"
            names = _names(order.request)
            reply = Failed(kind, error.message, f"{kind}: {error.sign(names)}", error.poisoned)
        except BisectError as error:
            # An error of a plug-in may not be there when it is unpickled.
            reply = (kind_of([kind.__name__ for kind in type(error).__mro__]) or BisectError)(
                str(error)
            )
        except (ConnectionLost, ProcessDied) as error:
            self._runtimes.clear()
            self._last = None
            reply = error
        # Before Exception, as a failure of its own: another candidate may fit.
        except MemoryError:
            reply = Failed("run", "out of memory", "run: out of memory")
        except Exception as error:
            traceback.print_exc()
            reply = _raised(order.request, error)
        memory = self._memory()
        if self._place is not None:
            print(self._place.printed, end="", flush=True)
            self._place.printed = ""
            memory |= {
                "peak": held(())["peak"] + (memory["peak"] if self._place.place.local else 0)
            }
        return Answered(reply, memory)

    def close(self) -> None:
        """Leave the places."""
        for place in (self._place, *self._beside.values()):
            if place is not None:
                place.close()

    def _runtime(self, settings: TargetSettings) -> Runtime:
        if settings not in self._runtimes:
            if len(self._runtimes) >= _MOST_RUNTIMES:
                # A search for precision has another for each candidate.
                self._runtimes.clear()
            self._runtimes[settings] = _runtime_in(self._place, settings)
        return self._runtimes[settings]

    def _begin(self, number: int, samples: int) -> None:
        """Tell that the loaded model runs a sample, and which of several; of many not each."""
        if (number - 1) % max(samples // _EVENTS, 1) == 0:
            self._tell({**LOADED, "run": number, "runs": samples} if samples > 1 else LOADED)

    def _build(self, request: BuildEngine) -> None:
        self._runtime(request.target).load(request.model, load_npz(request.inputs))

    def _look(self, request: Look) -> Seen:
        """Only in a place; here ``doctor`` looks."""
        assert self._place is not None
        facts = self._place.call("facts", {"packages": list(request.packages)})["facts"]
        runtime: Any = self._runtime(request.target) if request.start else None
        return Seen(self._place.place, facts, {} if runtime is None else dict(runtime.facts))

    def _lower(self, request: Lower) -> bool:
        model = self._runtime(request.target).lowered(request.model)
        if model is not None:
            request.to.write_bytes(model.SerializeToString())
        return model is not None

    def _trace(self, request: Trace) -> Fields:
        runtime = (
            self._baseline(request.target, request.beside)
            if request.beside
            else self._runtime(request.target)
        )
        return runtime.trace(request.model, load_npz(request.inputs), request.what)

    def _collect(self, request: Collect) -> None:
        before = request.before
        session: RuntimeSession | None = None
        ranges = _ranges(request.target, request.inputs, load_npz)
        runtime = self._runtime(request.target)
        for number, inputs, to in zip(count(1), request.inputs, request.to):
            feed: Feed = load_npz(inputs) | state_after(request.state, before)
            # The first feed gives the shapes; a state that grows is run by the same session.
            session = session or runtime.load(request.model, feed, ranges)
            self._begin(number, len(request.inputs))
            before = to
            if request.append:
                store = ActivationStore(to)
                feed |= {
                    info.name: store[info.name] for info in session.inputs if info.name in store
                }
            outputs = run(session, feed)
            if to.suffix == ".npz":
                save_npz(to, outputs)
            else:
                write_store(to, outputs, append=request.append)

    def _compare(self, request: Compare) -> Compared:
        session = self._prepare(request)
        comparisons: list[TensorComparison] = []
        own_state: Feed = {}
        for number, sample in enumerate(() if request.target.build_only else request.samples, 1):
            self._begin(number, len(request.samples))
            results = compare_sample(session, request, sample, number, own_state)
            comparisons += (
                [structs.replace(result, sample=number) for result in results]
                if len(request.samples) > 1
                else results
            )
            # A probe is decided by the first sample that fails.
            if not request.every and not all(result.passed for result in results):
                break
        latency = None
        if request.timed and not request.target.build_only:
            latency = fastest_ms(session, load_npz(request.samples[0].inputs))
        return Compared(tuple(comparisons), skipped(session), _layers(session, request), latency)

    def _score(self, request: Score) -> Scored:
        """Score a model, or a piece of it of which the reference runs the rest."""
        from bisect_trt.tensors.metrics import find_metric  # noqa: PLC0415 - few workers score

        scoring = request.scoring
        data = scoring.data
        metric = find_metric(scoring.metric, lower_is_better=scoring.lower_is_better)
        first = load_npz(data.inputs(0))
        reference = None if request.reference is None else Runtime(request.reference)
        before, after = (
            None if reference is None or path is None else reference.load(path, first)
            for path in (request.before, request.after)
        )

        def fed(sample: Feed) -> Feed:
            return sample if before is None else {**sample, **run(before, sample)}

        def outputs(sample: Feed) -> Feed:
            results = run(session, fed(sample))
            return results if after is None else {**results, **run(after, {**sample, **results})}

        session = self._runtime(request.target).load(request.model, fed(first))
        self._tell(LOADED)
        # What a step may score with labels differs from step to step.
        alone: dict[int, float] | None = {} if data.state and not data.labelled else None
        value = data.score(metric, data.run(outputs), alone)
        passed = None
        past: list[tuple[int, float]] = []
        if (bound := scoring.bound) is not None:
            slack = 1e-9 * max(abs(bound), 1.0)
            sign = 1 if metric.lower_is_better else -1
            # NaN is not on its good side.
            passed = sign * (value - bound) <= slack
            past = [pair for pair in (alone or {}).items() if not sign * (pair[1] - bound) <= slack]
        latency = fastest_ms(session, fed(first)) if request.timed else None
        return Scored(value, passed, _layers(session, request), latency, *past[:1])

    def _measure(self, request: Measure) -> Measured:
        feed = load_npz(request.inputs)
        runtime = self._runtime(request.target)
        # This goes first, because a place holds one model.
        idle = self._idle_lost(request, runtime)
        before = self._memory()
        build_s, session = _timed_load(runtime, request.model, feed)
        built = self._memory()
        self._tell(LOADED)
        if not request.target.build_only:
            # The first run allocates what the later ones reuse, so it counts for the memory.
            run(session, feed)
        ran = self._memory()
        for _ in range(_BUILDS - 1):
            if request.build_limit_s is not None and build_s > request.build_limit_s:
                # The shortest of several: other processes only ever make a build slower.
                build_s = min(build_s, _timed_load(runtime, request.model, feed)[0])
        peaks = {
            name: memory["peak"] - before["host"]
            for name, memory in (("build", built), ("run", ran))
        }
        peaks["device"] = ran["gpu"] - before["gpu"]
        measured = Measured(
            build_s=build_s, memory={name: max(size, 0) for name, size in peaks.items()}
        )
        if request.budget_s is None:
            return measured
        from bisect_trt.worker.timing import Timed, compare_blocks  # noqa: PLC0415 - few workers measure

        baseline = None
        if request.baseline is not None:
            try:
                runtime = self._baseline(request.baseline, request.beside)
                baseline = Timed.of(
                    runtime.load(request.baseline_model or request.model, feed), feed
                )
            except _FAILURES as error:
                return structs.replace(measured, refused=str(error))
        judge = partial(request.judge, idle_s=idle)
        blocks = compare_blocks(
            Timed.of(session, feed), baseline, judge, request.budget_s, request.share
        )
        return structs.replace(measured, idle_s=idle, **structs.asdict(blocks))

    def _idle_lost(self, request: Measure, runtime: Runtime) -> float:
        """Seconds that a model that computes nothing loses to the baseline; 0 without one, and where that is not known."""
        if request.baseline is None or not request.piecewise:
            return 0.0
        if (key := (request.target, request.baseline, request.beside)) not in self._idle:
            try:
                self._idle[key] = _idle_s(runtime, self._baseline(request.baseline, request.beside))
            except _FAILURES:
                # Reported where the model itself is loaded.
                return 0.0
        return max(request.lost(*self._idle[key]), 0.0)

    def _baseline(self, settings: TargetSettings, place: Place | None) -> Runtime:
        """The runtime of a baseline, in a connection of its own where it runs in a place."""
        if place not in self._beside:
            self._beside[place] = _connect(place)
        return _runtime_in(self._beside[place], settings)

    def _memory(self) -> dict[str, int]:
        """Bytes that the process that runs models holds; the peak is the one since this was last called. See ``host.held``."""
        if self._place is not None:
            return dict(self._place.memory)
        memory = held(self._runtimes.values())
        forget_peak()
        return memory

    def _prepare(self, request: Compare) -> RuntimeSession:
        feed = feed_of(request, request.samples[0])
        ranges = _ranges(request.target, request.samples, partial(feed_of, request))
        load = self._runtime(request.target).load
        if not request.same:
            return load(request.model, feed, ranges)
        # An engine is built for the shapes of its inputs, so others need another one.
        shapes = shapes_of(feed) if request.target.target.compiles else {}
        key = request.target, request.model.read_bytes(), shapes, ranges
        if self._last is None or self._last[0] != key:
            # The last model goes before the next one comes: two may not fit.
            self._last = None
            self._last = key, load(request.model, feed, ranges)
        return self._last[1]


def _ranges(
    target: TargetSettings, samples: Sequence[Any], feed: Callable[[Any], Feed]
) -> dict[str, Sequence[Sizes]]:
    """Return the smallest and the largest shape of each input over the samples, where there are several.

    A runtime that compiles for a range of shapes needs them before it sees the second sample.
    """
    # One sample needs no profile: its shape is built as it is.
    if len(samples) < 2 or not target.target.compiles:
        return {}
    shapes = [shapes_of(feed(sample)) for sample in samples]
    return {
        name: [
            tuple(map(pick, *(sample_shapes[name] for sample_shapes in shapes)))
            for pick in (min, max)
        ]
        for name, shape in shapes[0].items()
        if all(len(sample_shapes[name]) == len(shape) for sample_shapes in shapes)
    }


def _layers(session: RuntimeSession, request: Compare | Score) -> tuple[Fields, ...]:
    """The layers of an engine, where they are asked for and the runtime reports any."""
    return tuple(getattr(session, "layers", tuple)()) if request.layers else ()


def _timed_load(runtime: Runtime, model: Path, feed: Feed) -> tuple[float, RuntimeSession]:
    """Load a model; returns the seconds that it takes, and the session."""
    began = time.perf_counter()
    session = runtime.load(model, feed)
    return time.perf_counter() - began, session


def _idle_s(*sides: Runtime) -> tuple[float, ...]:
    """Seconds that one run of a model that computes nothing takes on each side."""
    import numpy as np  # noqa: PLC0415 - few workers measure

    from bisect_trt.worker.timing import Timed  # noqa: PLC0415 - few workers measure

    feed = {"x": np.zeros(1, np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "tiny.onnx").write_bytes(TINY_MODEL)
        timed = [Timed.of(runtime.load(path, feed), feed) for runtime in sides]
        return tuple(min(model.block() for _ in range(_IDLE_BLOCKS)) for model in timed)


def _raised(request: Request[Any], error: Exception) -> Failed:
    """Return the failure of an error that nothing expects, which names the plug-in that raised it."""
    name = type(error).__name__
    owner = getattr(request, "target", None)
    plugin = owner and plugin_of(owner.target)
    reason = f"{plugin} raised {error!r}" if plugin else f"{name}: {error}"
    return Failed("run", reason, f"run: {name}")


def _names(request: Request[Any]) -> list[str]:
    """The names in a model that failed; none where it cannot be read."""
    if not isinstance(request, OnModel):
        return []
    try:
        import onnx  # noqa: PLC0415 - only where something has failed, and it may not be there

        return list(names_of(onnx.load(str(request.model), load_external_data=False).graph))
    except Exception:
        # That it cannot be read is what the failure is about, then.
        return []


def _print_to(log: Path) -> None:
    """Send what this process and its runtimes print to a file."""
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


def _runtime_in(place: Connection | None, settings: TargetSettings) -> Runtime:
    if place is None:
        return Runtime(settings)
    from bisect_trt.worker.connection import RemoteRunner  # noqa: PLC0415 - for a place alone

    return Runtime(settings, RemoteRunner(settings, place))


def _connect(place: Place | None) -> Connection | None:
    if place is None:
        return None
    from bisect_trt.worker.connection import Connection  # noqa: PLC0415 - for a place alone

    return Connection(place)


def main(requests: int, replies: int) -> None:
    """Answer requests from a pipe until it closes, to another one."""
    # Ctrl-C goes to the driver, which decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(Closed):
        place = pickle.loads(receive(requests)[1])
        worker = Worker(_connect(place), partial(send, replies))
        try:
            while True:
                content = receive(requests)[1]
                send(replies, BEGUN)
                answer = worker.serve(pickle.loads(content))
                send(replies, {}, [pickle.dumps(answer)])
        finally:
            worker.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
