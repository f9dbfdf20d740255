"""What of TensorRT can be turned: tactics of layers, sources of tactics, options of the builder, precisions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.switches import Looked, Switch, Tier, precision_switches
from bisect_trt.targets.trt.knobs import ENUMS, TYPES, plain
from bisect_trt.targets.trt.settings import TrtSettings

Turn = Callable[[TargetSettings], TargetSettings]
_SMALL_WORKSPACE = 1 << 20
"""Bytes that few tactics with scratch space do with."""
_FLAGS = ("REFIT", "ENABLE_TACTIC_HEURISTIC", "DISTRIBUTIVE_INDEPENDENCE", "STRICT_NANS")
"""Flags that may be set without changing what is asked for, where a version has them."""


def trt_switches(settings: TargetSettings, looked: Looked) -> list[Switch]:
    """All of them that this version has, by the trace of a build: tactics, then options, then precisions."""
    own, trace = settings.of(TrtSettings), looked.trace or {}
    if own.load_engine is not None:
        return []
    found = [*_tactics(trace.get("tactics", ())), *_sources(own, trace.get("sources", ()))]
    found += [*_given(own), *_levels(own, trace), *_previews(own, trace.get("previews", {}))]
    found += _routes(own, trace.get("routes"))
    found += [
        Switch(f"option:{flag}", _flag(flag), how="turned on") for flag in _FLAGS if flag in trace.get("flags", ())
    ]
    found = list({each.name: each for each in reversed(found)}.values())[::-1]
    if settings.tf32:
        found.append(Switch("precision:tf32", lambda given: replace(given, tf32=False)))
    wholes = [each for each in precision_switches(settings) if each.name != "precision:tf32"]
    return sorted([*found, *wholes], key=lambda each: each.tier)


def _tactics(took: object) -> Iterator[Switch]:
    """Of each layer that has a choice, another tactic than the one it took."""
    assert isinstance(took, list | tuple)
    for layer, tactic, offered in took:
        if offered > 1:
            yield Switch(f"tactic:{layer}", _avoid(tactic), Tier.PASS, how="given another tactic")


def _avoid(tactic: str) -> Turn:
    def turn(settings: TargetSettings) -> TargetSettings:
        return settings.with_own(avoid_tactics=(*settings.of(TrtSettings).avoid_tactics, tactic))

    return turn


def _sources(own: TrtSettings, defaults: object) -> Iterator[Switch]:
    """Each source of tactics that is used, left out."""
    assert isinstance(defaults, list | tuple)
    used = own.tactic_sources if own.tactic_sources is not None else tuple(defaults)
    for name in used:

        def turn(settings: TargetSettings, without: str = name) -> TargetSettings:
            given = settings.of(TrtSettings).tactic_sources
            left = tuple(each for each in (used if given is None else given) if each.lower() != without.lower())
            return settings.with_own(tactic_sources=left)

        yield Switch(f"tactic-source:{name.upper()}", turn)


def _given(own: TrtSettings) -> Iterator[Switch]:
    """What is given and differs from the default, each left out."""
    for name in own.builder_flags:

        def drop(settings: TargetSettings, flag: str = name) -> TargetSettings:
            left = tuple(each for each in settings.of(TrtSettings).builder_flags if each != flag)
            return settings.with_own(builder_flags=left)

        yield Switch(f"option:{name}", drop, how="left out")
    for name, _ in own.builder_settings:

        def unset(settings: TargetSettings, attribute: str = name) -> TargetSettings:
            left = tuple(pair for pair in settings.of(TrtSettings).builder_settings if pair[0] != attribute)
            return settings.with_own(builder_settings=left)

        yield Switch(f"option:{name}", unset, how="left out")
    plain = TrtSettings()
    for name in (
        *("precision_constraints", "strongly_typed", "version_compatible", "hardware_compatibility_level"),
        *("layer_precisions", "pool_limits", "builder_optimization_level", "onnx_flags", "load_timing_cache"),
    ):
        if getattr(own, name) != getattr(plain, name):
            yield Switch(f"option:{name}", _set(name, getattr(plain, name)), how="left out")


def _levels(own: TrtSettings, trace: object) -> Iterator[Switch]:
    """What is not given, each set to what asks least of TensorRT."""
    if own.builder_optimization_level is None:
        yield Switch("option:builder_optimization_level=0", _set("builder_optimization_level", 0))
    if not own.pool_limits:
        yield Switch("option:workspace=1M", _set("pool_limits", (("workspace", _SMALL_WORKSPACE),)))
    if own.hardware_compatibility_level is None and trace:
        yield Switch(
            "option:hardware_compatibility_level=ampere_plus", _set("hardware_compatibility_level", "ampere_plus")
        )
    if "max_aux_streams" not in dict(own.builder_settings):

        def alone(settings: TargetSettings) -> TargetSettings:
            given = settings.of(TrtSettings).builder_settings
            return settings.with_own(builder_settings=(*given, ("max_aux_streams", "0")))

        yield Switch("option:max_aux_streams=0", alone)


def _routes(own: TrtSettings, text: object) -> Iterator[Switch]:
    """Each knob of TensorRT's build routes that has few values, at each of them but its default.

    Source: ``IBuilderConfig.all_build_routes``, as JSON: ``tuner_options``, each with ``option`` (``-name``), ``allowed_values``
    (``[a|b]``) and ``default_value``; a route is ``-name=a -other=b``.
    """
    try:
        knobs = json.loads(str(text or "{}"))["tuner_options"]
    except (ValueError, KeyError, TypeError):
        return
    given = dict(
        word.split("=", 1) for word in dict(own.builder_settings).get("build_route", "").split() if "=" in word
    )
    for knob in knobs:
        allowed = re.search(r"\[([^\]]*)\]", str(knob.get("allowed_values", "")))
        if allowed is None or "..." in allowed[1]:
            continue
        name, usual = str(knob["option"]), str(knob.get("default_value", ""))
        for value in filter(None, map(str.strip, allowed[1].split("|"))):
            if value != given.get(name, usual):
                yield Switch(f"build-route:{name}={value}", _route(name, value))


def _route(name: str, value: str) -> Turn:
    def turn(settings: TargetSettings) -> TargetSettings:
        own = dict(settings.of(TrtSettings).builder_settings)
        kept = [word for word in own.get("build_route", "").split() if not word.startswith(f"{name}=")]
        own["build_route"] = " ".join([*kept, f"{name}={value}"])
        return settings.with_own(builder_settings=tuple(own.items()))

    return turn


def _set(name: str, value: object) -> Turn:
    return lambda settings: settings.with_own(**{name: value})


def _flag(name: str) -> Turn:
    def turn(settings: TargetSettings) -> TargetSettings:
        return settings.with_own(builder_flags=(*settings.of(TrtSettings).builder_flags, name))

    return turn


def _previews(own: TrtSettings, known: object) -> Iterator[Switch]:
    """Each preview feature, turned the other way."""
    assert isinstance(known, dict)
    on = tuple(name for name, is_on in known.items() if is_on) if own.preview_features is None else own.preview_features
    for name in known:

        def turn(settings: TargetSettings, feature: str = name) -> TargetSettings:
            given = settings.of(TrtSettings).preview_features
            now = on if given is None else given
            left = tuple(each for each in now if each != feature)
            return settings.with_own(preview_features=left if feature in now else (*now, feature))

        yield Switch(f"preview-feature:{name}", turn, how="turned off" if name in on else "turned on")


def trt_snippet(settings: TargetSettings) -> tuple[str, ...]:
    """The lines that set a builder configuration up so, after ``config = builder.create_builder_config()``."""
    own = settings.of(TrtSettings)
    lines = ["config.clear_flag(trt.BuilderFlag.TF32)"] if not settings.tf32 else []
    names = [name.upper() for name in settings.low_precisions if name != "tf32"]
    if own.precision_constraints != "none":
        names.append(f"{own.precision_constraints.upper()}_PRECISION_CONSTRAINTS")
    names += [*(["VERSION_COMPATIBLE"] if own.version_compatible else []), *own.builder_flags]
    lines += [f"config.set_flag(trt.BuilderFlag.{name})" for name in names]
    lines += [
        f"config.set_memory_pool_limit(trt.MemoryPoolType.{pool.upper()}, {size})" for pool, size in own.pool_limits
    ]
    if own.tactic_sources is not None:
        bits = " | ".join(f"1 << int(trt.TacticSource.{name.upper()})" for name in own.tactic_sources) or "0"
        lines.append(f"config.set_tactic_sources({bits})")
    if own.builder_optimization_level is not None:
        lines.append(f"config.builder_optimization_level = {own.builder_optimization_level}")
    if own.hardware_compatibility_level is not None:
        level = own.hardware_compatibility_level.upper()
        lines.append(f"config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.{level}")
    for name, value in own.builder_settings:
        flags = value.upper().split(",") if name == "quantization_flags" else []
        lines += [f"config.set_quantization_flag(trt.QuantizationFlag.{flag})" for flag in flags if flag != "NONE"]
        lines += [] if flags else [f"config.{name} = {_literal(name, value)}"]
    for name in own.preview_features or ():
        lines.append(f"config.set_preview_feature(trt.PreviewFeature.{name.upper()}, True)")
    lines += [
        f"# of the layer {name!r}: layer.precision = trt.DataType.{TYPES[kind]}" for name, kind in own.layer_precisions
    ]
    lines += [f"# an IAlgorithmSelector that does not return {each}" for each in own.avoid_tactics]
    lines += [f"# an IAlgorithmSelector that returns nothing but {each}" for each in own.pin_tactics]
    return tuple(lines)


def _literal(name: str, value: str) -> str:
    return f"trt.{ENUMS[name]}.{value.upper()}" if name in ENUMS else repr(plain(value))
