"""The runner of a target without its own runner: ``reproduce.py`` runs it by way of bisect-trt, as it was when it failed."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from bisect_trt.targets.messages import BuildError, RunError


class InstalledRunner:
    """A plug-in's own runtime as a runner.

    Attributes:
        facts: The version of bisect-trt.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """``settings`` has the whole of ``TargetSettings`` as ``target``."""
        import bisect_trt
        from bisect_trt.targets.base import make_runtime
        from bisect_trt.targets.settings import TargetSettings

        self.facts = {"version": f"of bisect-trt {bisect_trt.__version__}"}
        self._runtime = make_runtime(TargetSettings.from_json(settings["target"]))
        self._session: Any = None

    def load(self, path: pathlib.Path, feed: Mapping[str, Any], hints: Mapping[str, Any]) -> InstalledRunner:
        """Prepare a model."""
        self._session = self._as_ours(lambda: self._runtime.load(path, feed))
        return self

    def run(self, inputs: Mapping[str, Any]) -> Any:
        """Return the outputs, by name."""
        return self._as_ours(lambda: self._session.run(inputs))

    def _as_ours(self, call: Any) -> Any:
        """Call a function; its failures become failures of this script, which has classes of the same names."""
        from bisect_trt.targets import messages

        try:
            return call()
        except messages.RuntimeFailure as error:
            kind = BuildError if isinstance(error, messages.BuildError) else RunError
            raise kind(error.message, signature=error.masked) from error


make = InstalledRunner
