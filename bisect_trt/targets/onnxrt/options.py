"""The options that only ONNX Runtime has."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bisect_trt.errors import UsageError
from bisect_trt.options.reading import pair
from bisect_trt.options.spec import option
from bisect_trt.targets.base import OwnOptions
from bisect_trt.targets.onnxrt.settings import ALL, OFF, OnnxRuntimeSettings

if TYPE_CHECKING:
    from bisect_trt.targets.options import TargetOptions

_LEVELS = {
    "off": OFF,
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": ALL,
}


def level(value: Any) -> str:  # noqa: ANN401 - whatever was given
    """A level of graph optimisation by ONNX Runtime's name, given that or a short one."""
    found = _LEVELS.get(str(value).lower(), str(value).upper())
    if found not in _LEVELS.values():
        raise ValueError(f"one of {', '.join(_LEVELS)}, or ONNX Runtime's own names of them ({ALL})")
    return found


@dataclass
class OnnxRuntimeOptions(OwnOptions):
    """What only ONNX Runtime has."""

    providers: Annotated[
        list[str], option(metavar="NAME", help="ONNX Runtime's execution providers: cpu, cuda, ...")
    ] = field(default_factory=list)
    provider_option: Annotated[
        list[tuple[str, str]],
        option(metavar="K:V", help="An option of the first of them; of another one as cuda.K:V.", read=pair),
    ] = field(default_factory=list)
    session_option: Annotated[
        list[tuple[str, str]],
        option(
            metavar="K:V",
            help="An attribute of ONNX Runtime's SessionOptions, or, as in session.disable_prepacking:1, an entry of its "
            "configuration.",
            read=pair,
        ),
    ] = field(default_factory=list)
    graph_optimization_level: Annotated[
        str, option(metavar="LEVEL", help="ONNX Runtime's: off, basic, extended, layout or all.", read=level)
    ] = ALL
    disable_optimizer: Annotated[
        list[str],
        option(metavar="NAME", help="Leave a graph optimizer of ONNX Runtime's out: GemmTransposeFusion, ..."),
    ] = field(default_factory=list)
    custom_op_library: Annotated[
        list[Path], option(metavar="FILE", help="Kernels for ONNX Runtime, and for the reference.")
    ] = field(default_factory=list)
    ep_library: Annotated[
        list[tuple[str, str]],
        option(
            metavar="NAME:FILE", help="A plug-in execution provider for ONNX Runtime to load, from 1.22 on.", read=pair
        ),
    ] = field(default_factory=list)

    def settings(self, common: TargetOptions, *, engines: bool) -> OnnxRuntimeSettings:
        """As plain data.

        Raises:
            UsageError: A library is not there, or an option of one name has two values.
        """
        for flag, pairs in (("--provider-option", self.provider_option), ("--session-option", self.session_option)):
            if twice := sorted({name for name, _ in pairs if [other for other, _ in pairs].count(name) > 1}):
                raise UsageError(f"{flag} is given twice for {twice[0]!r}; give it once")
        return OnnxRuntimeSettings(
            tuple(self.providers),
            self.graph_optimization_level,
            tuple(self.disable_optimizer),
            tuple(self.provider_option),
            tuple(self.session_option),
            tuple(_existing("--custom-op-library", path) for path in self.custom_op_library),
            tuple((name, _existing("--ep-library", Path(path))) for name, path in self.ep_library),
        )

    def files(self) -> list[Path]:
        """The libraries."""
        return [*self.custom_op_library, *(Path(path) for _, path in self.ep_library)]


def _existing(flag: str, path: Path) -> str:
    """Absolute: the worker reads it."""
    if not path.is_file():
        raise UsageError(f"{flag}: there is no file {path}; check the path.")
    return str(path.absolute())
