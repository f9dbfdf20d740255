"""Command lines: every command with options of its groups, their values mostly sound."""

from __future__ import annotations

import random
from enum import Enum
from pathlib import Path

from bisect_trt.commands.table import COMMANDS
from bisect_trt.options import reading as values
from bisect_trt.options.spec import Option, entries

_WEIGHTS = {
    "inspect": 6,
    "run": 6,
    "extract": 4,
    "sanitize": 4,
    "convert": 3,
    "reduce": 3,
    "layerwise": 3,
    "diagnose": 2,
}
_TEXTS = (
    *(
        "",
        "x",
        "y",
        "n1",
        "nobody",
        "*",
        "op:Add",
        "[",
        "x:",
        ":",
        "-1",
        "0",
        "1e400",
        "nan",
        "\udcff",
        "{model}",
    ),
    *("n" * 300, "a\nb"),
)
_WORDS: dict[object, tuple[str, ...]] = {
    values.shape: (
        "x:[2,3]",
        "x:[]",
        "x:[0,3]",
        "x:[-1]",
        "[2,3]",
        "x:[1e3]",
        "x:[99999999999,99999999999]",
        "z:[1]",
        "x:[" + "1," * 70 + "1]",
    ),
    values.value_range: (
        "[0,1]",
        "x:[-1,1]",
        "[1,0]",
        "[nan,1]",
        "[1e308,1e308]",
        "x:[0]",
        "[-1e308,1e308]",
    ),
    values.size: ("0", "1K", "16M", "9" * 40 + "G", "-1", "lots"),
}
_FILES = (
    *(
        "values.npz",
        "values.json",
        "values.npz",
        "values.json",
        "model.onnx",
        "none.npz",
        ".",
        "w.bin",
    ),
    *("n" * 300 + ".npz", "no/such/x.npz"),
)
_OUTPUTS = (
    *(
        "out.onnx",
        "out.json",
        "out",
        "no/out.onnx",
        ".",
        "model.onnx",
        "n" * 300 + ".onnx",
        "out.npz",
    ),
    *("out.png", "\udcff.onnx"),
)
_NEVER = {
    "check",  # below, since it takes the rest of the line
    "on",  # may install packages
    "workers",
}
"""Not here: what reaches out of this machine."""
_SCRIPTS = (
    "script.py",
    "script.py:f",
    "script.py:load_data",
    "model.onnx",
    "none.py",
    "script.py:",
    ".",
)
_CHECKS = (
    ("true",),
    ("false",),
    ("test", "-s", "{model}"),
    ("sh", "-c", "exit 3"),
    ("sh", "-c", "kill -9 $$", "{model}"),
    ("sh", "-c", "rm -rf {dir}", "{inputs}", "{golden}"),
    ("sh", "-c", "printf '\\377\\000\\033[31m'; exit 1"),
    ("./no-such-program", "{model}"),
    ("{modle}",),
    ("",),
    (".", "{model}"),
    ("n" * 5000,),
)
"""Commands that say good or bad of a model, break, or are none."""


def command_line(rng: random.Random) -> list[str]:
    """The words after the program's name; `releases` installs packages, and is left out."""
    names = [name for name in COMMANDS if name != "releases"]
    name = rng.choices(names, [_WEIGHTS.get(each, 1) for each in names])[0]
    own = COMMANDS[name].groups[0]
    every = [
        entry
        for group in COMMANDS[name].groups
        for entry in entries(group)
        if entry.name not in _NEVER
    ]
    words = [name]
    words += [
        _argument(name, entry, rng)
        for entry in entries(own)
        if entry.positional and rng.random() < 0.97
    ]
    words += [
        word
        for entry in every
        if entry.required and not entry.positional
        for word in ("-o", _output(rng))
    ]
    if any(entry.name == "onnxrt" for entry in every) and rng.random() < 0.9:
        target = "--trt" if rng.random() < 0.15 else "--onnxrt"
        words += [target, *(["--fp16"] if rng.random() < 0.6 or name == "precision" else [])]
    if name in ("diagnose", "reduce", "precision", "layerwise"):
        words += [
            "--timeout",
            "20",
            *(["--max-time", "5", "--max-probes", "12"] if name != "layerwise" else []),
        ]
    chosen = [entry for entry in every if not (entry.positional or entry.required)]
    for entry in rng.sample(chosen, min(len(chosen), rng.choice((0, 0, 1, 1, 2, 3)))):
        if entry.name not in ("timeout", "max_time", "max_probes"):
            words += _option(entry, rng)
    if rng.random() < 0.5 and any(entry.name == "json" for entry in every):
        words += ["--json", "r.json"]
    if name in ("reduce", "precision") and rng.random() < 0.25:
        words += ["--check", *rng.choice(_CHECKS)]
    return words


def _argument(name: str, entry: Option, rng: random.Random) -> str:
    if name in ("log", "report", "resume"):
        return rng.choice(
            [".", "model.onnx", "values.json", "0", "-7", "99999999999999999999", "none"]
        )
    if name == "inspect":
        kinds = ["model", "data"] if entry.name == "file_kind" else []
        return rng.choice(["model.onnx", "values.npz", "values.json", *kinds, *_FILES])
    return "model.onnx" if rng.random() < 0.97 else rng.choice(_FILES)


def _output(rng: random.Random) -> str:
    return rng.choice(_OUTPUTS) if rng.random() < 0.3 else "out.onnx"


def _option(entry: Option, rng: random.Random) -> list[str]:
    flag = rng.choice([part for flag in entry.flags for part in flag.split("/")])
    if entry.count or (entry.kind is bool and entry.form == "one"):
        return [flag]
    return [
        flag,
        *(_value(entry, rng) for _ in range(rng.choice((1, 1, 2)) if entry.several else 1)),
    ]


def _value(entry: Option, rng: random.Random) -> str:
    if rng.random() < 0.15:
        return rng.choice(_TEXTS)
    scripts = entry.name in ("data_loader_script", "compare_func_script")
    words = _SCRIPTS if scripts else () if entry.read is None else _WORDS.get(entry.read, ())
    if words:
        return rng.choice(words)
    if issubclass(entry.kind, Enum):
        return str(rng.choice(list(entry.kind)).value)
    if entry.kind is Path:
        return rng.choice(_FILES if entry.name.startswith("load") else _OUTPUTS)
    if entry.kind in (int, float):
        return rng.choice(["0", "1", "2", "-1", "99999999999999999999", "0.5"])
    return rng.choice(_TEXTS)
