"""Builds engines with TensorRT and runs them: for the local worker, remote workers and ``reproduce.py``.

It needs TensorRT, NumPy and the modules that are sent with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import pathlib
import re
from typing import Any

from bisect_trt.aliases import Plain
from bisect_trt.errors import (
    ConflictError,
    OutputFileError,
    RuntimeMissingError,
    UnreadableFileError,
    ValueRefusedError,
)
from bisect_trt.targets.choices import LAYERS, RECORD, TIMINGS, choices_of_layers, write_choices
from bisect_trt.targets.messages import BuildError, Feed, Found, RunError, is_out_of_memory
from bisect_trt.targets.trt.config import (
    PIN_MISSED,
    add_profile,
    check_settings,
    compiler_options,
    is_strongly_typed,
    make_config,
    set_ranges,
    tactic_selector,
    write_file,
)
from bisect_trt.targets.trt.engine import (
    Built,
    TrtSession,
    describe_engine,
    fused_nodes,
    inspect_engine,
    layers_of_network,
)
from bisect_trt.targets.trt.network import constrain, parse, partition
from bisect_trt.targets.trt.process import APIS, describe, tensorrt

_DEBUG_MARKS = "mark_unfused_tensors_as_debug_tensors"
"""A method of a network, since TensorRT 10.12: marks that keep no tensor from being fused away."""
_NEEDS_GPU = re.compile(r"Cuda Runtime|CUDA_SUCCESS")
"""Messages of a builder that calls CUDA where there is no GPU."""


class BuiltSession:
    """An engine that is built and not loaded, for which no GPU is needed; it has no inputs, because it cannot be fed."""

    def __init__(self, built: Built) -> None:
        """Keep the facts about the network."""
        self.inputs: list[Any] = []
        self.skipped = built.parsed.skipped
        self._parsed = built.parsed

    def layers(self) -> list[Found]:
        """Return the layers of the network; if it is strongly typed, they run in these types."""
        return layers_of_network(self._parsed)

    def run(self, inputs: Feed) -> Found:
        """Return no outputs."""
        return {}


class TrtRunner:
    """TensorRT with its settings; its facts are its version, and whether models are lowered for it or it lowers layers."""

    def __init__(self, settings: Plain) -> None:
        """Set it up with the fields of ``TargetSettings`` and ``TrtSettings``; lists do for tuples.

        Raises:
            UnavailableError: There is no TensorRT or no GPU.
            UsageError: This TensorRT lacks an option, or a library cannot be loaded.
        """
        self._settings = settings
        self._process = tensorrt(settings["runtime"])
        trt = self._process.trt
        if self._process.cuda is None and not settings["build_only"]:
            raise RuntimeMissingError(
                f"{describe(trt)} runs no model here, because there is no NVIDIA GPU that CUDA may use; add --build-only to see "
                "whether it parses and builds them."
            )
        check_settings(trt, settings)
        if settings["debug_tensors"] and not hasattr(trt.INetworkDefinition, _DEBUG_MARKS):
            raise ConflictError(
                f"--debug-tensors needs TensorRT 10.12 or later, and this is {describe(trt)}; leave it out."
            )
        # Made once to find mistakes in the settings before any model is parsed.
        make_config(trt, self._process.builder, settings)
        tactic_selector(trt, settings)
        for library in settings["plugins"]:
            try:
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise ValueRefusedError(
                    f"--plugins: {library} cannot be loaded: {error}; build it for this TensorRT, or add the folder of what it "
                    "needs to LD_LIBRARY_PATH."
                ) from error
        lowers_by = "cast" if is_strongly_typed(trt, settings) else "layer"
        self.facts = {"lowers_by": lowers_by, "version": str(trt.__version__)}

    def gpu_memory(self) -> int:
        """Return the bytes of GPU memory in use, by any process."""
        if self._process.cuda is None:
            return 0
        free, total = self._process.cuda.memory()
        return int(total - free)

    def load(self, path: pathlib.Path, feed: Feed, hints: Plain) -> TrtSession | BuiltSession:
        """Build a model, or take the prebuilt engine.

        Args:
            path: The ONNX file.
            feed: The values of the first sample, by input name.
            hints: Plain values about the model: ``nodes``, ``lowered``, ``types``, ``names``, and
                ``content`` where it is not in the file.

        Raises:
            BuildError: TensorRT refuses it.
            UnavailableError: The prebuilt engine is not for this TensorRT.
        """
        if self._settings["load_engine"] is not None:
            return TrtSession(self._process, self._prebuilt(), hints.get("types", {}))
        built = self._build(path, feed, hints)
        for option, reason in built.ignored.items():
            raise ValueRefusedError(
                f"--compiler-option {option}: the compiler ignores it: {reason}; correct it, or leave it out."
            )
        self._save(built)
        return BuiltSession(built) if self._settings["build_only"] else self._open(built, hints)

    def trace(self, path: pathlib.Path, feed: Feed, hints: Plain) -> Found:
        """Return what the parser refuses, the choices of a build, and the switches of this version.

        Args:
            path: The ONNX file.
            feed: The values of the first sample, by input name.
            hints: Plain values about the model: ``nodes``, ``lowered``, ``types``, ``names``, and
                ``content`` where it is not in the file.

        Returns:
            ``partition``: see :func:`partition`. ``sources``: the default sources of tactics.
                ``flags``: the builder flags. ``routes``: the options of the compiler, JSON, since 11.1.
            ``tactics``: of each layer its name, the tactic that it took as ``avoid_tactics`` has
                it, and the number of choices;
            where there is an algorithm selector (8.6 to 10), and the model builds.
        """
        trt = self._process.trt
        times = not APIS[self._settings["runtime"]].portable
        config = make_config(trt, self._process.builder, self._settings)
        bits, sources = (
            (config.get_tactic_sources(), trt.TacticSource.__members__) if times else (0, {})
        )
        result: Found = {
            "sources": [name for name, source in sources.items() if bits >> int(source) & 1],
            "flags": list(trt.BuilderFlag.__members__),
            "routes": str(getattr(config, "all_build_routes", "")),
            "tactics": [],
        }
        if self._settings["build_only"]:
            result["partition"] = partition(self._process, self._settings, path, hints)
        # A build that fails has recorded no tactics, and the other switches are known without
        # them.
        if times and hasattr(trt, "IAlgorithmSelector"):
            with contextlib.suppress(BuildError):
                result["tactics"] = self._build(path, feed, hints, record=True).took
        return result

    def fusions(self, path: pathlib.Path, feed: Feed, hints: Plain) -> Found:
        """Build a model; return the layers that the compiler made.

        Args:
            path: The ONNX file.
            feed: The values of the first sample, by input name.
            hints: Plain values about the model, as for :meth:`load`.

        Returns:
            ``size`` of the engine in bytes; ``layers``, each with its ``kind``, its ``tactic`` and the
                names of its ``nodes``; ``ignored``: the options that the compiler ignores, with its reasons.

        Raises:
            BuildError: TensorRT refuses it.
        """
        built = self._build(path, feed, hints)
        inspected = ""
        if not self._process.log.layers and self._process.runtime is not None:
            inspected = inspect_engine(self._process.trt, self._deserialise(built.plan))
        layers = fused_nodes(self._process.log.layers or inspected, built.parsed)
        return {"size": int(built.plan.nbytes), "layers": layers, "ignored": built.ignored}

    def profile(self, path: pathlib.Path, feed: Feed, hints: Plain) -> Found:
        """Return the time of each layer (``IProfiler``).

        Args:
            path: The ONNX file.
            feed: The values of the first sample, by input name.
            hints: Plain values about the model: ``nodes``, ``lowered``, ``types``, ``names``, and
                ``content`` where it is not in the file.
        """
        session = self.load(path, feed, hints)
        return {} if isinstance(session, BuiltSession) else session.profile(feed)

    def describe_engine(self) -> Found:
        """Return what the prebuilt engine consists of; see ``engine.describe_engine``.

        Raises:
            UnavailableError: The engine is not for this TensorRT.
        """
        return describe_engine(self._process.trt, self._prebuilt())

    def _build(
        self, path: pathlib.Path, feed: Feed, hints: Plain, *, record: bool = False
    ) -> Built:
        """Parse and build a model; ``record`` tactics in any case.

        Raises:
            BuildError: TensorRT refuses the model, or a layer does not take its pinned tactic.
        """
        process = self._process
        settings = self._settings
        selector = None
        timings = None
        trt = process.trt
        log = process.log
        parsed = parse(process, settings, path, feed, hints)
        config = make_config(trt, process.builder, settings, lowered=hints["lowered"])
        add_profile(process.builder, config, parsed.network, settings, feed, hints)
        if not is_strongly_typed(trt, settings, lowered=hints["lowered"]):
            constrain(trt, parsed, settings)
        set_ranges(trt, config, parsed.network, settings, process.cuda)
        if not APIS[settings["runtime"]].portable:
            # Builds that begin with the same file share one cache, so that no tactic is timed
            # twice.
            start = settings["load_timing_cache"]
            if start not in process.timing_caches:
                process.timing_caches[start] = config.create_timing_cache(
                    b"" if start is None else read_file(start)
                )
            timings = process.timing_caches[start]
            config.set_timing_cache(timings, ignore_mismatch=False)
            selector = tactic_selector(trt, settings, record=record)
        if selector is not None:
            config.algorithm_selector = selector
        if settings["debug_tensors"]:
            getattr(parsed.network, _DEBUG_MARKS)()
        # Errors of an earlier build are no reason for this one to fail.
        log.errors.clear()
        log.layers = ""
        with compiler_options(config, settings["compiler_options"]) as ignored:
            plan = process.builder.build_serialized_network(parsed.network, config)
        if plan is None:
            failure = log.failure(
                BuildError, "the builder gives no engine and no reason", hints.get("names", ())
            )
            if process.cuda is None and _NEEDS_GPU.search(failure.message):
                message = f"{failure.message}: this part of a build needs an NVIDIA GPU, and there is none"
                failure = BuildError(message, signature=failure.masked, poisoned=failure.poisoned)
            raise failure
        if selector is not None and (missed := ", ".join(selector.missed())):
            raise BuildError(
                f"a layer does not take the pinned tactic: it takes {missed}", signature=PIN_MISSED
            )
        took = [] if selector is None else selector.took
        return Built(plan, parsed, took, timings, ignored)

    def _deserialise(self, plan: Any) -> Any:
        self._process.log.errors.clear()
        engine = self._process.runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise self._process.log.failure(
                RunError, "the engine cannot be loaded, and TensorRT gives no reason"
            )
        return engine

    def _prebuilt(self) -> Any:
        path = self._settings["load_engine"]
        try:
            return self._deserialise(read_file(path))
        except RunError as error:
            if is_out_of_memory(error.message):
                raise
            raise UnreadableFileError(
                f"{describe(self._process.trt)} cannot load the engine {path}: {error.message}; an engine runs on "
                "the version and the kind of GPU that it was built for, so build it again here."
            ) from error

    def _open(self, built: Built, hints: Plain) -> TrtSession:
        """Return a session of a new engine; what the build chose is written if ``record`` is set."""
        process = self._process
        folder = self._settings["record"]
        engine = self._deserialise(built.plan)
        session = TrtSession(process, engine, hints.get("types", {}), built)
        if self._settings["debug_tensors"]:
            session.listen()
        # On another machine the folder need not exist.
        if folder is None or not pathlib.Path(folder).is_dir():
            return session
        to = pathlib.Path(folder)
        write_file(to / LAYERS, inspect_engine(process.trt, engine).encode())
        if built.timings is not None:
            write_file(to / TIMINGS, built.timings.serialize())
        try:
            write_choices(to / RECORD, choices_of_layers(session.layers()))
        except OSError as error:
            raise OutputFileError(
                f"{to / RECORD} cannot be written: {error.strerror}; make room."
            ) from error
        return session

    def _save(self, built: Built) -> None:
        """Write the engine and the timing cache, if their files are given."""
        if self._settings["save_engine"] is not None:
            write_file(self._settings["save_engine"], built.plan)
        if self._settings["save_timing_cache"] is not None:
            write_file(self._settings["save_timing_cache"], built.timings.serialize())


def read_file(path: str) -> bytes:
    """Return the content of a file.

    Raises:
        UnavailableError: It cannot be read.
    """
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UnreadableFileError(f"{path} cannot be read: {error.strerror}.") from error


make = TrtRunner
