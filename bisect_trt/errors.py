"""Errors that end a run early, with their exit statuses.

The statuses are stable (docs/json.md, "Exit status"). No traceback reaches a user unless ``-vv``:
the command line prints the message of a :class:`BisectError`, which names the thing, the reason and
the next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum


class ExitStatus(IntEnum):
    """Process exit statuses."""

    OK = 0
    """The search ended with a proven answer; for ``run``: everything matched."""
    NOT_REPRODUCED = 1
    """The failure does not reproduce; for ``run``: something did not match."""
    USAGE = 2
    """The command line, or a file it names, is wrong."""
    UNPROVEN = 3
    """The search ended without proof: flaky, budget spent, or the final re-check disagreed. The
    best so far is saved."""
    UNAVAILABLE = 4
    """Something needed is missing: no TensorRT, no GPU, an unreadable model."""
    INTERRUPTED = 130
    """Ctrl-C; resumable."""


def exit_status(status: str, minimality: str) -> ExitStatus:
    """Return the exit status of a process that ended with a result."""
    if status == "found":
        return ExitStatus.OK if minimality == "1-minimal" else ExitStatus.UNPROVEN
    return {
        "not_reproduced": ExitStatus.NOT_REPRODUCED,
        "interrupted": ExitStatus.INTERRUPTED,
    }.get(status, ExitStatus.UNPROVEN)


class BisectError(Exception):
    """The command ended without an answer.

    Each class of errors has a stable code. The first line of its docstring says the cause,
    ``remedy`` what to do; the message of the error itself names the thing, the reason and the next
    step.
    """

    status = ExitStatus.UNPROVEN
    code = "BT3000"
    remedy = "Read the message and the report."

    @classmethod
    def describe(cls) -> dict[str, str]:
        """Return the code, the cause and the remedy, for JSON."""
        return {
            "code": cls.code,
            "cause": (cls.__doc__ or "").partition("\n")[0],
            "remedy": cls.remedy,
        }


class InternalError(BisectError):
    """bisect-trt has a bug."""

    code = "BT9000"
    remedy = "Report it with what -vv shows."


class WrongResultError(BisectError):
    """A derived model computes other values than the original."""

    code = "BT3004"
    remedy = "Report it, and skip the step that the message names."


class NoisyMachineError(BisectError):
    """Other processes disturb the measurement, or the difference is too close to the limit."""

    code = "BT3005"
    remedy = "End other programs, allow more --measure-time, or give another limit."


class FormatRefusedError(BisectError):
    """The runtime refuses every model of this IR version or opset, whatever its nodes are."""

    code = "BT3006"
    remedy = "Use a release that reads the model, or an older opset."


class UsageError(BisectError):
    """The options do not fit together or do not fit the model."""

    status = ExitStatus.USAGE
    code = "BT1000"
    remedy = "Change the command line as the message says."


class CommandLineError(UsageError):
    """The command line has an unknown or incomplete word."""

    code = "BT1001"
    remedy = "Run the command with --help."


class ValueRefusedError(UsageError):
    """An option has a value that it does not take."""

    code = "BT1002"
    remedy = "Give a value of the form that the message names."


class ConflictError(UsageError):
    """Two options exclude each other, or one has no effect."""

    code = "BT1003"
    remedy = "Drop one of them."


class MissingOptionError(UsageError):
    """Something that the command needs is not given."""

    code = "BT1004"
    remedy = "Add the option that the message names."


class UnknownNameError(UsageError):
    """A name is not in the model, the target or the file."""

    code = "BT1005"
    remedy = "Use one of the names that the message lists."

    def __init__(self, message: str, name: str = "", names: Iterable[str] = ()) -> None:
        """Add the names that are spelt much like the unknown one.

        Args:
            message: One or more sentences.
            name: The unknown name.
            names: The names that exist.
        """
        from difflib import get_close_matches  # noqa: PLC0415 - of this error alone

        close = get_close_matches(name, [*names], n=2) if name else []
        ending = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        super().__init__(f"{message}{ending}")


class OutputFileError(UsageError):
    """A file cannot be written, or exists."""

    code = "BT1006"
    remedy = "Name another path, or add --overwrite."


class InputValuesError(UsageError):
    """Values cannot be read, or do not fit the model."""

    code = "BT1007"
    remedy = "Save them again, by the names and shapes of the model's inputs."


class ScriptError(UsageError):
    """A script or function of the user does not meet its interface."""

    code = "BT1008"
    remedy = "Correct the script."


class UnsuitableModelError(UsageError):
    """The model has no part that the command applies to."""

    code = "BT1009"
    remedy = "Use another command or another model."


class RunStateError(UsageError):
    """The run is still running, or a file that it depends on has changed."""

    code = "BT1010"
    remedy = "Wait for the run, or start a new one."


class CheckCommandError(UsageError):
    """The check command cannot be run."""

    code = "BT1011"
    remedy = "Run the command in a shell, and correct it."


class SameFileError(UsageError):
    """A file that is written is read too, or written in another role.

    Attributes:
        of_result: Whether it is a file for the result (``--json``, ``--report``, ``--junit``, ``--model-explorer``),
            which must not be written then.
    """

    code = "BT1012"
    remedy = "Name another file."

    def __init__(self, message: str, *, of_result: bool = False) -> None:
        super().__init__(message)
        self.of_result = of_result


class UnavailableError(BisectError):
    """Something that the run needs is missing or unreadable."""

    status = ExitStatus.UNAVAILABLE
    code = "BT2000"
    remedy = "Provide it as the message says."


class ModelFileError(UnavailableError):
    """The model cannot be read, or is not valid ONNX."""

    code = "BT2001"
    remedy = "Export the model again."


class UnreadableFileError(UnavailableError):
    """A file is missing, damaged or of another kind."""

    code = "BT2002"
    remedy = "Check the path, or write the file again."


class RuntimeMissingError(UnavailableError):
    """A runtime, a library or a device cannot be used here."""

    code = "BT2003"
    remedy = "Run `bisect-trt doctor`."


class ModelRefusedError(UnavailableError):
    """A runtime cannot build or run the model."""

    code = "BT2004"
    remedy = "Reduce the model by the message with `reduce`."


class PlaceError(UnavailableError):
    """A place or an environment cannot be used."""

    code = "BT2005"
    remedy = "Run `bisect-trt doctor --on PLACE`."


class RunFolderError(UnavailableError):
    """The run does not exist, or its folder is damaged."""

    code = "BT2006"
    remedy = "Name the folder of a run under .bisect-trt."


class ResourceError(UnavailableError):
    """Memory, disk or permissions are not enough."""

    code = "BT2007"
    remedy = "Free memory or disk, or check permissions."


class PackageError(UnavailableError):
    """A Python package is missing or cannot be loaded."""

    code = "BT2008"
    remedy = "Install the package that the message names."


class PluginError(UnavailableError):
    """The code of another package raises an error of its own, or returns something of another type than it has to."""

    code = "BT2009"
    remedy = "Correct or remove the package that the message names."


def kinds(base: type[BisectError] = BisectError) -> list[type[BisectError]]:
    """Return all imported classes of errors with a separate code, sorted by code."""
    below = [error for kind in base.__subclasses__() for error in kinds(kind)]
    return sorted([*([base] if "code" in vars(base) else []), *below], key=lambda kind: kind.code)


def kind_of(names: Sequence[str]) -> type[BisectError] | None:
    """Return the class of an error of another process from the names of its base classes, the most derived first."""
    classes = {kind.__name__: kind for kind in kinds() if kind.__module__ == __name__}
    return next((classes[name] for name in names if name in classes), None)


def quoted(names: Iterable[str], limit: int = 20) -> str:
    """Return quoted names for a message, at most ``limit``."""
    return first_few([f"'{name}'" for name in names], limit) or "none"


def first_few(words: Sequence[str], limit: int) -> str:
    """Return the first words and the number of the others, on one line."""
    return ", ".join(words[:limit]) + (
        f" and {len(words) - limit} more" if len(words) > limit else ""
    )
