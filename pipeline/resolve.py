"""Everything that is fixed before a run starts: policy, checkpoint, engine arguments, budgets, fingerprint.

Loads none of torch, vllm and ray, so that a wrong job is refused in a second and `--dry-run` is quick.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace

from pipeline import media
from pipeline.calibration import Calibration, fitting
from pipeline.canary import Canary, find_canaries
from pipeline.checkpoint import Checkpoint, open_checkpoint
from pipeline.engine.base import AnswerForm
from pipeline.errors import JobError
from pipeline.front_end import FrontEndSetup
from pipeline.hardware.devices import EngineSetup, engine_setup
from pipeline.job import EMBEDDED, Job
from pipeline.lock import check_output
from pipeline.policy import Policy, answer_schema, load_policy, longest_answer_tokens, policy_digest
from pipeline.prompt import text_token_bound
from pipeline.row import SCHEMA_VERSION
from pipeline.weights import check_weights

# Less than this would not hold a second of sound and one pair of small frames.
_LEAST_MEDIA_TOKENS = 64
# Beyond the thinking budget: the tokens that close it.
_CLOSING_TOKENS = 16
# A short answer's rationale, characters.
_SHORT_CHARS = 60


@dataclass(frozen=True, slots=True)
class Resolved:
    """A job with all that follows from it.

    `token_budget` is what is left of the context for media; `calibration` is the one that is applied, if any.
    """

    job: Job
    policy: Policy
    checkpoint: Checkpoint
    engine: EngineSetup
    form: AnswerForm
    token_budget: int
    calibration: Calibration | None
    canaries: tuple[Canary, ...]
    fingerprint: str

    @property
    def front_end(self) -> FrontEndSetup:
        return FrontEndSetup(
            engine=self.engine,
            policy=self.policy,
            media=self.job.media,
            limits=self.job.front_end,
            token_budget=self.token_budget,
            rehearsal=self.job.rehearsal,
        )

    @property
    def model(self) -> str:
        """Return how rows name the model."""
        return self.checkpoint.label() if self.job.rehearsal is None else "none (rehearsal)"

    @property
    def workers(self) -> int:
        """How many front-end workers run: one per core, at least two, so that one slow item does not stop all."""
        return self.job.front_end.workers or max(2, os.cpu_count() or 1)


def resolve(job: Job) -> Resolved:
    """Return the job resolved. Raises JobError for a policy, checkpoint, budget or canary that cannot work.

    A rehearsal loads no weights, so it does without them.
    """
    check_output(job.output.path)
    _check_apart(job)
    policy = load_policy(job.policy)
    checkpoint = _guarded(job, policy, open_checkpoint(job.model))
    if job.rehearsal is None:
        check_weights(checkpoint.folder, embedded=job.model.path == EMBEDDED)
    calibration = fitting(checkpoint.calibration, policy)
    form = AnswerForm(
        schema=answer_schema(policy),
        short_schema=answer_schema(policy, _SHORT_CHARS),
        max_tokens=job.answer.max_tokens or longest_answer_tokens(policy),
        reasoning_max_tokens=job.answer.reasoning_max_tokens if checkpoint.reasoning else 0,
        temperature=job.answer.temperature,
    )
    budget = _token_budget(job, policy, form)
    engine = engine_setup(job, checkpoint)
    return Resolved(
        job=job,
        policy=policy,
        checkpoint=checkpoint,
        engine=engine,
        form=form,
        token_budget=budget,
        calibration=calibration,
        canaries=find_canaries(job, policy, checkpoint) if job.rehearsal is None else (),
        fingerprint=_fingerprint(job, policy, checkpoint, engine, budget, calibration),
    )


def _guarded(job: Job, policy: Policy, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint, marked if it is used for what it was not trained for. Raises JobError unless allowed."""
    unfit = checkpoint.unfit_for(policy, job.media)
    if unfit is None or job.rehearsal is not None:
        return checkpoint
    if not job.model.allow_untrained_policy:
        raise JobError(
            f"model.path: {unfit}, use a full-size checkpoint, or set model.allow_untrained_policy: true to run it "
            "anyway (its answers will be meaningless)"
        )
    return replace(checkpoint, outside_training=True)


def _check_apart(job: Job) -> None:
    """Raise JobError if the run would find its own output among the recordings."""
    output = os.path.realpath(job.output.path)
    for path in job.source.paths:
        folder = os.path.realpath(path.split("*")[0]) if "**" in path else os.path.realpath(path)
        if os.path.isdir(folder) and os.path.commonpath([folder, output]) == folder:
            raise JobError(f"output.path: {job.output.path} lies inside source.paths {path}; put it beside, not inside")


def _token_budget(job: Job, policy: Policy, form: AnswerForm) -> int:
    text = text_token_bound(policy)
    answer = form.max_tokens + form.reasoning_max_tokens + _CLOSING_TOKENS
    budget = job.engine.max_model_len - text - answer
    if budget < _LEAST_MEDIA_TOKENS:
        raise JobError(
            f"engine.max_model_len {job.engine.max_model_len} leaves {max(0, budget)} tokens for media: the policy's "
            f"text may take {text}, the answer {answer}; raise it, or shorten the policy or rationale.max_chars"
        )
    return budget


def _fingerprint(
    job: Job,
    policy: Policy,
    checkpoint: Checkpoint,
    engine: EngineSetup,
    token_budget: int,
    calibration: Calibration | None,
) -> str:
    """Return a digest (hex) of everything that can change an answer or what a row makes of it."""
    parts = {
        "policy": policy_digest(policy),
        "checkpoint": checkpoint.digest,
        "number_format": [engine.arguments["dtype"], job.model.quantization],
        "engine": job.engine.extra,
        "media": [job.media.model_dump(mode="json"), media.VERSION],
        "answer": job.answer.model_dump(mode="json"),
        "token_budget": token_budget,
        "calibration": calibration.model_dump(mode="json") if calibration else None,
        "schema": SCHEMA_VERSION,
    } | ({"rehearsal": job.rehearsal.front_end} if job.rehearsal else {})
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
