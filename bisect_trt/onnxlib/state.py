"""A model that is run step after step: which input takes which output of the step before, and the inputs of each step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from msgspec import Struct

from bisect_trt.errors import (
    InputValuesError,
    MissingOptionError,
    UnknownNameError,
    UnsuitableModelError,
    ValueRefusedError,
    quoted,
)
from bisect_trt.onnxlib.inputs import input_infos
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.shapes import Shape, input_sizes, resized, sizes_at
from bisect_trt.options.shared import Data
from bisect_trt.tensors.files import Arrays, Values
from bisect_trt.tensors.info import Array, TensorInfo, is_castable
from bisect_trt.tensors.inputs import (
    Sample,
    given_samples,
    make_inputs,
    shape_text,
    validate_sample,
)
from bisect_trt.tensors.metrics import IGNORED
from bisect_trt.tensors.state import GREEDY

_CONVENTIONS = (
    ("present_key_values|present", "past_key_values"),  # Optimum, Olive, the GenAI builder
    ("present", "past"),
    (r"^(new|next|updated|out|output|r)_", ""),  # icefall's streaming encoders, WeNet's r_att_cache
    (r"^(next|new)_", "prev_"),
    (r"^out(put)?(?=_[a-z]|state)", r"in\1"),  # NeMo's output_states_1 and input_states_1
    (r"_(next|new|out|output|updated)(?=$|_len$|\.\d)", ""),
    (r"_out(put)?(?=$|\.\d)", r"_in\1"),
    ("(?<=.)n$", ""),  # hn
    ("(?<=.)n$", "0"),
    ("N$", ""),  # stateN of Silero
    ("o$", "i"),  # r1o
)
"""A pattern in the name of an output, and what stands in its place in the name of the input that takes it."""
_TOKENS = re.compile("(?<!position_)ids|token|embeds")
_POSITION = re.compile("position|offset|cache_pos")
_MASK = re.compile("mask")
_LENGTH = re.compile("(total_seq)|seqlens|past_seq")
_ENCODER = re.compile("encoder|src_|memory|cross")
"""In the names of inputs: tokens; what is counted; what an encoder made, which stays."""


class State(Struct, frozen=True):
    """The state of a model.

    Attributes:
        taken: The output that each input takes of the step before, by input.
        growing: The axis along which a step makes an input longer, by input, and 0 at the start.
    """

    taken: Mapping[str, str]
    growing: Mapping[str, int]


def find_state(network: Network, given: Sequence[str]) -> State:
    """Return the state of a model, by the names that exporters give, or as it is given.

    Args:
        network: The model.
        given: Pairs of input and output, ``past.*=present.*``; ``*`` is the same text on both
            sides. Empty for the names of exporters.

    Raises:
        UsageError: There is no state, or a pair names no input or output, or has other types or
            shapes.
    """
    infos = {info.name: info for info in input_infos(network)}
    sources: dict[str, str] = {}
    for pair in given:
        sources |= _given(network, pair)
    if not given:
        for output in network.outputs:
            names = (re.sub(*convention, output, count=1) for convention in _CONVENTIONS)
            # The first convention that makes an input's name of the output's decides.
            sources |= dict.fromkeys(islice(filter(infos.__contains__, names), 1), output)
    if not sources:
        raise MissingOptionError(
            f"--steps: no input takes an output of the step before; name each pair with --state IN=OUT (inputs {quoted(infos)}; "
            f"outputs {quoted(network.outputs)})."
        )
    return State(sources, dict(_growing_axes(network, infos, sources)))


def _may_equal(shape: Shape, later: Shape) -> bool:
    """Return whether a tensor of one shape can have the other, of which a rank of 0 says nothing."""
    sizes = zip(shape, later, strict=False)
    differ = (isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
    return len(later) in {0, len(shape)} and not any(differ)


def _growing_axes(
    network: Network, infos: Mapping[str, TensorInfo], sources: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """Yield the inputs of the state that become longer with each step, with the axis.

    Raises:
        UsageError: An input takes an output of another type or shape.
    """
    stream = {
        dim for name, info in infos.items() if name not in sources for dim in info.shape or ()
    }
    for name, output in sources.items():
        declared = network.infos.get(output)
        # A token that is chosen from the output is no state.
        if declared is None:
            continue
        info = infos[name]
        dims = info.shape or ()
        made = declared.shape or ()
        if not (is_castable(info.dtype, declared.dtype) and _may_equal(dims, made)):
            raise UnsuitableModelError(
                f"the state '{name}' is {info.dtype}{shape_text(dims)}, and '{output}', which it takes, is "
                f"{declared.dtype}{shape_text(made)}; name other pairs with --state IN=OUT."
            )
        for axis, (dim, later) in enumerate(zip(dims, made, strict=False)):
            if not isinstance(dim, int) and dim != later and dim not in stream:
                yield name, axis


def _given(network: Network, pair: str) -> dict[str, str]:
    """Return the outputs that a pair of the user names, by input."""
    name, _, output = pair.partition("=")
    glob = re.compile("(.*)".join(map(re.escape, name.split("*"))))
    if name.count("*") != output.count("*"):
        raise ValueRefusedError(
            f"--state {pair}: '*' is the same text on both sides, so each needs as many."
        )
    sources: dict[str, str] = {}
    for match in filter(None, map(glob.fullmatch, network.inputs)):
        source = output
        for part in match.groups():
            source = source.replace("*", part, 1)
        sources[match[0]] = source
    tensors = [GREEDY.sub(r"\1", source) for source in sources.values()]
    ends = {
        "input": ([] if sources else [name], network.inputs),
        "output": (tensors, network.outputs),
    }
    for kind, (named, names) in ends.items():
        for tensor in set(named).difference(names):
            raise UnknownNameError(
                f"--state {pair}: there is no {kind} '{tensor}'; the {kind}s are {quoted(names)}.",
                tensor,
                names,
            )
    return sources


def make_steps(network: Network, state: State, data: Data, count: int) -> list[Sample]:
    """Return what each step is fed beside the state of the step before; the first step has its state too.

    Values that are given are a sample a step, or one sample with axes that are cut into steps.
    Without any, tokens and numbers are drawn. Positions, masks and lengths that are not given
    follow from the step.

    Args:
        network: The model.
        state: Its state.
        data: The source of the values.
        count: The number of steps.

    Raises:
        UsageError: There are values for fewer steps, or values do not fit the model.
    """
    sized = sizes_at(data.input_shapes, 0)
    infos = resized(input_infos(network), sized)
    stream = [info for info in infos if info.name not in state.taken]
    inputs: Sequence[Values] = given_samples(data) if data.given else []
    given: Arrays = dict(*inputs[:1])
    # A batch that is given is the batch of the state as well.
    sizes = {info.name: given[info.name].shape for info in stream if info.name in given}
    shapes = input_sizes(network.proto, {**sizes, **sized}).shapes
    first = _first_state(state, resized(infos, shapes), data) | given
    end = max((first[name].shape[axis] for name, axis in state.growing.items()), default=0)
    if not inputs:
        inputs = _drawn(network, resized(stream, shapes), data, count)
    # One sample for many steps is a stream that has not been cut yet.
    elif len(inputs) == 1 < count:
        inputs = _cut(inputs[0], stream, end, count)
    elif len(inputs) > 1:
        _check_state({name for name in state.taken if not _ENCODER.search(name)}, inputs[-1])
    steps: list[Sample] = []
    for number, sample in enumerate(inputs[:count], 1):
        fed = {name: value for name, value in sample.items() if name not in state.taken}
        if number == 1:
            fed = {**first, **sample}
        start = end
        # A prompt is several tokens in one step; later steps have one each.
        batch, length = _size_of_tokens(fed)
        end += length
        # Positions, lengths and masks follow from the tokens so far.
        counted = {info.name: _counted(info, start, end, batch) for info in stream}
        fed = {name: value for name, value in counted.items() if value is not None} | fed
        steps.append(validate_sample(infos if number == 1 else stream, fed, f"Step {number}"))
    if len(inputs) < count:
        raise InputValuesError(
            f"--steps {count}: the inputs hold {len(inputs)} step{'s' * (len(inputs) != 1)}; give more, or fewer --steps."
        )
    return steps


def _check_state(state: set[str], captured: Values) -> None:
    """Check that a captured step has its whole state; a part of it is a stream with such a name.

    Raises:
        InputValuesError: It has a part.
    """
    held = state & captured.keys()
    if 0 < len(held) < len(state):
        raise InputValuesError(
            f"each step's inputs hold {quoted(sorted(held))}, which would take an output of the step before; name the state with "
            "--state IN=OUT."
        )


def _size_of_tokens(fed: Mapping[str, Array]) -> tuple[int, int]:
    """The batch and the length of the tokens of a step; 1 and 1 where it has none."""
    sizes = (
        (value.shape[0], value.shape[1])
        for name, value in fed.items()
        if value.ndim > 1 and _TOKENS.search(name)
    )
    return next(sizes, (1, 1))


def _first_state(state: State, zeros: Sequence[TensorInfo], data: Data) -> dict[str, Array]:
    """Return the state of the first step: zeros, none along an axis that grows unless the user gives its size.

    What an encoder made is drawn, as zeros would hide what is computed with it.
    """
    values: Arrays = {}
    for info in zeros:
        sizes = [*(info.sizes or ())]
        if info.name in state.growing and info.name not in data.input_shapes:
            sizes[state.growing[info.name]] = 0
        if info.name in state.taken:
            values[info.name] = np.zeros(sizes, info.dtype)
            if _ENCODER.search(info.name):
                values |= make_inputs([info], Data(seed=data.seed))[0]
    return values


def next_tokens(steps: Sequence[Sample]) -> list[Array] | None:
    """Return the token after each token of a text, ``IGNORED`` after the last, step by step; ``None`` without tokens."""
    names = [name for name in steps[-1] if _TOKENS.search(name) and steps[-1][name].ndim > 1]
    if not names:
        return None
    text = [step[names[0]] for step in steps]
    after = [*text[1:], np.full_like(text[-1][:, :1], IGNORED)]
    return [
        np.concatenate([current[:, 1:], later[:, :1]], 1)
        for current, later in zip(text, after, strict=True)
    ]


def join_steps(network: Network, state: State, steps: Sequence[Sample]) -> Sample | None:
    """Return the inputs of one run of all steps; ``None`` where one that changes from step to step has a fixed size.

    Args:
        network: The model of one step.
        state: The inputs that take outputs of the step before.
        steps: The inputs of each step by name; state of later steps is not in them.
    """
    joined = dict(steps[0])
    for info in input_infos(network):
        free = [axis for axis, dim in enumerate(info.shape or ()) if not isinstance(dim, int)]
        values = [] if info.name in state.taken else [step[info.name] for step in steps]
        if values and _MASK.search(info.name):
            joined[info.name] = values[-1]
        elif not all(np.array_equal(value, values[0]) for value in values):
            if not free:
                return None
            joined[info.name] = np.concatenate(values, axis=free[-1])
    return joined


def _counted(info: TensorInfo, start: int, end: int, batch: int = 1) -> Array | None:
    """Return the value of an input that follows from the number of tokens before and after a step; ``None`` for another input.

    It is the same for each sequence of the batch.

    Raises:
        UsageError: A mask has fewer places.
    """
    dims = info.shape or ()
    length = dims[-1] if dims and isinstance(dims[-1], int) else end
    lengths = _LENGTH.search(info.name)
    row: Array
    if info.dtype.kind not in "iub" or _ENCODER.search(info.name):
        return None
    if _MASK.search(info.name):
        if length < end:
            raise ValueRefusedError(
                f"--steps: the cache behind '{info.name}' holds {length} tokens, and a step needs {end}; give fewer steps."
            )
        row = np.arange(length) < end
    elif _POSITION.search(info.name):
        row = np.arange(start, end)
    elif lengths:
        row = np.array([end if lengths[1] else end - 1])
    else:
        return None
    row = row.astype(info.dtype)
    copies = [dim if isinstance(dim, int) else batch for dim in dims]
    # Only lengths have no axis of tokens.
    return np.tile(row, copies if lengths else [*copies[:-1], 1]) if dims else row.reshape(())


def _cut(sample: Values, stream: Sequence[TensorInfo], past: int, count: int) -> list[Arrays]:
    """Cut a sample into steps: along axes longer than the model's, and else along the last free axis, one by one.

    Args:
        sample: Values by input.
        stream: The inputs that are no state.
        past: The number of tokens before the first step, which masks cover too.
        count: The number of steps of greedy decoding, in which a prompt is the first.
    """
    uncounted = [info.name for info in stream if _counted(info, 0, 1) is None]
    fed = {name: sample[name] for name in uncounted if name in sample}
    if all(map(_ENCODER.search, fed)):
        return [dict(sample), *[fed] * (count - 1)]
    cuts = _axes_of_steps(sample, stream)
    counts = [
        # A mask covers the past as well, and grows with it.
        (sample[name].shape[axis] - past * bool(_MASK.search(name))) // chunk
        for name, (axis, chunk) in cuts.items()
    ]
    steps = [dict(sample) for _ in range(min(counts, default=1))]
    for number, step in enumerate(steps):
        for name, (axis, chunk) in cuts.items():
            end = (number + 1) * chunk
            places = range(past + end) if _MASK.search(name) else range(end - chunk, end)
            step[name] = sample[name].take(places, axis=axis)
    return steps


def _axes_of_steps(sample: Values, stream: Sequence[TensorInfo]) -> dict[str, tuple[int, int]]:
    """Return of each input that is longer than the model's the axis, and its size in a step."""
    cuts: dict[str, tuple[int, int]] = {}
    for info in stream:
        sizes = sample[info.name].shape if info.name in sample else ()
        for axis, (dim, size) in enumerate(zip(info.shape or (), sizes, strict=False)):
            chunk = dim if isinstance(dim, int) else 1
            # What an encoder made is the same in all steps.
            if size > chunk > 0 and not _ENCODER.search(f"{info.name} {dim}"):
                cuts[info.name] = axis, chunk
    return cuts


def _drawn(network: Network, stream: Sequence[TensorInfo], data: Data, count: int) -> list[Sample]:
    """Return random values for each step: tokens of the vocabulary, and numbers; what an encoder made is the same in each."""
    drawn = [info for info in stream if _counted(info, 0, 1) is None]
    skipped = set(network.inputs) - {info.name for info in drawn}
    ranges = {name: ends for name, ends in data.val_range.items() if name not in skipped}
    samples = make_inputs(drawn, replace(data, iterations=count, val_range=ranges))
    # What an encoder made, and scalars such as a sample rate, do not change between steps.
    constant = [info.name for info in drawn if _ENCODER.search(info.name) or not info.shape]
    return [sample | {name: samples[0][name] for name in constant} for sample in samples]
