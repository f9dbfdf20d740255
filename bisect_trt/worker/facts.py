"""Facts of a machine (versions, processor, GPUs, memory) and the memory of this process; part of the zip application."""

from __future__ import annotations

import contextlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from typing import Any


def facts(packages: list[str]) -> dict[str, Any]:
    """Versions, processor, GPUs and memory of this machine; what is not known is left out."""
    found: dict[str, Any] = {
        "host": platform.node(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "Python": platform.python_version(),
        "executable": sys.executable,
        "CPU": processor(),
        "cores": os.cpu_count() or 1,
        "GPU": gpus(),
        "memory": meminfo("MemTotal:"),
        "free_memory": meminfo("MemAvailable:"),
    }
    found["packages"] = {name: version for name in packages for version in [installed(name)] if version}
    return {name: value for name, value in found.items() if value}


def installed(package: str) -> str:
    """The version of a package; empty where it is not installed."""
    from importlib import metadata

    try:
        return str(metadata.version(package))
    except Exception:  # not there, or without metadata
        return ""


def processor() -> str:
    """The processor's model."""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpus() -> list[dict[str, Any]]:
    """Name, driver, and memory in bytes of each GPU that this process may use, as nvidia-smi reports them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = ["--query-gpu=index,name,driver_version,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.check_output([program, *query], timeout=30, stderr=subprocess.DEVNULL).decode(
            errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = []
    for line in said.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 5 and (visible is None or words[0] in visible.split(",")):
            sizes = [int(word) << 20 if word.isdigit() else 0 for word in words[3:]]
            found.append({"name": words[1], "driver": words[2], "memory": sizes[0], "free_memory": sizes[1]})
    return found


def meminfo(name: str) -> int:
    """A number of bytes from /proc/meminfo; 0 where it is not known."""
    return _kilobytes("/proc/meminfo", name)


def status_bytes(name: str) -> int:
    """A number of bytes from the kernel's status of this process; 0 where it is not known."""
    return _kilobytes("/proc/self/status", name)


def _kilobytes(path: str, name: str) -> int:
    try:
        with open(path, errors="replace") as file:
            for line in file:
                if line.startswith(name):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 0


def forget_peak() -> None:
    """Reset the peak of this process's memory. Source: proc_pid_clear_refs(5)."""
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/clear_refs").write_text("5")
