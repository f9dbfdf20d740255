"""INT8 from sample inputs: TensorRT 8.6 to 10 measure the range of every tensor; from 11 on the graph says it, in Q/DQ nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.api import TensorRt
from bisect_trt.targets.trt.settings import TrtSettings
from bisect_trt.tensors.npz import load_npz


def calibrate(config: Any, settings: TargetSettings, tensorrt: TensorRt) -> None:
    """Give a configuration what it needs to find the ranges, if there is something.

    Entropy calibration as TensorRT recommends it for convolutional networks (``IInt8EntropyCalibrator2``).
    """
    data, cache = settings.of(TrtSettings).calibration_data, settings.of(TrtSettings).calibration_cache
    if settings.int8 and (data or cache is not None):
        config.int8_calibrator = _make_calibrator(
            [Path(path) for path in data], None if cache is None else Path(cache), tensorrt
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


def _make_calibrator(samples: list[Path], cache: Path | None, tensorrt: TensorRt) -> Any:
    """Hands out one sample after the other, and keeps what TensorRT makes of them.

    Args:
        samples: Inputs by tensor name, ``.npz``.
        cache: Where the ranges are read from, if it is there, and else written to.
        tensorrt: This process's TensorRT.
    """
    base: Any = tensorrt.trt.IInt8EntropyCalibrator2
    uploads = _Uploads(samples, tensorrt)

    class Calibrator(base):  # type: ignore[misc]
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
