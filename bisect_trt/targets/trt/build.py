"""The TensorRT target: a model into an engine, an engine into a session, or into plain values for whoever looks into it."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import ModelProto

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.onnxlib.lower import lower_fp16
from bisect_trt.onnxlib.lower_plan import LOW_TYPES
from bisect_trt.targets.base import Lowering
from bisect_trt.targets.choices import LAYERS, RECORD, REPLAY, TACTIC, TIMINGS, Choice, choices_of_layers, write_choices
from bisect_trt.targets.messages import RunError
from bisect_trt.targets.runtime import load_proto
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt import knobs, selector, tuned
from bisect_trt.targets.trt.api import TensorRt, tensorrt
from bisect_trt.targets.trt.builder import build_engine, read, timings, write
from bisect_trt.targets.trt.config import check_settings, lowers_by_cast, make_config
from bisect_trt.targets.trt.debug import FIRST_VERSION, UnfusedSession
from bisect_trt.targets.trt.inspect import Origins, describe_layers, parse_layers
from bisect_trt.targets.trt.layers import named_layers
from bisect_trt.targets.trt.parse import (
    Feed,
    Parsed,
    free_dimensions,
    name_nodes,
    output_types,
)
from bisect_trt.targets.trt.session import TensorRtSession, failed, to_dtype
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.targets.trt.wording import is_out_of_memory, reason


class TensorRtRuntime:
    """TensorRT with some options."""

    def __init__(self, settings: TargetSettings) -> None:
        """Set it up.

        Raises:
            UnavailableError: There is no TensorRT or no GPU.
            UsageError: An option that this TensorRT does not have, or a file that is not there.
        """
        self._settings = settings
        self._own = settings.of(TrtSettings)
        self._tensorrt = tensorrt()
        check_settings(settings, self._tensorrt)
        make_config(settings, self._tensorrt)  # so that its mistakes are found before any model is parsed
        for library in settings.of(TrtSettings).plugins:
            _load_plugins(library)

    def lowered(self, model: Path) -> ModelProto | None:
        """The model with Casts, where those lower it, and with the dimensions free that a profile has ranges of."""
        by_cast = lowers_by_cast(self._settings, self._tensorrt.version)
        if not by_cast and not self._own.min_shapes:
            return None
        proto = load_proto(model)
        free_dimensions(proto, self._settings)
        return self._lower(proto) if by_cast else proto

    def _lower(self, proto: ModelProto) -> ModelProto:
        low = LOW_TYPES["bf16" if self._settings.bf16 else "fp16"]
        return lower_fp16(proto, self._settings.keep, low=low)

    @property
    def lowers_by(self) -> Lowering:
        """By layers before TensorRT 11, unless Casts are asked for."""
        lowered = replace(self._settings, fp16=True)
        return "cast" if lowers_by_cast(lowered, self._tensorrt.version) else "layer"

    def gpu_memory(self) -> int:
        """Bytes of the GPU that are in use, by anybody."""
        free, total = self._tensorrt.cuda.memory()
        return total - free

    def load(self, model: Path, feed: Feed | None = None) -> TensorRtSession:
        """Build an engine, or take the prebuilt one.

        Args:
            model: The ONNX file.
            feed: The values that it will be fed; see :func:`parse`.

        Raises:
            BuildError: TensorRT refuses the model.
            UnavailableError: The prebuilt engine is not for this TensorRT.
        """
        proto = load_proto(model)
        if self._own.load_engine is not None:
            path = Path(self._own.load_engine)
            engine = _load_prebuilt(path, self._tensorrt, self._own)
            return TensorRtSession(self._tensorrt, engine, output_types(proto), own=self._own)
        parsed, plan = self._build(proto, model, feed)
        engine = _deserialise(plan, self._tensorrt, self._own)
        return TensorRtSession(
            self._tensorrt, engine, output_types(proto), parsed.skipped, _origins(parsed, proto), self._own
        )

    def load_unfused(self, model: Path, feed: Feed | None = None) -> UnfusedSession | None:
        """Build an engine that shows what it does not fuse away; ``None`` before TensorRT 10.12, or with a prebuilt one.

        Raises:
            BuildError: TensorRT refuses the model.
        """
        if self._tensorrt.version < FIRST_VERSION or self._own.load_engine is not None:
            return None
        proto = load_proto(model)
        parsed, plan = self._build(proto, model, feed, show_unfused=True)
        engine = _deserialise(plan, self._tensorrt, self._own)
        return UnfusedSession(
            self._tensorrt, engine, output_types(proto), parsed.skipped, _origins(parsed, proto), self._own
        )

    def trace(self, model: Path, feed: Feed | None = None) -> dict[str, Any]:
        """What a build does, and what this version has to turn.

        Returns:
            ``tactics``: of each layer its name, the tactic that it took as ``avoid_tactics`` has it, and of how many it could
            choose; where there is an algorithm selector (8.6 to 10). ``sources``: the sources of tactics by default.
            ``flags`` and ``previews``: the builder flags that there are; the preview features, and whether they are on.
            ``routes``: the knobs of build routes as JSON, since 11.1.

        Raises:
            BuildError: TensorRT refuses the model.
        """
        trt = self._tensorrt
        config = make_config(self._settings.with_own(avoid_tactics=(), pin_tactics=()), trt)
        bits = config.get_tactic_sources()
        sources = trt.trt.TacticSource.__members__
        previews = trt.trt.PreviewFeature.__members__
        found: dict[str, Any] = {
            "sources": [name for name, source in sources.items() if bits >> int(source) & 1],
            "flags": list(trt.trt.BuilderFlag.__members__),
            "previews": {name: bool(config.get_preview_feature(feature)) for name, feature in previews.items()},
            "tactics": [],
        }
        if hasattr(config, "all_build_routes"):
            found["routes"] = str(config.all_build_routes)
        if trt.has("IAlgorithmSelector", "select_algorithms"):
            recorder = selector.selector(trt.trt, self._own.avoid_tactics, self._own.pin_tactics)
            self._build(load_proto(model), model, feed, recorder=recorder)
            found["tactics"] = recorder.took
        return found

    def describe_engine(self) -> dict[str, Any]:
        """What the prebuilt engine is made of; see :func:`describe_engine`.

        Raises:
            UnavailableError: The engine is not for this TensorRT.
        """
        return describe_engine(
            _load_prebuilt(Path(str(self._own.load_engine)), self._tensorrt, self._own), self._tensorrt
        )

    def build(self, model: Path, target: Path, feed: Feed | None = None) -> None:
        """Write a model's engine to a file.

        Raises:
            BuildError: TensorRT refuses the model.
            UsageError: The file cannot be written.
        """
        _, plan = self._build(load_proto(model), model, feed)
        write(target, plan)

    def _build(
        self,
        proto: ModelProto,
        path: Path,
        feed: Feed | None,
        *,
        show_unfused: bool = False,
        recorder: Any = None,
    ) -> tuple[Parsed, bytes]:
        settings, trt = self._settings, self._tensorrt
        free_dimensions(proto, settings)
        name_nodes(proto)  # before it is lowered, so that nodes are found again by their names
        if lowers_by_cast(settings, trt.version):
            proto = self._lower(proto)
        parsed, content = build_engine(proto, path, settings, feed, trt, show_unfused=show_unfused, recorder=recorder)
        if self._own.record is not None:
            self._record(Path(self._own.record), content, _origins(parsed, proto))
        return parsed, content

    def _record(self, folder: Path, plan: bytes, origins: Origins) -> None:
        """Leave what this build chose, and what it measured.

        Tactics are as the algorithm selector has them, or the timing cache where that is edited instead, and can be pinned;
        of other layers they are those that the engine inspector names.
        """
        engine = _deserialise(plan, self._tensorrt, self._own)
        inspector = engine.create_engine_inspector()
        said = inspector.get_engine_information(self._tensorrt.trt.LayerInformationFormat.JSON)
        write(folder / LAYERS, said.encode())
        chosen = choices_of_layers(describe_layers(engine, origins, self._tensorrt))
        selects = self._tensorrt.has("IAlgorithmSelector", "select_algorithms")
        said_by = selector.took() if selects else tuned.timed()
        took = [Choice(name, TACTIC, tactic[len(name) + 1 :], offered > 1) for name, tactic, offered in said_by]
        named = {each.layer for each in took}
        chosen = [*took, *(each for each in chosen if each.kind != TACTIC or each.layer not in named)]
        if selects:
            write(folder / REPLAY, selector.replay().encode())
        try:
            write_choices(folder / RECORD, list(dict.fromkeys(chosen)))
        except OSError as error:
            raise UsageError(f"{folder / RECORD} cannot be written: {error.strerror}; make room.") from error
        write(folder / TIMINGS, timings(self._settings, self._tensorrt))


def _origins(parsed: Parsed, original: ModelProto) -> Origins:
    return Origins(parsed.model, named_layers(parsed.network, parsed.model), original)


def _load_prebuilt(path: Path, tensorrt: TensorRt, own: TrtSettings) -> Any:
    try:
        return _deserialise(read(path), tensorrt, own)
    except RunError as error:
        if is_out_of_memory([error.message]):
            raise
        raise UnavailableError(
            f"TensorRT {tensorrt.trt.__version__} cannot load the engine {path}: {error.message}; an engine runs on the "
            "version and the kind of GPU that it was built for, so build it again here."
        ) from error


def _deserialise(plan: bytes, tensorrt: TensorRt, own: TrtSettings) -> Any:
    tensorrt.log.take()
    runtime = tensorrt.runtime
    if own.load_runtime is not None:
        runtime = runtime.load_runtime(own.load_runtime)
        if runtime is None:
            why = reason(tensorrt.log.take(), "it does not say why")
            raise UnavailableError(
                f"--load-runtime: TensorRT {tensorrt.trt.__version__} cannot load {own.load_runtime}: "
                f"{why}; name the lean runtime of the TensorRT that built the engine."
            )
    knobs.prepare_runtime(tensorrt.trt, runtime, vars(own))
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise failed(tensorrt, "the engine cannot be loaded, and TensorRT does not say why")
    return engine


def _load_plugins(library: str) -> None:
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise UsageError(
            f"--plugins: {library} cannot be loaded: {error}; build it for this TensorRT, or add the folder of what it needs to "
            "LD_LIBRARY_PATH."
        ) from error


def describe_engine(engine: Any, tensorrt: TensorRt) -> dict[str, Any]:
    """Its inputs, outputs and layers.

    Returns:
        ``version`` of TensorRT; ``inputs`` and ``outputs``, each with ``name``, ``dtype``, ``shape`` (-1 where it varies)
        and, of inputs that vary, the smallest, usual and largest shape of each of the ``profiles``; ``layers`` in the
        order they run, each with ``name``, ``kind``, ``precisions``, ``tactic`` and ``formats``.
    """
    tensors: dict[str, list[dict[str, Any]]] = {"INPUT": [], "OUTPUT": []}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        shape = [int(dim) for dim in engine.get_tensor_shape(name)]
        plain = {"name": name, "dtype": to_dtype(engine.get_tensor_dtype(name)).name, "shape": shape}
        mode = str(engine.get_tensor_mode(name).name)
        if mode == "INPUT" and -1 in shape:
            ranges = [engine.get_tensor_profile_shape(name, place) for place in range(engine.num_optimization_profiles)]
            plain["profiles"] = [[[int(dim) for dim in each] for each in shapes] for shapes in ranges]
        tensors[mode].append(plain)
    inspector = engine.create_engine_inspector()
    text = inspector.get_engine_information(tensorrt.trt.LayerInformationFormat.JSON)
    layers = parse_layers(json.loads(text, strict=False).get("Layers", []), Origins(ModelProto()))
    return {
        "version": str(tensorrt.trt.__version__),
        "inputs": tensors["INPUT"],
        "outputs": tensors["OUTPUT"],
        "layers": [
            {
                "name": each.name,
                "kind": each.kind,
                "precisions": list(each.precisions),
                "tactic": each.tactic,
                "formats": list(each.formats),
            }
            for each in layers
        ],
    }
