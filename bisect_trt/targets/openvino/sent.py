"""OpenVINO, set up: here, and in a place (see :mod:`bisect_trt.probing.places.sent.server`). It has Python 3.8's syntax."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TYPE_CHECKING, Any, Mapping

from bisect_trt.errors import UnavailableError, UsageError
from bisect_trt.targets.messages import BuildError
from bisect_trt.targets.onnxrt.opening import TINY_MODEL
from bisect_trt.targets.openvino.opening import (
    CAPABILITIES,
    FULL,
    PROPERTIES,
    compile_model,
    hint_for,
    output_names,
    said,
)
from bisect_trt.targets.openvino.session import OpenVinoSession

if TYPE_CHECKING:
    import pathlib

_NO_DEVICE = re.compile(
    r"not registered|Cannot load library|(?i:failed to (?:create|load) plugin)|No (?:available|supported) device"
)


class There:
    """OpenVINO with one of its devices.

    Attributes:
        facts: Its version, who lowers for it, and what the device says that it computes in.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Set it up.

        Args:
            settings: Those of all targets, and the fields of ``OpenVinoSettings``.

        Raises:
            UnavailableError: It is not there, or has no such device.
            UsageError: The device has no such property, or the property no such value.
        """
        openvino = require_openvino()
        self._settings, self._core = settings, openvino.Core()
        self._try(openvino.__version__)
        capabilities = self._capabilities()
        low = next((name for name in CAPABILITIES if settings[name]), None)
        self._hint = hint_for(low, settings["keep"], capabilities)
        self.facts = {"lowers_by": "cast", "version": openvino.__version__, "capabilities": capabilities}

    def _try(self, version: str) -> None:
        """Make sure of the device and its properties, with a model that nothing is wrong with."""
        device, properties = self._settings["device"], self._settings["properties"]
        try:
            compile_model(self._core, self._core.read_model(TINY_MODEL), {**self._settings, "precision": FULL})
        except Exception as error:  # RuntimeError for all, and Python's own for what cannot be converted
            message = said(error)
            if _NO_DEVICE.search(message):
                known = ", ".join(self._core.available_devices)
                raise UnavailableError(
                    f"OpenVINO has no device '{device}' here; it has: {known}. It says: {message}."
                ) from error
            if not properties:
                raise UnavailableError(f"OpenVINO's device {device} does not start: {message}.") from error
            given = ", ".join(f"{name}:{value}" for name, value in properties)
            settable = ", ".join(sorted(self._settable()))
            raise UsageError(
                f"OpenVINO {version} does not take {given} for {device}: {message}. Its properties are: {settable}."
            ) from error

    def _settable(self) -> list[str]:
        try:
            names = self._core.get_property(self._settings["device"], "SUPPORTED_PROPERTIES")
        except Exception:  # of devices made of others
            return []
        return [name for name, mode in names.items() if mode != "RO"]

    def _capabilities(self) -> list[str]:
        try:
            return list(self._core.get_property(self._settings["device"], "OPTIMIZATION_CAPABILITIES"))
        except Exception:  # of devices made of others: they are told, and what they do with it is theirs
            return list(CAPABILITIES.values())

    def gpu_memory(self) -> int:
        """0: it does not say."""
        return 0

    def load(
        self,
        path: pathlib.Path,
        feed: Mapping[str, Any],
        hints: Mapping[str, Any],
        unfused: bool,
    ) -> OpenVinoSession | None:
        """A model, which is lowered already where the device does not do that; ``None`` for an unfused one.

        Raises:
            BuildError: OpenVINO refuses it.
        """
        if unfused:
            return None
        try:
            read = self._core.read_model(str(path))
            compiled = compile_model(self._core, read, {**self._settings, "precision": self._hint})
            names = output_names(read)
        except Exception as error:  # RuntimeError for all
            raise BuildError(said(error)) from error
        return OpenVinoSession(compiled, list(hints.get("inputs", ())), names)

    def trace(self, path: pathlib.Path, feed: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
        """``takes``: the properties that could be turned here, whatever the model."""
        tiny, takes = self._core.read_model(TINY_MODEL), []
        for name, value in PROPERTIES:
            plain = {**self._settings, "precision": FULL, "properties": [(name, value)]}
            with contextlib.suppress(Exception):  # RuntimeError for all
                compile_model(self._core, tiny, plain)
                takes.append(name)
        return {"takes": takes}


def require_openvino() -> Any:
    """The package.

    Raises:
        UnavailableError: It is not installed, or cannot be loaded.
    """
    try:
        import openvino
    except ModuleNotFoundError as error:
        if error.name != "openvino":
            raise
        raise UnavailableError(
            f"OpenVINO is not installed for {sys.executable}; install it there (pip install openvino)."
        ) from error
    except ImportError as error:
        raise UnavailableError(f"OpenVINO is installed and cannot be loaded: {error}; install it again.") from error
    return openvino


make = There
