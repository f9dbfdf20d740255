"""A model that is larger than it may be is run in slices, and what comes of it is what the whole gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CommandLine
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from support import TARGET, overflowing, read_json

from bisect_trt.probing.models import Models
from bisect_trt.probing.protocol import Compare, Compared, Sample, Series
from bisect_trt.probing.slicing import Slicing, model_limit
from bisect_trt.probing.workers.pool import WorkerPool
from bisect_trt.probing.workspace import Workspace
from bisect_trt.targets.settings import reference_settings
from bisect_trt.tensors.npz import load_npz
from bisect_trt.tensors.tolerance import ToleranceOptions


def branching(seed: int, count: int) -> onnx.ModelProto:
    """Random sums over what is there, each with a weight; tensors of integers, weights that nodes make, and a sequence."""
    rng = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.full(3, 0.5, np.float32))),
        helper.make_node("Neg", ["c"], ["d"]),
        helper.make_node("Add", ["x", "d"], ["e"]),
    ]
    known, weights = ["x", "e"], []
    for place in range(count):
        weights.append(numpy_helper.from_array(rng.normal(size=(1, 3)).astype(np.float32), f"w{place}"))
        nodes.append(helper.make_node("Mul", [str(rng.choice(known[:1] + known[-3:])), f"w{place}"], [f"m{place}"]))
        nodes.append(helper.make_node("Add", [f"m{place}", str(rng.choice(known[-3:]))], [f"t{place}"]))
        known.append(f"t{place}")
    nodes.append(helper.make_node("Cast", [known[-1]], ["whole"], to=TensorProto.INT64))
    nodes.append(helper.make_node("SequenceConstruct", [known[-2], "x"], ["parts"]))
    nodes.append(helper.make_node("ConcatFromSequence", ["parts"], ["y"], axis=0))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "t0")]
    ends.append(helper.make_tensor_value_info("whole", TensorProto.INT64, None))
    start = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])
    graph = helper.make_graph(nodes, "g", [start], ends, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with WorkerPool(tmp_path_factory.mktemp("pool")) as workers:
        yield workers


@given(st.integers(0, 99), st.integers(1, 8), st.booleans())
@settings(max_examples=4, deadline=None)
def test_slices_give_what_the_whole_gives(
    pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, every: bool
) -> None:
    workspace = Workspace(tmp_path_factory.mktemp("run"))
    models, told = Models(workspace, pool), list[int]()
    path = models.write("model", branching(seed, count))
    # Samples are of one shape or another, and the second one's values are those of the first.
    samples = [{"x": np.full((rows, 3), value, np.float32)} for rows, value in ((2, 1.5), (2, 1.5), (4, -0.5))]
    inputs = tuple(models.feed(f"in{number}", sample) for number, sample in enumerate(samples))
    answers = []
    try:
        for slicing in (None, Slicing(0, workspace.scratch, lambda: told.append(1))):
            pool.slicing = slicing
            made = tuple(workspace.scratch(f"made{number}.npz") for number in range(len(samples)))
            models.ask(Series(reference_settings(), path, inputs, made))
            # Held to what comes of the first sample, the third one is off.
            wrong = (made[0], made[1], made[0])
            request = Compare(
                reference_settings(),
                path,
                tuple(Sample(*pair) for pair in zip(inputs, wrong, strict=True)),
                ToleranceOptions(),
                every=every,
            )
            reply = models.ask(request)
            assert isinstance(reply, Compared)
            seen = sorted((each.sample or 0, each.name, each.passed, each.describe()) for each in reply.comparisons)
            answers.append(([load_npz(file) for file in made], seen))
    finally:
        pool.slicing = None
    assert told == [1]
    (whole, said), (sliced, also) = answers
    assert said == also
    for one, other in zip(whole, sliced, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name])
    assert not list(workspace.candidates.glob("*sliced*"))


def test_half_of_what_is_free_may_be_taken_in_one_piece() -> None:
    assert model_limit(3) == 3 << 20
    assert model_limit() > 0


def test_a_search_in_slices_finds_the_same_and_says_so(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    found = []
    for limit in ([], ["--model-swap-mb", "0"]):
        words = ["reduce", model, "-o", "out.onnx", "--overwrite", "--workers", "1", "--json", "r.json"]
        ran = cli(*words, *TARGET, *limit)
        assert ran.status == 0, ran.err
        assert ran.err.count("it may (--model-swap-mb), so what is that large is run slice by slice") == len(limit) // 2
        result = read_json(Path("r.json"))
        sliced = result.pop("sliced", None)
        assert (sliced is None) == (not limit)
        found.append((result["culprits"], result["minimality"], result["probes"]))
    assert sliced["limit_mb"] == 0
    assert sliced["runs"] >= result["probes"]["run"] // 2
    assert sliced["slices"] > 1
    assert found[0] == found[1]


def test_what_a_killed_session_left_is_in_nobodys_way(cli: CommandLine, here: Path) -> None:
    model = overflowing(here / "model.onnx")
    words = ["reduce", model, "-o", "out.onnx", "--overwrite", "--workers", "1", "--model-swap-mb", "0", *TARGET]
    assert cli(*words).status == 0
    (run,) = (here / ".bisect-trt").iterdir()
    journal = run / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:3]))
    left = [run / "candidates" / f"scratch-sliced-{number}" for number in range(9)]
    for folder in left:
        folder.mkdir()
    ran = cli("resume", run)
    assert ran.status == 0, ran.err
    assert not any(folder.exists() for folder in left)
