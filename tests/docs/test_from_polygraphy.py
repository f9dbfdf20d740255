"""The options that docs/from-polygraphy.md promises for data, outputs and comparison are there, and do something."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import CommandLine
from support import chain

PAGE = Path(__file__).parents[2] / "docs" / "from-polygraphy.md"
SECTIONS = (
    "Input data",
    "Outputs",
    "Comparison",
    "Model",
    "Which runtimes",
    "`surgeon sanitize`, `inspect`, `convert`",
)
NEED_A_GPU = {"--trt", "--load-engine"}
PLOTS = "--save-heatmaps h --save-error-metrics-plot m --save-histograms g"
COMMANDS = {
    "run model.onnx --onnxrt --iterations 2 --seed 3 --val-range [0,1] x:[2,3] --save-inputs x.json --save-outputs y.json": 0,
    "run model.onnx --onnxrt --load-inputs x.json --load-outputs y.json --atol 0 --rtol out:0 --fail-fast": 2,
    "run model.onnx --onnxrt --load-inputs x.json --load-outputs y.json --atol 0 --rtol t1:0 --fail-fast": 0,
    "run model.onnx --onnxrt --data-loader-script data.py --data-loader-func-name mine --array-swap-mb 0": 0,
    "layerwise model.onnx --onnxrt --array-swap-mb 0": 1,
    "run --load-outputs a.npz b.npz --check-error-stat elemwise": 1,
    "run --load-outputs a.npz b.npz --check-error-stat mean --atol 0.9": 0,
    "run --load-outputs a.npz b.npz --check-error-stat quantile --error-quantile 0.5 t1:0": 0,
    "run --load-outputs a.npz b.npz --check-error-stat max t1:median": 1,
    "run --load-outputs inf.npz inf.npz": 1,
    "run --load-outputs inf.npz inf.npz --infinities-compare-equal": 0,
    "run --load-outputs inf.npz inf.npz --infinities-compare-equal --validate": 1,
    "run --load-outputs a.npz b.npz --postprocess top-5 --compare indices --index-tolerance 2": 0,
    "run --load-outputs a.npz b.npz --postprocess top-5 --compare indices": 1,
    "run --load-outputs a.npz flat.npz --no-shape-check": 0,
    "run --load-outputs a.npz flat.npz": 1,
    "run --load-outputs a.npz b.npz --compare-func-script compare.py": 0,
    "run model.onnx --onnxrt --input-shapes x:[2,3] --external-data-dir . --save-onnx ran.onnx --fp-to-fp16 --shape-inference": 0,
    "run model.onnx --onnxrt --onnx-outputs t* --onnx-exclude-outputs t0": 0,
    "run model.onnx --onnxrt --trt-outputs mark all --exclude-outputs t1": 0,
    "run model.onnx --onnxrt --mark-all --onnx --onnxrt-reference --also-providers cpu --providers cpu": 0,
    "run model.onnx --onnxrt --use-subprocess --warm-up 1 --no-shape-inference": 0,
    "run model.onnx --onnxrt --gen-script same.py": 0,
    "run model.pb --tf": 2,
    "sanitize model.onnx -o s1.onnx --override-input-shapes x:[2,3] --fold-size-threshold 1M": 0,
    "sanitize model.onnx -o s2.onnx --no-fold-constants --no-shape-inference --no-cleanup --no-toposort": 0,
    "inspect model model.onnx --show layers attrs weights": 0,
    "inspect model model.onnx --mode full --json m.json --ignore-external-data": 0,
    "inspect data a.npz --show values": 0,
    "convert model.onnx -o h1.onnx --fp16 --keep-fp32 t0 --io-fp16": 0,
    "convert model.onnx -o h2.onnx --fp-to-fp16": 0,
    "convert model.onnx -o h3.bin --bf16 --convert-to onnx": 0,
    "extract model.onnx --inputs t0 --outputs t1 -o piece.onnx": 0,
}
"""Command lines, and the status that each ends with."""
PICTURES = {
    f"run --load-outputs a.npz b.npz {PLOTS}": 1,
    "layerwise model.onnx --onnxrt --save-error-plot e.png": 1,
}


USED = """
--onnxrt --trt --onnx --pluginref --providers --model-type --input-shapes --shape-inference --external-data-dir
--no-onnxruntime-shape-inference --no-shape-inference
--ignore-external-data --onnx-outputs --onnx-exclude-outputs --trt-outputs --mark-all
--exclude-outputs --fp-to-fp16 --save-onnx --save-external-data --external-data-size-threshold --load-inputs --save-inputs
--data-loader-script --data-loader-func-name --data-loader-backend-module --seed --val-range --iterations --save-outputs
--load-outputs --tf32 --fp16 --bf16 --fp8 --int8 --precision-constraints --strongly-typed --calibration-cache
--calib-base-cls --quantile --regression-cutoff --trt-min-shapes --trt-opt-shapes --trt-max-shapes --optimization-profile
--pool-limit --workspace --builder-optimization-level --max-aux-streams --tactic-sources --sparse-weights
--version-compatible --exclude-lean-runtime --hardware-compatibility-level --load-timing-cache --save-timing-cache
--error-on-timing-cache-miss --disable-compilation-cache --save-tactics --load-tactics --refittable --strip-plan
--weight-streaming --weight-streaming-budget --use-dla --allow-gpu-fallback --plugins --onnx-flags --plugin-instancenorm
--save-engine --load-runtime --allocation-strategy --validate --fail-fast --compare --compare-func-script --no-shape-check
--rtol --atol --check-error-stat --error-quantile --infinities-compare-equal --index-tolerance --postprocess
--save-heatmaps --show-heatmaps --save-error-metrics-plot --show-error-metrics-plot --warm-up --use-subprocess --gen-script
--verbosity --silent --log-format --log-file --mode --direction --precision --check --fail-regex --fail-code
--ignore-fail-code --show-output --hide-fail-output --artifacts --art-dir --iter-artifact --no-remove-intermediate
--iter-info --until --load-debug-replay --save-debug-replay --min-good --no-reduce-inputs --no-reduce-outputs
--force-fallback-shape-inference --display-as --fold-constants --override-input-shapes --tf --tftrt --ckpt
--freeze-graph --xla
"""
"""What the tutorials use."""


def promised() -> set[str]:
    """The options in the second column of these sections' tables."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    chosen = [section for section in sections if section.splitlines()[0] in SECTIONS]
    assert len(chosen) == len(SECTIONS)
    cells = [line.split("|")[2] for section in chosen for line in section.splitlines() if line.startswith("| ")]
    return {option for cell in cells for option in re.findall(r"--[a-z][a-z0-9-]*", cell)}


@pytest.fixture(autouse=True)
def files(here: Path) -> None:
    chain(here / "model.onnx", 2)
    values = np.array([[1.0, 5.0, 3.0]], np.float32)
    np.savez("a.npz", t1=values)
    np.savez("b.npz", t1=np.array([[1.0, 4.0, 4.5]], np.float32))
    np.savez("flat.npz", t1=values.ravel())
    np.savez("inf.npz", t1=np.array([np.inf]))
    Path("data.py").write_text("import numpy\ndef mine():\n    yield {'x': numpy.ones((2, 3), numpy.float32)}\n")
    Path("compare.py").write_text(
        "def compare_outputs(a, b):\n    return {name: a[name].shape == b[name].shape for name in a}\n"
    )


def test_every_command_ends_as_it_should(cli: CommandLine) -> None:
    for words, status in COMMANDS.items():
        ran = cli(*words.split())
        assert ran.status == status, f"{words}\n{ran.out}{ran.err}"


def test_pictures(cli: CommandLine) -> None:
    pytest.importorskip("matplotlib")
    for words, status in PICTURES.items():
        assert cli(*words.split()).status == status, words


def test_every_option_that_the_page_promises_is_in_a_command() -> None:
    used = {word for words in (*COMMANDS, *PICTURES) for word in words.split() if word.startswith("--")}
    assert promised() - used - NEED_A_GPU == set()


def test_every_option_that_people_use_of_polygraphy_has_a_row() -> None:
    """The first column names it, or the sentence at the end does."""
    page = PAGE.read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    named = set(re.findall(r"--[a-z][a-z0-9-]*", " ".join([*rows, page.rsplit("\n\n", 1)[1]])))
    assert {word for word in USED.split() if word not in named} == set()
