"""The options of a target: what they become, what is refused, and the way back to a command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bisect_trt.cli.parser import parse as parse_words
from bisect_trt.commands.checks import tolerance_options
from bisect_trt.options.compare import CompareOptions
from bisect_trt.options.spec import entries, make_group
from bisect_trt.targets.onnxrt import OnnxRuntimeSettings
from bisect_trt.targets.options import Target
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.trt.settings import TrtSettings

FILE = str(Path(__file__).resolve())
"""A file that exists: what is in a plugin, an engine or a timing cache is TensorRT's business."""


def parse(words: Sequence[str]) -> TargetSettings | None:
    """What a command line asks for, read by the parser that every command has."""
    _, values = parse_words(["run", *words])
    own = {entry.name: values[entry.name] for entry in entries(Target)}
    return make_group(Target, own, words=True).settings(engines=True)


names = st.text(
    st.characters(codec="ascii", categories=("L", "N", "P"), exclude_characters="-'\"`"), min_size=1, max_size=8
)
words = st.text(st.sampled_from("abcdefgh_"), min_size=1, max_size=8)
sizes = st.integers(0, 1 << 60)


@st.composite
def profiles(draw: st.DrawFn) -> dict[str, Any]:
    """Shapes of the same inputs, thrice or twice."""
    ranks = draw(st.dictionaries(names, st.integers(0, 3), max_size=3))
    keys = ["min_shapes", "max_shapes", *(["opt_shapes"] if draw(st.booleans()) else [])]
    number = st.integers(0, 9)
    return {
        key: tuple((name, tuple(draw(number) for _ in range(rank))) for name, rank in ranks.items()) for key in keys
    }


@st.composite
def trt_targets(draw: st.DrawFn) -> TargetSettings:
    def maybe(values: st.SearchStrategy[str]) -> str | None:
        return draw(st.none() | values)

    paths = st.sampled_from([f"/nowhere/{name}" for name in ("a", "b c", "-d")])
    precisions: dict[str, Any] = {name: draw(st.booleans()) for name in ("fp16", "bf16", "fp8", "int8", "tf32")}
    trt = TrtSettings(
        **draw(profiles()),
        pool_limits=tuple(draw(st.dictionaries(words, sizes, max_size=2)).items()),
        tactic_sources=draw(st.none() | st.lists(words.filter(lambda word: word != "none"), max_size=2).map(tuple)),
        builder_optimization_level=draw(st.none() | st.integers(0, 5)),
        plugins=draw(st.sampled_from([(), (FILE,), (FILE, FILE)])),
        strongly_typed=draw(st.booleans()),
        builder_flags=draw(st.sampled_from([(), ("REFIT",), ("REFIT", "DIRECT_IO")])),
        builder_settings=draw(st.sampled_from([(), (("max_aux_streams", "0"), ("l2_limit_for_tiling", "7"))])),
        load_timing_cache=maybe(st.just(FILE)),
        save_timing_cache=maybe(paths),
        save_engine=maybe(paths),
    )
    return TargetSettings("trt", **precisions, own=trt)


@given(trt_targets())
def test_flags_are_a_command_line_that_asks_for_the_same(settings: TargetSettings) -> None:
    assert parse(settings.flags()) == settings


@given(st.booleans(), st.booleans(), st.lists(words, max_size=3).map(tuple))
def test_onnx_runtimes_too(fp16: bool, bf16: bool, providers: tuple[str, ...]) -> None:
    settings = TargetSettings(fp16=fp16, bf16=bf16, own=OnnxRuntimeSettings(providers))
    assert parse(settings.flags()) == settings


pairs = st.dictionaries(words, st.text(min_size=1, max_size=8), max_size=2).map(lambda found: tuple(found.items()))


@given(
    st.builds(
        OnnxRuntimeSettings,
        providers=st.lists(words, max_size=2).map(tuple),
        graph_optimization_level=st.sampled_from(["ORT_ENABLE_ALL", "ORT_DISABLE_ALL", "ORT_ENABLE_BASIC"]),
        disabled_optimizers=st.lists(words, max_size=2).map(tuple),
        provider_options=pairs,
        session_options=pairs,
        custom_op_libraries=st.sampled_from([(), (FILE,)]),
    )
)
def test_all_that_onnx_runtime_is_told(own: OnnxRuntimeSettings) -> None:
    settings = TargetSettings(own=own)
    assert parse(settings.flags()) == settings
    assert TargetSettings.from_json(settings.to_json()) == settings


@given(trt_targets())
def test_settings_cross_to_the_worker(settings: TargetSettings) -> None:
    assert TargetSettings.from_json(settings.to_json()) == settings
    assert hash(TargetSettings.from_json(settings.to_json())) == hash(settings)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--trt"], TargetSettings("trt")),
        (["--trt", "--onnxrt"], TargetSettings("trt")),
        (["--pool-limit", "workspace:4G", "--trt"], TrtSettings(pool_limits=(("workspace", 4 << 30),))),
        (["--pool-limit", "workspace:1.5MiB", "--trt"], TrtSettings(pool_limits=(("workspace", 3 << 19),))),
        (["--trt", "--pool-limit", "a:7", "b:2k"], TrtSettings(pool_limits=(("a", 7), ("b", 2048)))),
        (["--trt", "--tactic-sources", "none"], TrtSettings(tactic_sources=())),
        (["--trt", "--tactic-sources", "cublas", "cudnn"], TrtSettings(tactic_sources=("cublas", "cudnn"))),
        (
            ["--trt", "--trt-min-shapes", "x:[1,3]", "--trt-max-shapes", "x:[8,3]"],
            TrtSettings(min_shapes=(("x", (1, 3)),), max_shapes=(("x", (8, 3)),)),
        ),
        (["--trt", "--load-engine", FILE], TrtSettings(load_engine=FILE)),
    ],
)
def test_what_options_become(words: list[str], expected: TargetSettings | TrtSettings) -> None:
    settings = parse(words)
    assert settings is not None
    assert settings == expected if isinstance(expected, TargetSettings) else settings.of(TrtSettings) == expected


@pytest.mark.parametrize(
    ("low", "precision"),
    [("", "fp32"), ("tf32", "tf32"), ("fp16 tf32", "fp16"), ("bf16", "bf16"), ("fp16 int8", "bf16")],
)
def test_tolerances_are_those_of_what_rounds_most(low: str, precision: str) -> None:
    target = TargetSettings.from_json({**TargetSettings("trt").to_json(), **dict.fromkeys(low.split(), True)})
    assert tolerance_options(CompareOptions(), target).precision.value == precision
