"""``run`` and ``extract`` from the outside: which tensors are compared, the model that runs, weights elsewhere, pieces."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from building import text_model
from conftest import CommandLine
from support import (
    READ_NPZ,
    SHAPE,
    TARGET,
    arrays,
    chain,
    command_lines,
    node_names,
    overflowing,
    script,
)

from bisect_trt.onnxlib.load import external_files
from bisect_trt.report import plots


def matches(cli: CommandLine, *words: str | Path, status: int = 0) -> dict[str, bool]:
    """Whether each output that ``run`` compares matches."""
    comparisons = cli("run", *words, "--json", "r.json").ended(status).result["comparisons"]
    return {entry["name"]: entry["passed"] for entry in comparisons}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("a1_out a0_out", "a1_out a0_out"),
        ("a[01]_out b0_out", "a0_out a1_out b0_out"),
        ("*_out --onnx-exclude-outputs *0_out", "a1_out big_out small_out"),
        ("mark all --onnx-exclude-outputs op:Add", "big_out small_out"),
        ("op:M* a0_out", "big_out small_out a0_out"),
    ],
)
def test_outputs_by_name_pattern_and_operator(
    cli: CommandLine, here: Path, words: str, names: str
) -> None:
    model = overflowing(here / "model.onnx", before=2, after=1)
    assert [*matches(cli, model, "--onnxrt", "--onnx-outputs", *words.split())] == names.split()


def test_the_model_that_runs(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    matches(cli, model, "--onnxrt", "--onnx-outputs", "big_out", "--save-onnx", "plain.onnx")
    assert [value.name for value in onnx.load("plain.onnx").graph.output] == ["big_out"]
    matches(cli, model, "--onnxrt", "--fp16", "--save-onnx", "half.onnx", status=1)
    casts = [node for node in onnx.load("half.onnx").graph.node if node.op_type == "Cast"]
    assert any(node.attribute[0].i == onnx.TensorProto.FLOAT16 for node in casts)
    matches(cli, "half.onnx", "--onnxrt", "--validate", status=1)  # it overflows on its own


def test_the_target_is_given_the_ir_version_of_the_file(cli: CommandLine, here: Path) -> None:
    """A runtime that refuses the file is never said to match, though it runs a copy of a lower IR version."""
    model = overflowing(here / "m.onnx")
    proto = onnx.load(str(model))
    proto.ir_version = onnx.IR_VERSION
    onnx.save(proto, str(model))
    try:
        onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    except Exception:
        refused = cli("run", model, "--onnxrt")
        assert (refused.status, "IR version" in refused.err, "sanitize" in refused.err) == (
            4,
            True,
            True,
        )
        cli("sanitize", model, "-o", "lower.onnx").ended(0)
        model = here / "lower.onnx"
    matches(cli, model, "--onnxrt")


def test_weights_in_another_folder(cli: CommandLine, here: Path) -> None:
    values = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    model = text_model(
        "(float[2, 3] x) => (float[2, 3] y)",
        "s = ReduceSum<keepdims = 0>(w) y = Add(x, s)",
        {"w": values},
    )
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data")
    (here / "weights").mkdir()
    Path("m.data").rename("weights/m.data")
    elsewhere = ["--external-data-dir", "weights"]
    matches(cli, "m.onnx", "--onnxrt", *elsewhere, "--save-outputs", "y.npz")
    assert arrays("y.npz")["y"].min() >= values.sum()
    commands: dict[str, list[str | Path]] = {
        **command_lines("m.onnx"),
        "sanitize": ["sanitize", "m.onnx", "-o", "out.onnx"],
        "convert": ["convert", "m.onnx", "-o", "out.onnx", "--bf16"],
    }
    for name, words in commands.items():
        cli(*words).refused("BT2001", "m.data")
        assert cli(*words, "--external-data-dir", "none").status != 0, name
    for name in ("extract", "sanitize", "convert", "reduce"):
        Path("out.onnx").unlink(missing_ok=True)
        assert cli(*commands[name], *elsewhere).status == 0, name
        assert not external_files(onnx.load("out.onnx", load_external_data=False)), name
    # What is written has its weights, or they lie beside it; the run is bound to them.
    Path("out.onnx").unlink()
    # Its one node stays in fp32, which is no fix.
    assert cli(*commands["precision"], *elsewhere).status == 3
    Path("weights/m.data").write_bytes(b"other" * 3000)
    assert "the content of weights/m.data" in cli("resume").error
    matches(cli, "out.onnx", "--onnxrt")


def test_extract(cli: CommandLine, here: Path) -> None:
    """The values beside the piece are those of a reference run, and make it give what the whole gives."""
    value = np.arange(6, dtype=np.float32).reshape(SHAPE)
    np.savez("x.npz", x=value)
    ends = ("--inputs", "t1", "--outputs", "t2", "t4")
    cli(
        "extract", chain(here / "model.onnx", 8), *ends, "-o", "sub.onnx", "--load-inputs", "x.npz"
    ).ended(0)
    assert node_names(Path("sub.onnx")) == ["<2>", "<3>", "<4>"]
    onnx.checker.check_model("sub.onnx", full_check=True)
    values = arrays("sub.inputs.npz")
    np.testing.assert_array_equal(values["t1"], value + 2)
    session = onnxruntime.InferenceSession("sub.onnx", providers=["CPUExecutionProvider"])
    for given, added in zip(session.run(["t2", "t4"], values), (3, 5), strict=True):
        np.testing.assert_array_equal(given, value + added)


def test_a_piece_is_dynamic_where_the_original_is(cli: CommandLine, here: Path) -> None:
    proto = onnx.load(str(chain(here / "m.onnx")))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(proto, "m.onnx")

    def ends(*words: str) -> list[list[int | str]]:
        ran = cli("extract", "m.onnx", *words, "-o", "sub.onnx", "--overwrite")
        assert (ran.status, "free dimensions" in ran.err) == (0, False)
        graph = onnx.load("sub.onnx").graph
        shapes = [value.type.tensor_type.shape.dim for value in (*graph.input, *graph.output)]
        return [[dim.dim_param or dim.dim_value for dim in shape] for shape in shapes]

    # What Polygraphy says behind a name is taken where it asks for what is done anyway.
    for start in ("t0", "t0:auto", "t0:auto:auto"):
        assert ends("--inputs", start, "--outputs", "t2:auto") == [["n", 3]] * 2
    assert ends("--inputs", "t0", "--outputs", "t2", "--input-shapes", "x:[5,3]") == [[5, 3]] * 2
    assert cli("extract", "m.onnx", "--inputs", "t0:auto:float32", "-o", "new.onnx").status == 2


# Saved values: formats, Polygraphy's files in both directions, results compared without a model.


ZERO = ["--atol", "0", "--rtol", "0"]


def loading(*values: float) -> list[str]:
    """Options for a script with a sample of each value."""
    source = f"def load_data():\n    for value in {values}:\n        yield {{'x': numpy.full((2, 3), value, numpy.float32)}}\n"
    Path("data.py").write_text(f"import numpy\n{source}")
    return ["--data-loader-script", "data.py"]


@pytest.fixture
def pair(here: Path) -> Path:
    return chain(here / "model.onnx", 2)


@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_several_samples_are_saved_and_loaded(cli: CommandLine, pair: Path, suffix: str) -> None:
    keep = ["--save-inputs", f"x{suffix}", "--save-outputs", f"y{suffix}"]
    assert cli("run", pair, "--onnxrt", *loading(1, 2, 3), *keep).status == 0
    values = ["--load-inputs", f"x{suffix}", "--load-outputs", f"y{suffix}"]
    compared = (
        cli("run", pair, "--onnxrt", *values, *ZERO, "--json", "r.json")
        .ended(0)
        .result["comparisons"]
    )
    assert [entry["sample"] for entry in compared] == [1, 2, 3]
    assert cli("run", "--load-outputs", f"y{suffix}", f"y{suffix}").status == 0
    cli("run", pair, "--onnxrt", "--load-outputs", f"y{suffix}").refused(
        "BT1007", f"y{suffix} holds 3 sample(s)"
    )


def test_saved_results_alone(cli: CommandLine, here: Path) -> None:
    np.savez("a.npz", y=np.zeros(3, np.float32), z=np.ones(2), only=np.ones(1))
    np.savez("b.npz", y=np.array([0, 0, 0.5], np.float32), z=np.ones(2, np.float32))
    ran = cli("run", "--load-outputs", "a.npz", "b.npz", "--json", "r.json").ended(1)
    first, second = ran.result["comparisons"]
    # As in Polygraphy, the last is what is right.
    assert (first["worst"]["target"], first["worst"]["reference"]) == (0, 0.5)
    assert first["details"]["atol_needed"] == 0.5
    assert (first["details"]["cosine"], first["details"]["snr_db"]) == (0, 0)  # one side is zeros
    assert "cosine similarity 0.000000, SNR 0.0 dB" in ran.out
    assert (second["name"], second["passed"]) == ("z", True)
    assert "float64 is compared with float32" in ran.out
    assert "passes with --atol 0.5" in ran.out
    assert cli("run", "--load-outputs", "a.npz", "b.npz", "--atol", "0.5").status == 0
    assert cli("run", "--load-outputs", "a.npz", "b.npz", "--onnx-outputs", "z").status == 0
    ran = cli("run", "--load-outputs", "b.npz", "a.npz", "a.npz")
    assert (ran.status, "b.npz has no 'only'" in ran.err) == (1, True)
    assert not list(here.glob(".bisect-trt"))


def polygraphy(capfd: pytest.CaptureFixture[str], *words: str) -> None:
    """Polygraphy's own command line, in this process."""
    from polygraphy.tools._main import main as run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["polygraphy", *words])
        # It would import PyTorch to see that no value is a tensor of it.
        patch.setitem(sys.modules, "torch", None)
        status = run()
    assert not status, capfd.readouterr().err


@pytest.mark.filterwarnings("ignore")  # Polygraphy's own
def test_polygraphys_files_load_here_and_ours_there(
    cli: CommandLine, pair: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("polygraphy")
    theirs = [
        "--save-inputs",
        "px.json",
        "--save-outputs",
        "py.json",
        "--iterations",
        "2",
        "--seed",
        "5",
    ]
    polygraphy(capfd, "run", str(pair), "--onnxrt", *theirs)
    loaded = ["--load-inputs", "px.json", "--load-outputs", "py.json", *ZERO, "--json", "r"]
    assert len(cli("run", pair, "--onnxrt", *loaded).ended(0).result["comparisons"]) == 2
    assert (
        cli("run", pair, "--onnxrt", "--load-inputs", "px.json", "--save-outputs", "y.json").status
        == 0
    )
    assert cli("run", "--load-outputs", "y.json", "py.json", *ZERO).status == 0
    ours = ["--save-inputs", "x.json", "--save-outputs", "z.json", "--seed", "9"]
    assert cli("run", pair, "--onnxrt", *ours).status == 0
    polygraphy(
        capfd,
        "run",
        str(pair),
        "--onnxrt",
        "--load-inputs",
        "x.json",
        "--load-outputs",
        "z.json",
        *ZERO,
    )
    polygraphy(capfd, "run", "--load-outputs", "z.json", "z.json")


# Several input samples in the searches: a candidate fails if it fails on any, and the report names
# which.


OVERFLOWS_AT = 2.0
"""The model of these tests makes (x + 3) * 3e4 somewhere, which is past fp16 from here on, and not
at -2.9."""


@pytest.fixture
def model(here: Path) -> Path:
    return overflowing(here / "model.onnx")


@pytest.fixture
def data(here: Path) -> list[str]:  # noqa: ARG001 - where it is written
    """Three samples, of which only the second overflows."""
    return loading(-2.9, OVERFLOWS_AT, -2.8)


def test_reduce_fails_on_any_sample(cli: CommandLine, model: Path, data: list[str]) -> None:
    # The first sample alone does not fail.
    assert cli("reduce", model, "-o", "none.onnx", *TARGET, *data, "--iterations", "1").status == 1
    result = (
        cli("reduce", model, "-o", "out.onnx", *TARGET, *data, "--json", "r.json").ended(0).result
    )
    assert {culprit["name"] for culprit in result["culprits"]} == {"big"}
    # What lies beside the answer is the sample on which it fails: it fails again with that.
    assert np.isclose(arrays("out.inputs.npz")["a2_out"], OVERFLOWS_AT + 3).all()
    assert cli("run", "out.onnx", *TARGET, "--load-inputs", "out.inputs.npz").status == 1
    folder = next(
        path.parent for path in Path(".bisect-trt").glob("*reduce*/candidates/*/inputs-3.npz")
    )
    assert {path.name for path in folder.iterdir()} >= {
        "inputs.npz",
        "inputs-2.npz",
        "golden-2.npz",
        "golden-3.npz",
    }


def test_a_command_runs_once_a_sample_until_one_fails(
    cli: CommandLine, model: Path, data: list[str], here: Path
) -> None:
    (here / "check.py").write_text(
        f"import os\n{READ_NPZ}"
        "values = [each for _, each in read(sys.argv[1]).values()]\n"
        "assert sys.argv[1] == os.environ['BISECT_TRT_INPUTS']\n"
        "with open('seen.txt', 'a') as seen:\n"
        "    seen.write(os.environ.get('BISECT_TRT_SAMPLE', '.'))\n"
        "with open(sys.argv[2], 'rb') as file:\n"
        "    has_big = b'big_out' in file.read()\n"
        f"sys.exit(has_big and any(max(value) > {OVERFLOWS_AT} - 0.1 for value in values))\n"
    )
    check = ["--check", sys.executable, "-IS", "check.py", "{inputs}", "{model}"]
    ran = cli("reduce", model, "-o", "out.onnx", *data, "--workers", "1", *check).ended(0)
    assert "sample 2: exit status 1" in ran.out
    seen = Path("seen.txt").read_text()
    assert seen.startswith("12")
    assert "123" in seen  # a candidate that passes is seen on all
    # A piece of the answer has one sample; the rest of the model is fed what is too large on the
    # first.
    assert re.fullmatch(r"(?:123|12|\.)*1\.*", seen)
    # One sample sets no variable.
    check = [
        "--check",
        script(here / "check.sh", 'test -z "$BISECT_TRT_SAMPLE" && exit 1'),
        "{model}",
    ]
    cli("reduce", model, "-o", "other.onnx", *check).ended(3)  # nothing passes


# Pictures of errors: they are drawn whatever the tensors are, and say so where they cannot be.


pytest.importorskip("matplotlib")


FLAGS = ["--save-heatmaps", "heat", "--save-error-metrics-plot", "metrics"]


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 2000


def test_run_draws_each_output(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    words = ["--iterations", "2", "--onnx-outputs", "big_out", *FLAGS, "--json", "r.json"]
    drawn = [Path(path) for path in cli("run", model, *TARGET, *words).ended(1).result["pictures"]]
    assert len(drawn) == 2 * 2
    assert all(is_picture(path) for path in drawn)
    names = {path.name for path in Path("heat").iterdir()}
    assert {"big_out-sample1.heatmap.png", "big_out-sample2.heatmap.png"} <= names


def test_saved_results_are_drawn(cli: CommandLine) -> None:
    a: dict[str, Any] = {"y/$x_1$:0": np.zeros((2, 3, 4)), "z": np.ones(3), "e": np.zeros((0, 2))}
    np.savez("a.npz", **a)
    np.savez("b.npz", **{**a, "y/$x_1$:0": np.full((2, 3, 4), np.nan), "z": np.ones(4)})
    ran = cli("run", "--load-outputs", "a.npz", "b.npz", *FLAGS, "--json", "r.json").ended(1)
    assert all(f"no plot of '{name}'" in ran.out for name in "ze")
    assert all(is_picture(Path(path)) for path in ran.result["pictures"])
    assert len(list(Path("metrics").iterdir())) == 1


def test_names_of_files_differ() -> None:
    names = ["a/b", "a_b", "a:b", "a b", "../x", "x" * 300, "x" * 301, "", "日本"]
    files = [plots.file_name(name, None, "k") for name in names]
    assert len(set(files)) == len(names)
    assert all("/" not in file and len(file) < 200 for file in files)


def test_what_stands_in_the_way_is_said_first(
    cli: CommandLine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflowing(here / "m.onnx")
    cli("run", "m.onnx", *TARGET, "--save-heatmaps", "m.onnx").refused("BT1012", "--save-heatmaps")
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    cli("run", "m.onnx", *TARGET, "--save-heatmaps", "h").refused(
        "BT2008", "pip install matplotlib"
    )
