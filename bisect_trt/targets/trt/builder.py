"""A model into a serialised engine: what a process need not do again (:mod:`~bisect_trt.targets.trt.plans`), it does once."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx import ModelProto

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.targets.messages import BuildError, names_of
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.api import TensorRt
from bisect_trt.targets.trt.config import calibrate, make_config
from bisect_trt.targets.trt.knobs import forget_int8
from bisect_trt.targets.trt.layers import constrain
from bisect_trt.targets.trt.parse import Feed, Parsed, parse
from bisect_trt.targets.trt.plans import Memory, Plan, network_key, orders
from bisect_trt.targets.trt.selector import PIN_MISSED, PIN_REFUSED, lift, missed, replay
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.targets.trt.tuned import CannotTake, build_edited, by_cache
from bisect_trt.targets.trt.wording import is_out_of_memory, is_poisoning, reason, signature

_CACHE_MISS = re.compile(r"(?i)timing cache|cache miss|in the cache")


@dataclass
class Stopwatch:
    """Seconds by what a build did, for the log of its probe.

    Attributes:
        parts: In the order they came.
    """

    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Whatever is done meanwhile is this part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - began

    def say(self) -> None:
        """Print it: ``TensorRT took: parse 0.21 s, build 9.42 s``."""
        said = ", ".join(f"{part} {seconds:.2f} s" for part, seconds in self.parts.items())
        print(f"TensorRT took: {said}", flush=True)


def build_engine(
    proto: ModelProto,
    path: Path,
    settings: TargetSettings,
    feed: Feed | None,
    trt: TensorRt,
    *,
    show_unfused: bool = False,
    recorder: Any = None,
) -> tuple[Parsed, bytes]:
    """Parse and build a model.

    Args:
        proto: The model, lowered, each node with a name of its own; it is changed.
        path: Where it would lie as a file.
        settings: The target.
        feed: The values that it will be fed, where known.
        trt: This process's TensorRT.
        show_unfused: Whether tensors that are not fused away are marked as debug tensors.
        recorder: An algorithm selector that writes down what the build chooses.

    Raises:
        BuildError: TensorRT refuses the model.
    """
    watch = Stopwatch()
    memory: Memory = trt.memory or Memory()
    trt.memory = memory
    with watch.on("parse"):
        key = network_key(proto, path, settings, feed, trt, show_unfused=show_unfused)
        # Calibration may leave ranges in a network, so that one is parsed anew.
        parsed = None if settings.int8 else memory.network(key)
        if parsed is None:
            memory.parsed = None  # before the next one: two networks are twice the weights
            parsed = parse(proto, path, settings, feed, trt)
            if show_unfused:
                parsed.network.mark_unfused_tensors_as_debug_tensors()
            memory.parsed = (key, parsed)
    config = make_config(settings, trt)
    if recorder is not None:
        config.algorithm_selector = recorder
    _add_profile(config, parsed.network, settings, trt)
    if parsed.told is not None:
        parsed.told.restore(parsed.network)
        lift(constrain(parsed.network, parsed.model, settings, trt))
    calibrate(config, settings, trt)
    forget_int8(trt.trt, config, parsed.network)
    told = hashlib.sha256(key + orders(parsed.network, settings, trt)).digest()
    own = settings.of(TrtSettings)
    # What another build chose is not to be seen any more.
    looked_at = recorder is not None or (own.record or own.save_tactics) is not None
    content = None if looked_at else memory.plan(told, settings.keep)
    if content is not None:
        print("TensorRT: these nodes come to the orders of an engine that was built before, which is taken", flush=True)
    else:
        with watch.on("build"):
            content = _serialised(config, parsed, settings, trt)
        if recorder is None and (refused := missed(vars(own))) is not None:
            raise BuildError(refused, signature=PIN_MISSED)
        memory.keep(told, Plan(content, {settings.keep}))
    watch.say()
    if own.save_timing_cache is not None:
        write(Path(own.save_timing_cache), timings(settings, trt))
    if own.save_tactics is not None:
        write(Path(own.save_tactics), replay().encode())
    if own.save_engine is not None:
        write(Path(own.save_engine), content)
    return parsed, content


def _serialised(config: Any, parsed: Parsed, settings: TargetSettings, trt: TensorRt) -> bytes:
    trt.log.take()
    plan = _build(config, parsed, settings, trt)
    errors = trt.log.take()
    if plan is None:
        message = reason(errors, "the builder gives no engine and does not say why")
        if is_out_of_memory(errors):
            message = f"out of memory: {message}"
        if settings.of(TrtSettings).pin_timings is not None and any(map(_CACHE_MISS.search, errors)):
            message = f"a layer cannot be held to the timings that are pinned: {message}"
            raise BuildError(message, signature=PIN_MISSED)
        masked = signature(message, names_of(parsed.model.graph))
        raise BuildError(message, signature=masked, poisoned=is_poisoning(errors))
    return bytes(memoryview(plan))


def _build(config: Any, parsed: Parsed, settings: TargetSettings, trt: TensorRt) -> Any:
    own = settings.of(TrtSettings)
    if not _is_edited(own, trt):
        _use_timing_cache(config, settings, trt)
        return trt.builder.build_serialized_network(parsed.network, config)
    content = b"" if own.load_timing_cache is None else read(Path(own.load_timing_cache))
    try:
        return build_edited(trt.trt, trt.builder, parsed.network, config, vars(own), content)
    except CannotTake as error:
        raise BuildError(f"{PIN_REFUSED}: {error}", signature=PIN_MISSED) from error
    finally:
        trt.edited = config.get_timing_cache()


def _is_edited(own: TrtSettings, trt: TensorRt) -> bool:
    """Whether a build has a timing cache of its own, which no other may use: its entries are what layers are held to."""
    return own.pin_timings is None and by_cache(trt.trt, vars(own))


def _use_timing_cache(config: Any, settings: TargetSettings, trt: TensorRt) -> None:
    """Let this build use what earlier builds of this process measured, those that began with the same file.

    One that is held to the timings of another build uses those alone.
    """
    pinned = settings.of(TrtSettings).pin_timings
    if pinned is not None:
        config.set_flag(trt.trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
        config.set_timing_cache(config.create_timing_cache(read(Path(pinned))), ignore_mismatch=False)
        return
    path = settings.of(TrtSettings).load_timing_cache
    if path not in trt.timing_caches:
        trt.timing_caches[path] = config.create_timing_cache(b"" if path is None else read(Path(path)))
    config.set_timing_cache(trt.timing_caches[path], ignore_mismatch=False)


def timings(settings: TargetSettings, trt: TensorRt) -> bytes:
    """What the builds of this process have measured, or the last one whose timing cache was edited, as a file's content."""
    own = settings.of(TrtSettings)
    return _content(trt.edited if _is_edited(own, trt) else trt.timing_caches[own.load_timing_cache])


def _content(timing_cache: Any) -> bytes:
    return bytes(memoryview(timing_cache.serialize()))


def _add_profile(config: Any, network: Any, settings: TargetSettings, trt: TensorRt) -> None:
    """Say how the dimensions that vary do, where some do."""
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    free = [tensor for tensor in tensors if -1 in tuple(tensor.shape)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    if not free and not any(-1 in tuple(tensor.shape) for tensor in outputs):
        return
    lows, usual, highs = (dict(shapes) for shapes in _profile_shapes(settings))
    # Without a profile, 8.6 makes no execution context for outputs whose size depends on values.
    profile = trt.builder.create_optimization_profile()
    for tensor in free:
        name = tensor.name
        if name not in lows:
            raise UsageError(
                f"the input '{name}' has free dimensions; give their range with --trt-min-shapes and --trt-max-shapes."
            )
        profile.set_shape(name, lows[name], usual[name], highs[name])
    config.add_optimization_profile(profile)


def _profile_shapes(settings: TargetSettings) -> Sequence[Sequence[tuple[str, tuple[int, ...]]]]:
    trt = settings.of(TrtSettings)
    return trt.min_shapes, trt.opt_shapes or trt.max_shapes, trt.max_shapes


def read(path: Path) -> bytes:
    """A file's bytes.

    Raises:
        UnavailableError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}.") from error


def write(path: Path, content: bytes) -> None:
    """Write a file.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; name another file.") from error
