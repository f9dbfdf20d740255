"""The options of a target: of all targets, and of each that there is."""

from __future__ import annotations

import typing
from dataclasses import field, is_dataclass, make_dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bisect_trt.aliases import Fields, Names
from bisect_trt.errors import ConflictError, MissingOptionError, UnavailableError
from bisect_trt.options import commands, compare, searches, shared
from bisect_trt.options.spec import changed, entries, option, switch, words_of
from bisect_trt.plugins import FAILED, TARGETS, installed, refused
from bisect_trt.targets.base import PRECISIONS, OwnSettings, TargetSettings, find, names
from bisect_trt.targets.base import Target as Plugin


class TargetOptions:
    """The options that all targets share, and what all options of targets are turned into; a base of the composed group."""

    fp16: Annotated[bool, switch("In half precision.")] = False
    bf16: Annotated[bool, switch("In bfloat16.")] = False
    fp8: Annotated[bool, switch("In 8-bit floats (T).")] = False
    int8: Annotated[bool, switch("In 8-bit integers.")] = False
    tf32: Annotated[bool, switch("With fp32 products in TF32 (T).")] = False
    hold_precision: Annotated[
        bool, switch("All layers in the low precision, fp32 only where there is no other (T).")
    ] = False
    keep_fp32: Annotated[
        Names,
        option(
            metavar="TENSOR",
            help="But the nodes that make these tensors first stay in fp32; OUTER/INNER is a node in the body of another.",
        ),
    ] = ()
    fresh_process: Annotated[
        bool, switch("Each candidate in a new process: slower, nothing shared.")
    ] = False

    def named(self) -> list[Plugin]:
        """Return the selected targets."""
        return [plugin for plugin in selectable() if getattr(self, plugin.keyword)]

    def given(self) -> list[str]:
        """Return the given options as words of a command line, without the ones that name a target."""
        flags = {plugin.keyword for plugin in selectable()}
        return [f"--{name.replace('_', '-')}" for name in changed(self) if name not in flags]

    def but(self, **changes: Any) -> Target:  # noqa: ANN401 - of many types
        """Return a copy with other values."""
        return replace(self, **changes)  # type: ignore[type-var]  # the composed group is a dataclass

    def settings(self, *, engines: bool = False) -> TargetSettings | None:
        """As plain data; ``None`` if no target is selected.

        Engines may be loaded and saved where one model is built.

        Raises:
            UsageError: An option of a target without the target, or of another one, or one that
                others rule out.
        """
        flags = self.given()
        plugins = self.named()
        if not plugins:
            if flags:
                raise MissingOptionError(
                    f"{flags[0]} is an option of a target, and none is named; add {any_flag()}."
                )
            return None
        # ONNX Runtime beside another changes nothing: the reference is that too.
        plugin, *conflicting = [
            candidate for candidate in plugins if candidate.name != "onnxrt"
        ] or plugins
        if conflicting:
            raise ConflictError(
                f"--{plugin.name} and --{conflicting[0].name} are two targets; name one."
            )
        for flag in flags:
            owner = _owner(flag, plugin)
            if owner is not None:
                advice = f"use --{owner.name}" if plugin.name == "onnxrt" else "drop one"
                raise ConflictError(
                    f"{flag} is an option of {owner.title}, and the target is {plugin.title}; {advice}."
                )
        precisions: dict[str, bool] = {name: getattr(self, name) for name in PRECISIONS}
        options = self.own(plugin).checked(flags, engines=engines)
        return TargetSettings(
            plugin.name, **precisions, keep=self.keep_fp32, held=self.hold_precision, own=options
        )

    def own(self, plugin: Plugin) -> OwnSettings:
        """The settings that only one target has."""
        return plugin.own(
            **{entry.name: getattr(self, entry.keyword) for entry in entries(plugin.own)}
        )

    def required(self, *, engines: bool = False) -> TargetSettings:
        """As plain data; see :meth:`settings`.

        Raises:
            UsageError: No target is selected.
        """
        settings = self.settings(engines=engines)
        if settings is None:
            raise MissingOptionError(
                f"no target is named, so there is nothing to compare with the reference; add {any_flag()}."
            )
        return settings

    def files(self) -> list[Path]:
        """The files that the target depends on, with the code of a target of another package."""
        modules = [
            module
            for plugin in self.named()
            for module in (type(plugin).__module__, *plugin.sent)
            if not module.startswith("bisect_trt.")
        ]
        specs = map(find_spec, modules)
        code = [Path(spec.origin) for spec in specs if spec is not None and spec.origin]
        return code + [
            Path(word)
            for plugin in selectable()
            for name in plugin.files
            for value in (getattr(self.own(plugin), name),)
            for word in (value if isinstance(value, tuple) else (value or "",))
            if Path(word).is_absolute()
        ]


@cache
def selectable() -> tuple[Plugin, ...]:
    """Return the targets that can be tested, without those with an option of a command or of an earlier target."""
    plugins: list[Plugin] = []
    used = set(_shared())
    if installed(TARGETS):
        for module in (shared, compare, searches, commands):
            groups = (group for group in vars(module).values() if isinstance(group, type))
            used.update(*map(words_of, filter(is_dataclass, groups)))
    for name in names():
        try:
            plugin = find(name)
        except UnavailableError as error:
            FAILED.append(str(error))
            continue
        options = {plugin.keyword, *_own_options(plugin)}
        # A target derived from another one shares its options, which is no conflict.
        inherited = {
            option
            for earlier in plugins
            if issubclass(plugin.own, earlier.own)
            for option in _own_options(earlier)
        }
        if not plugin.selectable:
            continue
        if redefined := (options - inherited) & used:
            reason = f"redefines the option {min(redefined)}"
            FAILED.append(refused(name, installed(TARGETS)[name], reason))
            continue
        plugins.append(plugin)
        used |= options
    return tuple(plugins)


def any_flag() -> str:
    """Options that name a target, in words: ``--onnxrt or --trt``; ``--help`` has the others."""
    return " or ".join(f"--{plugin.name}" for plugin in selectable()[:2])


def target_group() -> type[TargetOptions]:
    """The group of all options of targets: a flag for each, what they share, and what only one has.

    If a target has an option with the name of the target, that option selects it and has a value.
    """
    declared: list[tuple[str, Any, Any]] = [
        (
            plugin.keyword,
            Annotated[bool, option(f"--{plugin.name}", help=plugin.help)],
            field(default=False),
        )
        for plugin in selectable()
        if plugin.keyword not in _own_options(plugin)
    ]
    declared += [
        (name, hint, field(default=getattr(TargetOptions, name)))
        for name, hint in _shared().items()
    ]
    for plugin in selectable():
        # Annotations are text until they are asked for.
        hints = typing.get_type_hints(plugin.own, include_extras=True)
        new = [
            entry
            for entry in entries(plugin.own)
            if entry.keyword not in {name for name, _, _ in declared}
        ]
        declared += [
            (entry.keyword, hints[entry.name], field(default=entry.default)) for entry in new
        ]
    return make_dataclass(
        "Target", declared, bases=(TargetOptions,), namespace={"__doc__": "Target."}
    )


def _shared() -> Fields:
    """The options that all targets share, with their types."""
    return typing.get_type_hints(TargetOptions, include_extras=True)


def _own_options(plugin: Plugin) -> set[str]:
    """The keywords of the options that only one target has."""
    return {entry.keyword for entry in entries(plugin.own)}


def _owner(flag: str, plugin: Plugin) -> Plugin | None:
    """The target that an option is one of, if it is none of this target's."""
    name = flag[2:].replace("-", "_")

    def takes(candidate: Plugin) -> bool:
        if name in PRECISIONS:
            return name in candidate.precisions
        if name == "hold_precision":
            return candidate.compiles
        return name in _shared() or name in _own_options(candidate)

    return (
        None
        if takes(plugin)
        else next((option_owner for option_owner in selectable() if takes(option_owner)), None)
    )


if TYPE_CHECKING:
    Target = TargetOptions
else:
    Target = target_group()
