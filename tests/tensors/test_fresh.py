"""Fresh samples are of the kind of those given: types, shapes, bounds, tables, masks, and the law of floats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from bisect_trt.tensors.fresh import FreshSamples
from bisect_trt.tensors.inputs import Sample

IDS = np.array([[5, 17, 3, 3, 99, 0, 1, 2]], np.int64)
RNG = np.random.default_rng(3)
IMAGE = RNG.random((1, 3, 16, 16), np.float32)
NORMAL = RNG.standard_normal((1, 3, 16, 16)).astype(np.float32)
PADDED = np.array([[1, 1, 1, 1, 1, 0, 0, 0]], np.int64)


def drawn(samples: list[Sample], sizes: dict[str, int] | None = None, count: int = 24) -> list[Sample]:
    law = FreshSamples.like(samples, sizes or {})
    return [law.draw(number) for number in range(count)]


@given(st.integers(0, 10**6))
def test_a_number_is_a_sample(number: int) -> None:
    law = FreshSamples.like([{"image": IMAGE, "ids": IDS}], {"ids": 100})
    one, again, other = law.draw(number), law.draw(number), law.draw(number + 1)
    for name, value in one.items():
        assert np.array_equal(value, again[name])
        assert (value.dtype, value.shape) == (IMAGE.dtype, IMAGE.shape) if name == "image" else (IDS.dtype, IDS.shape)
    if number % len(law.ways) != law.ways.index("permuted"):  # else both are, and three channels have few orders
        assert not np.array_equal(one["image"], other["image"])
    assert not np.array_equal(one["image"], IMAGE)


KINDS = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "uint64", "bool")


@given(
    st.sampled_from(KINDS).flatmap(lambda kind: arrays(kind, array_shapes(min_dims=0, max_dims=3, max_side=6))),
    st.one_of(st.none(), st.integers(1, 50)),
    st.integers(0, 15),
)
def test_any_input_keeps_its_type_and_shape(value: np.ndarray, size: int | None, number: int) -> None:
    made = FreshSamples.like([{"x": value}], {} if size is None else {"x": size}).draw(number)["x"]
    assert (made.dtype, made.shape) == (value.dtype, value.shape)


def test_images_within_0_and_1_stay_there_but_for_those_that_were_normalised() -> None:
    samples = [sample["image"] for sample in drawn([{"image": IMAGE}])]
    inside = [sample for sample in samples if sample.min() >= 0 and sample.max() <= 1]
    outside = [sample for sample in samples if sample.min() < 0]
    assert len(inside) == 22
    assert len(outside) == 2
    for sample in outside:
        assert sample.std() == pytest.approx(1, abs=0.1)


def test_a_normal_law_stays_one() -> None:
    alike = drawn([{"x": NORMAL}], count=4)  # the first ways are others of the same law
    for sample in alike:
        assert sample["x"].mean() == pytest.approx(NORMAL.mean(), abs=0.15)
        assert sample["x"].std() == pytest.approx(NORMAL.std(), rel=0.1)


def test_channels_that_differ_much_keep_their_laws() -> None:
    values = NORMAL * np.array([1, 1, 300], np.float32).reshape(1, 3, 1, 1)
    for sample in drawn([{"x": values}], count=4):
        stds = sample["x"].std(axis=(0, 2, 3))
        assert stds[2] / stds[0] == pytest.approx(300, rel=0.3)


@pytest.mark.parametrize(("number", "axes"), [(8, (3,)), (9, (0, 2, 3))], ids=["rows", "channels"])
def test_rows_and_channels_vary_in_magnitude(number: int, axes: tuple[int, ...]) -> None:
    made = drawn([{"x": NORMAL}], count=10)[number]["x"]
    ratio = np.sqrt(np.square(made / NORMAL).mean(axis=axes))
    assert ratio.max() / ratio.min() > 1.5
    assert np.allclose((made / NORMAL).std(axis=axes) / ratio, 0, atol=1e-3)  # each has one factor


def test_ids_are_those_of_the_table() -> None:
    samples = [sample["ids"] for sample in drawn([{"ids": IDS}], {"ids": 100}, count=200)]
    everything = np.concatenate([sample.reshape(-1) for sample in samples])
    assert everything.min() >= 0
    assert everything.max() == 99
    assert len(np.unique(everything)) > 90
    unknown = np.concatenate([sample["ids"].reshape(-1) for sample in drawn([{"ids": IDS}])])
    assert (unknown.min(), unknown.max()) == (0, 99)  # those that were seen, where no table says more


def test_masks_of_padding_get_other_lengths() -> None:
    lengths = set()
    for mask in (PADDED, np.ones_like(PADDED), PADDED.astype(np.float32), PADDED.astype(bool)):
        for sample in drawn([{"mask": mask}]):
            made = sample["mask"].astype(np.int64)
            assert sample["mask"].dtype == mask.dtype
            assert set(np.unique(made)) <= {0, 1}
            assert (np.diff(made, axis=-1) <= 0).all()
            lengths.add(int(made.sum()))
    assert lengths == {4, 5, 6, 7, 8}


@pytest.mark.parametrize(
    "value",
    [
        np.arange(8, dtype=np.int64)[None],  # positions
        np.zeros((1, 8), np.int64),
        np.full((2, 2), 0.5, np.float32),
        np.array(7, np.int64),
        np.array([np.nan, 1.0], np.float32),
        np.array(["a", "b"], object),
        np.zeros((0, 3), np.float32),
    ],
    ids=str,
)
def test_what_may_be_no_other_stays(value: np.ndarray) -> None:
    law = FreshSamples.like([{"x": value}], {})
    assert not law.varies
    assert law.draw(3)["x"] is value
    assert law.describe() == "'x': as given"


def test_several_samples_are_drawn_from_together() -> None:
    low, high = np.full((1, 64), 1.0, np.float32), np.full((1, 64), 5.0, np.float32)
    low[0, 0], high[0, 0] = 1.5, 5.5
    alike = np.concatenate([sample["x"].reshape(-1) for sample in drawn([{"x": low}, {"x": high}], count=4)])
    assert alike.min() < 2
    assert alike.max() > 4


def test_numbers_whose_squares_overflow() -> None:
    huge = np.array([1.0, 1.60893695e154, *[0.0] * 30])
    assert all(np.isfinite(sample["x"]).all() for sample in drawn([{"x": huge}]))
