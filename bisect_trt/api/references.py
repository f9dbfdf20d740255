"""What the reference made of a model, kept from run to run: it changes with the model, its inputs and the versions alone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bisect_trt import __version__
from bisect_trt.api import assert_matches, compare, target_second
from bisect_trt.commands.source import Model, Source
from bisect_trt.onnxlib.external_data import external_files
from bisect_trt.probe.workspace import sha256_of
from bisect_trt.worker.host import installed

_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnx", "numpy")
_DATA = ("seed", "val_range", "input_shapes", "iterations", "load_inputs", "external_data_dir")
"""Options that say what the model is fed."""
_UNKNOWN = (
    "data_loader_script",
    "load_outputs",
    "self_check",
    "onnx_outputs",
    "onnx_exclude_outputs",
    "shape_inference",
)
"""With these the reference is another, or depends on more than can be seen."""


class References:
    """A folder of them.

    Attributes:
        hits: How often one was there.
        misses: How often one was made.
    """

    def __init__(self, folder: Path | None) -> None:
        """Nothing is read or written yet.

        Args:
            folder: Where they lie; ``None`` to keep none.
        """
        self._folder = folder
        self.hits = 0
        self.misses = 0

    def assert_matches(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - of many types
        """:func:`bisect_trt.assert_matches`, against the reference of an earlier run where there is one.

        Where something is off, all is run again without it: a diagnosis looks at every tensor.

        Raises:
            AssertionError: The target does not compute what the reference does.
            UsageError: Something was asked for that cannot be done as asked.
            UnavailableError: Something needed is not there.
        """
        args, options = target_second(args, options, optional=False)
        options |= dict(zip(("model", "inputs", "target"), args, strict=False))
        model, target = options.pop("model"), options.pop("target", "onnxrt")
        key = self.key(model, options)
        if key is None or self._folder is None:
            assert_matches(model, target=target, **options)
            return
        kept = self._folder / key
        fed = {name: options[name] for name in ("inputs", *_DATA) if name in options}
        if kept.is_dir():
            self.hits += 1
        else:
            self.misses += 1
            making = kept.with_name(f"{key}.{os.getpid()}")  # in parallel, and stopped half-way
            making.mkdir(parents=True, exist_ok=True)
            compare(model, target=None, onnxrt_reference=True, save_outputs=making / "reference.npz", **fed)
            try:
                making.rename(kept)
            except OSError:  # somebody else was first
                shutil.rmtree(making, ignore_errors=True)
        own = {name: value for name, value in options.items() if name != "reproducer"}
        result = compare(model, target=target, load_outputs=[kept / "reference.npz"], **own)
        if result.status != "found":
            assert_matches(model, target=target, **options)

    def key(self, model: Model, options: dict[str, Any]) -> str | None:
        """What a reference depends on, as the name of its folder; ``None`` where that cannot be told."""
        if any(options.get(name) for name in _UNKNOWN):
            return None
        content = _content(model, options.get("external_data_dir"))
        inputs = _digest_of(options.get("inputs"), options.get("load_inputs") or ())
        if content is None or inputs is None:
            return None
        fed = {name: options[name] for name in _DATA if name in options and name != "load_inputs"}
        known = [
            content,
            inputs,
            json.dumps(fed, sort_keys=True, default=str),
            __version__,
            *(installed(name) or "-" for name in _PACKAGES),
        ]
        return hashlib.sha256("\n".join(known).encode()).hexdigest()[:32]


def _content(model: Model, weights: Any) -> str | None:  # noqa: ANN401 - a path
    """Of a model's file with those of its weights, or of a model in memory."""
    proto = Source(model).proto
    if proto is not None:
        return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
    if not isinstance(model, str | os.PathLike):
        return None
    path = Path(model)
    try:
        named = external_files(onnx.load(str(path), load_external_data=False))
        folder = path.parent if weights is None else Path(weights)
        return " ".join(sha256_of(file) for file in (path, *(folder / name for name in sorted(named))))
    except Exception:  # whoever runs it says what is wrong with it
        return None


def _digest_of(inputs: Any, files: Any) -> str | None:  # noqa: ANN401 - of many types
    """Of what a model is fed: arrays by name, lists of such, files."""
    if inputs is None:
        parts = ["none"]
    elif isinstance(inputs, str | Path):
        files, parts = [inputs, *files], []
    else:
        samples = [inputs] if isinstance(inputs, dict) else inputs
        if not isinstance(samples, list) or not all(isinstance(each, dict) for each in samples):
            return None
        parts = []
        for sample in samples:
            for name, value in sorted(sample.items()):
                array = np.ascontiguousarray(value)
                if array.dtype.kind == "O":
                    return None
                digest = hashlib.sha256(array.tobytes()).hexdigest()
                parts.append(f"{name} {array.dtype} {array.shape} {digest}")
    try:
        return " ".join([*parts, *(sha256_of(Path(file)) for file in files)])
    except OSError:
        return None
