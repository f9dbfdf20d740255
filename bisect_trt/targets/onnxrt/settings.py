"""What only ONNX Runtime has."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_trt.targets.base import OwnSettings

ALL, OFF = "ORT_ENABLE_ALL", "ORT_DISABLE_ALL"


@dataclass(frozen=True)
class OnnxRuntimeSettings(OwnSettings):
    """What only ONNX Runtime has.

    Attributes:
        providers: Its execution providers, by long or short name (``cuda``); where empty those of ``ep_libraries``, else
            its CPU provider.
        graph_optimization_level: How far it may optimise the graph, by ONNX Runtime's name of the level.
        disabled_optimizers: Graph optimizers that are left out, by their names in ONNX Runtime's log.
        provider_options: Options of the first provider by name, or of another as ``cuda.NAME``.
        session_options: Attributes of ``SessionOptions``, or entries of its configuration, by name.
        custom_op_libraries: Shared libraries with kernels for operators of others.
        ep_libraries: Shared libraries with execution providers, as the name to register one under, and the file.
    """

    providers: tuple[str, ...] = ()
    graph_optimization_level: str = ALL
    disabled_optimizers: tuple[str, ...] = ()
    provider_options: tuple[tuple[str, str], ...] = ()
    session_options: tuple[tuple[str, str], ...] = ()
    custom_op_libraries: tuple[str, ...] = ()
    ep_libraries: tuple[tuple[str, str], ...] = ()

    @property
    def optimize(self) -> bool:
        """Whether it may optimise the graph at all."""
        return self.graph_optimization_level != OFF
