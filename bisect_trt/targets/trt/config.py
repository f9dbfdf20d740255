"""Options into a builder configuration; what a version does not have is said, not ignored.

INT8 comes from sample inputs: TensorRT 8.6 to 10 measure the range of every tensor; from 11 on the graph says it, in Q/DQ nodes.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bisect_trt.errors import UsageError
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.api import TensorRt
from bisect_trt.targets.trt.knobs import NoSuch, calibrator_base, check_running, order_layers, prepare_runtime, turn
from bisect_trt.targets.trt.selector import select
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.npz import load_npz

_STRONG_ONLY = (11, 0, 0)
"""Since this version every network is strongly typed."""
_FIRST_STRONG = (9, 0, 0)


def lowers_by_cast(settings: TargetSettings, version: tuple[int, int, int]) -> bool:
    """Whether half precision is written into the ONNX graph, rather than chosen by TensorRT layer by layer."""
    if not (settings.fp16 or settings.bf16):
        return False
    return (
        settings.of(TrtSettings).lowering == "cast"
        or settings.of(TrtSettings).strongly_typed
        or version >= _STRONG_ONLY
    )


def is_strongly_typed(settings: TargetSettings, version: tuple[int, int, int]) -> bool:
    """Whether the types in the graph are the types that run."""
    if version >= _STRONG_ONLY:
        return True
    return settings.of(TrtSettings).strongly_typed or (lowers_by_cast(settings, version) and version >= _FIRST_STRONG)


def check_settings(settings: TargetSettings, tensorrt: TensorRt) -> None:
    """Find out what this version cannot do before anything is built.

    Raises:
        UsageError: An option that it does not have.
    """
    version, have = tensorrt.version, f"this is TensorRT {tensorrt.trt.__version__}"
    if settings.of(TrtSettings).lowering == "layer" and version >= _STRONG_ONLY:
        raise UsageError(f"--lowering layer needs TensorRT 8.6 to 10, and {have}; use --lowering cast.")
    if settings.of(TrtSettings).strongly_typed and version < _FIRST_STRONG:
        raise UsageError(f"--strongly-typed needs TensorRT 9 or later, and {have}; leave it out.")
    if settings.of(TrtSettings).precision_constraints != "none" and version >= _STRONG_ONLY:
        raise UsageError(f"--precision-constraints needs TensorRT 8.6 to 10, and {have}; its types are the graph's.")
    _check_own(settings, tensorrt)
    strong = is_strongly_typed(settings, version)
    if settings.of(TrtSettings).precision_constraints != "none" and strong:
        raise UsageError(
            "--precision-constraints is about types that TensorRT chooses, and in a strongly typed network the graph's "
            "types run; drop it."
        )
    if settings.fp16 and settings.bf16 and lowers_by_cast(settings, version):
        raise UsageError("--fp16 and --bf16 are two types, and a Cast in the graph is to one; drop one of them.")
    for name in settings.low_precisions:
        if strong and name in ("fp16", "bf16"):
            continue  # written into the graph
        if tensorrt.has("BuilderFlag", name.upper()) and (name == "tf32" or not strong):
            continue
        instead = "quantise the model with Q/DQ nodes instead" if name in ("int8", "fp8") else "leave it out"
        raise UsageError(f"--{name} is nothing that this build can be asked for, and {have}; {instead}.")


def _check_own(settings: TargetSettings, tensorrt: TensorRt) -> None:
    """What builds are held to, and how engines are run.

    Raises:
        UsageError: An option that this version does not have.
    """
    own, said = settings.of(TrtSettings), str(tensorrt.trt.__version__)
    if own.pin_timings is not None and not tensorrt.has("BuilderFlag", "ERROR_ON_TIMING_CACHE_MISS"):
        raise UsageError(
            f"--pin: this is TensorRT {said}, and its build of this model chose no tactic that another build can be held to: "
            "what it does not choose layer by layer it compiles as a whole; leave --pin out."
        )
    try:
        check_running(vars(own), tensorrt.version, said)
        prepare_runtime(tensorrt.trt, tensorrt.runtime, vars(own))
        order_layers(tensorrt.trt, (), own.layer_precisions)
    except NoSuch as error:
        raise UsageError(f"{error}.") from error
    if own.save_tactics is not None and not tensorrt.has("IAlgorithmSelector", "select_algorithms"):
        raise UsageError(
            f"--save-tactics needs TensorRT 8.6 to 10, whose builds say what they chose, and this is TensorRT {said}; drop it."
        )


def network_flags(settings: TargetSettings, tensorrt: TensorRt) -> int:
    """``NetworkDefinitionCreationFlag`` bits."""
    flags = getattr(tensorrt.trt, "NetworkDefinitionCreationFlag")  # noqa: B009 - named as in the API lists
    bits = 0
    if hasattr(flags, "EXPLICIT_BATCH"):
        bits |= 1 << int(flags.EXPLICIT_BATCH)
    if is_strongly_typed(settings, tensorrt.version):
        bits |= 1 << int(flags.STRONGLY_TYPED)
    return bits


def make_config(settings: TargetSettings, tensorrt: TensorRt) -> Any:
    """An ``IBuilderConfig``.

    Raises:
        UsageError: A pool, tactic source or level that this version does not have.
    """
    trt, config = tensorrt.trt, tensorrt.builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # so that layers can be traced back to nodes
    config.clear_flag(trt.BuilderFlag.TF32)
    strong = is_strongly_typed(settings, tensorrt.version)
    for name in settings.low_precisions:
        if name == "tf32" or not strong:
            config.set_flag(getattr(trt.BuilderFlag, name.upper()))
    _set_constraints(config, settings, tensorrt)
    _set_limits(config, settings.of(TrtSettings), tensorrt)
    if settings.of(TrtSettings).version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    try:
        turn(trt, config, asdict(settings.of(TrtSettings)))
        select(trt, config, asdict(settings.of(TrtSettings)))
    except NoSuch as error:
        raise UsageError(f"{error}.") from error
    return config


def _set_constraints(config: Any, settings: TargetSettings, tensorrt: TensorRt) -> None:
    if is_strongly_typed(settings, tensorrt.version):
        return
    wanted = settings.of(TrtSettings).precision_constraints
    ordered = settings.keep or settings.of(TrtSettings).layer_precisions
    if wanted == "none" and (ordered or lowers_by_cast(settings, tensorrt.version)):
        wanted = "obey"  # what stays in fp32 would be no more than a wish
    if wanted == "none" and settings.held:
        wanted = "prefer"  # some layers have nothing but fp32
    if wanted != "none":
        config.set_flag(getattr(tensorrt.trt.BuilderFlag, f"{wanted.upper()}_PRECISION_CONSTRAINTS"))


def _set_limits(config: Any, settings: TrtSettings, tensorrt: TensorRt) -> None:
    trt = tensorrt.trt
    for name, size in settings.pool_limits:
        config.set_memory_pool_limit(_entry("--pool-limit", trt.MemoryPoolType, name), size)
    if settings.tactic_sources is not None:
        bits = 0
        for name in settings.tactic_sources:
            bits |= 1 << int(_entry("--tactic-sources", trt.TacticSource, name))
        config.set_tactic_sources(bits)
    if settings.builder_optimization_level is not None:
        config.builder_optimization_level = settings.builder_optimization_level
    if settings.hardware_compatibility_level is not None:
        level = settings.hardware_compatibility_level
        config.hardware_compatibility_level = _entry(
            "--hardware-compatibility-level", trt.HardwareCompatibilityLevel, level
        )


def _entry(option: str, enum: Any, name: str) -> Any:
    """An entry of one of TensorRT's enumerations, by name in any case."""
    entries = {key.lower(): value for key, value in enum.__members__.items()}
    if name.lower() not in entries:
        raise UsageError(f"{option}: this TensorRT has no '{name}'; it has: {', '.join(sorted(entries))}.")
    return entries[name.lower()]


def calibrate(config: Any, settings: TargetSettings, tensorrt: TensorRt) -> None:
    """Give a configuration what it needs to find the ranges, if there is something.

    Unless another one is asked for, by entropy, as TensorRT recommends for convolutional networks (``IInt8EntropyCalibrator2``).
    """
    data, cache = settings.of(TrtSettings).calibration_data, settings.of(TrtSettings).calibration_cache
    if settings.int8 and (data or cache is not None):
        base = calibrator_base(tensorrt.trt, vars(settings.of(TrtSettings)))
        config.int8_calibrator = _make_calibrator(
            [Path(path) for path in data], None if cache is None else Path(cache), base, tensorrt
        )


class _Uploads:
    """Puts one sample after the other on the GPU; each goes when the next one comes."""

    def __init__(self, samples: list[Path], tensorrt: TensorRt) -> None:
        self._left = list(samples)
        self._tensorrt = tensorrt
        self._addresses: list[int] = []

    def next(self, names: list[str]) -> list[int] | None:
        """Where the values of these inputs lie; ``None`` after the last sample."""
        tensorrt = self._tensorrt
        while self._addresses:
            tensorrt.cuda.free(self._addresses.pop())
        if not self._left:
            return None
        sample = load_npz(self._left.pop(0))
        for name in names:
            array = np.ascontiguousarray(sample[name])
            self._addresses.append(tensorrt.cuda.malloc(max(array.nbytes, 1)))
            tensorrt.cuda.upload(self._addresses[-1], array, tensorrt.stream)
        tensorrt.cuda.synchronize(tensorrt.stream)
        return list(self._addresses)


def _make_calibrator(samples: list[Path], cache: Path | None, base: Any, tensorrt: TensorRt) -> Any:
    """Hands out one sample after the other, and keeps what TensorRT makes of them.

    Args:
        samples: Inputs by tensor name, ``.npz``.
        cache: Where the ranges are read from, if it is there, and else written to.
        base: The class of TensorRT's that says how ranges are found.
        tensorrt: This process's TensorRT.
    """
    uploads = _Uploads(samples, tensorrt)

    class Calibrator(base):  # type: ignore[misc]  # TensorRT ships no types
        def __init__(self) -> None:
            base.__init__(self)

        def get_batch_size(self) -> int:
            return 1  # for implicit batches alone, which ONNX models have not; 0 would end it

        def get_batch(self, names: list[str]) -> list[int] | None:
            return uploads.next(names)

        def read_calibration_cache(self) -> bytes | None:
            return cache.read_bytes() if cache is not None and cache.is_file() else None

        def write_calibration_cache(self, content: memoryview) -> None:
            if cache is not None:
                cache.write_bytes(bytes(content))

    return Calibrator()
