"""Where a run ran: versions, processor, GPU."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from bisect_trt import __version__
from bisect_trt.worker.host import installed, processor

_DRIVER = Path("/proc/driver/nvidia")
_PACKAGES = ("onnxruntime-gpu", "onnxruntime", "onnx", "numpy", "tensorrt", "openvino")
_CUDA_PACKAGES = ("nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")


def environment() -> dict[str, str]:
    """What a bug report needs to know of this machine, by name; what is not known is left out."""
    seen = {"bisect-trt": __version__, **{name: found for name in _PACKAGES if (found := installed(name))}}
    seen |= {"Python": platform.python_version(), "platform": platform.platform()}
    cuda = next((found for name in _CUDA_PACKAGES if (found := installed(name))), "")
    about = {
        "CUDA runtime": cuda,
        "CPU": f"{processor()}, {os.cpu_count()} cores",
        "GPU": ", ".join(_gpus()),
        "NVIDIA driver": _driver(),
    }
    return {**seen, **{name: value for name, value in about.items() if value}}


def _gpus() -> list[str]:
    """Names as the kernel's driver gives them: asking CUDA would load it into this process."""
    files = sorted(_DRIVER.glob("gpus/*/information"))
    names = [re.search(r"^Model:\s*(.+)$", _text(file), re.MULTILINE) for file in files]
    return [name[1].strip() for name in names if name]


def _driver() -> str:
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _text(_DRIVER / "version"))
    return found[1] if found else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
