"""From a completion to an answer, from an answer or an error to a row. Pure; every row of a run is built here."""

from __future__ import annotations

import json
import math
import unicodedata
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

from pipeline.calibration import Calibration, calibrated
from pipeline.errors import REASONS, ItemError
from pipeline.policy import GateRule, Policy, Routing
from pipeline.records import (
    VERDICTS,
    Answer,
    Completion,
    Item,
    Label,
    Phases,
    Prepared,
    Remark,
    Status,
    TokenChoice,
    Verdict,
)
from pipeline.row import LabelRow, VerdictRow

# A confidence of exactly 1 would claim more than log-probabilities in 32 bits can hold.
_LEAST_DOUBT = 1e-6
_LONGEST_MESSAGE = 1000
_NO_TEXT = ("Cc", "Cs", "Zl", "Zp")


def parse_answer(completion: Completion, policy: Policy) -> Answer:
    """Return the answer in a completion, with raw confidences.

    A verdict follows from the labels that were written before it, so it is no more certain than the least certain
    finding it rests on: its confidence is the least of its own probability and the labels' confidences.
    Raises ItemError `answer_truncated`, `answer_unparsable`, or `engine_rejected` if the engine gave the request up.
    """
    if completion.finish_reason == "length":
        raise ItemError("answer_truncated", f"no whole answer within {completion.output_tokens} tokens")
    if completion.finish_reason != "stop":
        raise ItemError("engine_rejected", f"the engine ended the request with `{completion.finish_reason}`")
    try:
        data = json.loads(completion.text, strict=False)
        verdict = data["verdict"]
        labels = {label.id: data["labels"][label.id] for label in policy.labels}
        rationale = data["rationale"]
    except (ValueError, KeyError, TypeError) as error:
        raise ItemError("answer_unparsable", f"{type(error).__name__}: {error} in {completion.text[:200]!r}") from None
    well_formed = verdict in VERDICTS and isinstance(rationale, str)
    if not well_formed or not all(isinstance(value, bool) for value in labels.values()):
        raise ItemError("answer_unparsable", f"a value of the wrong kind in {completion.text[:200]!r}")
    found = tuple(Label(name, value, _label_confidence(completion, name, value)) for name, value in labels.items())
    return Answer(
        verdict=verdict,
        confidence=min(verdict_probability(completion, verdict), *(label.confidence for label in found)),
        labels=found,
        rationale=_clean(rationale),
    )


def _label_confidence(completion: Completion, name: str, value: bool) -> float:
    return _confidence(completion.tokens, f'"{name}":', "true" if value else "false", ["true", "false"])


def verdict_probability(completion: Completion, verdict: Verdict) -> float:
    """Return the verdict's probability given the labels before it: near 1 even where one of them was a coin toss."""
    return _confidence(completion.tokens, '"verdict":', f'"{verdict}"', [f'"{name}"' for name in VERDICTS])


def _clean(text: str) -> str:
    """Return the text with control characters, line ends and lone surrogates as blanks."""
    return "".join(" " if unicodedata.category(char) in _NO_TEXT else char for char in text)


def _confidence(tokens: Sequence[TokenChoice], key: str, value: str, allowed: Sequence[str]) -> float:
    """Return the probability of `value` after `key`, renormalised over the `allowed` values.

    A value is several tokens, and the same text can be cut into tokens in several ways. At each token the mass of
    all alternatives that can still become `value` is compared with the mass of those that can become any allowed
    value; the product over the value's tokens is the confidence.
    """
    text = "".join(token.text for token in tokens)
    at = text.find(key)
    if at < 0:
        raise ItemError("answer_unparsable", f"no {key} among the generated tokens")
    start = at + len(key)
    start += len(text[start:]) - len(text[start:].lstrip())
    end = start + len(value)
    confidence, offset = 1.0, 0
    for token in tokens:
        if offset < end and offset + len(token.text) > start:
            confidence *= _share(token, text[:offset], text[:start], value, allowed)
        offset += len(token.text)
    return min(max(confidence, 0.0), 1.0 - _LEAST_DOUBT)


def _share(token: TokenChoice, before: str, head: str, value: str, allowed: Sequence[str]) -> float:
    """Return the share of probability, at one token, of the texts that can still become `head + value`."""
    wanted = total = 0.0
    for text, logprob in ((token.text, token.logprob), *token.alternatives):
        candidate = before + text
        possible = [name for name in allowed if _can_become(candidate, head + name)]
        if possible:
            mass = math.exp(logprob)
            total += mass
            wanted += mass if value in possible else 0.0
    return wanted / total if total > 0 else 0.0


def _can_become(candidate: str, target: str) -> bool:
    return target.startswith(candidate) or candidate.startswith(target)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What all rows of a run share."""

    run_id: str
    job_name: str
    fingerprint: str
    policy: Policy
    model: str
    engine: str
    accel_patches: tuple[str, ...]
    sla_s: float
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an item ended: an answer, or a reason code and message, and what was learned on the way.

    `same_as` is the row of another item with the same content, whose answer is this one's, too.
    """

    prepared: Prepared
    attempts: int
    answer: Answer | None = None
    completion: Completion | None = None
    same_as: VerdictRow | None = None
    status: Status = "error"
    reason: str | None = None
    message: str | None = None
    phases: Phases = field(default_factory=Phases)


def build_row(item: Item, outcome: Outcome, facts: RunFacts, admitted_at: datetime, follows: str | None) -> VerdictRow:
    """Return the row of one item. `committed_at`, `commit_s` and `sla_met` are stamped by the sink."""
    if outcome.same_as is not None:
        return _duplicate(item, outcome.same_as, outcome, facts, admitted_at, follows)
    prepared, completion = outcome.prepared, outcome.completion
    answer = calibrated(outcome.answer, facts.calibration) if outcome.answer else None
    rule = next((rule for rule in facts.policy.gate if rule.id == prepared.gate and outcome.reason is None), None)
    verdict, degraded, reason, message = facts.policy.fail_safe, False, outcome.reason, outcome.message
    if (decided := answer or rule) is not None:
        verdict, remarks = _routed(decided, facts.policy.routing, _remarks(prepared))
        degraded = any(REASONS[remark.code].degrades for remark in remarks)
        reason = remarks[0].code if remarks else None
        message = "; ".join(remark.text for remark in remarks)[:_LONGEST_MESSAGE] or None
    elif reason not in REASONS or not REASONS[reason].failure:
        raise ValueError(f"a row without an answer needs a failure's reason of the register, not {reason!r}")
    plan = prepared.plan
    return VerdictRow(
        row_id=uuid.uuid4().hex,
        follows_row_id=follows,
        duplicate_of=None,
        item_id=item.item_id,
        uri=item.uri,
        source_key=item.source_key,
        content_sha256=prepared.content_sha256,
        content_bytes=prepared.content_bytes,
        media_kind=prepared.facts.kind if prepared.facts else None,
        duration_s=prepared.duration_s,
        verdict=verdict,
        model_verdict=answer.verdict if answer else None,
        confidence=answer.confidence if answer else None,
        labels=tuple(LabelRow(**asdict(label)) for label in answer.labels) if answer else (),
        rationale=answer.rationale if answer else rule.rationale if rule else None,
        status="ok" if answer else "gated" if rule else outcome.status,
        degraded=degraded,
        reason=reason,
        message=message,
        attempts=outcome.attempts,
        coverage=prepared.coverage,
        **asdict(prepared.signals),
        gate=rule.id if rule else None,
        audio_tokens=prepared.audio_tokens,
        video_tokens=prepared.video_tokens,
        frames=prepared.frames,
        frame_rate_hz=plan.frame_rate_hz if plan and prepared.frames else None,
        frames_off_s=prepared.frames_off_s,
        prompt_tokens=completion.prompt_tokens if completion else prepared.prompt_tokens,
        output_tokens=completion.output_tokens if completion else 0,
        admitted_at=admitted_at,
        committed_at=admitted_at,
        sla_s=facts.sla_s,
        sla_met=False,
        **asdict(outcome.phases),
        run_id=facts.run_id,
        job_name=facts.job_name,
        fingerprint=facts.fingerprint,
        policy_id=facts.policy.id,
        policy_version=facts.policy.version,
        model=facts.model,
        engine=facts.engine,
        accel_patches=facts.accel_patches,
    )


def _duplicate(
    item: Item, same: VerdictRow, outcome: Outcome, facts: RunFacts, admitted_at: datetime, follows: str | None
) -> VerdictRow:
    """Return a row's answer to the same content as the row of this item."""
    own = {
        "row_id": uuid.uuid4().hex,
        "follows_row_id": follows,
        "duplicate_of": same.duplicate_of or same.row_id,
        "item_id": item.item_id,
        "uri": item.uri,
        "source_key": item.source_key,
        "status": "duplicate",
        "attempts": outcome.attempts,
        "admitted_at": admitted_at,
        "committed_at": admitted_at,
        "sla_s": facts.sla_s,
        "sla_met": False,
        "run_id": facts.run_id,
        "job_name": facts.job_name,
    }
    return same.model_copy(update=own | asdict(outcome.phases))


def _remarks(prepared: Prepared) -> list[Remark]:
    """Return all that the row must say of an item that was answered, the gravest first."""
    remarks = list(prepared.remarks)
    lost = any(remark.code == "partial_decode" for remark in remarks)
    if prepared.lesser_look is not None:
        remarks.append(Remark("reduced_look", prepared.lesser_look))
    elif not lost and prepared.coverage is None:
        said = "the recording goes on after the part looked at; its header gives no length"
        remarks.append(Remark("partial_coverage", said))
    elif not lost and prepared.coverage is not None and prepared.coverage < 1.0:
        share = f"{prepared.coverage:.0%}" if prepared.coverage >= 0.01 else "Less than 1%"
        said = f"{share} of the recording was looked at, evenly spread"
        remarks.append(Remark("partial_coverage", said))
    order = list(REASONS)
    return sorted(remarks, key=lambda remark: order.index(remark.code))


def _routed(answer: Answer | GateRule, routing: Routing, remarks: list[Remark]) -> tuple[Verdict, list[Remark]]:
    """Return the verdict after routing, and the remarks with why it was changed; a rule of the gate is never unsure."""
    if answer.verdict == "review":
        return answer.verdict, remarks
    if isinstance(answer, Answer) and answer.confidence < routing.review_below:
        said = (
            f"the model said {answer.verdict} with confidence {answer.confidence:.3g}, below {routing.review_below:g}"
        )
        return "review", [*remarks, Remark("low_confidence", said)]
    doubted = answer.verdict == "pass" and any(remark.code in routing.review_reasons for remark in remarks)
    return "review" if doubted else answer.verdict, remarks
