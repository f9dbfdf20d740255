"""Settings into a builder configuration; what a version of TensorRT does not have is refused, not ignored."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from bisect_trt.aliases import Plain
from bisect_trt.errors import ConflictError, OutputFileError, UnknownNameError, ValueRefusedError
from bisect_trt.targets.messages import Feed, require_kept, set_option
from bisect_trt.targets.trt.process import APIS, describe

LOW_PRECISIONS = ("tf32", "fp16", "bf16", "fp8", "int8")
_OF_TACTICS = (
    "load_timing_cache",
    "save_timing_cache",
    "avoid_tactics",
    "pin_tactics",
    "tactic_sources",
)
"""The settings about kernels that a build chooses."""


def is_strongly_typed(trt: Any, settings: Plain, *, lowered: bool = False) -> bool:
    """Return whether the types in the graph are the types that run; a ``lowered`` model has the low precision in its graph.

    TensorRT has strong typing since 9, and nothing else since 11, where the builder has no flags of
    precisions.

    Args:
        trt: TensorRT's module.
        settings: Plain values: the fields of ``TargetSettings`` and ``TrtSettings``.
        lowered: Whether the low precision is in the graph.
    """
    if APIS[settings["runtime"]].portable or not hasattr(trt.BuilderFlag, "FP16"):
        return True
    return hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED") and (
        settings["strongly_typed"] or lowered
    )


def low_precisions(settings: Plain) -> list[str]:
    """Return the names of the given precisions below fp32."""
    return [name for name in LOW_PRECISIONS if settings[name]]


def _members(trt: Any, enum: str) -> Plain:
    """Return the members of one of TensorRT's enumerations by name; none where this version lacks it."""
    return getattr(getattr(trt, enum, None), "__members__", {})


def member(trt: Any, enum: str, name: str, option: str) -> Any:
    """Return a member of one of TensorRT's enumerations, by name in any case.

    Args:
        trt: TensorRT's module.
        enum: The name of the enumeration.
        name: The name of the member, in any case.
        option: The option, as it is written, for messages.

    Raises:
        UsageError: This version does not have it.
    """
    members = {key.lower(): value for key, value in _members(trt, enum).items()}
    if name.lower() not in members:
        has = ", ".join(sorted(members)) or "none"
        raise UnknownNameError(f"{option}: {describe(trt)} has no '{name}'; it has: {has}.")
    return members[name.lower()]


def check_settings(trt: Any, settings: Plain) -> None:
    """Check that this version has the given options, before anything is built.

    Raises:
        UsageError: It does not.
    """
    have = f"this is {describe(trt)}"
    api = APIS[settings["runtime"]]
    for name in _OF_TACTICS if api.portable else ():
        if settings[name]:
            raise ConflictError(
                f"--{name.replace('_', '-')}: {api.title} chooses kernels when an engine runs, not when it is built; leave it "
                "out."
            )
    strong = is_strongly_typed(trt, settings)
    if settings["strongly_typed"] and not strong:
        raise ConflictError(
            f"--strongly-typed needs TensorRT 9 or later, and {have}; leave it out."
        )
    if settings["fp16"] and settings["bf16"] and strong:
        raise ConflictError(
            "--fp16 and --bf16 are two types, and a Cast in the graph is to one; drop one of them."
        )
    for name in low_precisions(settings):
        # fp16 and bf16 are written into a strongly typed graph, so the builder needs no flag.
        written = strong and name in ("fp16", "bf16")
        if not written and not (
            hasattr(trt.BuilderFlag, name.upper()) and (name == "tf32" or not strong)
        ):
            instead = (
                "quantize the model with Q/DQ nodes instead"
                if name in ("int8", "fp8")
                else "leave it out"
            )
            raise ValueRefusedError(f"--{name} is no option of this build, and {have}; {instead}.")
    builder_flags(trt, settings)


def builder_flags(trt: Any, settings: Plain) -> tuple[list[Any], list[Any]]:
    """Return the flags of ``--builder-flag`` for the builder and for the ONNX parser.

    Raises:
        UsageError: This version has neither.
    """
    builders = _members(trt, "BuilderFlag")
    parsers = _members(trt, "OnnxParserFlag")
    names = [name.upper() for name in settings["builder_flags"]]
    for name in names:
        if name not in builders and name not in parsers:
            has = ", ".join(sorted({*builders, *parsers}))
            raise UnknownNameError(
                f"--builder-flag: {describe(trt)} has no '{name}'; it has: {has}."
            )
    ours = [builders[name] for name in names if name in builders]
    return ours, [parsers[name] for name in names if name not in builders]


def make_config(trt: Any, builder: Any, settings: Plain, *, lowered: bool = False) -> Any:
    """Return an ``IBuilderConfig``; a ``lowered`` model has the low precision in its graph.

    Args:
        trt: TensorRT's module.
        builder: TensorRT's builder.
        settings: Plain values: the fields of ``TargetSettings`` and ``TrtSettings``.
        lowered: Whether the low precision is in the graph.

    Raises:
        UsageError: This version lacks one of them.
    """
    config = builder.create_builder_config()
    for place, name in enumerate(capabilities := settings.get("compute_capabilities", ())):
        config.num_compute_capabilities = len(capabilities)
        config.set_compute_capability(
            member(trt, "ComputeCapability", name, "--compute-capability"), place
        )
    # Detailed, so that layers can be traced back to nodes.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.clear_flag(trt.BuilderFlag.TF32)
    strong = is_strongly_typed(trt, settings, lowered=lowered)
    for name in low_precisions(settings):
        if name == "tf32" or not strong:
            config.set_flag(getattr(trt.BuilderFlag, name.upper()))
    for name, size in settings["pool_limits"]:
        pool = member(trt, "MemoryPoolType", name, "--pool-limit")
        config.set_memory_pool_limit(pool, size)
        require_kept(f"--pool-limit {name}", size, config.get_memory_pool_limit(pool))
    if settings["tactic_sources"] is not None:
        sources = {
            member(trt, "TacticSource", name, "--tactic-sources")
            for name in settings["tactic_sources"]
        }
        mask = sum(1 << int(source) for source in sources)
        config.set_tactic_sources(mask)
        require_kept("--tactic-sources", mask, config.get_tactic_sources())
    if (level := settings["builder_optimization_level"]) is not None:
        config.builder_optimization_level = level
        require_kept("--builder-optimization-level", level, config.builder_optimization_level)
    flags = builder_flags(trt, settings)[0]
    for flag in flags if strong else [*flags, *_constraints(trt, settings, flags)]:
        config.set_flag(flag)
    for flag in flags:
        require_kept(f"--builder-flag {flag.name}", True, config.get_flag(flag))
    for name, value in settings["builder_settings"]:
        set_option(
            config, name, value, f"--builder-set {name}", f"the configuration of {describe(trt)}"
        )
    return config


VARIABLE = "__LUNOWUD"
"""The environment variable with options of TensorRT's compiler, each ``-NAME=VALUE``; its builder reads it in each build."""
_IGNORED = re.compile(rb"^-(\S+) invalid compilation option, ignored \((.*)\)\r?$", re.MULTILINE)


@contextlib.contextmanager
def compiler_options(config: Any, options: Iterable[str]) -> Iterator[dict[str, str]]:
    """Set options of the compiler for the builds within: by the build route, which is public, else by the environment.

    Options that the environment has already stay.

    Args:
        config: The configuration of the build; it is changed.
        options: Each ``NAME=VALUE``.

    Yields:
        The options that the compiler ignores with its reasons, filled in at the end.
    """
    words = " ".join(f"-{option}" for option in options)
    ignored = dict[str, str]()
    before = os.environ.get(VARIABLE, "")
    if words and hasattr(config, "build_route"):
        config.build_route = words
    # TensorRT-RTX has the attribute, and keeps nothing.
    if not words or getattr(config, "build_route", "") == words:
        yield ignored
        return
    # What the compiler ignores it prints to the process's stderr, not to the logger.
    printed = os.fstat(2)
    os.environ[VARIABLE] = f"{before} {words}"
    try:
        yield ignored
    finally:
        os.environ[VARIABLE] = before
        if stat.S_ISREG(printed.st_mode):
            with contextlib.suppress(OSError), pathlib.Path("/proc/self/fd/2").open("rb") as log:
                log.seek(printed.st_size)
                for name, reason in _IGNORED.findall(log.read()):
                    ignored[name.decode(errors="replace")] = reason.decode(errors="replace")


def _constraints(trt: Any, settings: Plain, flags: Collection[Any]) -> list[Any]:
    """Return the flag that makes TensorRT follow the types of layers, if none is given."""
    kinds = trt.BuilderFlag
    obey = kinds.OBEY_PRECISION_CONSTRAINTS
    prefer = kinds.PREFER_PRECISION_CONSTRAINTS
    if obey in flags or prefer in flags or not (settings["keep"] or settings["held"]):
        return []
    # What is kept in fp32 would else only be a wish; of those held to a low type some have nothing
    # but fp32.
    return [obey if settings["keep"] else prefer]


def add_profile(
    builder: Any, config: Any, network: Any, settings: Plain, feed: Feed, hints: Plain
) -> None:
    """Give a configuration an optimization profile, where dimensions vary: the ranges in the settings, else what is fed.

    Args:
        builder: TensorRT's builder.
        config: The configuration of the build; it is changed.
        network: The parsed network.
        settings: The fields of ``TrtSettings``.
        feed: The values of the first sample, by input name.
        hints: ``ranges`` has the smallest and the largest shape of each input, where there are
            several samples.

    Raises:
        UsageError: Neither has the range of an input.
    """
    free = [tensor for tensor in network_inputs(network) if -1 in tuple(tensor.shape)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    # Without a profile, 8.6 makes no execution context for outputs whose size depends on values.
    if not free and not any(-1 in tuple(tensor.shape) for tensor in outputs):
        return
    low, usual, high = (
        dict(map(tuple, settings[f"{name}_shapes"])) for name in ("min", "opt", "max")
    )
    profile = builder.create_optimization_profile()
    for tensor in free:
        name = tensor.name
        if name in low:
            ranges = (low[name], (usual or high)[name], high[name])
        elif name in feed:
            shape = feed[name].shape
            smallest, largest = hints.get("ranges", {}).get(name, (shape, shape))
            ranges = (smallest, shape, largest)
        else:
            raise ValueRefusedError(
                f"the input '{name}' has free dimensions; give their range with --trt-min-shapes and --trt-max-shapes."
            )
        profile.set_shape(name, *map(tuple, ranges))
    config.add_optimization_profile(profile)


def network_inputs(network: Any) -> list[Any]:
    """Return the input tensors of a network."""
    return [network.get_input(index) for index in range(network.num_inputs)]


def set_ranges(trt: Any, config: Any, network: Any, settings: Plain, cuda: Any) -> None:
    """Give INT8 of TensorRT 8.6 to 10 its calibrator; take INT8 back where nothing is quantized and there is none.

    TensorRT refuses a network of INT8 with neither ("no scaling factors detected"), such as a piece
    of a quantized model.

    Args:
        trt: TensorRT's module.
        config: The configuration of the build; it is changed.
        network: The parsed network.
        settings: Plain values: the fields of ``TargetSettings`` and ``TrtSettings``.
        cuda: The CUDA runtime.
    """
    data = settings["calibration_data"]
    cache = settings["calibration_cache"]
    flag = getattr(trt.BuilderFlag, "INT8", None)
    if flag is None or not config.get_flag(flag):
        return
    if data or cache is not None:
        config.int8_calibrator = make_calibrator(
            trt, cuda, data, None if cache is None else pathlib.Path(cache)
        )
        return
    # INT8 without scales is refused by the builder, though the other precisions would do.
    kinds = {network.get_layer(index).type for index in range(network.num_layers)}
    if not kinds & {trt.LayerType.QUANTIZE, trt.LayerType.DEQUANTIZE}:
        config.clear_flag(flag)
        print(
            "TensorRT: nothing in this network is quantized, so it is built without INT8",
            flush=True,
        )


def write_file(path: str | pathlib.Path, content: Any) -> None:
    """Write bytes, or a buffer of TensorRT's, to a file, which appears under its name when it is whole.

    Raises:
        UsageError: It cannot be written.
    """
    to = pathlib.Path(os.path.realpath(path))
    # A device or FIFO is written to, not replaced.
    plain = to.is_file() or not to.exists()
    temporary = to.with_name(f".{to.name[:100]}.{os.getpid()}.tmp") if plain else to
    try:
        temporary.write_bytes(content)
        temporary.replace(to)
    except OSError as error:
        if plain:
            temporary.unlink(missing_ok=True)
        raise OutputFileError(
            f"{path} cannot be written: {error.strerror}; name another file."
        ) from error


def make_calibrator(trt: Any, cuda: Any, samples: Iterable[str], cache: pathlib.Path | None) -> Any:
    """Return a calibrator by entropy, which TensorRT recommends for convolutional networks.

    Each of the ``.npz`` files of inputs is on the GPU until the next one is needed; ranges are read
    from the cache if it exists, and else written to it.

    Args:
        trt: TensorRT's module.
        cuda: The CUDA runtime.
        samples: ``.npz`` files of inputs, one a sample.
        cache: The file of the ranges; ``None`` for none.
    """
    base = trt.IInt8EntropyCalibrator2
    remaining = list(samples)
    addresses = list[int]()

    class Calibrator(base):  # type: ignore[misc, valid-type]  # TensorRT ships no types
        def __init__(self) -> None:
            base.__init__(self)

        def get_batch_size(self) -> int:
            # ONNX models have no implicit batch; 0 would end the calibration.
            return 1

        def get_batch(self, names: list[str]) -> list[int] | None:
            while addresses:
                cuda.free(addresses.pop())
            if not remaining:
                return None
            with np.load(remaining.pop(0), allow_pickle=False) as sample:
                for name in names:
                    array = np.ascontiguousarray(sample[name])
                    addresses.append(cuda.malloc(array.nbytes))
                    cuda.upload(addresses[-1], array)
                    cuda.synchronize()
            return list(addresses)

        def read_calibration_cache(self) -> bytes | None:
            return cache.read_bytes() if cache is not None and cache.is_file() else None

        def write_calibration_cache(self, content: memoryview) -> None:
            if cache is not None:
                write_file(cache, content)

    return Calibrator()


PIN_MISSED = "pin"
"""The signature of a build that does not take a pinned tactic."""
_FUSED_PARTS = re.compile(r" \+ |PWN\(|\)|, |\|\|")
"""Stands between the names of layers that became one."""


def tactic_selector(trt: Any, settings: Plain, *, record: bool = False) -> Any:
    """Return an algorithm selector; ``None`` if no tactics are pinned, avoided or recorded, or this version has none.

    Args:
        trt: TensorRT's module.
        settings: Plain values: the fields of ``TargetSettings`` and ``TrtSettings``.
        record: Whether the tactics of layers are recorded in any case.

    Raises:
        UsageError: Tactics are pinned or avoided, and this version has no algorithm selector.
    """
    avoided = settings["avoid_tactics"]
    pinned = settings["pin_tactics"]
    if hasattr(trt, "IAlgorithmSelector"):
        wanted = avoided or pinned or record or settings["record"]
        return make_selector(trt, avoided, pinned) if wanted else None
    if avoided or pinned:
        flag = "--avoid-tactic" if avoided else "--pin-tactic"
        raise UnknownNameError(
            f"{flag}: {describe(trt)} has no algorithm selector (8.6 to 10 have it); leave it out."
        )
    return None


def make_selector(trt: Any, avoided: Iterable[str], pinned: Iterable[str]) -> Any:
    """Return an algorithm selector that keeps layers from tactics where they have others.

    A layer for which tactics are ``pinned`` takes one of those. TensorRT may ask about a layer more
    than once, for each format that it may have, so only in the end is it known whether one was
    offered. Where a pinned layer does not exist, one that holds a part of it is fused otherwise,
    and has no pin that could hold it.

    Args:
        trt: TensorRT's module.
        avoided: Tactics that layers must not take, as ``LAYER=IMPLEMENTATION:TACTIC``.
        pinned: Tactics that they have to take if they are offered.
    """
    base = trt.IAlgorithmSelector
    unwanted = set(avoided)
    wanted = set(pinned)
    pinned_layers = {tactic.rpartition("=")[0] for tactic in wanted}

    class Selector(base):  # type: ignore[misc, valid-type]  # TensorRT ships no types
        """Chooses tactics; ``took`` has of each layer its name, its tactic and the number of choices."""

        def __init__(self) -> None:
            base.__init__(self)
            self.took: list[list[Any]] = []
            self._offered: dict[str, int] = {}

        def select_algorithms(self, context: Any, choices: Any) -> list[int]:
            self._offered[context.name] = len(choices)
            offered = [_tactic(context.name, choice) for choice in choices]
            if wanted.intersection(offered):
                return [place for place, tactic in enumerate(offered) if tactic in wanted]
            allowed = [place for place, tactic in enumerate(offered) if tactic not in unwanted]
            # An empty choice ends the build, and the layer may have one tactic only.
            return allowed or list(range(len(choices)))

        def report_algorithms(self, contexts: Any, choices: Any) -> None:
            for context, choice in zip(contexts, choices, strict=False):
                self.took.append(
                    [
                        context.name,
                        _tactic(context.name, choice),
                        self._offered.get(context.name, 1),
                    ]
                )

        def missed(self) -> list[str]:
            """Return the tactics that layers took instead of pinned ones."""
            tactics = {name: (tactic, count) for name, tactic, count in self.took}
            # A pinned layer that is gone has been fused otherwise; its parts are in layers
            # without a pin.
            gone = {part for name in pinned_layers - tactics.keys() for part in layer_parts(name)}
            return [
                tactic
                for name, (tactic, count) in tactics.items()
                if (name in pinned_layers and tactic not in wanted)
                or (name not in pinned_layers and count > 1 and gone & layer_parts(name))
            ]

    return Selector()


def layer_parts(layer: str) -> set[str]:
    """Return the layers of the network that became one of an engine, by its name."""
    return {layer, *(part.strip() for part in _FUSED_PARTS.split(layer) if part.strip())}


def _tactic(layer: str, choice: Any) -> str:
    """Return ``LAYER=IMPLEMENTATION:TACTIC``, both numbers as they are in Polygraphy's replays."""
    variant = choice.algorithm_variant
    return f"{layer}={variant.implementation}:{variant.tactic}"
