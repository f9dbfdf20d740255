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


def refuse_foreign(words: Sequence[str]) -> None:
    """Make sure that no option of another framework is among the words, up to those of a check command.

    Raises:
        UsageError: One is.
    """
    for word in words:
        if word == CHECK:
            return
        framework = _FRAMEWORKS.get(word.partition("=")[0])
        if framework is not None:
            raise UsageError(
                f"{word.partition('=')[0]} is about {framework}, and bisect-trt starts from ONNX; convert the model first, "
                "with tf2onnx if it is TensorFlow's (python -m tf2onnx.convert --saved-model DIR --output model.onnx)."
            )
