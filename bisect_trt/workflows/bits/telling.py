"""What a search for bad scales comes to, on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bisect_trt.graph.qdq import Group
from bisect_trt.reporting.console import IN_JSON, Console
from bisect_trt.workflows.bits.bits_said import SHOWN, SHOWN_GROUPS, Told, reason
from bisect_trt.workflows.bits.case import Case, integer_operators
from bisect_trt.workflows.bits.misfit import Misfit
from bisect_trt.workflows.precision.task import Task
from bisect_trt.workflows.precision.telling import tell_nodes
from bisect_trt.workflows.precision.uses import tell_uses
from bisect_trt.workflows.subject import Subject


def tell_misfits(
    groups: Sequence[Group], misfits: Sequence[Sequence[Misfit]], ranking: Sequence[int], console: Console
) -> None:
    """Say what is suspected, and why."""
    if not ranking:
        console.say("  all of them fit, as far as the values are known")
    console.say_first(
        ranking, SHOWN, lambda unit: f"  {groups[unit].name}: {reason(misfits[unit])[1]}", ", which fit better"
    )


def tell_suspicions(odd: Sequence[Mapping[str, str]], console: Console) -> None:
    """Say which stored weights look odd; whether they are wrong, only the model from before quantization can tell."""
    if odd:
        console.say("  stored weights that look odd (whether they are wrong, only --reference can show):")
    console.say_first(odd, SHOWN, lambda each: f"    '{each['scale']}' of {each['group']}: {each['sentence']}", IN_JSON)


def untouched(subject: Subject, case: Case) -> Iterator[str]:
    """What is quantized and is neither searched nor taken out of what is right, a sentence each."""
    left, operators = case.quantized.left, integer_operators(subject)
    if len(left) == 1:
        yield f"1 node that quantizes or dequantizes stays as it is, in what is right too: {next(iter(left.values()))}"
    elif left:
        yield (
            f"{len(left)} nodes that quantize or dequantize stay as they are, in what is right too: "
            f"{next(iter(left.values()))}"
        )
    if operators:
        some = len(operators) > 1
        yield (
            f"{', '.join(operators[:4])} {'compute' if some else 'computes'} with integers {'themselves' if some else 'itself'} "
            f"and {'stay as they are' if some else 'stays as it is'}, in what is right too"
        )


def tell_bits(task: Task, told: Told) -> None:
    """Say what to keep, why, and what else would do."""
    console, result, extra = task.console, task.result, task.result.extra
    count, low = len(told.kept), extra["precision"]
    groups = "1 group" if count == 1 else f"{count} groups"
    proof = f" ({result.minimality})" if told.kept == told.minimum.units else ""
    task.tell_not_run()
    if told.ladder is not None:
        _tell_ladder(task, told, extra["ladder"])
    else:
        console.answer(f"{task.settings.output}: {groups} in floats, {extra['lowered']} in {low}{proof}.")
    if told.validation is not None:
        console.answer(f"  {told.validation.describe()}")
    elif told.why is not None:
        console.answer(f"  not held against fresh samples: {told.why}")
    if told.minimum.units < told.kept and told.ladder is None:
        console.answer(f"  {len(told.minimum.units)} of these are enough for what was given ({result.minimality})")
    if told.ladder is None or told.ladder.climb is None:
        _tell_groups(extra, console)
    if extra["kernels"] is not None and extra["kernels"]["sentence"]:
        console.answer(f"  {extra['kernels']['sentence']}")
    if told.refit is not None and told.refit.passed:
        console.answer(f"  or leave all of it quantized, with scales that fit: {told.refit.path} passes too:")
        uses = Counter(tensor["scale"] for group in extra["groups"] for tensor in group["tensors"])
        for each in extra["refit"]["scales"][:SHOWN]:
            named = each["zero_point"] is not None or each["zero_point_to"] != each["zero_point_from"]
            zero = f", zero point {_short(each['zero_point_to'])}" if named else ""
            was = f"{_short(each['from'])}" + (f", {_short(each['zero_point_from'])}" if named else "")
            shared = f" (shared by {uses[each['scale']]}) for '{each['tensor']}'" if uses[each["scale"]] > 1 else ""
            console.answer(f"    '{each['scale']}'{shared} = {_short(each['to'])}{zero} (was {was})")
    _tell_costs(told, console)
    _tell_latency(extra["latency_ms"] or {}, console)
    console.answer(f"  measured on {extra['measured_on']}")
    task.tell_why()


def _tell_groups(extra: Mapping[str, Any], console: Console) -> None:
    """The groups in floats, with the reason of each."""

    def line(node: Mapping[str, Any]) -> str:
        others = [f"'{name}'" for name in node["operators"] if name != node["name"]]
        shared = f" (with {', '.join(others[:3])}{', ...' if len(others) > 3 else ''})" if others else ""
        return f"  {node['op']} '{node['name'] or extra['groups'][node['group']]['name']}'{shared}: {node['reason']}"

    console.answer_first(extra["keep_fp32"], SHOWN_GROUPS, line, IN_JSON)


def _tell_ladder(task: Task, told: Told, ladder: Mapping[str, Any]) -> None:
    """How much is on each rung, what it is that had to climb, and what other assignments cost."""
    console, result, extra = task.console, task.result, task.result.extra
    counts = ", ".join(f"{count} in {rung}" for rung, count in ladder["counts"].items())
    console.answer(f"{task.settings.output}: of its nodes {counts} ({result.minimality} on each rung).")
    for group in extra["groups"]:
        if group["kept"] and told.ladder is not None and told.ladder.climb is not None:
            console.answer(f"  '{group['name']}' to {group['rung']}: {group['reason'] or 'needed'}")
    if told.ladder is not None and told.ladder.climb is not None:
        tell_nodes(extra["keep_fp32"], console)
    cost = ladder["cost"]
    for each in cost["assignments"]:
        latency = "" if each["latency_ms"] is None else f", {each['latency_ms']:.3f} ms"
        chosen = " (this one)" if each["name"] == cost["chosen"] else ""
        console.answer(f"  {each['name']}: weights of {each['bytes']:,} bytes{latency}{chosen}")
    if told.ladder is not None and told.ladder.raised is not None:
        console.answer(f"  {told.ladder.raised.describe([*cost['raised']], '/'.join(task.settings.bits))}")
    if ladder["why"]:
        console.answer(f"  {ladder['why']}")
    tell_uses(extra.get("uses", []), console)


def _tell_latency(latency: dict[str, float | None], console: Console) -> None:
    """How long a run takes, where that was measured."""
    times = [f"{name} {value:.3f} ms" for name, value in latency.items() if value is not None]
    if times:
        console.answer(f"  one run takes (median, copies included): {', '.join(times)}")


def _short(value: float | list[float] | None) -> str:
    if isinstance(value, list):
        known = [each for each in value if each is not None]
        return f"{min(known):.4g} to {max(known):.4g}" if known else "?"
    return "?" if value is None else f"{value:.6g}"


def _tell_costs(told: Told, console: Console) -> None:
    """The groups that cost most."""
    sensitivity = told.sensitivity
    if sensitivity is None:
        return
    known = [(cost, unit) for unit, cost in enumerate(sensitivity.quantized) if cost is not None]
    known.sort(key=lambda entry: (-entry[0], entry[1]))
    console.say("  errors in tolerances, as written, on ONNX Runtime's CPU provider (all groups: --json, report.html):")
    for cost, unit in known[:SHOWN]:
        removed = sensitivity.removed[unit]
        without = "?" if removed is None else f"{removed:.3g}"
        console.say(
            f"    {told.case.lowering.groups[unit].name}: alone quantized {cost:.3g}, alone in floats {without}"
        )
