"""Answers and rows: confidence renormalised over what was allowed, and no row that hides what went wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pipeline.errors import REASONS, ItemError
from pipeline.policy import Policy, Routing
from pipeline.records import Completion, Item, MediaFacts, Phases, Prepared, Remark, Signals, TokenChoice
from pipeline.verdict import Outcome, RunFacts, build_row, parse_answer
from tests.test_calibration import calibration

POLICY = Policy.model_validate(
    {
        "id": "p",
        "version": "1",
        "question": "?",
        "labels": [{"id": "alarm", "description": "x"}, {"id": "bang", "description": "y"}],
        "verdicts": {"pass": "a", "review": "b", "reject": "c"},
        "fail_safe": "reject",
    }
)
ITEM = Item("i", "/a.mp4", b"/a.mp4", 1, 1, "key")
FACTS = RunFacts("run", "job", "print", POLICY, "model", "engine", (), 60.0)
NOW = datetime(2026, 11, 30, tzinfo=UTC)


def choice(text: str, share: float = 1.0, **others: float) -> TokenChoice:
    alternatives = tuple((name, math.log(value)) for name, value in others.items())
    return TokenChoice(text, math.log(share), alternatives)


def completion(tokens: Sequence[TokenChoice], finish_reason: str = "stop") -> Completion:
    return Completion(
        text="".join(token.text for token in tokens),
        tokens=tuple(tokens),
        finish_reason=finish_reason,
        prompt_tokens=10,
        audio_tokens=3,
        video_tokens=4,
        output_tokens=len(tokens),
        wait_s=0.0,
        prefill_s=0.1,
        generate_s=0.2,
    )


def answer_tokens(verdict: Sequence[TokenChoice]) -> list[TokenChoice]:
    return [
        choice('{"labels":{"alarm":'),
        choice("true", 0.9, false=0.1),
        choice(',"bang":'),
        choice("fal", 0.6, true=0.2, false=0.2),
        choice("se"),
        choice('},"verdict":"'),
        *verdict,
        choice('","rationale":"'),
        choice("an alarm"),
        choice('"}'),
    ]


def test_confidence_of_a_one_token_verdict_is_its_share_among_the_allowed_ones() -> None:
    answer = parse_answer(completion(answer_tokens([choice("pass", 0.6, review=0.2, reject=0.1, zebra=0.1)])), POLICY)
    assert answer.verdict == "pass"
    assert answer.confidence == pytest.approx(0.6 / 0.9)


def test_confidence_of_a_verdict_in_several_tokens_is_the_product_of_its_steps() -> None:
    steps = [choice("re", 0.8, pass_=0.0001, **{"pass": 0.2}), choice("view", 0.75, ject=0.25)]
    answer = parse_answer(completion(answer_tokens(steps)), POLICY)
    assert answer.verdict == "review"
    assert answer.confidence == pytest.approx(0.8 * 0.75)


def test_confidence_adds_up_the_ways_in_which_one_verdict_can_be_cut_into_tokens() -> None:
    steps = [choice("pa", 0.4, p=0.2, re=0.4, **{"pass": 0.0001}), choice("ss")]
    answer = parse_answer(completion(answer_tokens(steps)), POLICY)
    assert answer.confidence == pytest.approx(0.6, abs=1e-3)


def test_confidence_holds_when_the_verdict_begins_inside_a_token() -> None:
    tokens = answer_tokens([choice("x")])
    at = next(number for number, token in enumerate(tokens) if token.text == '},"verdict":"')
    tokens[at : at + 2] = [choice('},"verdict":'), choice('"pa', 0.7, **{'"re': 0.3}), choice("ss")]
    assert parse_answer(completion(tokens), POLICY).confidence == pytest.approx(0.7)


def test_confidence_never_claims_certainty() -> None:
    assert parse_answer(completion(answer_tokens([choice("pass")])), POLICY).confidence < 1.0


def test_a_verdict_is_no_more_certain_than_the_least_certain_finding_it_rests_on() -> None:
    answer = parse_answer(completion(answer_tokens([choice("pass", 0.99, review=0.01)])), POLICY)
    assert answer.confidence == min(label.confidence for label in answer.labels) == pytest.approx(0.8)


def test_every_label_has_its_own_confidence() -> None:
    alarm, bang = parse_answer(completion(answer_tokens([choice("pass")])), POLICY).labels
    assert (alarm.id, alarm.present) == ("alarm", True)
    assert (bang.id, bang.present) == ("bang", False)
    assert [alarm.confidence, bang.confidence] == pytest.approx([0.9, 0.8])


def test_white_space_between_key_and_value_changes_nothing() -> None:
    tokens = answer_tokens([choice("pass", 0.5, review=0.5)])
    spaced = [replace(token, text=token.text.replace('":', '": ')) for token in tokens]
    assert parse_answer(completion(spaced), POLICY).confidence == pytest.approx(0.5)


def test_a_cut_answer_is_refused_as_truncated() -> None:
    with pytest.raises(ItemError) as caught:
        parse_answer(completion(answer_tokens([choice("pass")])[:-1], "length"), POLICY)
    assert caught.value.code == "answer_truncated"


def test_a_request_that_the_engine_gave_up_is_rejected_and_not_called_a_bad_answer() -> None:
    with pytest.raises(ItemError) as caught:
        parse_answer(completion([], "error"), POLICY)
    assert caught.value.code == "engine_rejected"


def test_a_rationale_loses_what_is_no_text() -> None:
    tokens = [*answer_tokens([choice("pass")])[:-2], choice("a\x1b[31m\tb\u2028\ufeff警"), choice('"}')]
    assert parse_answer(completion(tokens), POLICY).rationale == "a [31m b \ufeff警"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        "[]",
        '{"verdict":"pass"}',
        '{"labels":{"alarm":true,"bang":1},"verdict":"pass","rationale":"x"}',
        '{"labels":{"alarm":true,"bang":true},"verdict":"maybe","rationale":"x"}',
        '{"labels":{"alarm":true,"bang":true},"verdict":"pass","rationale":null}',
    ],
)
def test_an_answer_of_another_form_is_refused_as_unparsable(text: str) -> None:
    with pytest.raises(ItemError) as caught:
        parse_answer(completion([choice(text)]), POLICY)
    assert caught.value.code == "answer_unparsable"


def answered(**prepared: object) -> Outcome:
    found = completion(answer_tokens([choice("pass", 0.9, review=0.1)]))
    known = Prepared(phases=Phases(), facts=MediaFacts("audio", "wav", 3.0, None, None), coverage=1.0)
    return Outcome(
        prepared=replace(known, **prepared),  # type: ignore[arg-type]
        attempts=1,
        answer=parse_answer(found, POLICY),
        completion=found,
        phases=Phases(probe_s=0.5),
    )


def test_a_row_without_an_answer_carries_the_fail_safe_verdict_and_its_reason() -> None:
    outcome = Outcome(prepared=Prepared(phases=Phases()), attempts=2, reason="not_media", message="no")
    row = build_row(ITEM, outcome, FACTS, NOW, None)
    assert (row.verdict, row.status, row.reason, row.message) == ("reject", "error", "not_media", "no")
    assert (row.model_verdict, row.confidence, row.labels) == (None, None, ())
    assert row.attempts == 2


@pytest.mark.parametrize("reason", [None, "something_else", "low_confidence"])
def test_a_row_without_an_answer_and_without_a_known_reason_cannot_be_built(reason: str | None) -> None:
    outcome = Outcome(prepared=Prepared(phases=Phases()), attempts=1, reason=reason, message="no")
    with pytest.raises(ValueError, match="reason"):
        build_row(ITEM, outcome, FACTS, NOW, None)


def test_a_row_says_what_sound_and_pictures_are_like() -> None:
    row = build_row(ITEM, answered(signals=Signals(0.25, -3.0, 0.75, 0.5, None)), FACTS, NOW, None)
    assert (row.silence_share, row.peak_dbfs, row.speech_share) == (0.25, -3.0, 0.75)
    assert (row.black_share, row.frozen_share) == (0.5, None)


def test_an_answered_item_is_ok_with_the_models_verdict() -> None:
    row = build_row(ITEM, answered(), FACTS, NOW, "before")
    assert (row.verdict, row.model_verdict, row.status, row.reason, row.degraded) == ("pass", "pass", "ok", None, False)
    assert (row.follows_row_id, row.probe_s, row.prompt_tokens) == ("before", 0.5, 10)


@pytest.mark.parametrize(
    ("prepared", "reason"),
    [
        ({"remarks": (Remark("partial_decode", "the decoder reported 3 errors"),)}, "partial_decode"),
        ({"coverage": 0.4}, "partial_coverage"),
        ({"coverage": None}, "partial_coverage"),
    ],
)
def test_a_lesser_look_is_marked_and_says_why(prepared: dict[str, object], reason: str) -> None:
    row = build_row(ITEM, answered(**prepared), FACTS, NOW, None)
    assert row.degraded
    assert row.reason == reason
    assert row.reason in REASONS
    assert row.message


def test_a_row_of_several_remarks_is_named_for_the_gravest_and_says_all() -> None:
    remarks = (Remark("sound_mended", "an offset"), Remark("partial_decode", "3 errors"))
    row = build_row(ITEM, answered(remarks=remarks), FACTS, NOW, None)
    assert (row.verdict, row.reason, row.message) == ("pass", "partial_decode", "3 errors; an offset")


def test_a_very_long_recording_is_not_said_to_be_looked_at_by_nought_per_cent() -> None:
    row = build_row(ITEM, answered(coverage=0.0017), FACTS, NOW, None)
    assert row.message == "Less than 1% of the recording was looked at, evenly spread"


def test_sound_that_was_mended_degrades_nothing() -> None:
    row = build_row(ITEM, answered(remarks=(Remark("sound_mended", "an offset"),)), FACTS, NOW, None)
    assert (row.verdict, row.degraded, row.reason) == ("pass", False, "sound_mended")


def test_a_pass_with_a_reason_that_the_policy_sends_to_people_becomes_review() -> None:
    doubtful = answered(remarks=(Remark("doubtful_format", "perhaps AMR"),))
    row = build_row(ITEM, doubtful, FACTS, NOW, None)
    assert (row.verdict, row.model_verdict, row.reason, row.degraded) == ("review", "pass", "doubtful_format", True)
    trusting = POLICY.model_copy(update={"routing": Routing(review_reasons=())})
    assert build_row(ITEM, doubtful, replace(FACTS, policy=trusting), NOW, None).verdict == "pass"


def routing(review_below: float) -> RunFacts:
    policy = POLICY.model_copy(update={"routing": Routing(review_below=review_below)})
    return replace(FACTS, policy=policy)


def test_an_answer_below_the_threshold_goes_to_review_and_says_what_the_model_said() -> None:
    row = build_row(ITEM, answered(), routing(0.95), NOW, None)
    assert (row.verdict, row.model_verdict, row.status, row.degraded) == ("review", "pass", "ok", False)
    assert row.reason == "low_confidence" and not REASONS[row.reason].failure
    assert row.message == f"the model said pass with confidence {row.confidence:.3g}, below 0.95"


def test_confidences_are_calibrated_before_routing() -> None:
    facts = replace(routing(0.7), calibration=calibration(verdict_temperature=2.0, label_temperature=0.5))
    row = build_row(ITEM, answered(), facts, NOW, None)
    assert row.confidence == pytest.approx(2 / 3)  # odds of 0.8 to 0.2, square root taken
    assert row.labels[1].confidence == pytest.approx(16 / 17)  # squared
    assert (row.verdict, row.model_verdict, row.reason) == ("review", "pass", "low_confidence")


def test_an_answer_at_the_threshold_keeps_its_verdict() -> None:
    confidence = answered().answer.confidence  # type: ignore[union-attr]
    row = build_row(ITEM, answered(), routing(confidence), NOW, None)
    assert (row.verdict, row.reason, row.message) == ("pass", None, None)


def test_an_uncertain_review_is_a_review_and_nothing_was_routed() -> None:
    found = completion(answer_tokens([choice("review", 0.5, **{"pass": 0.5})]))
    row = build_row(ITEM, replace(answered(), answer=parse_answer(found, POLICY)), routing(1.0), NOW, None)
    assert (row.verdict, row.model_verdict, row.reason) == ("review", "review", None)


def test_a_routed_row_that_is_degraded_keeps_that_reason_and_says_both() -> None:
    row = build_row(ITEM, answered(coverage=0.4), routing(0.95), NOW, None)
    assert (row.verdict, row.reason, row.degraded) == ("review", "partial_coverage", True)
    assert row.message is not None
    assert "40% of the recording was looked at" in row.message and "the model said pass" in row.message


def test_routing_leaves_a_row_without_an_answer_as_it_is() -> None:
    outcome = Outcome(prepared=Prepared(phases=Phases()), attempts=1, reason="not_media", message="no")
    row = build_row(ITEM, outcome, routing(1.0), NOW, None)
    assert (row.verdict, row.reason, row.message) == ("reject", "not_media", "no")
