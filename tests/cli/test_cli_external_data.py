"""A stranger's model makes no command open a file outside its folder."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from onnx import helper, numpy_helper
from support import command_lines, save

from bisect_trt.graph.externals import refer_to

_IN_ACCESS, _IN_OPEN = 0x1, 0x20  # linux/inotify.h


@contextmanager
def nobody_opens(path: Path) -> Iterator[None]:
    """Watches a file: no process may open it meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert watch >= 0
    assert libc.inotify_add_watch(watch, os.fsencode(path), _IN_OPEN | _IN_ACCESS) >= 0
    try:
        yield
        with pytest.raises(BlockingIOError):  # no event is there
            os.read(watch, 4096)
    finally:
        os.close(watch)


@pytest.mark.skipif(sys.platform != "linux", reason="files are watched with inotify")
def test_weights_behind_a_link_are_not_opened(cli: CommandLine, here: Path) -> None:
    secret = here / "elsewhere" / "canary.bin"
    secret.parent.mkdir()
    secret.write_bytes(bytes(4096))
    (here / "model").mkdir()
    (here / "model" / "linkdir").symlink_to(secret.parent)
    weight = numpy_helper.from_array(np.ones(3, np.float32), "w")
    path = save(here / "model" / "model.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], [weight])
    model = onnx.load(str(path))
    model.graph.initializer[0].ClearField("raw_data")
    refer_to(model.graph.initializer[0], "linkdir/canary.bin", 0, 12)
    path.write_bytes(model.SerializeToString())
    more: dict[str, list[str | Path]] = {
        "sanitize": ["sanitize", path, "-o", "out.onnx"],
        "convert": ["convert", path, "-o", "out.onnx", "--fp16"],
        "inspect": ["inspect", "model", path],
    }
    for name, words in {**command_lines(path), **more}.items():
        with nobody_opens(secret):
            ran = cli(*words)
        assert (name, ran.status) == (name, 2)
        assert "outside its own folder" in ran.out + ran.err
    with pytest.raises(pytest.fail.Exception), nobody_opens(secret):  # the watch sees who does
        secret.read_bytes()
