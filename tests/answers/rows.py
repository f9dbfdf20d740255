"""The rows of the corpus: which command lines are run, on which model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from answers import models

_JSON = (
    *(
        "diagnose",
        "reduce",
        "precision",
        "cause",
        "workaround",
        "repeat",
        "layerwise",
        "samples",
        "sweep",
        "releases",
    ),
    *("extract", "sanitize", "convert", "run", "inspect", "diff"),
)
FIELDS = {
    "precision": ("keep_fp32", "minimal"),
    "cause": ("cause",),
    "layerwise": ("first_mismatch",),
    "sweep": ("sweep",),
    "repeat": ("good", "bad"),
}
"""What else of a command's JSON answer has to stay."""


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        name: Of its file, and of its test.
        model: Writes ``m.onnx``.
        lines: The command lines, run one after the other in one folder. ``CHECK`` is
            ``check.py {model}``, ``{run}`` the newest run.
        shows: Words of which those that are printed have to stay.
        more: Writes other files into the folder.
        interrupt_at: The run of the target under test that Ctrl-C comes in.
        seed: Of what is random.
        tensorrt: Whether a stand-in takes the part of TensorRT.
        answers: Commands that get ``--json``.
    """

    name: str
    model: Callable[[Path], object]
    lines: tuple[str, ...]
    shows: tuple[str, ...] = ()
    more: Callable[[Path], object] = bool
    interrupt_at: int | None = None
    seed: int = 0
    tensorrt: bool = False
    answers: tuple[str, ...] = _JSON

    def prepare(self, folder: Path) -> None:
        """Write what it needs."""
        self.model(folder / "m.onnx")
        self.more(folder)


def _chain(names: str, **options: Any) -> Callable[[Path], object]:
    return partial(models.chain, names=names, **options)


_ORT = "--onnxrt"
_PLAIN = _chain("a b wrong.c d e")
_THREE, _FOUR, _SIX, _EIGHT = map(_chain, ("a b c", "a b c d", "a b c d e f", "a b c d e f g h"))
_LONG_PAIR = partial(models.long, length=30, bad={5: "pair.a", 22: "pair.b"})


def _rows() -> list[Row]:
    reduce = "reduce m.onnx -o r.onnx"
    precision = f"precision m.onnx -o mixed.onnx {_ORT}"
    return [
        # reduce: a check command
        Row("reduce-check-one", _SIX, (f"{reduce} --check CHECK d=1",)),
        Row("reduce-check-first", _SIX, (f"{reduce} --check CHECK a=1",)),
        Row("reduce-check-last", _SIX, (f"{reduce} --check CHECK f=1",)),
        Row("reduce-check-pair", _EIGHT, (f"{reduce} --check CHECK b+g=1",)),
        Row("reduce-check-all-nodes", _FOUR, (f"{reduce} --check CHECK a+b+c+d=1",)),
        Row(
            "reduce-check-three",
            partial(models.long, length=40, bad={}),
            (f"{reduce} --check CHECK n3+n17+n31=1",),
        ),
        Row(
            "reduce-check-long",
            partial(models.long, length=200, bad={}),
            (f"{reduce} --check CHECK n77=1",),
        ),
        Row("reduce-check-two-failures", _EIGHT, (f"{reduce} --all --check CHECK b=1 g=1",)),
        Row("reduce-check-always", _THREE, (f"{reduce} --check CHECK =1",)),
        Row("reduce-check-never", _THREE, (f"{reduce} --check CHECK z=1",)),
        Row("reduce-check-crash", _FOUR, (f"{reduce} --check CHECK c=signal",)),
        Row("reduce-check-hang", _FOUR, (f"{reduce} --timeout 1 --check CHECK c=hang",)),
        Row("reduce-check-other-exit", _SIX, (f"{reduce} --fail-code 3 --check CHECK a+d=3 d=4",)),
        Row("reduce-check-skip", _SIX, (f"{reduce} --check CHECK a+d=1 d=125",)),
        Row(
            "reduce-check-ignore", _SIX, (f"{reduce} --ignore-fail-code 7 --check CHECK b+e=1 b=7",)
        ),
        Row(
            "reduce-check-regex",
            _SIX,
            (f"{reduce} --fail-regex oops --check CHECK c+d=oops c=other",),
        ),
        Row("reduce-check-flaky", _SIX, (f"{reduce} --repeat 10 --check CHECK d=luck5",), seed=3),
        Row(
            "reduce-check-flaky-rare",
            _FOUR,
            (f"{reduce} --repeat 20 --check CHECK c=luck2",),
            seed=4,
        ),
        Row("reduce-check-steady-repeat", _FOUR, (f"{reduce} --repeat 5 --check CHECK c=1",)),
        Row("reduce-budget", _EIGHT, (f"{reduce} --max-probes 3 --check CHECK b+g=1",)),
        Row("reduce-linear", _SIX, (f"{reduce} --mode linear --check CHECK d=1",)),
        Row("reduce-bisect", _SIX, (f"{reduce} --mode bisect --check CHECK d=1",)),
        Row("reduce-ddmin", _SIX, (f"{reduce} --mode ddmin --check CHECK b+e=1",)),
        Row("reduce-keep-inputs", _SIX, (f"{reduce} --no-reduce-inputs --check CHECK c=1",)),
        Row("reduce-keep-outputs", _SIX, (f"{reduce} --no-reduce-outputs --check CHECK c=1",)),
        Row("reduce-min-good", _SIX, (f"{reduce} --min-good g.onnx --check CHECK c=1",)),
        Row(
            "reduce-branches",
            partial(models.branches, left="a b c", right="d e f"),
            (f"{reduce} --check CHECK b+e=1",),
        ),
        Row("reduce-exists", _chain("a b"), ("reduce m.onnx -o m.onnx --check CHECK a=1",)),
        Row("reduce-no-check", _chain("a b"), (reduce,)),
        Row("reduce-no-program", _chain("a b"), (f"{reduce} --check no-such-program {{model}}",)),
        Row("reduce-damaged", models.damaged, (f"{reduce} --check CHECK a=1",)),
        Row(
            "reduce-resume",
            _EIGHT,
            (
                f"{reduce} --max-probes 4 --check CHECK b+g=1",
                "resume {run}",
                "log {run}",
                "log {run} 2",
            ),
            shows=("FAIL", "PASS"),
        ),
        # reduce: the built-in comparison
        Row("reduce-wrong", _PLAIN, (f"{reduce} {_ORT}",)),
        Row("reduce-nan", _chain("a b nan.c d e"), (f"{reduce} {_ORT}",)),
        Row("reduce-crash", _chain("a b crash.c d e"), (f"{reduce} {_ORT}",)),
        Row("reduce-hang", _chain("a b hang.c d e"), (f"{reduce} {_ORT} --timeout 5",)),
        Row("reduce-refuse", _chain("a b refuse.c d e"), (f"{reduce} {_ORT}",)),
        Row("reduce-pair", _chain("a pair.b c d pair.e f"), (f"{reduce} {_ORT}",)),
        Row("reduce-luck", _chain("a b luck6.c d e"), (f"{reduce} {_ORT} --repeat 10",), seed=1),
        Row("reduce-healthy", _THREE, (f"{reduce} {_ORT}",)),
        Row("reduce-interrupted", _LONG_PAIR, (f"{reduce} {_ORT}", "resume {run}"), interrupt_at=6),
        Row("reduce-fp16", models.overflowing, (f"{reduce} {_ORT} --fp16",)),
        Row("reduce-bf16", models.cancelling, (f"{reduce} {_ORT} --bf16",)),
        Row("reduce-openvino", _chain("a b wrong.c d"), (f"{reduce} --openvino",)),
        Row(
            "reduce-samples",
            _chain("a large.b c d"),
            (f"{reduce} {_ORT} --load-inputs in0.npz in1.npz",),
            more=lambda f: models.inputs(f / "in.npz", (1, 9)),
        ),
        Row("reduce-dynamic", models.dynamic, (f"{reduce} {_ORT} --input-shapes x:[6,4]",)),
        Row("reduce-external", models.external, (f"{reduce} {_ORT}",)),
        Row("reduce-two-outputs", models.two_outputs, (f"{reduce} {_ORT}",)),
        Row("reduce-if", models.with_if, (f"{reduce} {_ORT}",)),
        Row("reduce-loop", models.with_loop, (f"{reduce} {_ORT}",)),
        Row("reduce-scan", models.with_scan, (f"{reduce} {_ORT}",)),
        Row("reduce-optimizer", models.cancelling, (f"{reduce} {_ORT}",)),
        Row("reduce-unknown-operator", models.half, (f"{reduce} {_ORT}",)),
        Row("reduce-tolerance", _PLAIN, (f"{reduce} {_ORT} --atol 1",)),
        # diagnose
        Row("diagnose-overflow", models.overflowing, (f"diagnose m.onnx {_ORT} --fp16",)),
        Row("diagnose-wrong", _PLAIN, (f"diagnose m.onnx {_ORT}",)),
        Row("diagnose-nan", _chain("a nan.b c"), (f"diagnose m.onnx {_ORT}",)),
        Row("diagnose-crash", _chain("a b crash.c d"), (f"diagnose m.onnx {_ORT}",)),
        Row("diagnose-refuse", _chain("a refuse.b c d"), (f"diagnose m.onnx {_ORT}",)),
        Row("diagnose-hang", _chain("a hang.b c"), (f"diagnose m.onnx {_ORT} --timeout 5",)),
        Row("diagnose-pair", _chain("a pair.b c pair.d e"), (f"diagnose m.onnx {_ORT}",)),
        Row("diagnose-healthy", _THREE, (f"diagnose m.onnx {_ORT}",)),
        Row("diagnose-two-all", models.two_outputs, (f"diagnose m.onnx {_ORT} --all",)),
        Row("diagnose-fusion", models.cancelling, (f"diagnose m.onnx {_ORT}",)),
        Row(
            "diagnose-luck", _chain("a luck5.b c"), (f"diagnose m.onnx {_ORT} --repeat 8",), seed=2
        ),
        Row("diagnose-conv", models.convolutions, (f"diagnose m.onnx {_ORT}",)),
        Row("diagnose-loop", models.with_loop, (f"diagnose m.onnx {_ORT}",)),
        Row("diagnose-external", models.external, (f"diagnose m.onnx {_ORT}",)),
        Row(
            "diagnose-budget",
            models.overflowing,
            (f"diagnose m.onnx {_ORT} --fp16 --max-probes 4", "resume {run}"),
        ),
        Row("diagnose-no-target", _PLAIN, ("diagnose m.onnx",)),
        Row("diagnose-trt", _PLAIN, ("diagnose m.onnx --trt",)),
        Row("diagnose-zip", _PLAIN, (f"diagnose m.onnx {_ORT} --zip", "report {run}")),
        Row("diagnose-openvino", _chain("a wrong.b c"), ("diagnose m.onnx --openvino",)),
        Row(
            "diagnose-place",
            models.overflowing,
            (f"diagnose m.onnx {_ORT} --fp16 --on python=PYTHON",),
        ),
        Row("diagnose-command-place", _PLAIN, (f"diagnose m.onnx {_ORT} --on 'command=PYTHON -'",)),
        Row(
            "diagnose-two-overflows",
            models.two_overflows,
            (f"diagnose m.onnx {_ORT} --fp16 --all",),
        ),
        Row(
            "diagnose-samples",
            _chain("a large.b c d"),
            (f"diagnose m.onnx {_ORT} {_TWO}",),
            more=_two_samples,
        ),
        Row("diagnose-through", models.tanhs, ("diagnose m.onnx --through TOOL",), more=_tool),
        Row("reduce-through", models.tanhs, (f"{reduce} --through TOOL",), more=_tool),
        Row("cause-through", models.tanhs, ("cause m.onnx --through TOOL",), more=_tool),
        Row(
            "diagnose-metric",
            models.overflowing,
            (f"diagnose m.onnx {_ORT} --fp16 --metric psnr --min 30 --iterations 4",),
        ),
        Row("diagnose-two-workers", _PLAIN, (f"diagnose m.onnx {_ORT} --workers 2",)),
        Row("reduce-two-workers", _LONG_PAIR, (f"{reduce} {_ORT} --workers 2",)),
        Row(
            "reduce-metric",
            _chain("a large.b c d"),
            (f"{reduce} {_ORT} --load-inputs in0.npz in1.npz --metric score.py --max-drop 0.1",),
            more=_score,
        ),
        # precision
        Row("precision-overflow", models.overflowing, (f"{precision} --fp16",)),
        Row("precision-bf16", models.cancelling, (f"{precision} --bf16",)),
        Row("precision-cancelling", models.cancelling, (f"{precision} --fp16 --fresh-samples 20",)),
        Row("precision-two", models.two_overflows, (f"{precision} --fp16",)),
        Row("precision-healthy", _THREE, (f"{precision} --fp16",)),
        Row("precision-exclude", models.overflowing, (f"{precision} --fp16 --exclude big",)),
        Row(
            "precision-include",
            models.two_overflows,
            (f"{precision} --fp16 --include 'big*' 'small*'",),
        ),
        Row("precision-budget", models.two_overflows, (f"{precision} --fp16 --max-probes 3",)),
        Row(
            "precision-check",
            models.overflowing,
            (f"precision m.onnx -o mixed.onnx --fp16 --check CHECK {_CASTS}=1",),
        ),
        Row(
            "precision-metric",
            models.two_overflows,
            (f"{precision} --fp16 --metric psnr --min 30 --iterations 4",),
        ),
        Row("precision-no-type", models.overflowing, (precision,)),
        Row("precision-wrong", _PLAIN, (f"{precision} --fp16",)),
        Row("precision-conv", models.convolutions, (f"{precision} --fp16",)),
        Row("int8-one-group", models.quantized, (f"{precision} --int8",)),
        Row(
            "int8-two-groups",
            partial(models.quantized, scales=(0.02, 0.0005, 0.02, 0.0004)),
            (f"{precision} --int8",),
        ),
        Row(
            "int8-healthy", partial(models.quantized, scales=(0.02, 0.02)), (f"{precision} --int8",)
        ),
        Row("int8-no-sensitivity", models.quantized, (f"{precision} --int8 --no-sensitivity",)),
        Row("int8-ladder", models.quantized, (f"{precision} --ladder int8,fp16,fp32",)),
        Row(
            "int8-metric",
            models.quantized,
            (f"{precision} --int8 --metric psnr --min 30 --iterations 4",),
        ),
        Row("int8-not-quantized", models.overflowing, (f"{precision} --int8",)),
        # cause, workaround
        Row("cause-fusion", models.cancelling, (f"cause m.onnx {_ORT}",)),
        Row("cause-none", _PLAIN, (f"cause m.onnx {_ORT}",)),
        Row("cause-healthy", _chain("a b"), (f"cause m.onnx {_ORT}",)),
        Row("cause-openvino", _chain("a wrong.b"), ("cause m.onnx --openvino",)),
        Row("cause-overflow", models.overflowing, (f"cause m.onnx {_ORT} --fp16",)),
        Row("workaround-fusion", models.cancelling, (f"workaround m.onnx {_ORT}",)),
        Row("workaround-overflow", models.overflowing, (f"workaround m.onnx {_ORT} --fp16",)),
        Row("workaround-none", _PLAIN, (f"workaround m.onnx {_ORT}",)),
        # layerwise, run
        Row("layerwise-wrong", _PLAIN, (f"layerwise m.onnx {_ORT}",)),
        Row("layerwise-healthy", _THREE, (f"layerwise m.onnx {_ORT}",)),
        Row("layerwise-isolate", models.two_outputs, (f"layerwise m.onnx {_ORT} --isolate",)),
        Row("layerwise-overflow", models.overflowing, (f"layerwise m.onnx {_ORT} --fp16",)),
        Row("layerwise-crash", _chain("a crash.b c"), (f"layerwise m.onnx {_ORT}",)),
        Row("layerwise-fusion", models.cancelling, (f"layerwise m.onnx {_ORT}",)),
        Row("layerwise-loop", models.with_loop, (f"layerwise m.onnx {_ORT}",)),
        Row(
            "layerwise-samples",
            _chain("a large.b c d"),
            (f"layerwise m.onnx {_ORT} {_TWO}",),
            more=_two_samples,
        ),
        Row("run-match", _THREE, (f"run m.onnx {_ORT}",)),
        Row("run-mismatch", _PLAIN, (f"run m.onnx {_ORT}",)),
        Row("run-nan", _chain("a nan.b c"), (f"run m.onnx {_ORT}",)),
        Row("run-crash", _chain("a crash.b c"), (f"run m.onnx {_ORT}",)),
        Row("run-refuse", _chain("a refuse.b c"), (f"run m.onnx {_ORT}",)),
        Row("run-fp16", models.overflowing, (f"run m.onnx {_ORT} --fp16",)),
        Row(
            "run-saved",
            _THREE,
            (
                f"run m.onnx {_ORT} --save-outputs o.npz",
                f"run m.onnx {_ORT} --load-outputs o.npz",
                "inspect data o.npz",
            ),
        ),
        Row("run-tolerances", _PLAIN, (f"run m.onnx {_ORT} --rtol 0.2",)),
        Row("run-bad-tolerance", _PLAIN, (f"run m.onnx {_ORT} --atol nobody:1",)),
        Row(
            "run-dynamic",
            models.dynamic,
            (
                f"run m.onnx {_ORT} --input-shapes x:[3,4]",
                f"run m.onnx {_ORT} --input-shapes x:[5,4]",
            ),
        ),
        Row("run-iterations", _PLAIN, (f"run m.onnx {_ORT} --iterations 3",)),
        # the rest
        Row("sweep-rows", models.dynamic, (f"sweep m.onnx {_ORT} --shapes x:[1..8,4]",)),
        Row("sweep-few", models.dynamic, (f"sweep m.onnx {_ORT} --shapes x:[{{1,3,5}},4]",)),
        Row(
            "sweep-healthy", _chain("a b", rows="n"), (f"sweep m.onnx {_ORT} --shapes x:[1..5,4]",)
        ),
        Row(
            "sweep-long",
            partial(models.dynamic, names="a rows40.b"),
            (f"sweep m.onnx {_ORT} --shapes x:[1..64,4] --tries 12",),
        ),
        Row(
            "samples-one",
            _chain("a large.b c"),
            (f"samples m.onnx -o s.npz {_ORT} {_TWO}",),
            more=_two_samples,
        ),
        Row(
            "samples-healthy",
            _THREE,
            (f"samples m.onnx -o s.npz {_ORT} {_TWO}",),
            more=_two_samples,
        ),
        Row(
            "samples-random",
            _chain("a large.b c"),
            (f"samples m.onnx -o s.npz {_ORT} --iterations 6 --val-range [0,5]",),
        ),
        Row(
            "repeat-luck",
            _chain("a luck5.b c"),
            (f"repeat m.onnx {_ORT} -n 8", "diff {run}"),
            seed=5,
        ),
        Row("repeat-until", _chain("a luck3.b c"), (f"repeat m.onnx {_ORT} --until both",), seed=6),
        Row("repeat-good", _THREE, (f"repeat m.onnx {_ORT} -n 4",)),
        Row("repeat-same-engine", _THREE, (f"repeat m.onnx {_ORT} -n 4 --same-engine",)),
        Row("repeat-check", _THREE, ("repeat m.onnx -n 10 --check CHECK b=luck4",), seed=7),
        Row("releases-none", _PLAIN, (f"releases m.onnx {_ORT} --from 2 --to 1",)),
        Row("extract-piece", _FOUR, ("extract m.onnx -o e.onnx --inputs a_out --outputs c_out",)),
        Row(
            "extract-values",
            models.dynamic,
            ("extract m.onnx -o e.onnx --inputs a_out --outputs b_out --input-shapes x:[2,4]",),
        ),
        Row("extract-unknown", _chain("a b"), ("extract m.onnx -o e.onnx --inputs nobody",)),
        Row("extract-external", models.external, ("extract m.onnx -o e.onnx --outputs a_out",)),
        Row("sanitize-fold", models.foldable, ("sanitize m.onnx -o s.onnx", "run s.onnx --onnxrt")),
        Row(
            "sanitize-plain",
            models.foldable,
            ("sanitize m.onnx -o s.onnx --no-fold-constants --no-cleanup",),
        ),
        Row(
            "sanitize-shapes",
            models.dynamic,
            ("sanitize m.onnx -o s.onnx --override-input-shapes x:[2,4]",),
        ),
        Row(
            "convert-fp16",
            models.overflowing,
            ("convert m.onnx -o c.onnx --fp16", "inspect c.onnx"),
        ),
        Row("convert-bf16", _chain("a b"), ("convert m.onnx -o c.onnx --bf16",)),
        Row("convert-nothing", _chain("a b"), ("convert m.onnx -o c.onnx",)),
        Row(
            "inspect-model",
            models.with_if,
            ("inspect m.onnx --show layers attrs weights",),
            shows=("wrong.b", "If", "Greater"),
        ),
        Row("inspect-damaged", models.damaged, ("inspect m.onnx",)),
        Row("log-none", _PLAIN, ("log", "report none", "resume none")),
        Row(
            "doctor", _PLAIN, ("doctor",), shows=("onnxruntime", "openvino", "TensorRT"), answers=()
        ),
        *_tensorrt_rows(),
        Row(
            "bad-option",
            _PLAIN,
            ("reduce m.onnx -o r.onnx --no-such", "nothing m.onnx", f"diagnose none.onnx {_ORT}"),
        ),
    ]


def _tensorrt_rows() -> list[Row]:
    """On a stand-in that lowers models as TensorRT to 10 does."""
    lines: dict[str, tuple[Callable[[Path], object], str]] = {
        "trt-reduce": (models.overflowing, "reduce m.onnx -o r.onnx --trt --fp16"),
        "trt-reduce-long": (
            partial(models.long, length=60, bad={31: "wrong.c"}),
            "reduce m.onnx -o r.onnx --trt",
        ),
        "trt-reduce-pair": (_chain("a pair.b c d pair.e f"), "reduce m.onnx -o r.onnx --trt"),
        "trt-diagnose-overflow": (models.overflowing, "diagnose m.onnx --trt --fp16"),
        "trt-diagnose-wrong": (_PLAIN, "diagnose m.onnx --trt"),
        "trt-diagnose-refuse": (_chain("a refuse.b c d"), "diagnose m.onnx --trt"),
        "trt-diagnose-healthy": (_chain("a b"), "diagnose m.onnx --trt"),
        "trt-precision": (models.overflowing, "precision m.onnx -o mixed.onnx --trt --fp16"),
        "trt-precision-casts": (
            models.overflowing,
            "precision m.onnx -o mixed.onnx --trt --fp16 --strongly-typed",
        ),
        "trt-int8": (models.quantized, "precision m.onnx -o mixed.onnx --trt --int8"),
        "trt-layerwise": (_PLAIN, "layerwise m.onnx --trt"),
        "trt-run": (_PLAIN, "run m.onnx --trt"),
        "trt-repeat": (_chain("a luck5.b c"), "repeat m.onnx --trt -n 6"),
        "trt-convert": (_chain("a b"), "convert m.onnx -o m.engine"),
        "trt-workaround": (_PLAIN, "workaround m.onnx --trt"),
        "trt-cause": (_PLAIN, "cause m.onnx --trt"),
    }
    return [Row(name, model, (line,), tensorrt=True) for name, (model, line) in lines.items()]


_TWO = "--load-inputs in0.npz in1.npz"
_CASTS = "x_fp16"


def _two_samples(folder: Path) -> None:
    models.inputs(folder / "in.npz", (1, 9))


def _score(folder: Path) -> None:
    _two_samples(folder)
    (folder / "score.py").write_text(
        "import numpy\n"
        "def metric(outputs, reference, labels=None):\n"
        "    same = [numpy.allclose(next(iter(o.values())), next(iter(r.values()))) for o, r in zip(outputs, reference)]\n"
        "    return list(map(float, same))\n"
    )


def _tool(folder: Path) -> None:
    """A tool that takes the Tanh behind a MatMul for a Relu; by bytes, because importing ONNX takes longer than all else."""
    (folder / "tool.py").write_text(
        "import sys\n"
        "data = open(sys.argv[1], 'rb').read()\n"
        "if b'MatMul' in data:\n"
        "    data = data.replace(b'n3\"\\x04Tanh', b'n3\"\\x04Relu')\n"
        "open(sys.argv[2], 'wb').write(data)\n"
    )


ROWS = tuple(_rows())
