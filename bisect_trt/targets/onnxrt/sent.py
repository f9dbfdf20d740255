"""ONNX Runtime in a place; see :mod:`bisect_trt.probing.places.sent.server`. It has Python 3.8's syntax, and is sent there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bisect_trt.errors import UnavailableError
from bisect_trt.targets.messages import BuildError

if TYPE_CHECKING:
    import pathlib

    from bisect_trt.targets.onnxrt.session import OnnxRuntimeSession


class There:
    """ONNX Runtime, set up.

    Attributes:
        facts: Its version, who lowers for it, and the execution providers that it uses.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """``settings`` are the fields of ``OnnxRuntimeSettings``."""
        try:
            import onnxruntime
        except Exception as error:
            raise UnavailableError(
                f"ONNX Runtime cannot be loaded there: {error!r}; install it there: pip install onnxruntime."
            ) from error
        self._settings = settings
        onnxruntime.set_default_logger_severity(4)
        self._providers = find_providers(settings["providers"] or ["cpu"], onnxruntime.get_available_providers())
        self.facts = {"lowers_by": "cast", "version": onnxruntime.__version__, "providers": self._providers}

    def gpu_memory(self) -> int:
        """0: it does not say."""
        return 0

    def load(
        self,
        path: pathlib.Path,
        feed: Mapping[str, Any],  # noqa: ARG002 - it does not compile for values
        hints: Mapping[str, Any],  # noqa: ARG002 - as above
        unfused: bool,
    ) -> OnnxRuntimeSession | None:
        """A model, which is lowered already; ``None`` for one that hides nothing: it gives back outputs alone."""
        import onnxruntime

        from bisect_trt.targets.onnxrt.session import OnnxRuntimeSession

        if unfused:
            return None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = (
            levels.ORT_ENABLE_ALL if self._settings["optimize"] else levels.ORT_DISABLE_ALL
        )
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=self._providers)
        except Exception as error:
            raise BuildError(str(error)) from error
        left_out = [name for name in self._providers if name not in session.get_providers()]
        if left_out:
            raise UnavailableError(
                "ONNX Runtime cannot use {} there: no GPU, no driver, or libraries of another version.".format(
                    ", ".join(left_out)
                )
            )
        return OnnxRuntimeSession(session)


def find_providers(wanted: Any, available: list[str]) -> list[str]:
    """Providers by their long names, given long or short ones in any case."""
    suffix = "executionprovider"
    by_short = {name.lower()[: -len(suffix)]: name for name in available}
    found = []
    for name in wanted:
        short = name.lower()
        short = short.removesuffix(suffix)
        if short not in by_short:
            known = ", ".join(sorted(by_short))
            raise UnavailableError(f"ONNX Runtime has no execution provider '{name}' there; it has: {known}.")
        found.append(by_short[short])
    return list(dict.fromkeys(found))


make = There
