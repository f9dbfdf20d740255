"""What a search for precision was asked for, and what every step of it works with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bisect_trt.errors import UsageError
from bisect_trt.graph.save import check_output
from bisect_trt.options.choices import Cost, Minimise
from bisect_trt.options.searches import FRESH_SAMPLES, Precision
from bisect_trt.probing.outcome import BROKEN_PREFIXES, OVER_MEMORY, Ending
from bisect_trt.search.oracle import Minimum, Subset
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.tolerance import ToleranceOptions
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.precision.lowering import Lowering

Low = Literal["fp16", "bf16", "int8", "fp8", "int4"]
BITS: tuple[Low, ...] = ("int8", "fp8", "int4")
"""What a search for quantized groups is about."""
UNUSED_RANGES = "no ranges are found: TensorRT 8.6 to 10 do that, with --int8, of models without Q/DQ"
HALVES: tuple[Low, ...] = ("fp16", "bf16")


@dataclass(frozen=True)
class PrecisionSettings:
    """What to lower, and where the answer goes.

    Attributes:
        output: The mixed-precision model.
        precision: What to lower to.
        target: The runtime that the built-in check compares with the reference; ``None`` for a check command or prompts.
        include: If any, only nodes that one of these patterns matches are lowered.
        exclude: Nodes that one of these matches are not.
        io_low: Whether graph inputs and outputs are lowered as well.
        keep_weights: Whether weights stay in fp32.
        overwrite: Whether a file that exists may be written over.
        by_layer: Whether the target lowers layer by layer, rather than run models that are lowered already.
        minimise: What to have the least of.
        fresh_samples: How many samples that the search has not seen the safe set is held against; 0 for none.
        validation_data: The user's own, files or scripts, instead.
        minimal_output: Where the model of the minimal set goes, if it was asked for.
        bits: The quantized types whose groups are searched, of a quantized model; none for a search of nodes.
        float_model: The model from before quantization, if it was given.
        sensitivity: Whether to measure what each group costs alone.
        rungs: The precisions that the parts of a quantized model may have, the cheapest first; none for what is quantized and
            fp32 alone.
        calibration_cache: Where the ranges for INT8 lie, or are to, if the user says.
        calibrated: Whether what is not kept may run in INT8 by those ranges; ``precision`` then says how far it may be off.
        cost: By what assignments of them are compared; ``None`` for latency where that can be measured, else bytes.
        divide_regions: Whether each node is searched alone also in what the target fuses whatever is asked for.
        tolerance: How far a target may be off on them, as the user gave it; ``None`` for as on the samples of the search.
    """

    output: Path
    precision: Low
    target: TargetSettings | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    io_low: bool = False
    keep_weights: bool = False
    overwrite: bool = False
    by_layer: bool = False
    minimise: Minimise = Minimise.NODES
    fresh_samples: int = FRESH_SAMPLES
    validation_data: tuple[str, ...] = ()
    minimal_output: Path | None = None
    bits: tuple[Low, ...] = ()
    float_model: Path | None = None
    sensitivity: bool = True
    rungs: tuple[str, ...] = ()
    cost: Cost | None = None
    calibration_cache: Path | None = None
    calibrated: bool = False
    divide_regions: bool = False
    tolerance: ToleranceOptions | None = None

    @classmethod
    def of(cls, own: Precision, output: Path, low: Sequence[Low], target: TargetSettings | None) -> PrecisionSettings:
        """Those of a command, or of a Python function, from its options.

        Args:
            own: The options.
            output: Where the mixed model goes.
            low: What the rest is to run in; of quantized types there may be several.
            target: The runtime under suspicion.
        """
        return cls(
            output,
            low[0],
            target,
            tuple(own.include),
            tuple(own.exclude),
            own.io_fp16,
            own.keep_weights,
            own.overwrite,
            minimise=own.minimise,
            fresh_samples=own.fresh_samples,
            validation_data=tuple(own.validation_data),
            minimal_output=own.minimal_output,
            bits=tuple(each for each in low if each in BITS),
            float_model=own.reference,
            sensitivity=own.sensitivity,
            rungs=own.ladder or (),
            cost=own.cost,
            calibration_cache=own.calibration_cache,
            divide_regions=own.divide_regions,
        )

    @property
    def low(self) -> str:
        """What is lowered to, in words."""
        return "int8" if self.calibrated else self.precision

    @property
    def half(self) -> Low | None:
        """The rung of a ladder between what is quantized and fp32, if it has one."""
        return next((low for low in HALVES if low in self.rungs), None)

    @property
    def measures_latency(self) -> bool:
        """Whether how long candidates run says how long their written models do."""
        if self.target is None or (self.emulated and (self.half is not None or not self.bits)):
            return False
        return self.cost is Cost.LATENCY or self.target.target.capabilities.timed

    @property
    def emulated(self) -> bool:
        """Whether candidates run where low-precision nodes would be computed in fp32, such as ONNX Runtime's CPU provider."""
        return self.target is not None and self.target.target.emulates_low(self.target)

    @property
    def by_arithmetic(self) -> bool:
        """Whether they round by arithmetic there, and not by Casts."""
        return self.target is not None and self.target.target.drops_casts(self.target)

    def check_output(self) -> None:
        """Make sure that the answer can be written.

        Raises:
            UsageError: It cannot.
        """
        check_output(self.output, overwrite=self.overwrite)
        if self.minimal_output is not None:
            check_output(self.minimal_output, overwrite=self.overwrite)
            if self.minimal_output.absolute() == self.output.absolute():
                raise UsageError(
                    f"-o and --minimal-output both name {self.output}, which can hold one of both sets; name another file."
                )


Reason = tuple[str, str]
"""A rule's name, and why in words."""
_BROKEN = {
    "build: ": "refused",
    "run: ": "not run",
    "signal ": "crash",
    "time-out": "time-out",
    OVER_MEMORY: OVER_MEMORY,
}
"""The rule by how the signature begins; see ``BROKEN_PREFIXES``."""


@dataclass(frozen=True)
class Task(Investigation):
    """A search for precision.

    Attributes:
        lowering: What may be lowered; makes the candidates.
        settings: What was asked for.
    """

    lowering: Lowering
    settings: PrecisionSettings

    @property
    def not_run(self) -> str | None:
        """Where the target does not run the model with everything lowered: that in a sentence, for no number is wrong then."""
        found = self.breaks(frozenset())
        if found is None:
            return None
        how = "quantized" if self.settings.bits else f"in {self.settings.low}"
        return (
            f"With all of it {how} no number is wrong: {found[1].lstrip(': ')}. So this is what it takes for the model to run; "
            "`bisect-trt diagnose` finds what in it is not run, and looks for a way around that."
        )

    def breaks(self, keep: Subset) -> Reason | None:
        """How the target broke on a candidate: a rule's name, and the end of a sentence; ``None`` where it was not seen to."""
        if not any(record.signature.startswith(BROKEN_PREFIXES) for record in self.prober.ledger.records):
            return None  # to look it up the candidate is made again
        outcome = self.prober.ledger.outcome(self.lowering.candidate(keep).key)
        if outcome is None or outcome.ending is not Ending.BROKEN:
            return None
        rule = next(rule for prefix, rule in _BROKEN.items() if outcome.signature.startswith(prefix))
        said, target = outcome.reason.rstrip("."), self.settings.target
        said = said.removeprefix(f"sample {outcome.sample}: ")
        subject = said.removeprefix("the target ")  # else it is how a check ended
        return rule, f": {said}" if target is None or subject == said else f" {target.target.title} {subject}"

    def broken_without(self, minimum: Minimum) -> dict[int, Reason]:
        """Of a minimal set, the units without which the target does not run the model: why they are kept."""
        found = {unit: self.breaks(minimum.units - {unit}) for unit in minimum.units}
        return {unit: (why[0], f"without it{why[1]}") for unit, why in found.items() if why is not None}

    def conclude(self, minimum: Minimum) -> None:
        """Put into the result what was found, how sure that is, and first of all whether it is about numbers."""
        super().conclude(minimum)
        if self.not_run is not None:
            self.result.why = " ".join(filter(None, (self.not_run, self.result.why)))

    def tell_not_run(self) -> None:
        """Say before the answer that it is not about numbers, if so."""
        if self.not_run is not None:
            self.console.answer(self.not_run)

    def tell_why(self) -> None:
        """Say at the end what is to be said of the proof; what is not about numbers was said first."""
        rest = (self.result.why or "").removeprefix(self.not_run or "").strip()
        if rest:
            self.console.answer(f"  {rest}")
