"""Where a network goes wrong first, from the comparisons of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bisect_trt.graph.network import Network
from bisect_trt.targets.base import EngineLayer
from bisect_trt.tensors.comparison import TensorComparison, required_severity, severity_weight
from bisect_trt.tensors.tolerance import ToleranceOptions


@dataclass(frozen=True)
class Layerwise:
    """How every tensor of the target compares with the reference's.

    Attributes:
        tensors: One comparison a tensor that could be seen, in topological order: of the first input sample on which it
            is wrong, else of the first.
        unseen: The tensors that could not, with the reason.
        origins: Nodes that make a wrong tensor although all they compute it from is right, in topological order.
        mild: The same for tensors that are off, but far less than the outputs are: rounding, mostly.
        outputs_fail: Whether a graph output is wrong with tensors marked; if not, marking may hide the failure.
        refused: Why the target would not run the marked model, if it would not.
        hidden: Whether the model fails without marks and does not, or far less, with them.
        fused: Whether nothing was marked: the target showed what it had not fused away.
        builds: How many marked models the target was given.
        own: How far each layer is off by itself, fed the reference's values; empty unless that was looked at.
        own_unseen: The tensors of which that is not known, with the reason.
        engine: For nodes, by number, the layer of the target's engine that runs it; empty where it does not say.
    """

    tensors: dict[str, TensorComparison]
    unseen: dict[str, str]
    origins: list[int]
    outputs_fail: bool
    refused: str | None = None
    mild: tuple[int, ...] = ()
    hidden: bool = False
    fused: bool = False
    builds: int = 1
    own: dict[str, TensorComparison] = field(default_factory=dict)
    own_unseen: dict[str, str] = field(default_factory=dict)
    engine: dict[int, EngineLayer] = field(default_factory=dict)

    def is_exact(self, network: Network) -> bool:
        """Whether all that some origin reads was seen, so that nothing before it can be the one to blame."""
        computed = set(network.computed)
        return any(computed.intersection(network.reads[index]) <= self.tensors.keys() for index in self.origins)


def judge_layers(
    network: Network, tolerance: ToleranceOptions, comparisons: Sequence[TensorComparison], unseen: dict[str, str]
) -> Layerwise:
    """Find where it goes wrong, on each input sample by itself."""
    outputs = [name for name in network.outputs if name in network.producer]
    samples: dict[int | None, dict[str, TensorComparison]] = {}
    for comparison in comparisons:
        samples.setdefault(comparison.sample, {})[comparison.name] = comparison
    found: list[int] = []
    suspected: list[int] = []
    outputs_fail = False
    for tensors in samples.values():
        fail = any(not tensors[name].passed for name in outputs if name in tensors)
        required = 0.0
        if fail and not (tolerance.atol or tolerance.rtol):  # what the user gives is meant to the letter
            weight = severity_weight(tolerance.precision)
            worst = max(tensors[name].severity for name in outputs if name in tensors)
            required = required_severity(weight * worst) / weight
        found += find_origins(network, tensors, required)
        suspected += find_origins(network, tensors)
        outputs_fail |= fail
    origins = sorted(set(found), key=network.rank.__getitem__)
    mild = tuple(sorted(set(suspected) - set(found), key=network.rank.__getitem__))
    return Layerwise(of_samples(comparisons), unseen, origins, outputs_fail=outputs_fail, mild=mild)


def of_samples(comparisons: Iterable[TensorComparison]) -> dict[str, TensorComparison]:
    """One comparison a tensor: of the first input sample on which it is wrong, else of the first."""
    shown: dict[str, TensorComparison] = {}
    for comparison in comparisons:
        if comparison.name not in shown or (shown[comparison.name].passed and not comparison.passed):
            shown[comparison.name] = comparison
    return shown


def find_origins(network: Network, tensors: Mapping[str, TensorComparison], severity: float = 0.0) -> list[int]:
    """Nodes that make a wrong tensor of right ones, in topological order.

    A tensor that was not compared counts as right if all that it is computed from is.

    Args:
        network: The model.
        tensors: The comparisons.
        severity: How severe a mismatch must be to count as wrong.
    """
    clean: dict[str, bool] = {}
    origins: list[int] = []
    for index in network.order:
        inputs_clean = all(clean.get(name, True) for name in network.reads[index])
        for name in network.made(index):
            clean[name] = _right(tensors[name], severity) if name in tensors else inputs_clean
            if inputs_clean and not clean[name] and index not in origins:
                origins.append(index)
    return origins


def _right(comparison: TensorComparison, severity: float) -> bool:
    return comparison.passed or comparison.severity < severity
