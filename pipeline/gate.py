"""Rules of the policy that answer without the model, from what was measured of a recording. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from pipeline.errors import REASONS
from pipeline.policy import Bounds, GateRule
from pipeline.records import Prepared


def rule_for(rules: Sequence[GateRule], prepared: Prepared) -> GateRule | None:
    """Return the first rule that a recording, already looked at, meets.

    What was not measured, or lacks the sense, meets no bound. A rule that passes takes only recordings of which all
    that the job asks for was looked at, and nothing was lost: what nobody saw must not pass.
    """
    return next((rule for rule in rules if _meets(rule, prepared)), None)


def looked_at_wholly(prepared: Prepared) -> bool:
    """Return whether a row of this recording would say that nothing was left out or lost."""
    lost = any(REASONS[remark.code].degrades for remark in prepared.remarks)
    return prepared.coverage == 1.0 and prepared.lesser_look is None and not lost


def _meets(rule: GateRule, prepared: Prepared) -> bool:
    if prepared.facts is None or (rule.verdict == "pass" and not looked_at_wholly(prepared)):
        return False
    kinds = rule.when.media_kind
    if kinds is not None and prepared.facts.kind not in kinds:
        return False
    measured = {"duration_s": prepared.duration_s, **asdict(prepared.signals)}
    return all(_within(measured[name], bounds) for name, bounds in rule.when.bounds().items())


def _within(value: float | None, bounds: Bounds) -> bool:
    if value is None:
        return False
    at_least, at_most = bounds.at_least, bounds.at_most
    return (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
