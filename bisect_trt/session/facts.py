"""Facts about a network, and about the values that it was run on."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np
import onnx

from bisect_trt.onnxlib.cut import StoredValue
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import clone
from bisect_trt.onnxlib.shapes import element_type, identity_model
from bisect_trt.onnxlib.units import NetworkUnits
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.reference import Models, Reference, stored_values
from bisect_trt.session.free_dims import Freed
from bisect_trt.tensors.info import TensorInfo


class ModelFacts:
    """Facts about one form of the model; each is computed when it is first used.

    With another network, other samples or other free dimensions they are computed :meth:`anew`.

    Attributes:
        network: The model.
        models: Runs models on the reference's runtime.
        freed: The dimensions that candidates keep free, where the failure needs that.
        ir_version: The IR versions of the ``file`` and ``written`` into candidates, where these
            differ.
    """

    network: Network
    models: Models
    freed: Freed | None = None
    ir_version: Mapping[str, int] | None = None
    # Whether the first probe has the IR version of the file, and not that of candidates.
    _probes_file = False
    _run: Callable[[], Reference]

    def anew(self, run: Callable[[], Reference]) -> None:
        """Forget the facts; ``run`` runs the network, and returns the values of its tensors."""
        self._run = run
        for name, fact in vars(ModelFacts).items():
            if isinstance(fact, cached_property):
                vars(self).pop(name, None)

    def as_in_file(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return a form of the model with the IR version of its file, for the first question about it."""
        if self.ir_version is None or not self._probes_file:
            return model
        model = clone(model)
        model.ir_version = self.ir_version["file"]
        return model

    @cached_property
    def expected(self) -> Reference:
        """The expected values of every tensor."""
        return self._run()

    @cached_property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Types and shapes of tensors: from the reference run, else from shape inference."""
        infos: Mapping[str, TensorInfo] = ChainMap(
            cast("Any", self.expected.infos), cast("Any", self.network.infos)
        )
        return infos if self.freed is None else self.freed.infos(infos)

    @cached_property
    def element_types(self) -> dict[str, int]:
        """ONNX's element type of each tensor, as it ran or else as inference says."""
        return {name: element_type(info.dtype) for name, info in self.infos.items()}

    @cached_property
    def units(self) -> NetworkUnits:
        """The units that searches keep or drop."""
        return NetworkUnits(self.network, self.expected.infos, self.infos, self.expected.lost)

    @cached_property
    def constants(self) -> StoredValue:
        """Values of weights that nodes compute."""
        return stored_values(self.network, self.models)

    @cached_property
    def original(self) -> Candidate:
        """The model itself."""
        network = self.network
        units = self.units.everything
        title = "the original" if self.freed is None else "the original, its dimensions free"
        original = Candidate(
            self.as_in_file(network.proto),
            tuple(network.inputs),
            tuple(network.outputs),
            title,
            units,
        )
        return original if self.freed is None else self.freed.dress(original)

    @cached_property
    def identity(self) -> Candidate:
        """A model that has nothing to fail: zeros of the types and shapes of the inputs pass through Identity nodes."""
        infos: dict[str, TensorInfo] = {}
        # A model without inputs makes its outputs of weights alone.
        for name in self.network.inputs or self.network.outputs:
            if name in self.infos:
                sizes = tuple(
                    dim if isinstance(dim, int) else 1 for dim in self.infos[name].shape or ()
                )
                infos[name] = TensorInfo(name, self.infos[name].dtype, sizes)
        inputs = {name: np.zeros(info.sizes or (), info.dtype) for name, info in infos.items()}
        outputs = {f"{name}/identity": value for name, value in inputs.items()}
        proto = identity_model(self.network.proto, infos)
        return Candidate(
            proto, tuple(inputs), tuple(outputs), "Identity nodes only", values=inputs | outputs
        )
