"""`--dry-run`: the resolved job, how many items there are and what would be looked at in the first few."""

from __future__ import annotations

from collections import Counter
from typing import TextIO

import yaml

from pipeline.canary import NO_CANARIES
from pipeline.errors import ItemError
from pipeline.job import Job
from pipeline.ledger import Todo, check_fingerprints, decide, describe, read_ledger
from pipeline.media.plan import plan
from pipeline.media.probe import check_file, probe
from pipeline.media.sandbox import check_sandbox
from pipeline.records import Item, Plan
from pipeline.resolve import Resolved, resolve
from pipeline.selection import EVERYTHING, Selection
from pipeline.source import check_source, list_items

_FIRST = 5
_WHY = {
    "new": "new",
    "retry": "tried again",
    "changed": "changed",
    "follow": "after other rows",
    "rewrite": "in place of other rows",
}


def dry_run(job: Job, out: TextIO, selection: Selection = EVERYTHING) -> int:
    """Print what a run would do and return 0. Raises JobError like a run; starts and writes nothing."""
    check_source(job.source)
    resolved = resolve(job)
    ledger = read_ledger(job.output.path)
    model = resolved.model
    about = describe(resolved.policy.id, resolved.policy.version, model)
    check_fingerprints(ledger, resolved.fingerprint, job.output.on_change, about)
    items = 0
    todo: Counter[str] = Counter()
    first: list[Item] = []
    for item in list_items(job.source):
        if not selection.takes(item.item_id):
            continue
        items += 1
        decision = decide(item, ledger, resolved.fingerprint, job.output.on_change, selection.retry)
        if isinstance(decision, Todo):
            todo[decision.why] += 1
        if len(first) < _FIRST:
            first.append(item)
    out.write(yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
    out.write(f"\n{about}\ndevice {resolved.engine.device}, {resolved.token_budget} tokens for media per item\n")
    asked = len(resolved.canaries)
    out.write(f"{asked} known-answer clips are asked first\n" if asked else f"{NO_CANARIES}\n")
    out.write(f"retry {selection.retry}, shard {selection.shard or '1/1'}\n")
    out.write(f"{items} items, {_counted(todo)}, {items - todo.total()} done before\n")
    if (unconfined := check_sandbox(job.front_end.sandbox)) is not None:
        out.write(f"{unconfined}\n")
    for item in first:
        out.write(f"  {item.uri}\n    {_plan_line(item, resolved)}\n")
    return 0


def _counted(todo: Counter[str]) -> str:
    """Return how many items are to be screened, and why."""
    reasons = ", ".join(f"{count} {_WHY[why]}" for why, count in todo.most_common())
    return f"{todo.total()} to be screened" + (f" ({reasons})" if reasons else "")


def _plan_line(item: Item, resolved: Resolved) -> str:
    """Return what would be looked at in an item, or the reason why nothing would."""
    try:
        check_file(item.path)
        facts = probe(item.path, resolved.job.front_end.probe_timeout_s)
        chosen = plan(facts, resolved.job.media, resolved.token_budget)
    except ItemError as error:
        return f"error {error.code}: {error.message}"
    length = "unknown length" if facts.duration_s is None else f"{facts.duration_s:.1f} s"
    return f"{facts.kind} ({facts.container}), {length}: {_words(chosen)}"


def _words(chosen: Plan) -> str:
    parts = []
    if chosen.audio:
        parts.append(f"{chosen.audio_tokens} audio tokens")
    if chosen.frames:
        rate = f" at {chosen.frame_rate_hz:.3g} Hz" if chosen.frame_rate_hz else ""
        parts.append(
            f"{chosen.frames} frames of {chosen.width}x{chosen.height}{rate} ({chosen.video_tokens} picture tokens)"
        )
    parts.append(f"coverage {chosen.coverage:.0%}")
    return ", ".join(parts)
