"""How a session of ONNX Runtime is set up: for the worker and, since its source goes there too, for ``reproduce.py``.

So it needs nothing of bisect-trt, has Python 3.8's syntax, and asks a release for nothing that its settings do not name.
"""

from __future__ import annotations

import pathlib
from typing import Any, Mapping

from bisect_trt.targets.signatures import clean_message

EXECUTION_PROVIDER = "ExecutionProvider"
FATAL_ONLY = 4
TINY_MODEL = (
    b'\x08\x07:<\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x04tinyZ\x10\n\x01x\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x12\x01n'
    b"b\x10\n\x01y\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x12\x01nB\x04\n\x00\x10\r"
)
"""An Identity, as ONNX: what refuses it refuses the settings and not the model."""
_REGISTERED: dict[tuple[str, str], list[str]] = {}
"""Of each library that this process has loaded, the execution providers that it brought."""


class Missing(Exception):  # noqa: N818 - what is missing
    """This build or release of ONNX Runtime lacks what the settings name."""


class Misnamed(Exception):  # noqa: N818 - what has no such name
    """The settings name what ONNX Runtime does not know."""


def prepare(settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What a session is made with: its options, and further arguments by name.

    Args:
        settings: The fields of :class:`~bisect_trt.targets.onnxrt.settings.OnnxRuntimeSettings`; lists do for tuples.

    Raises:
        Missing: This ONNX Runtime has no such provider, or cannot load a library.
        Misnamed: There is no such session option or level, or a value is none that it takes.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    set_option(options, "graph_optimization_level", settings["graph_optimization_level"])
    for name, value in settings["session_options"]:
        set_option(options, name, value)
    for path in settings["custom_op_libraries"]:
        try:
            options.register_custom_ops_library(existing(path))
        except Exception as error:  # its exceptions have no common base
            raise Missing(
                f"ONNX Runtime cannot load the custom-op library {path}: {clean_message(str(error))}"
            ) from error
    brought = [name for library, path in settings["ep_libraries"] for name in load_library(library, path)]
    names = find_providers(settings["providers"] or brought or ["cpu"])
    given = share_options(names, settings["provider_options"])
    arguments: dict[str, Any] = {}
    if any(name in brought for name in names):
        for name in names:
            add_provider(options, name, given[name], plugin=name in brought)
    else:
        arguments = {"providers": names, "provider_options": [given[name] for name in names]}
    if settings["disabled_optimizers"]:
        arguments["disabled_optimizers"] = list(settings["disabled_optimizers"])
    return options, arguments


def used(settings: Mapping[str, Any]) -> list[str]:
    """The execution providers that a session has to have, by ONNX Runtime's names; see :func:`prepare`."""
    brought = [name for library, path in settings["ep_libraries"] for name in load_library(library, path)]
    return find_providers(settings["providers"] or brought or ["cpu"])


def set_option(options: Any, name: str, value: str) -> None:
    """Set an attribute of the session's options, or, where the name has dots, an entry of their configuration.

    Raises:
        Misnamed: There is no such attribute, or it takes other values.
    """
    if "." in name:
        options.add_session_config_entry(name, value)
        return
    current = getattr(options, name, None)
    if name.startswith("_") or current is None or callable(current):
        known = [each for each in dir(options) if not each.startswith("_") and not callable(getattr(options, each))]
        raise Misnamed(
            f"ONNX Runtime has no session option '{name}'; it has: {', '.join(known)}, and entries of its configuration, "
            "whose names have dots (session.disable_prepacking)"
        )
    try:
        setattr(options, name, converted(value, current))
    except (LookupError, TypeError, ValueError) as error:
        raise Misnamed(f"the session option {name} takes no '{value}'; it takes {wanted(current)}") from error


def converted(value: str, like: Any) -> Any:
    """A word as a value of the type that another one has.

    Raises:
        LookupError: It is no word for a bool or a member of an enumeration.
        ValueError: It is no number.
    """
    if isinstance(like, bool):
        return {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}[value.lower()]
    if isinstance(like, (int, str)):
        return type(like)(value)
    members = type(like).__members__
    if value in members:
        return members[value]
    return {name.rpartition("_")[2].lower(): each for name, each in members.items()}[value.lower()]


def wanted(like: Any) -> str:
    """What values such an option takes, in words."""
    if isinstance(like, bool):
        return "1 or 0"
    return "a whole number" if isinstance(like, int) else " or ".join(type(like).__members__)


def existing(path: str) -> str:
    """The whole path of a file.

    Raises:
        Missing: It is not there.
    """
    if not pathlib.Path(path).is_file():
        raise Missing(f"there is no file {path}")
    return str(pathlib.Path(path).absolute())


def load_library(name: str, path: str) -> list[str]:
    """Have ONNX Runtime load a library of execution providers, once, and say which it brings.

    Raises:
        Missing: It is not there, cannot be loaded, or this release loads none.
    """
    import onnxruntime

    if (name, path) in _REGISTERED:
        return _REGISTERED[name, path]
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise Missing(
            f"ONNX Runtime {onnxruntime.__version__} loads no libraries of execution providers; 1.22 and later do"
        )
    before = {device.ep_name for device in onnxruntime.get_ep_devices()}
    try:
        onnxruntime.register_execution_provider_library(name, existing(path))
    except Missing:
        raise
    except Exception as error:  # its exceptions have no common base
        raise Missing(
            f"ONNX Runtime cannot load the execution provider {name} of {path}: {clean_message(str(error))}"
        ) from error
    found = [device.ep_name for device in onnxruntime.get_ep_devices() if device.ep_name not in before]
    if not found:
        raise Missing(f"the execution provider {name} of {path} finds no device here that it could use")
    _REGISTERED[name, path] = list(dict.fromkeys(found))
    return _REGISTERED[name, path]


def add_provider(options: Any, name: str, given: dict[str, str], *, plugin: bool) -> None:
    """Add an execution provider to a session's options, one of a library for all its devices."""
    import onnxruntime

    if plugin:
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
        options.add_provider_for_devices(devices, given)
    elif name != "CPU" + EXECUTION_PROVIDER:  # which is there always, and last
        options.add_provider(name, given)


def find_providers(asked: Any) -> list[str]:
    """Execution providers by ONNX Runtime's names, given long or short ones in any case.

    Raises:
        Missing: This ONNX Runtime has no such provider.
    """
    import onnxruntime

    loaded = [name for names in _REGISTERED.values() for name in names]
    short = {short_name(name): name for name in [*onnxruntime.get_available_providers(), *loaded]}
    for name in asked:
        if short_name(name) not in short:
            known = ", ".join(sorted(short))
            raise Missing(f"ONNX Runtime has no execution provider '{name}' here; it has: {known}")
    return list(dict.fromkeys(short[short_name(name)] for name in asked))


def short_name(name: str) -> str:
    """``cuda`` for ``CUDAExecutionProvider``."""
    lower, suffix = name.lower(), EXECUTION_PROVIDER.lower()
    return lower[: -len(suffix)] if lower.endswith(suffix) and lower != suffix else lower


def share_options(names: list[str], pairs: Any) -> dict[str, dict[str, str]]:
    """Whose provider options are whose: the first provider's, unless a key begins with another's name and a dot.

    Raises:
        Misnamed: They are for the CPU provider, which takes none and would not say so.
    """
    given: dict[str, dict[str, str]] = {name: {} for name in names}
    short = {short_name(name): name for name in names}
    for key, value in pairs:
        owner, dot, rest = key.partition(".")
        mine = dot and short_name(owner) in short
        name = short[short_name(owner)] if mine else names[0]
        if name == "CPU" + EXECUTION_PROVIDER:
            raise Misnamed(f"the provider option {key} is given, and ONNX Runtime's CPU provider has no options")
        given[name][rest if mine else key] = value
    return given
