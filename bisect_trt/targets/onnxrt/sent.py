"""ONNX Runtime in a place; see :mod:`bisect_trt.probing.places.sent.server`. It has Python 3.8's syntax, and is sent there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.onnxrt import opening
from bisect_trt.targets.onnxrt.listening import ALOUD, listen

if TYPE_CHECKING:
    import pathlib

    from bisect_trt.targets.onnxrt.session import OnnxRuntimeSession


class There:
    """ONNX Runtime, set up.

    Attributes:
        facts: Its version, who lowers for it, and the execution providers that it uses.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Set it up.

        Args:
            settings: Among them the fields of ``OnnxRuntimeSettings``.

        Raises:
            UnavailableError: It is not there, or has no such provider, or cannot load a library.
            UsageError: It has no such option.
        """
        try:
            import onnxruntime
        except Exception as error:
            raise UnavailableError(
                f"ONNX Runtime cannot be loaded there: {error!r}; install it there: pip install onnxruntime."
            ) from error
        self._settings = settings
        onnxruntime.set_default_logger_severity(opening.FATAL_ONLY)
        try:
            opening.prepare(settings)
            self._providers = opening.used(settings)
            if settings["provider_options"] or settings["session_options"]:
                self._open(opening.TINY_MODEL)
        except opening.Missing as error:
            raise UnavailableError(f"{error}.") from error
        except opening.Misnamed as error:
            raise UsageError(f"{error}.") from error
        except BuildError as error:
            pairs = [*settings["provider_options"], *settings["session_options"]]
            given = ", ".join(f"{name}:{value}" for name, value in pairs)
            raise UsageError(
                f"ONNX Runtime {onnxruntime.__version__} does not take {given}: {error.message}; mend or drop it."
            ) from error
        self.facts = {"lowers_by": "cast", "version": onnxruntime.__version__, "providers": self._providers}

    def gpu_memory(self) -> int:
        """0: it does not say."""
        return 0

    def load(
        self,
        path: pathlib.Path,
        feed: Mapping[str, Any],
        hints: Mapping[str, Any],
        unfused: bool,
    ) -> OnnxRuntimeSession | None:
        """A model, which is lowered already; ``None`` for an unfused one: it gives back outputs alone.

        Raises:
            BuildError: ONNX Runtime refuses it.
            UnavailableError: A provider is installed and cannot be used.
        """
        from bisect_trt.targets.onnxrt.session import OnnxRuntimeSession

        return None if unfused else OnnxRuntimeSession(self._open(str(path)))

    def trace(
        self,
        path: pathlib.Path,
        feed: Mapping[str, Any],
        hints: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """Which passes over the graph ran, and which of them changed it."""
        loud = There({**self._settings, "session_options": [*self._settings["session_options"], ALOUD]})
        return listen(lambda: loud._open(str(path)))

    def _open(self, model: str | bytes) -> Any:
        import onnxruntime

        options, arguments = opening.prepare(self._settings)
        try:
            # Without its fallback, which prints, goes on with the CPU and does not say so to the caller.
            session = onnxruntime.InferenceSession(model, options, **arguments, enable_fallback=False)
        except Exception as error:
            raise BuildError(str(error)) from error
        left_out = [name for name in self._providers if name not in session.get_providers()]
        if left_out:
            raise UnavailableError(
                "ONNX Runtime cannot use {} there: no GPU, no driver, or libraries of another version.".format(
                    ", ".join(left_out)
                )
            )
        return session


make = There
