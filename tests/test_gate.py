"""The gate: which rule answers, and that nothing passes that was not wholly looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.errors import REASONS
from pipeline.gate import looked_at_wholly, rule_for
from pipeline.policy import GateRule
from pipeline.records import MediaFacts, Phases, Prepared, Remark, Signals
from pipeline.verdict import Outcome, build_row
from tests.test_policy import policy
from tests.test_verdict import FACTS, ITEM, NOW

FACTS_AV = MediaFacts("av", "mp4", 20.0, None, None)
DARK_AND_SILENT = Prepared(
    phases=Phases(),
    facts=FACTS_AV,
    duration_s=20.0,
    coverage=1.0,
    signals=Signals(silence_share=1.0, peak_dbfs=-60.0, black_share=1.0, frozen_share=1.0),
)


def rule(when: dict[str, Any], verdict: str = "review", name: str = "nothing") -> GateRule:
    return GateRule.model_validate({"id": name, "when": when, "verdict": verdict, "rationale": "Nothing is there."})


NOTHING = {"silence_share": {"at_least": 0.99}, "black_share": {"at_least": 0.99}}


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        (NOTHING, True),
        ({"silence_share": {"at_least": 1.0}}, True),
        ({"silence_share": {"at_most": 0.99}}, False),
        ({"duration_s": {"at_least": 20, "at_most": 20}}, True),
        ({"duration_s": {"at_most": 19.9}}, False),
        ({"peak_dbfs": {"at_most": -50}}, True),
        (NOTHING | {"media_kind": ["av", "video"]}, True),
        (NOTHING | {"media_kind": ["audio"]}, False),
        (NOTHING | {"frozen_share": {"at_most": 0.5}}, False),
    ],
)
def test_a_rule_holds_if_all_of_it_does(when: dict[str, Any], holds: bool) -> None:
    assert (rule_for([rule(when)], DARK_AND_SILENT) is not None) == holds


def test_the_first_rule_that_holds_answers() -> None:
    rules = [rule({"duration_s": {"at_most": 1}}, name="a"), rule(NOTHING, name="b"), rule(NOTHING, name="c")]
    found = rule_for(rules, DARK_AND_SILENT)
    assert found is not None and found.id == "b"
    assert rule_for([], DARK_AND_SILENT) is None


@pytest.mark.parametrize("name", ["silence_share", "peak_dbfs", "black_share", "frozen_share"])
def test_what_was_not_measured_meets_no_bound(name: str) -> None:
    unknown = replace(DARK_AND_SILENT, signals=replace(DARK_AND_SILENT.signals, **{name: None}))
    least = 0.0 if name.endswith("_share") else -999.0
    for bounds in ({"at_least": least}, {"at_most": 1.0}):
        assert rule_for([rule({name: bounds})], unknown) is None
        assert rule_for([rule({name: bounds})], DARK_AND_SILENT) is not None


@pytest.mark.parametrize(
    "lesser",
    [
        {"coverage": 0.99},
        {"coverage": None},
        {"lesser_look": "half the frames"},
        *({"remarks": (Remark(code, "x"),)} for code, reason in REASONS.items() if reason.degrades),
    ],
)
def test_what_was_not_wholly_looked_at_never_passes_by_a_rule(lesser: dict[str, Any]) -> None:
    seen = replace(DARK_AND_SILENT, **lesser)
    assert not looked_at_wholly(seen) and looked_at_wholly(DARK_AND_SILENT)
    passes = rule(NOTHING, "pass")
    assert rule_for([passes], DARK_AND_SILENT) == passes and rule_for([passes], seen) is None
    assert rule_for([rule(NOTHING, "reject")], seen) is not None


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ([{"id": "a", "when": {}, "verdict": "pass", "rationale": "x"}], "needs a bound"),
        ([{"id": "a", "when": {"media_kind": ["av"]}, "verdict": "pass", "rationale": "x"}], "needs a bound"),
        ([{"id": "a", "when": {"silence_share": {}}, "verdict": "pass", "rationale": "x"}], "give at_least or at_most"),
        ([rule(NOTHING).model_dump() | {"when": {"silence_share": {"at_least": 2}}}], "a share from 0 to 1"),
        (
            [rule(NOTHING).model_dump() | {"when": {"duration_s": {"at_least": 2, "at_most": 1}}}],
            "at_least must not exceed at_most",
        ),
        ([rule(NOTHING).model_dump(), rule(NOTHING).model_dump()], "gate rule given twice: nothing"),
        ([rule(NOTHING).model_dump() | {"verdict": "maybe"}], "verdict"),
    ],
)
def test_rules_that_mean_nothing_are_refused(gate: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        policy(gate=gate)


def test_a_gated_row_rests_on_the_rule_alone() -> None:
    facts = replace(FACTS, policy=policy(gate=[rule(NOTHING, "pass").model_dump()], routing={"review_below": 0.9}))
    row = build_row(ITEM, Outcome(replace(DARK_AND_SILENT, gate="nothing"), 1), facts, NOW, None)
    assert (row.status, row.verdict, row.gate, row.rationale) == ("gated", "pass", "nothing", "Nothing is there.")
    assert row.model_verdict is None and row.confidence is None and row.labels == () and row.output_tokens == 0
    assert row.reason is None and not row.degraded


def test_a_rule_that_passes_is_routed_like_an_answer() -> None:
    facts = replace(FACTS, policy=policy(gate=[rule(NOTHING, "pass").model_dump()]))
    doubtful = replace(DARK_AND_SILENT, gate="nothing", remarks=(Remark("doubtful_format", "by chance"),))
    row = build_row(ITEM, Outcome(doubtful, 1), facts, NOW, None)
    assert (row.status, row.verdict, row.reason) == ("gated", "review", "doubtful_format")
