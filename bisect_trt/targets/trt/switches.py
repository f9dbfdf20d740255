"""Switches of TensorRT: tactics of layers, sources of tactics, options of the builder, precisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.switches import Looked, Switch, Tier, adding, changing, dropping, precision_switches, setting
from bisect_trt.targets.trt.settings import TrtSettings

_SMALL_WORKSPACE = 1 << 20
"""Bytes that few tactics with scratch space do with."""
_FLAGS = ("REFIT", "ENABLE_TACTIC_HEURISTIC", "DISTRIBUTIVE_INDEPENDENCE", "STRICT_NANS")
"""Flags that may be set without changing what is asked for, where a version has them."""
_LEAST = (("hardware_compatibility_level", "ampere_plus"), ("max_aux_streams", "0"))
"""Attributes that are not given, each with the value that asks least of TensorRT."""
_GIVEN = (*("strongly_typed", "pool_limits", "builder_optimization_level", "load_timing_cache"),)
"""Settings that are left out where they are given."""


def trt_switches(settings: TargetSettings, looked: Looked) -> list[Switch]:
    """Return all switches that this version has, by the trace of a build: tactics, then options, then precisions."""
    own, trace = settings.of(TrtSettings), looked.trace or {}
    if own.load_engine is not None:
        return []
    found = {each.name: each for each in (*_tactics(own, trace), *_given(own), *_other(own, trace))}
    wholes = [each for each in precision_switches(settings) if each.name != "precision:tf32"]
    if settings.tf32:
        found["precision:tf32"] = Switch("precision:tf32", lambda given: replace(given, tf32=False))
    return sorted([*found.values(), *wholes], key=lambda each: each.tier)


def _tactics(own: TrtSettings, trace: Mapping[str, Any]) -> Iterator[Switch]:
    """Yield, for each layer that has a choice, another tactic than it took, and each source of tactics, left out."""
    for layer, tactic, offered in trace.get("tactics", ()):
        if offered > 1:
            yield Switch(f"tactic:{layer}", adding("avoid_tactics", tactic), Tier.PASS, how="given another tactic")
    used = tuple(trace.get("sources", ())) if own.tactic_sources is None else own.tactic_sources
    for name in used:

        def left(values: Iterable[str] | None, without: str = name) -> tuple[str, ...]:
            return tuple(each for each in (used if values is None else values) if each.lower() != without.lower())

        yield Switch(f"tactic-source:{name.upper()}", changing("tactic_sources", left))


def _given(own: TrtSettings) -> Iterator[Switch]:
    """Yield what is given and differs from the default, each left out."""
    for flag in own.builder_flags:
        yield Switch(f"option:{flag}", dropping("builder_flags", flag), how="left out")
    for attribute, _ in own.builder_settings:
        yield Switch(f"option:{attribute}", dropping("builder_settings", attribute), how="left out")
    for name in _GIVEN:
        default = getattr(TrtSettings(), name)
        if getattr(own, name) != default:
            yield Switch(f"option:{name}", setting(**{name: default}), how="left out")


def _other(own: TrtSettings, trace: Mapping[str, Any]) -> Iterator[Switch]:
    """Yield what is not given: levels and limits that ask little of TensorRT, and flags."""
    given = dict(own.builder_settings)
    if own.builder_optimization_level is None:
        yield Switch("option:builder_optimization_level=0", setting(builder_optimization_level=0))
    if not own.pool_limits:
        yield Switch("option:workspace=1M", adding("pool_limits", ("workspace", _SMALL_WORKSPACE)))
    for name, value in _LEAST:
        if name not in given and trace:
            yield Switch(f"option:{name}={value}", adding("builder_settings", (name, value)))
    for flag in _FLAGS:
        if flag in trace.get("flags", ()) and flag not in own.builder_flags:
            yield Switch(f"option:{flag}", adding("builder_flags", flag), how="enabled")


def trt_snippet(settings: TargetSettings) -> tuple[str, ...]:
    """Return the lines that set a builder configuration up so, after ``config = builder.create_builder_config()``."""
    own = settings.of(TrtSettings)
    lines = [] if settings.tf32 else ["config.clear_flag(trt.BuilderFlag.TF32)"]
    names = [name.upper() for name in settings.low_precisions if name != "tf32"]
    lines += [f"config.set_flag(trt.BuilderFlag.{name})" for name in (*names, *own.builder_flags)]
    lines += [
        f"config.set_memory_pool_limit(trt.MemoryPoolType.{pool.upper()}, {size})" for pool, size in own.pool_limits
    ]
    if own.tactic_sources is not None:
        bits = " | ".join(f"1 << int(trt.TacticSource.{name.upper()})" for name in own.tactic_sources) or "0"
        lines.append(f"config.set_tactic_sources({bits})")
    if own.builder_optimization_level is not None:
        lines.append(f"config.builder_optimization_level = {own.builder_optimization_level}")
    lines += [f"config.{name} = {_literal(name, value)}" for name, value in own.builder_settings]
    lines += [f"# an IAlgorithmSelector that does not return {each}" for each in own.avoid_tactics]
    lines += [f"# an IAlgorithmSelector that returns nothing but {each}" for each in own.pin_tactics]
    return tuple(lines)


def _literal(name: str, value: str) -> str:
    """Return an attribute's value as code: a number, a bool, or a member of the enumeration that the attribute is named for."""
    if value.lower() in ("true", "false"):
        return value.capitalize()
    try:
        return str(int(value, 0))
    except ValueError:
        enum = "".join(word.capitalize() for word in name.removeprefix("default_").split("_"))
        return repr(value) if name == "build_route" else f"trt.{enum}.{value.upper()}"
