"""Every setting of every target is in ``reproduce.py``, or is declared not to be, with the reason; and it is an option."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from support import case_of

from bisect_trt.cli.parser import parse
from bisect_trt.options.spec import entries, make_group
from bisect_trt.report.reproducer import render_script
from bisect_trt.targets.base import Target, TargetSettings, find, names
from bisect_trt.targets.options import Target as Options
from bisect_trt.targets.options import selectable

SAMPLES: dict[str, Any] = {
    "providers": ("cuda", "cpu"),
    "graph_optimization_level": "ORT_DISABLE_ALL",
    "all_on_ep": True,
    "disabled_optimizers": ("GemmTransposeFusion",),
    "provider_options": (("device_id", "1"),),
    "session_options": (("session.disable_prepacking", "1"),),
    "custom_op_libraries": ("files/1-ops.so",),
    "through": "cp '{model}' '{out}'",
    "reads": ("files/1-tool.py",),
    "device": "GPU.0",
    "properties": (("EXECUTION_MODE_HINT", "ACCURACY"),),
    "min_shapes": (("x", (1, 3)),),
    "opt_shapes": (("x", (2, 3)),),
    "max_shapes": (("x", (8, 3)),),
    "pool_limits": (("workspace", 1 << 30), ("tactic_dram", 1 << 20)),
    "tactic_sources": ("cublas",),
    "builder_optimization_level": 2,
    "plugins": ("files/1-a.so",),
    "strongly_typed": True,
    "builder_flags": ("SPARSE_WEIGHTS", "NATIVE_INSTANCENORM"),
    "builder_settings": (("max_aux_streams", "0"),),
    "compiler_options": ("peep:fc_h_fusion=off",),
    "avoid_tactics": ("conv=1:2",),
    "pin_tactics": ("conv=1:2",),
    "record": "builds",
    "debug_tensors": True,
    "load_timing_cache": "files/1-timings",
    "save_timing_cache": "/nowhere/timings",
    "load_engine": "model.engine",
    "save_engine": "/nowhere/model.engine",
    "calibration_cache": "files/1-ranges",
    "calibration_data": ("inputs.npz",),
    "build_only": True,
    "compute_capabilities": ("SM86",),
}
"""A value of each setting that is not its default."""
UNSAID = {
    "record",
    "debug_tensors",
    "reads",
    "load_engine",
    "calibration_cache",
    "calibration_data",
    "compute_capabilities",
    "build_only",
}
"""Settings that no option of all targets says, or that conflict with others."""
FILE = str(Path(__file__).resolve())
HINTS = {
    "inputs": ["x"],
    "outputs": [],
    "lowered": False,
    "nodes": [["a", ["a_out"]], ["b", ["b_out"]]],
}


def own_settings() -> Iterator[Any]:
    for name in names():
        for entry in fields(find(name).own):
            yield pytest.param(find(name), entry.name, id=f"{name}-{entry.name}")


def shared_settings() -> Iterator[Any]:
    for name in ("tf32", "fp16", "bf16", "fp8", "int8"):
        yield {name: True}
    yield {"fp16": True, "keep": ("a_out",)}
    yield {"fp16": True, "held": True}


def script(settings: TargetSettings) -> str:
    how = settings.target.script(settings, HINTS)
    return render_script(how, [], case_of("inf"))


@pytest.mark.parametrize(("target", "name"), list(own_settings()))
def test_each_setting_of_its_own(target: Target, name: str) -> None:
    plain = TargetSettings(target.name)
    changed = plain.with_own(**{name: SAMPLES[name]})
    assert changed != plain, "the sample is the default"
    if name in target.not_reproducible:
        assert script(changed) == script(plain)
        return
    assert script(changed) != script(plain)


@pytest.mark.parametrize("changes", list(shared_settings()), ids=" ".join)
def test_each_setting_that_targets_share(changes: dict[str, Any]) -> None:
    plain = TargetSettings("trt", fp16=True) if len(changes) > 1 else TargetSettings("trt")
    changed = replace(plain, **changes)
    assert script(changed) != script(plain)


@pytest.mark.parametrize("name", names())
def test_files_are_settings(name: str) -> None:
    target = find(name)
    own = {entry.name for entry in fields(target.own)}
    assert own >= {*target.files, *target.not_reproducible}


def asked_for(words: Sequence[str]) -> TargetSettings | None:
    """What a command line asks for, read by the parser that every command has."""
    _, values = parse(["run", *words])
    return make_group(
        Options, {entry.name: values[entry.name] for entry in entries(Options)}, words=True
    ).settings(engines=True)


@pytest.mark.parametrize("name", [plugin.name for plugin in selectable()])
def test_options_say_all_settings_and_settings_cross_to_the_worker(name: str) -> None:
    target = find(name)
    samples = {
        each.name: SAMPLES[each.name] for each in fields(target.own) if each.name not in UNSAID
    }
    files = {
        each: (FILE,) if isinstance(samples[each], tuple) else FILE
        for each in target.files
        if each in samples
    }
    settings = TargetSettings(name, fp16=name != "through").with_own(**{**samples, **files})
    assert asked_for(settings.flags()) == settings
    assert TargetSettings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--trt"], {}),
        (["--trt", "--onnxrt"], {}),
        (["--pool-limit", "workspace:1.5MiB", "--trt"], {"pool_limits": (("workspace", 3 << 19),)}),
        (["--trt", "--pool-limit", "a:7", "b:2k"], {"pool_limits": (("a", 7), ("b", 2048))}),
        (["--trt", "--tactic-sources", "none"], {"tactic_sources": ()}),
        (["--trt", "--load-engine", FILE], {"load_engine": FILE}),
    ],
)
def test_what_options_become(words: list[str], expected: dict[str, Any]) -> None:
    plain = TargetSettings("trt")
    assert asked_for(words) == (plain.with_own(**expected) if expected else plain)
