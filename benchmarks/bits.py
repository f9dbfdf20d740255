"""Quantized models with bad scales, by seed: a ResNet of bottlenecks and a BERT-like encoder, by ONNX Runtime's own quantizer."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from _builder import GraphBuilder

from benchmarks.outliers import WIDTH, Arrays, Draw, attention, conv, dense, layer_norm, linear

TOKENS = 16
VOCABULARY = 200
IMAGE = 16


@dataclass(frozen=True)
class Float:
    """A model before quantization, and the law of its inputs."""

    name: str
    model: onnx.ModelProto
    draw: Draw


def resnet(seed: int, blocks: int = 6) -> Float:
    """Bottlenecks without norms (folded), images N(0, 1)."""
    g = GraphBuilder(seed)
    wide = 32
    narrow = 16
    x = g.op("Relu", conv(g, "image", "/stem", (wide, 3, 3), stride=2), scope="/stem")
    for block in range(blocks):
        scope = f"/layer{block}"
        y = g.op("Relu", conv(g, x, f"{scope}/conv1", (narrow, wide, 1)), scope=f"{scope}/act1")
        y = g.op("Relu", conv(g, y, f"{scope}/conv2", (narrow, narrow, 3)), scope=f"{scope}/act2")
        y = conv(g, y, f"{scope}/conv3", (wide, narrow, 1), np.full(wide, 0.5, np.float32))
        x = g.op("Relu", g.op("Add", x, y, scope=scope), scope=f"{scope}/act3")
    pooled = g.op("Flatten", g.op("GlobalAveragePool", x, scope="/pool"), scope="/pool")
    dense(g, pooled, "/fc", (wide, 50))
    model = g.model(
        "resnet", {"image": (int(TensorProto.FLOAT), (1, 3, IMAGE, IMAGE))}, "logits", (1, 50), 13
    )
    return Float(
        f"resnet-{seed}",
        model,
        lambda rng: {"image": rng.standard_normal((1, 3, IMAGE, IMAGE)).astype(np.float32)},
    )


def bert(seed: int, blocks: int = 3) -> Float:
    """Token ids, norms after each part."""
    g = GraphBuilder(seed)
    hidden = 2 * WIDTH
    x = g.op(
        "Gather", g.normal("words", (VOCABULARY, WIDTH), 1.0), "input_ids", scope="/embeddings"
    )
    x = g.op("Add", x, g.normal("positions", (1, TOKENS, WIDTH), 0.3), scope="/embeddings")
    x = layer_norm(g, x, "/embeddings/norm")
    for block in range(blocks):
        scope = f"/encoder/layer.{block}"
        x = g.op(
            "Add",
            x,
            attention(g, x, f"{scope}/attention", None, TOKENS),
            scope=f"{scope}/attention",
        )
        x = layer_norm(g, x, f"{scope}/attention/norm")
        first = g.draw((WIDTH, hidden), WIDTH**-0.5)
        second = g.draw((hidden, WIDTH), hidden**-0.5)
        y = linear(g, x, f"{scope}/fc1", first, g.draw((hidden,), 0.05))
        y = linear(g, g.op("Relu", y, scope=scope), f"{scope}/fc2", second, g.draw((WIDTH,), 0.05))
        x = layer_norm(g, g.op("Add", x, y, scope=scope), f"{scope}/output/norm")
    dense(g, x, "/head", (WIDTH, 20))
    kinds = {"input_ids": (int(TensorProto.INT64), (1, TOKENS))}
    model = g.model("bert", kinds, "logits", (1, TOKENS, 20), 13)
    return Float(
        f"bert-{seed}", model, lambda rng: {"input_ids": rng.integers(0, VOCABULARY, (1, TOKENS))}
    )


def quantize(
    source: Float, path: Path, *, per_channel: bool = True, signed: bool = False, samples: int = 16
) -> None:
    """Write the model as ONNX Runtime's static quantizer makes it: QDQ, min-max calibration on drawn samples."""
    from onnxruntime.quantization import (  # noqa: PLC0415 - it takes a second
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # of a package without types
        def __init__(self) -> None:
            rng = np.random.default_rng(5)
            self._samples: Iterator[Arrays] = iter([source.draw(rng) for _ in range(samples)])

        def get_next(self) -> Arrays | None:
            return next(self._samples, None)

    logging.getLogger().setLevel(
        logging.ERROR
    )  # it asks for its own pre-processing, on the root logger
    plain = path.with_name(f"{path.stem}-float.onnx")
    onnx.save(source.model, plain)
    quantize_static(
        str(plain),
        str(path),
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        reduce_range=True,  # processors without VNNI saturate sums of 8-bit products (ONNX Runtime, "Quantize ONNX models")
    )


def activation_scales(model: onnx.ModelProto) -> dict[str, str]:
    """The scales of what is quantized as it runs, each with its zero point."""
    stored = {tensor.name for tensor in model.graph.initializer}
    stored |= {
        name for node in model.graph.node if node.op_type == "Constant" for name in node.output
    }
    # An embedding shares its scale with what is looked up: weights that were rounded with it are
    # gone.
    weights = {
        n.input[1]
        for n in model.graph.node
        if n.op_type == "DequantizeLinear" and n.input[0] in stored
    }
    return {
        node.input[1]: node.input[2]
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
        and node.input[0] not in stored
        and node.input[1] not in weights
    }


def spoil(model: onnx.ModelProto, count: int, rng: np.random.Generator) -> dict[str, str]:
    """Make some scales bad, in place: 16 to 64 times too large, 8 to 32 times too small, or the zero point far off.

    Returns:
        What was done, by the name of the scale.
    """
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    scales = activation_scales(model)
    done: dict[str, str] = {}
    for name in rng.choice(sorted(scales), size=count, replace=False):
        scale = stored[str(name)]
        zero = stored[scales[str(name)]]
        how = str(rng.choice(("large", "small", "zero point")))
        if how == "zero point":
            was = numpy_helper.to_array(zero)
            middle = 0 if was.dtype == np.int8 else 128
            now = np.asarray(middle - 100 if was >= middle else middle + 100, was.dtype)
            zero.CopyFrom(numpy_helper.from_array(now.reshape(was.shape), zero.name))
        else:
            factor = rng.uniform(16, 64) if how == "large" else 1 / rng.uniform(8, 32)
            now = (numpy_helper.to_array(scale) * factor).astype(np.float32)
            scale.CopyFrom(numpy_helper.from_array(now, scale.name))
        done[str(name)] = how
    return done
