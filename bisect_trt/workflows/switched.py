"""A target's switches turned on a model, and the search for those that make it pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bisect_trt.errors import UsageError
from bisect_trt.graph.nodes import all_nodes
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.protocol import Failed, Trace
from bisect_trt.search.alternatives import Alternatives, find_alternatives
from bisect_trt.search.oracle import Ask, Enough, Limited, Subset, Verdict, over_units
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.targets.switches import Looked, Switch, Tier
from bisect_trt.workflows.blame import named_nodes
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.settings import CheckSettings

_FEW_NAMES = 2


@dataclass(frozen=True)
class Panel:
    """The switches of a target, about one model.

    Attributes:
        switches: The switches; a search's units are their places.
        base: The model, with its target set up as it fails.
        target: How that is.
    """

    switches: Sequence[Switch]
    base: Candidate
    target: TargetSettings

    def of(self, *tiers: Tier) -> list[int]:
        """The units of some tiers."""
        return [unit for unit, switch in enumerate(self.switches) if switch.tier in tiers]

    def names(self, units: Iterable[int]) -> list[str]:
        """What some of them are called."""
        return [self.switches[unit].name for unit in sorted(units)]

    def said(self, units: Iterable[int]) -> str:
        """What is done to some of them: ``that turned off``, ``these turned off, set to 0``."""
        ways = dict.fromkeys(self.switches[unit].said for unit in sorted(units))
        return f"{'that' if len(set(units)) == 1 else 'these'} {', '.join(ways)}"

    def turned(self, units: Subset) -> TargetSettings:
        """The target with some of them turned."""
        settings = self.target
        for unit in sorted(units):
            settings = self.switches[unit].turn(settings)
        return settings

    def candidate(self, units: Subset) -> Candidate:
        """The model on that."""
        settings, names = self.turned(units), self.names(units)
        some = f"{len(names)} of {len(self.switches)} switches" if len(names) > _FEW_NAMES else " and ".join(names)
        held = self.base.held and (settings.fp16 or settings.bf16)
        keep = self.base.keep if held or not self.base.held else None
        title = f"{self.base.title}, with {some} turned" if names else self.base.title
        return replace(self.base, title=title, target=settings, held=held, keep=keep)


@dataclass(frozen=True)
class Found:
    """What a search over switches ends with.

    Attributes:
        alternatives: Sets of them, each enough to pass and 1-minimal.
        also: Single ones that turn a whole kind at once and were seen to pass too.
        complete: Whether no others were seen to pass.
    """

    alternatives: tuple[Subset, ...]
    also: tuple[int, ...]
    complete: bool


def told_of_switches(check: CheckSettings) -> CheckSettings:
    """The check, if it can be told of what is turned: the built-in one, or a command that is given engines.

    Raises:
        UsageError: It cannot.
    """
    assert check.target is not None, "the options ask for one"
    if check.function is None and not check.argv:
        return replace(check, timed=check.target.target.capabilities.timed)
    if check.argv and check.target.target.engines is not None:
        return replace(check, by_layer=True)
    what = "a check command" if check.argv else "a check function"
    raise UsageError(
        f"{what} is given models and cannot be told what of {check.target.target.title} is turned; leave it out, so that the "
        "target is compared with the reference, or name a target that makes engines (--trt): a command is given those."
    )


def make_panel(
    investigation: Investigation, target: TargetSettings, base: Candidate, suspects: frozenset[str]
) -> Panel:
    """The switches that there are for a model.

    Raises:
        UsageError: The target has no switches.
    """
    models, subject = investigation.subject.models, investigation.subject
    feed = models.feed("trace.in", subject.values(base, base.inputs))
    reply = models.ask(Trace(target, models.write("trace", base.proto), feed))
    trace = None if isinstance(reply, Failed) else reply.found
    operators = frozenset(node.op_type for node in all_nodes(base.proto))
    switches = target.target.switches(target, Looked(trace, operators, suspects))
    if not switches:
        raise UsageError(f"{target.target.title} has nothing that can be turned, as it is set up.")
    return Panel(switches, base, target)


def suspected_operators(investigation: Investigation) -> frozenset[str]:
    """The operators of the nodes that the failure's message speaks of, and of those around them."""
    network, ledger = investigation.subject.network, investigation.prober.ledger
    outcome = ledger.outcome(investigation.subject.original.key)
    if outcome is None or not ledger.is_broken:
        return frozenset()
    named = set(named_nodes(network, outcome.reason)[:1])
    readers = {index for index in network.order if named.intersection(network.parents(index))}
    around = named | readers | {parent for index in readers for parent in network.parents(index)}
    return frozenset(network.nodes[index].op_type for index in around)


def search_switches(investigation: Investigation, panel: Panel, most: int | None = None) -> Found | None:
    """Find the fewest switches that make the model pass, and what else does.

    What is done to the model one by one comes first, then options, then both together; what turns a whole kind at once
    is an answer only where nothing less is.

    Args:
        investigation: Whose model it is.
        panel: The switches.
        most: How many questions may be asked, if that is limited; ``None`` is given back if they are not enough.
    """
    weights = {unit: switch.weight for unit, switch in enumerate(panel.switches)}
    passes, options, spares = panel.of(Tier.PASS), panel.of(Tier.OPTION), panel.of(Tier.SPARE)
    wholes = panel.of(Tier.WHOLE)

    def find(units: Sequence[int], ask: Ask, *, likely: bool) -> Alternatives:
        return find_alternatives(units, ask, weights=weights, likely=likely) if units else Alternatives()

    def story(ask: Ask) -> Found:
        gates = [unit for unit in wholes if panel.switches[unit].covers is not None]
        shut = {panel.switches[unit].covers for unit in gates if ask(frozenset({unit})) is Verdict.FAIL}
        found = Alternatives() if shut else find(passes, ask, likely=bool(gates))
        if not shut and not found.found and spares:
            found = find([*passes, *spares], ask, likely=False)
        more = find(options, ask, likely=False)
        if not (found.found or more.found) and passes and options:
            more = find([*passes, *options], ask, likely=False)
        alternatives, complete = (*found.found, *more.found), found.complete and more.complete
        rest = [unit for unit in wholes if panel.switches[unit].within not in shut]
        asked = gates if alternatives else rest
        also = tuple(unit for unit in asked if ask(frozenset({unit})) is Verdict.PASS)
        if alternatives:
            return Found(alternatives, also, complete)
        return Found(tuple(frozenset({unit}) for unit in also), (), complete)

    def limited(ask: Ask) -> Found | None:
        try:
            return story(Limited(ask, frozenset(weights), most))
        except Enough:
            return None

    return investigation.prober.search(
        over_units(Verdict.PASS, limited), panel.candidate, investigation.subject.original
    )
