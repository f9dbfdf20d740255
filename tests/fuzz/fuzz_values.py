"""Broken files of saved values: ``.npz`` archives and Polygraphy's JSON."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import zipfile
from typing import Any

import numpy as np

_DESCRIPTIONS = (
    *(
        "'<f4'",
        "'<f8'",
        "'>f4'",
        "'<f2'",
        "'<i8'",
        "'|b1'",
        "'|V0'",
        "'|V2'",
        "'|S3'",
        "'<U0'",
        "'<c8'",
        "'<M8[D]'",
    ),
    *(
        "'|O'",
        "'<f99'",
        "''",
        "3",
        "None",
        "[[]]",
        "{'a': 1}",
        "object()",
        "[('a', '<f4')]",
        "('<f4', (2,))",
    ),
    *("[('a', '<f4'), ('a', '<i4')]", "[('a', [('b', '|O')])]"),
)
_SHAPES = (
    *(
        "(2, 3)",
        "(2, 3)",
        "(2, 3)",
        "()",
        "(0,)",
        "(3, 2)",
        "(2, 3, 1)",
        "(2, -3)",
        "(1 << 45,)",
        f"({2**45},)",
    ),
    *(
        f"({2**70}, 1)",
        f"({2**32}, {2**32}, 0)",
        "[2, 3]",
        "2",
        "None",
        "(2.0, 3)",
        "('a',)",
        f"({'1, ' * 70})",
    ),
)
_FORTRAN = ("False", "False", "True", "None", "0", "'x'")
_NAMES = (
    "x",
    "x",
    "x",
    "y",
    "",
    "a/b",
    "../x",
    "x\n",
    "\u202ex",
    "x" * 300,
    "{x}",
    "[bold]",
    "\x1b[31m",
    "ä",
)
_LONE = "\ud800"
"""JSON can hold half a surrogate pair, which is no text that can be written."""


def array_bytes(rng: random.Random) -> bytes:
    """An ``.npy`` file, seldom sound."""
    said = f"'descr': {rng.choice(_DESCRIPTIONS)}, 'fortran_order': {rng.choice(_FORTRAN)}, 'shape': {rng.choice(_SHAPES)}"
    header = f"{{{said}, }}"
    if rng.random() < 0.1:
        header = rng.choice(
            [
                "",
                "{}",
                "[" * 500,
                "(" * 3000,
                "{'descr': '<f4'}",
                header[:-4],
                header * 300,
                "1" * 5000,
            ]
        )
    if rng.random() < 0.3:
        stream = io.BytesIO()
        np.lib.format.write_array(
            stream, np.ones((2, 3), rng.choice([np.float32, np.float64, np.int64]))
        )
        return stream.getvalue()[: rng.choice([None, None, 8, 40, -1])]
    version = rng.choice([1, 1, 1, 2, 3, 4, 0])
    padded = header.encode("latin1", "replace") + b" \n"
    length = struct.pack(
        "<H" if version == 1 else "<I", min(len(padded), 65535) if rng.random() < 0.95 else 60000
    )
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + length
        + padded
        + b"\0\0\x80?" * rng.choice([0, 1, 6, 6, 6, 12])
    )


def broken_npz(rng: random.Random) -> bytes:
    """An archive of such files."""
    stream = io.BytesIO()
    method = rng.choice(
        [
            zipfile.ZIP_STORED,
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
            zipfile.ZIP_BZIP2,
            zipfile.ZIP_LZMA,
        ]
    )
    with zipfile.ZipFile(stream, "w", method) as archive:
        for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 3])):
            entry = zipfile.ZipInfo(
                rng.choice(_NAMES) + rng.choice([".npy", ".npy", ".npy", ".npy", "", ".npy.npy"])
            )
            entry.compress_type = method
            if rng.random() < 0.2:
                entry.comment = rng.choice(
                    [
                        b"bfloat16",
                        b"float8_e4m3fn",
                        b"int4",
                        b"\xff",
                        b"complex",
                        b"__class__",
                        b"float32",
                    ]
                )
            try:
                archive.writestr(entry, array_bytes(rng))
            except (ValueError, UserWarning):  # the same name twice
                continue
    content = bytearray(stream.getvalue())
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        content[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(content[: rng.choice([None, None, None, None, len(content) // 2])])


def broken_json(rng: random.Random) -> bytes:
    """What ``polygraphy run`` saves, or nearly."""
    if rng.random() < 0.1:
        deep = [b"[" * 100_000, b'{"a":' * 50_000, b"1" * 10_000]
        return rng.choice(
            [*deep, b"", b"[", b"\xff\xfe", b"NaN", b"null", b'"x"', b"1e999", b"[[[1]]]"]
        )
    return json.dumps(_content(rng)).encode()[: rng.choice([None, None, None, None, 30])]


def _junk(rng: random.Random) -> Any:
    return rng.choice(
        [None, 0, -1, 1.5, "", "x", _LONE, [], {}, [1], {"x": 1}, [[["x"]]], True, 10**400]
    )


def _array(rng: random.Random) -> Any:
    array: dict[str, Any] = {
        "array": base64.b64encode(array_bytes(rng)).decode(),
        "polygraphy_class": "ndarray",
    }
    if rng.random() < 0.1:
        array["array"] = _junk(rng)
    if rng.random() < 0.2:
        array["dtype"] = rng.choice(["bfloat16", "int4", "nothing", 3, None, [], "float32", _LONE])
    if rng.random() < 0.05:
        del array[rng.choice(list(array))]
    return array if rng.random() < 0.9 else _junk(rng)


def _sample(rng: random.Random, *, lazy: bool) -> Any:
    arrays = {rng.choice([*_NAMES, _LONE]): _array(rng) for _ in range(rng.choice([0, 1, 1, 1, 2]))}
    wrapped = (
        {name: {"values": each, "polygraphy_class": "LazyArray"} for name, each in arrays.items()}
        if lazy
        else arrays
    )
    return wrapped if rng.random() < 0.9 else _junk(rng)


def _content(rng: random.Random) -> Any:
    kind = rng.randrange(4)
    if kind == 0:
        return _junk(rng)
    if kind == 1:
        return [_sample(rng, lazy=False) for _ in range(rng.choice([0, 1, 1, 2]))]
    iterations: Any = [
        {
            "outputs": _sample(rng, lazy=True),
            "runtime": 0.0,
            "runner_name": "r",
            "polygraphy_class": "IterationResult",
        }
        for _ in range(rng.choice([0, 1, 1, 2]))
    ]
    for each in iterations:
        if rng.random() < 0.1:
            del each[rng.choice(list(each))]
    iterations = iterations if rng.random() < 0.9 else _junk(rng)
    runs: Any = [["r", iterations]] if rng.random() < 0.9 else _junk(rng)
    return {"lst": runs, "polygraphy_class": "RunResults"}


_SCRIPT_LINES = (
    "import numpy as np",
    "import no_such_module",
    "def load_data(): yield {'x': np.ones((2, 3), np.float32)}",
    "def load_data(): return [{'x': np.ones((2, 3), np.float32)}, {'x': None}]",
    "def load_data(): raise SystemExit(7)",
    "def load_data(): return {'x': 'text'}",
    "def load_data(): yield {3: [[1, 2], [3]]}",
    "def load_data(): yield 5",
    "load_data = [{'y': 1e400}]",
    "def f(*given): return given",
    "def compare_outputs(a, b): return {name: True for name in a}",
    "def compare_outputs(a, b): return None",
    "def compare_outputs(a): return {}",
    "def compare_outputs(a, b): return {'nobody': 3}",
    "def compare_outputs(a, b): raise KeyboardInterrupt if len(a) > 99 else ValueError('\\udcff')",
    "raise ValueError('\\x1b[31m')",
    "def f(:",
    "\x00",
    "ä = 1",
)


def broken_script(rng: random.Random) -> bytes:
    """A script of the user's, as text; some do what they should."""
    lines = rng.sample(_SCRIPT_LINES, rng.choice((1, 1, 2, 3)))
    content = "\n".join(["import numpy as np", *lines] if rng.random() < 0.8 else lines).encode()
    return content if rng.random() < 0.9 else content + rng.randbytes(5)
