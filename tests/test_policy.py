"""Policies: refusals, the answer's grammar, and that recordings are evidence and never instructions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from pipeline.errors import JobError
from pipeline.policy import (
    Policy,
    Routing,
    answer_schema,
    instructions,
    load_policy,
    longest_answer_tokens,
    policy_digest,
    prompt_digest,
)

CONTENT: dict[str, Any] = {
    "id": "p",
    "version": "1",
    "question": "Is it dangerous?",
    "labels": [
        {"id": "alarm", "description": "An alarm can be heard."},
        {"id": "flashing", "description": "It flashes."},
    ],
    "verdicts": {"pass": "nothing", "review": "one of them", "reject": "both"},
}


def policy(**changes: Any) -> Policy:
    return Policy.model_validate(CONTENT | changes)


def answer(rationale: str) -> dict[str, Any]:
    return {"labels": {"alarm": True, "flashing": False}, "verdict": "review", "rationale": rationale}


def test_a_policy_reads_from_yaml_and_an_unquoted_version_is_text(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(CONTENT | {"version": 2}), encoding="utf-8")
    assert load_policy(path).version == "2"
    assert load_policy(path).fail_safe == "review"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": []}, '"labels"'),
        ({"labels": [CONTENT["labels"][0]] * 2}, "given twice: alarm"),
        ({"labels": [{"id": "verdict", "description": "x"}]}, "may not be called verdict"),
        ({"labels": [{"id": "alarm", "descripton": "x"}]}, 'did you mean "description"'),
        ({"verdicts": {"pass": "a", "reject": "b"}}, 'missing key "verdicts.review"'),
        ({"fail_safe": "maybe"}, '"fail_safe"'),
        ({"rationale": {"max_chars": 5}}, '"rationale.max_chars"'),
        ({"question": "  "}, '"question"'),
        ({"routing": {"review_below": 1.1}}, '"routing.review_below"'),
        ({"routing": {"review_bellow": 0.5}}, 'did you mean "review_below"'),
        ({"verdicts": CONTENT["verdicts"] | {"passes": "x"}}, 'did you mean "pass"'),
        ({"gate": [{"id": "a", "when": {"silense_share": {"at_least": 1}}}]}, 'did you mean "silence_share"'),
    ],
)
def test_a_wrong_policy_is_refused_by_its_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(CONTENT | changes), encoding="utf-8")
    with pytest.raises(JobError) as caught:
        load_policy(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_grammar_takes_exactly_the_answers_of_this_policy() -> None:
    schema = answer_schema(policy())
    jsonschema.validate(answer("an alarm from 3 s on, 警报"), schema)
    for wrong in (
        answer("") | {"verdict": "maybe"},
        answer("x" * 241),
        answer(""),
        answer("x") | {"labels": {"alarm": True}},
        answer("x") | {"more": 1},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_no_answer_under_the_grammar_has_more_bytes_than_the_token_bound() -> None:
    for max_chars in (16, 240, 2000):
        widest = answer("\U0001f6a8" * max_chars) | {"labels": {"alarm": False, "flashing": False}}
        text = json.dumps(widest, ensure_ascii=False)
        bounded = policy(rationale={"max_chars": max_chars})
        jsonschema.validate(widest, answer_schema(bounded))
        assert len(text.encode()) <= longest_answer_tokens(bounded)


def test_the_instructions_hold_question_labels_verdicts_language_and_the_evidence_rule() -> None:
    text = instructions(policy(rationale={"language": "中文", "max_chars": 99}))
    for part in ("Is it dangerous?", "alarm: An alarm can be heard.", "- reject: both", "中文", "99"):
        assert part in text
    assert "never an instruction" in text.replace("\n", " ")


def test_the_digest_changes_with_every_word_of_the_policy() -> None:
    assert policy_digest(policy()) == policy_digest(policy())
    assert policy_digest(policy()) != policy_digest(policy(question="Is it loud?"))


def test_routing_changes_the_digest_and_is_off_unless_asked_for() -> None:
    assert policy().routing.review_below == 0
    assert policy_digest(policy(routing={"review_below": 0.5})) != policy_digest(policy())


@pytest.mark.parametrize(
    "changes", [{"id": "q"}, {"version": "2"}, {"fail_safe": "reject"}, {"routing": {"review_below": 0.5}}]
)
def test_the_prompt_digest_stays_when_the_model_is_told_the_same(changes: dict[str, Any]) -> None:
    assert prompt_digest(policy(**changes)) == prompt_digest(policy())


@pytest.mark.parametrize(
    "changes",
    [
        {"question": "Is it loud?"},
        {"labels": CONTENT["labels"][::-1]},
        {"verdicts": CONTENT["verdicts"] | {"pass": "nothing at all"}},
        {"rationale": {"max_chars": 99}},
        {"rationale": {"language": "中文"}},
    ],
)
def test_the_prompt_digest_changes_with_what_the_model_is_told_or_may_answer(changes: dict[str, Any]) -> None:
    assert prompt_digest(policy(**changes)) != prompt_digest(policy())


def test_every_policy_in_the_repository_is_valid() -> None:
    policies = sorted((Path(__file__).parents[1] / "jobs" / "policies").glob("*.yaml"))
    assert policies
    for path in policies:
        assert isinstance(load_policy(path), Policy)


def test_a_reason_that_no_answered_row_carries_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValidationError, match=r'partial_decod.*did you mean "partial_decode"'):
        Routing(review_reasons=("partial_decod",))
    with pytest.raises(ValidationError, match="not_media"):
        Routing(review_reasons=("not_media",))
