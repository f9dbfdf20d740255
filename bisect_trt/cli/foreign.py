"""Options of other frameworks, which users of ``polygraphy run`` know: a sentence says where to start instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bisect_trt.cli.arguments import CHECK
from bisect_trt.errors import UsageError

_TENSORFLOW = (
    "--tf",
    "--tftrt",
    "--tf-trt",
    "--tf-outputs",
    "--ckpt",
    "--freeze-graph",
    "--xla",
    "--save-pb",
    "--save-tensorboard",
    "--save-timeline",
    "--gpu-memory-fraction",
    "--allow-growth",
)
_CAFFE = ("--caffe", "--caffe-model", "--caffe-outputs", "--deploy", "--prototxt")
_UFF = ("--uff", "--uff-order", "--uff-shape", "--save-uff", "--trt-uff", "--preprocessor")
_FRAMEWORKS: Mapping[str, str] = {
    **dict.fromkeys(_TENSORFLOW, "TensorFlow"),
    **dict.fromkeys(_CAFFE, "Caffe"),
    **dict.fromkeys(_UFF, "UFF"),
}

_COMPARING = ("diagnose", "layerwise", "run")
"""Commands without a check command."""


def refuse_foreign(words: Sequence[str]) -> None:
    """Make sure that no option of another framework is among the words, up to those of a check command.

    Nor may a check command follow where nothing takes one.

    Raises:
        UsageError: One is.
    """
    command = next((word for word in words if not word.startswith("-")), None)
    for word in words:
        if word == CHECK and command in _COMPARING:
            raise UsageError(
                f"{command} compares numbers itself and takes no {CHECK}; with a check of your own use "
                f"`bisect-trt reduce {CHECK}`, or `bisect-trt precision {CHECK}` for what to keep in fp32."
            )
        if word == CHECK:
            return
        framework = _FRAMEWORKS.get(word.partition("=")[0])
        if framework is not None:
            raise UsageError(
                f"{word.partition('=')[0]} is about {framework}, and bisect-trt starts from ONNX; convert the model first, "
                "with tf2onnx if it is TensorFlow's (python -m tf2onnx.convert --saved-model DIR --output model.onnx)."
            )
