"""Decoders with weights of any size: fp16, in several files beside the model, real numbers or a sparse file.

A layer is that of LLaMA: RMSNorm computed in fp32, as exporters write it, attention, a gated
feed-forward part, and two additions to the residual stream. The embedding is tied: its weight is
looked up in at the start and, transposed, multiplied with at the end. One of the last layers writes
a large entry to the residual stream, so that the squares of the norms behind it overflow in fp16:
`--fp16` fails on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 4096
INNER = 11008
HEADS = 32
WORDS = 32000
TOKENS = 8
OUTLIER = 400.0
"""Its square is 160,000; the largest number in fp16 is 65,504."""
_BLOCK = 1 << 22
"""Elements of random numbers, used again and again: to make 4e9 takes minutes."""


class _Files:
    """The weights' files, each taking so many bytes; the numbers written, or left out for holes."""

    def __init__(
        self, folder: Path, name: str, most: int, kind: int, *, sparse: bool, stack: ExitStack
    ) -> None:
        self.kind = kind
        self.dtype = helper.tensor_dtype_to_np_dtype(kind)
        self._folder = folder
        self._name = name
        self._most = most
        self._sparse = sparse
        self._stack = stack
        self._numbers = np.random.default_rng(0).standard_normal(_BLOCK, np.float32)
        self._files: list[BinaryIO] = []

    def weight(self, name: str, *shape: int, scale: float) -> TensorProto:
        """A weight of normal numbers of this size; in a sparse file all are 0."""
        count = int(np.prod(shape))
        length = self.dtype.itemsize * count
        if not self._files or self._files[-1].tell() + length > self._most:
            path = self._folder / f"{self._name}.{len(self._files)}.bin"
            self._files.append(self._stack.enter_context(path.open("wb")))
        file = self._files[-1]
        tensor = TensorProto(name=name, data_type=self.kind, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": Path(file.name).name, "offset": file.tell(), "length": length}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        if self._sparse:
            file.seek(length, 1)
            file.truncate()
        else:
            block = (self._numbers * scale).astype(self.dtype)
            for start in range(0, count, _BLOCK):
                file.write(block[: count - start].tobytes())
        return tensor


def write_decoder(
    folder: Path,
    layers: int,
    *,
    width: int = WIDTH,
    per_file: int = 5 << 30,
    sparse: bool = False,
    wide: bool = False,
) -> Path:
    """Write a decoder, as ``decoder.onnx`` and its weights; about 405 MB a layer of width 4096, and 262 MB the embedding.

    Args:
        folder: Where; made if it is not there.
        layers: How many.
        width: Of the residual stream, a multiple of 32; all else goes with it.
        per_file: The most bytes that a file of weights has.
        sparse: Whether the weights are holes, which read as 0 and take no room.
        wide: Whether all is fp32; else what is not in a norm is fp16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "decoder.onnx"
    with ExitStack() as stack:
        kind = TensorProto.FLOAT if wide else TensorProto.FLOAT16
        files = _Files(folder, "decoder", per_file, kind, sparse=sparse, stack=stack)
        path.write_bytes(_decoder(files, layers, width).SerializeToString())
    return path


def _decoder(files: _Files, layers: int, width: int) -> onnx.ModelProto:
    inner = INNER * width // WIDTH
    words = max(WORDS * width // WIDTH, 64)
    small = {
        "two": np.float32(2),
        "tiny": np.float32(1e-6),
        "scale": files.dtype.type((width / HEADS) ** -0.5),
        "heads": np.array([1, TOKENS, HEADS, width // HEADS], np.int64),
        "flat": np.array([1, TOKENS, width], np.int64),
    }
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in small.items()]
    weights.append(files.weight("embedding", words, width, scale=1.0))
    nodes = [helper.make_node("Gather", ["embedding", "ids"], ["h"], name="lookup")]
    last = "h"
    for layer in range(layers):
        for part in _layer(
            f"l{layer}.", last, width, inner, files, outlier=layer == max(layers - 2, 0)
        ):
            (nodes if isinstance(part, onnx.NodeProto) else weights).append(part)
        last = f"l{layer}.out"
    nodes += _norm("last.", last, "normed", files.kind)
    nodes.append(helper.make_node("Transpose", ["embedding"], ["head"], name="tie", perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["normed", "head"], ["logits"], name="logits"))
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, TOKENS])],
        [helper.make_tensor_value_info("logits", files.kind, [1, TOKENS, words])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _norm(at: str, read: str, made: str, kind: int) -> list[onnx.NodeProto]:
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Cast", [read], "wide", {"to": TensorProto.FLOAT}),
        ("Pow", [f"{at}wide", "two"], "square", {}),
        ("ReduceMean", [f"{at}square"], "mean", {"axes": [-1]}),
        ("Add", [f"{at}mean", "tiny"], "positive", {}),
        ("Sqrt", [f"{at}positive"], "root", {}),
        ("Div", [f"{at}wide", f"{at}root"], "unit", {}),
    ]
    nodes = [
        helper.make_node(op, reads, [at + name], name=at + name, **more)
        for op, reads, name, more in steps
    ]
    return [*nodes, helper.make_node("Cast", [f"{at}unit"], [made], name=made, to=kind)]


def _layer(
    at: str, read: str, width: int, inner: int, files: _Files, *, outlier: bool
) -> Iterator[onnx.NodeProto | TensorProto]:
    yield from _norm(f"{at}n1.", read, f"{at}x", files.kind)
    shapes = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width)}
    shapes |= {"gate": (width, inner), "up": (width, inner), "down": (inner, width)}
    for name, shape in shapes.items():
        yield files.weight(f"{at}{name}.weight", *shape, scale=0.3 * shape[0] ** -0.5)
    bias = np.zeros(width, files.dtype)
    bias[7] = OUTLIER if outlier else 0
    yield numpy_helper.from_array(bias, f"{at}bias")

    def node(op: str, reads: list[str], name: str, **more: Any) -> onnx.NodeProto:  # noqa: ANN401 - attributes
        names = [each if each in {"heads", "flat", "scale"} else at + each for each in reads]
        return helper.make_node(op, names, [at + name], name=at + name, **more)

    for name in "qkv":
        yield node("MatMul", ["x", f"{name}.weight"], f"{name}.flat")
        yield node("Reshape", [f"{name}.flat", "heads"], f"{name}.heads")
        yield node(
            "Transpose", [f"{name}.heads"], name, perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        )
    yield node("MatMul", ["q", "k"], "dots")
    yield node("Mul", ["dots", "scale"], "scores")
    yield node("Softmax", ["scores"], "shares", axis=-1)
    yield node("MatMul", ["shares", "v"], "mixed")
    yield node("Transpose", ["mixed"], "rows", perm=[0, 2, 1, 3])
    yield node("Reshape", ["rows", "flat"], "joined")
    yield node("MatMul", ["joined", "o.weight"], "attended")
    yield helper.make_node("Add", [read, f"{at}attended"], [f"{at}between"], name=f"{at}between")
    yield from _norm(f"{at}n2.", f"{at}between", f"{at}y", files.kind)
    yield node("MatMul", ["y", "gate.weight"], "gate")
    yield node("Sigmoid", ["gate"], "open")
    yield node("Mul", ["gate", "open"], "silu")
    yield node("MatMul", ["y", "up.weight"], "up")
    yield node("Mul", ["silu", "up"], "gated")
    yield node("MatMul", ["gated", "down.weight"], "down")
    yield node("Add", ["down", "bias"], "biased")
    yield node("Add", ["between", "biased"], "out")
