"""How far off a quantized model may be: half as much again as what it is off by with scales that fit.

Any fixed number is of no use: int8 costs one model a tenth of a percent and another one five. So the model itself is the
measure, with every scale and zero point fitted to the values that its tensors have on the samples here (minimum and maximum,
times what scales usually are in this model, which was calibrated on other data), and with the bad ones fitted alone. Its mean
absolute error is what the types and the number of layers cost; a model that is off by more than half as much again is off
because of something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from bisect_trt.graph.network import Network
from bisect_trt.graph.unquantize import rescale, unquantize
from bisect_trt.options.choices import Algorithm, ErrorStat
from bisect_trt.probing.protocol import Failed, Series
from bisect_trt.targets.settings import reference_settings
from bisect_trt.tensors.fresh import FreshSamples
from bisect_trt.tensors.grid import Grid, along
from bisect_trt.tensors.inputs import Sample
from bisect_trt.tensors.npz import load_npz
from bisect_trt.tensors.tolerance import Precision, ToleranceOptions
from bisect_trt.workflows.bits.misfit import Misfit, usual_ratio
from bisect_trt.workflows.bits.plain import Plain
from bisect_trt.workflows.precision.rounds import table_sizes
from bisect_trt.workflows.subject import Subject

TIMES = 1.5
"""Of the largest error of any sample: samples differ by up to a third, and integer kernels by a twentieth."""
FLOOR = 1e-2
"""Of an output's mean absolute value: less is no failure of an 8-bit model."""
WAYS = ("alike", "permuted")
"""How fresh samples are made: rescaled ones would leave the ranges that were calibrated, which is what clipping is for."""
_SAMPLES, _MORE = 8, 8
_ALIKE = 2.0
"""Of samples that were not fitted to, so many times the middle error count."""
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Yardstick:
    """What the model is off by with scales that fit.

    Attributes:
        errors: Mean absolute error of each output, the largest of all samples.
        sizes: Mean absolute value of each output.
        samples: On how many samples that was measured.
        ratio: How many times the fitted scales they were.
        model: The model with scales that fit.
    """

    errors: Mapping[str, float]
    sizes: Mapping[str, float]
    samples: int
    ratio: float
    model: onnx.ModelProto

    def allowed(self, name: str) -> float:
        """The mean absolute error up to which an output is right."""
        return max(TIMES * self.errors.get(name, 0.0), FLOOR * self.sizes.get(name, 0.0), 1e-12)

    def describe(self) -> str:
        """A sentence without its end."""
        shown = [
            f"'{name}' {self.allowed(name):.4g} ({self.allowed(name) / max(self.sizes[name], 1e-30):.1%} of its mean size)"
            for name in list(self.errors)[:3]
        ]
        return (
            f"mean absolute error up to {', '.join(shown)}: {TIMES:g} times what the model is off by with scales that fit, at "
            f"least {FLOOR:.0%}"
        )


def measure_yardstick(subject: Subject, plain: Plain, misfits: Sequence[Misfit]) -> Yardstick | None:
    """Run the model with scales that fit; ``None`` if that does not run.

    Args:
        subject: The model.
        plain: The same in floats.
        misfits: How its tensors fit.
    """
    ratio = usual_ratio(misfits)
    model = fitted_model(subject, plain, misfits, ratio)
    law = FreshSamples.like(subject.samples, table_sizes(plain.network), subject.settings.data.seed)
    law = replace(law, seed=law.seed + (1 << 21), ways=WAYS)
    more = [law.draw(number) for number in range(_MORE)] if law.varies else []
    samples = [*subject.samples[:_SAMPLES], *more]
    wanted = run_all(subject, "truth", plain.truth.proto, samples)
    made = run_all(subject, "fitted", model, samples)
    if made is None or wanted is None:
        samples = list(subject.samples[:_SAMPLES])  # an index past the end of a table is no sample
        wanted = run_all(subject, "truth", plain.truth.proto, samples)
        made = run_all(subject, "fitted", model, samples)
    if made is None or wanted is None:
        return None
    given = len(subject.samples[:_SAMPLES])
    every = [mean_errors(*pair) for pair in zip(wanted, made, strict=True)]
    found, others = every[:given], every[given:]
    mended = run_all(subject, "mended", fitted_model(subject, plain, misfits, ratio, bad=True), samples[:given])
    found += [] if mended is None else [mean_errors(*pair) for pair in zip(wanted[:given], mended, strict=True)]
    errors = {name: largest_error(name, found, others) for name in dict.fromkeys(n for each in found for n in each)}
    sizes = {name: max(float(np.mean(np.abs(right[name].astype(np.float64)))) for right in wanted) for name in errors}
    return Yardstick(errors, sizes, len(samples), ratio, model) if errors else None


def largest_error(name: str, found: Sequence[Mapping[str, float]], others: Sequence[Mapping[str, float]]) -> float:
    """The largest error of an output: of a sample that was fitted to, or of others as far as these are alike.

    What is fitted to few values, such as the ten scores of each of three samples, clips others grossly now and then, which
    calibration on many samples would not.
    """
    own, more = ([each[name] for each in some if name in each] for some in (found, others))
    return max([*own, *(min(error, _ALIKE * float(np.median(own + more))) for error in more)])


def mean_errors(right: Mapping[str, NDArray[Any]], seen: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """The mean absolute error of each output that both have, and that is finite."""
    found = {}
    for name, value in right.items():
        if name in seen and value.size and value.dtype.kind in "fiubV" and seen[name].shape == value.shape:
            error = float(np.mean(np.abs(seen[name].astype(np.float64) - value.astype(np.float64))))
            if math.isfinite(error):
                found[name] = error
    return found


def fitted_model(
    subject: Subject, plain: Plain, misfits: Sequence[Misfit], ratio: float = 1.0, *, bad: bool = False
) -> onnx.ModelProto:
    """The model with every scale and zero point fitted; in floats what no scale fits, and weights that are stored quantized.

    Args:
        subject: The model.
        plain: The same in floats.
        misfits: How its tensors fit.
        ratio: How many times the scales that fit.
        bad: Whether that is done with bad ones alone: the others may be fitted to more samples than there are here.
    """
    network = subject.network
    changed: dict[int, tuple[TensorProto, TensorProto | None]] = {}
    weights = dict(plain.weights)
    stored = []
    for number, each in enumerate(misfits):
        if each.drowned or not each.pair.quantize:
            stored.append(each.pair)
            weights |= {} if each.drowned else _requantized(network, plain, each)
        elif each.fitted_scale is not None and (each.bad or not bad):
            changed |= refitted(network, each, ratio, f"fitted.{number}")
    model = onnx.ModelProto()
    model.CopyFrom(network.proto)
    rescale(model, changed)
    return unquantize(Network(model), stored, weights)


def refitted(
    network: Network, misfit: Misfit, ratio: float, name: str
) -> dict[int, tuple[TensorProto, TensorProto | None]]:
    """The scale and zero point that fit, for each node of a pair."""
    grid = Grid.of(misfit.pair.type_name)
    assert grid is not None
    assert misfit.fitted_scale is not None
    assert misfit.fitted_zero is not None
    scale, zero = misfit.fitted_scale * ratio, misfit.fitted_zero
    if misfit.fitted_zero.any():
        bottom, top = grid.ends(misfit.fitted_scale, misfit.fitted_zero)
        scale, zero = grid.fit(bottom * ratio, top * ratio, symmetric=False)
    made = {}
    for index in misfit.pair.nodes:
        node = network.nodes[index]
        new = zero.any() or (len(node.input) > 2 and bool(node.input[2]))  # one that is left out is 0
        made[index] = (
            _like(network, scale, node.input[1], f"{name}.scale"),
            _like(network, zero, node.input[1], f"{name}.zero_point", misfit.pair.element) if new else None,
        )
    return made


def _like(network: Network, value: NDArray[Any], old: str, name: str, element: int | None = None) -> TensorProto:
    """A constant of the shape of another one, and of its type unless that is given."""
    declared = network.declared.get(old) or network.inferred[old]
    kind, dims = declared.type.tensor_type.elem_type, [d.dim_value for d in declared.type.tensor_type.shape.dim]
    kind = kind if element is None else element
    flat = np.asarray(value, np.float64).reshape(-1)
    if kind in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE):
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        return numpy_helper.from_array(flat.astype(dtype).reshape(dims), name)
    whole = kind not in (TensorProto.BFLOAT16, *(k for k in TensorProto.DataType.values() if _is_float8(k)))
    return onnx.helper.make_tensor(name, kind, dims, [int(v) for v in flat] if whole else [float(v) for v in flat])


def _is_float8(kind: int) -> bool:
    return str(TensorProto.DataType.Name(kind)).startswith("FLOAT8")


def _requantized(network: Network, plain: Plain, misfit: Misfit) -> dict[str, TensorProto]:
    """Weights that the original has, rounded to the quantized type by the scale that fits."""
    grid, found = Grid.of(misfit.pair.type_name), {}
    if grid is None or misfit.fitted_scale is None or misfit.fitted_zero is None:
        return {}
    for index in misfit.pair.dequantize:
        name = network.nodes[index].output[0]
        value = (plain.taken or {}).get(name)
        if value is not None:
            pair = misfit.pair
            scale, zero = (
                along(each, value.shape, pair.axis, pair.block) for each in (misfit.fitted_scale, misfit.fitted_zero)
            )
            rounded = grid.rounded(value, scale, zero).astype(value.dtype)
            found[name] = numpy_helper.from_array(rounded, name)
    return found


def run_all(subject: Subject, name: str, model: onnx.ModelProto, samples: Sequence[Sample]) -> list[Arrays] | None:
    """The outputs of a model on the reference runtime, for each sample; ``None`` if it does not run."""
    inputs = [subject.models.feed(f"{name}-{place}", sample) for place, sample in enumerate(samples)]
    return run_files(subject, name, model, inputs)


def run_files(subject: Subject, name: str, model: onnx.ModelProto, inputs: Sequence[Path]) -> list[Arrays] | None:
    """The same for samples that lie in files."""
    models = subject.models
    made = tuple(subject.workspace.scratch(f"{name}-{place}.made.npz") for place in range(len(inputs)))
    reply = models.ask(Series(reference_settings(), models.write(name, model), tuple(inputs), made), here=True)
    return None if isinstance(reply, Failed) else [load_npz(path) for path in made]


def tolerance_of(yardstick: Yardstick | None, given: ToleranceOptions, outputs: Sequence[str]) -> ToleranceOptions:
    """How far candidates may be off: as the user says, else by the yardstick.

    Args:
        yardstick: What the model is off by with scales that fit; ``None`` if that is not known.
        given: What the user gave.
        outputs: The model's.
    """
    given = replace(given, precision=Precision.BF16)
    if yardstick is None or not tolerance_is_own(given):
        return given
    atol = {name: yardstick.allowed(name) for name in outputs if name in yardstick.errors}
    return replace(
        given,
        atol=atol,
        rtol=dict.fromkeys(atol, 0.0),
        stat=dict.fromkeys(atol, ErrorStat.MEAN),
    )


def tolerance_is_own(given: ToleranceOptions | None) -> bool:
    """Whether the user leaves it to the model how far it may be off."""
    if given is None:
        return True
    own = given.method.algorithm is Algorithm.SIMPLE and given.method.script is None
    return own and not (given.atol or given.rtol or given.stat or given.measures)
