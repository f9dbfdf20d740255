"""A stranger's model makes no command open a file outside its folder."""

from __future__ import annotations

import ctypes
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import CommandLine
from onnx import helper, numpy_helper
from packaging.version import Version
from support import TARGET, command_lines, overflowing_products, read_json, save

from bisect_trt.onnxlib import save as saving
from bisect_trt.onnxlib.load import external_files
from bisect_trt.onnxlib.save import refer_to

takes_a_folder = pytest.mark.skipif(
    Version(onnxruntime.__version__) < Version("1.21"),
    reason="ONNX Runtime is told from 1.21 on where a model's weights lie; before, they are copied",
)
_IN_ACCESS = 0x1  # linux/inotify.h
_IN_OPEN = 0x20


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
    path = save(
        here / "model" / "model.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], [weight]
    )
    model = onnx.load(str(path))
    model.graph.initializer[0].ClearField("raw_data")
    refer_to(model.graph.initializer[0], "linkdir/canary.bin", 0, 12)
    path.write_bytes(model.SerializeToString())
    more: dict[str, list[str | Path]] = {
        "sanitize": ["sanitize", path, "-o", "out.onnx"],
        "convert": ["convert", path, "-o", "out.onnx", "--fp16"],
    }
    for name, words in {**command_lines(path), **more}.items():
        with nobody_opens(secret):
            ran = cli(*words)
        assert (name, ran.status) == (name, 2)
        assert "outside its own folder" in ran.out + ran.err
    with pytest.raises(pytest.fail.Exception), nobody_opens(secret):  # the watch sees who does
        secret.read_bytes()


@pytest.fixture
def apart(here: Path) -> Path:
    """A model that fails in fp16, its weights in two files beside it."""
    path = overflowing_products(here / "inside.onnx")
    model = onnx.load(str(path))
    (here / "model").mkdir()
    for place, tensor in enumerate(model.graph.initializer):
        if len(tensor.raw_data) > 1024:
            name = f"part{place}.bin"
            (here / "model" / name).write_bytes(b"?" * 64 + tensor.raw_data)
            refer_to(tensor, name, 64, len(tensor.raw_data))
            tensor.ClearField("raw_data")
    outside = here / "model" / "model.onnx"
    outside.write_bytes(model.SerializeToString())
    return outside


def copies(here: Path) -> list[str]:
    """The weights' files that lie in runs."""
    return sorted(path.name for path in (here / ".bisect-trt").rglob("part*.bin"))


@takes_a_folder
def test_weights_are_read_where_they_lie(cli: CommandLine, here: Path, apart: Path) -> None:
    before = {path.name: path.read_bytes() for path in apart.parent.iterdir()}
    for words in (
        ["reduce", apart, "-o", "reduced.onnx", "--no-shrink", *TARGET],
        ["layerwise", apart, *TARGET, "--array-swap-mb", "0"],
        ["precision", apart, "-o", "mixed.onnx", *TARGET, "--fresh-samples", "0"],
        ["extract", apart, "-o", "piece.onnx", "--outputs", "big_out"],
    ):
        ran = cli(*words)
        assert (words[0], ran.status) == (words[0], 0), ran.err
        assert (words[0], copies(here)) == (words[0], [])
        for file in (here / ".bisect-trt").rglob("part*.bin"):
            file.unlink()
    assert {path.name: path.read_bytes() for path in apart.parent.iterdir()} == before
    # A second name would make ONNX refuse the user's own files.
    assert {path.stat().st_nlink for path in apart.parent.iterdir()} == {1}
    assert [node.name for node in onnx.load("reduced.onnx").graph.node] == ["big"]


@takes_a_folder
def test_what_is_said_to_do_by_hand_finds_the_weights(
    cli: CommandLine, here: Path, apart: Path
) -> None:
    assert (
        cli("reduce", apart, "-o", "reduced.onnx", "--no-shrink", "--onnxrt", "--fp16").status == 0
    )
    said = [shlex.split(path.read_text()) for path in here.rglob("command.txt")]
    named = [words for words in said if "--external-data-dir" in words]
    assert named
    for words in named:
        assert words[words.index("--external-data-dir") + 1] == str(apart.parent.absolute())
        assert cli(*words[1:]).status in {0, 1}


def test_a_check_command_finds_them_beside_the_model(
    cli: CommandLine, here: Path, apart: Path
) -> None:
    loads = "import onnx, sys; sys.exit(any(n.name == 'big' for n in onnx.load(sys.argv[1]).graph.node))"
    check = ["--check", sys.executable, "-c", loads, "{model}"]
    cli("reduce", apart, "-o", "reduced.onnx", "--no-shrink", *check).ended(0)
    assert [node.name for node in onnx.load("reduced.onnx").graph.node] == ["big"]
    assert copies(here) == ["part1.bin", "part2.bin"]


@pytest.fixture
def large(apart: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, taken for so large that its weights go into no model file."""
    monkeypatch.setattr(saving, "SINGLE_FILE_LIMIT_BYTES", 1000)
    return apart


@pytest.mark.slow
@takes_a_folder
def test_an_answer_is_read_back_from_where_it_was_written(
    cli: CommandLine, here: Path, large: Path
) -> None:
    assert cli("precision", large, "-o", "mixed.onnx", "--onnxrt", "--fp16").status == 0
    assert list(external_files(onnx.load("mixed.onnx", load_external_data=False))) == [
        "mixed.onnx.data"
    ]
    assert not list((here / ".bisect-trt").rglob("*.data"))
    # Its weights are called as the answer's: that neither is taken for the other shows in the
    # read-back check.
    (here / "again").mkdir()
    ran = cli(
        "reduce", "mixed.onnx", "-o", "again/mixed.onnx", "--no-shrink", *TARGET, "--atol", "0"
    ).ended(0)
    assert "1-minimal" in ran.out
    onnx.load("again/mixed.onnx")


@pytest.mark.slow
@takes_a_folder
def test_without_room_for_it_the_answer_is_told(
    cli: CommandLine, large: Path, small_disk: Path
) -> None:
    with (small_disk / "else").open("wb") as file:
        file.write(bytes((1 << 20) - 8192))
    ran = cli(
        "precision",
        large,
        "-o",
        small_disk / "mixed.onnx",
        "--onnxrt",
        "--fp16",
        "--json",
        "r.json",
    ).ended(2)
    assert "The best so far, 2 of 4 nodes in fp32, cannot be written." in ran.out
    assert "Wrote" not in ran.out
    assert "MatMul 'big'" in ran.out
    result = read_json(Path("r.json"))
    assert (result["status"], result["artifacts"].get("mixed")) == ("error", None)
    assert {node["name"] for node in result["keep_fp32"]} >= {"big"}
    assert f"name a file in {large.parent}, where the weights need no copy" in result["why"]
    assert [path.name for path in small_disk.iterdir()] == ["else"]
