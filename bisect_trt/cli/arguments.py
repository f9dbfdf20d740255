"""What was typed, and as click reads it.

Command lines are as people type them for this kind of tool: several values may follow one flag
(``--input-shapes a:[1] b:[2]``), and ``--check`` takes all that comes after it. click's options take one value each, so the
words are rewritten to that before it sees them. Options of other frameworks, which users of ``polygraphy run`` know, are
refused with a sentence that says where to start instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bisect_trt.errors import UsageError


@dataclass
class Invocation:
    """What was typed.

    Attributes:
        argv: The words after the program's name.
        resumed: The folder of the run that goes on, if one does.
        folder: The run's folder, once it is open.
        began: When the process began, on the monotonic clock, if it is one of its own.
        kept: What it has to itself until it ends.
    """

    argv: tuple[str, ...] = ()
    resumed: Path | None = None
    folder: Path | None = None
    began: float | None = None
    kept: ExitStack = field(default_factory=ExitStack)


invocation = Invocation()


SPELLINGS: Mapping[str, str] = {
    "--abs-tol": "--atol",
    "--check-inference": "--check",
    "--do-shape-inference": "--shape-inference",
    "--execution-providers": "--providers",
    "--ext": "--external-data-dir",
    "--fail-returncode": "--fail-code",
    "--gen": "--gen-script",
    "--ignore-fail-returncode": "--ignore-fail-code",
    "--intermediate-artifact": "--candidate",
    "--iter-artifact": "--candidate",
    "--iters": "--iterations",
    "--load-external-data": "--external-data-dir",
    "--load-input-data": "--load-inputs",
    "--load-results": "--load-outputs",
    "--load-tactic-replay": "--load-tactics",
    "--memory-pool-limit": "--pool-limit",
    "--minimal-good": "--min-good",
    "--model-inputs": "--model-input-shapes",
    "--override-inputs": "--override-input-shapes",
    "--rel-tol": "--rtol",
    "--save-input-data": "--save-inputs",
    "--save-results": "--save-outputs",
    "--save-tactic-replay": "--save-tactics",
    "--silent": "--quiet",
}
"""Polygraphy's other words for options, which are taken as well."""


ALWAYS = (
    "--force-fallback-shape-inference",
    "--no-onnxruntime-shape-inference",
    "--no-remove-intermediate",
    "--no-save-all-tensors-to-one-file",
    "--sequential-runners",
)
"""Polygraphy's switches for what is always so here: shapes are those of the reference run, or ONNX's own inference."""
_WORKSPACE = "--workspace"
"""How Polygraphy had ``--pool-limit workspace:SIZE`` before."""


def respell(words: Sequence[str]) -> list[str]:
    """Options by the names that they have here, up to those of a check command."""
    done: list[str] = []
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if word in ALWAYS:
            continue
        if flag == _WORKSPACE:
            done += ["--pool-limit", *([f"workspace:{value}"] if equals else [])]
        elif place and words[place - 1] == _WORKSPACE:
            done.append(f"workspace:{word}")
        else:
            done.append(SPELLINGS.get(flag, flag) + equals + value)
        if done[-1] == CHECK:
            return [*done, *words[place + 1 :]]
    return done


INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(
        ("--verbosity", "--log-format"), "-v and -q say how much is told, --log-file takes all of it with times"
    ),
    "--pluginref": "--onnx is the evaluator of all of ONNX",
    "--model-type": "models are ONNX; an engine is given beside its model, with --load-engine",
    "--data-loader-backend-module": "values are NumPy's, and a script may return whatever NumPy makes an array of",
    **dict.fromkeys(
        (
            "--save-external-data",
            "--external-data-path",
            "--external-data-size-threshold",
        ),
        "weights past 1 GiB go to a file beside the model by themselves",
    ),
    **dict.fromkeys(
        ("--onnx-outputs-by-type", "--trt-outputs-by-type", "--outputs-by-type"), "--onnx-outputs op:TYPE marks by type"
    ),
    "--no-fold-shapes": "--no-shape-inference of sanitize folds none",
    **dict.fromkeys(
        ("--num-passes", "--num-const-fold-passes", "--partitioning", "--no-per-pass-shape-inference"),
        "values are folded until there is nothing more to fold, each node by itself",
    ),
    **dict.fromkeys(
        ("--iter-info", "--iteration-info"),
        "candidates are told apart by their paths; `bisect-trt log` has their numbers",
    ),
    **dict.fromkeys(
        ("--load-debug-replay", "--save-debug-replay"), "every run is saved; `bisect-trt resume` goes on with one"
    ),
    **dict.fromkeys(
        ("--precision", "--direction", "precision --dir", "precision --mode"),
        "it finds the fewest nodes that have to stay in fp32, wherever they are",
    ),
    "--opset": "models are ONNX already",
    "--line-width": "lines are not broken",
    "--list-unbounded-dds": "`bisect-trt inspect model FILE --show layers` has the dimensions that inference does not know",
    "--set-unbounded-dds-upper-bound": "a bound would change what the model computes",
    "--with-partitioning": "`bisect-trt reduce --trt` finds the smallest piece that TensorRT refuses",
    "--save-accuracy-results": "--json writes what was compared; `bisect-trt log RUN --atol TOL` judges it anew",
    "--postprocess-func-script": "--compare-func-script may do that before it compares",
    "--save-input-blob": "--save-inputs writes .npz or .json",
    "--enable-uint8-asymmetric-quantization-dla": "--onnx-flags enable_uint8_and_asymmetric_quantization_dla",
    **dict.fromkeys(
        ("--mark-debug", "--mark-unfused-tensors-as-debug-tensors"),
        "--trt-outputs mark unfused shows what is not fused",
    ),
    **dict.fromkeys(("--save-visual", "--visual-port"), "--visual FILE.svg draws the model"),
    **dict.fromkeys(
        ("--tensor-dtypes", "--tensor-datatypes", "--all-tensor-dtypes", "--all-tensor-datatypes"),
        "inputs and outputs have the model's types; `bisect-trt convert --io-fp16` writes a model with others",
    ),
    **dict.fromkeys(("--tensor-formats", "--all-tensor-formats"), "inputs and outputs are linear in memory"),
    **dict.fromkeys(
        ("--trt-config-script", "--trt-config-postprocess-script", "--trt-cpps"),
        "--builder-flag and --builder-set reach all of the configuration",
    ),
    **dict.fromkeys(
        ("--trt-network-postprocess-script", "--trt-npps", "--decomposable-attentions"),
        "a --check command may be Polygraphy with it",
    ),
    "--combine-tensor-info": "`bisect-trt layerwise` shows layers with their values",
}
"""What Polygraphy has options for that there are none for here, or not of one command, and what is there instead."""
TOOLS: Mapping[str, str] = {
    "debug": "Polygraphy's is `reduce`, `precision` and `repeat` here",
    "surgeon": "Polygraphy's is `extract` and `sanitize` here",
    "check": "instead of Polygraphy's, `run` compares, and `log RUN --atol TOL` judges anew what was kept",
    "data": "instead of Polygraphy's, `run --load-inputs A B --save-inputs ALL` writes several files into one",
    "template": "instead of Polygraphy's, `run --gen-script` writes a program",
    "capability": "`reduce --trt` finds the smallest piece that TensorRT refuses",
    "diff-tactics": "`diff` compares what builds chose",
    "sparsity": "Polygraphy's has no counterpart here",
    "plugin": "Polygraphy's has no counterpart here",
    "multi-device": "Polygraphy's has no counterpart here",
}
"""Polygraphy's tools by other names than the commands have here."""


_NUMBER = re.compile(r"-(\.?\d|inf$)")
CHECK = "--check"


def rewrite(words: Sequence[str], several: frozenset[str]) -> list[str]:
    """Write ``--flag a b`` as ``--flag=a --flag=b``, and each word after ``--check`` as ``--check=word``.

    Args:
        words: The command line without the program's name.
        several: The flags of its command that take several values.
    """
    done: list[str] = []
    current = ""
    for place, word in enumerate(words):
        if word == CHECK and CHECK in several:
            rest = words[place + 1 :]
            return done + ([f"{CHECK}={each}" for each in rest] or [f"{CHECK}="])
        if word in several:
            current = word
            if place + 1 == len(words) or _is_flag(words[place + 1]):
                done.append(word)  # without a value: click says so
        elif current and not _is_flag(word):
            done.append(f"{current}={word}" if current.startswith("--") else f"{current}{word}")
        else:
            current = ""
            done.append(word)
    return done


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)


_TENSORFLOW = (
    "--tf",
    "--tftrt",
    "--tf-trt",
    "--use-tftrt",
    "--minimum-segment-size",
    "--dynamic-op",
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
