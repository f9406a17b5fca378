"""The end of a run: what run.json says of it and the few lines for people, from what the tally collected. Pure.

Shares of an item's time leave `commit` out: a finished row waits for the next commit by design, up to
`output.commit_every_s`. Only what writing takes beyond that counts, as the limit `output`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from pipeline.histogram import QUANTILE_ERROR, Histogram
from pipeline.progress import Tally
from pipeline.records import JsonObject
from pipeline.supply import Supply, find_supply

Limit = Literal["front_end", "engine", "output"]

MOST_MISSING = 1000
_SHOWN_MISSING = 20
# Busy throughout, but for the start and the last items.
_SATURATED = 0.85
# Holding items back for less of the time limits no run.
_HELD = 0.25
_FRONT_END = ("fetch", "probe", "plan", "decode", "render")
_ENGINE = ("wait", "prefill", "generate")
_LIMITS: dict[Limit, str] = {"front_end": "the front end", "engine": "the engine", "output": "writing"}
_HELD_WHY = {
    "engine": "the engine had as much work as it answers in time",
    "items": "as many as allowed were under way",
    "object store": "prompts filled the object store",
    "memory": "little memory was free",
    "engine restart": "the engine was being started anew",
}
_FEWER_FRAMES = "fewer frames (media.video.max_rate_hz)"
_LESS_SOUND = "less of the sound (media.audio.max_duration_s)"
_SHORTER_ANSWER = "a shorter rationale (rationale.max_chars of the policy)"
_MORE_REQUESTS = "more requests at a time (engine.max_num_seqs)"
_MORE_WORKERS = "more front-end workers (front_end.workers)"
_MORE_MACHINES = "another machine (--shard)"


@dataclass(frozen=True, slots=True)
class Missing:
    """Items that were listed and have no row: how many, and the first of their ids; or why that cannot be told."""

    count: int = 0
    first: tuple[str, ...] = ()
    unchecked: str | None = None


def gather_missing(item_ids: Iterable[str]) -> Missing:
    """Return what is missing without holding more than the first ids."""
    ids = iter(item_ids)
    first = tuple(islice(ids, MOST_MISSING))
    return Missing(len(first) + sum(1 for _ in ids), first)


@dataclass(frozen=True, slots=True)
class Means:
    """What a run had to work with; at most `most_items` items may be under way once the engine has shown its speed."""

    workers: int
    most_items: int
    cores: int
    sla_s: float
    commit_every_s: float


@dataclass(frozen=True, slots=True)
class Busy:
    """Shares (0..1) of the screening time in which all front-end workers and the engine's thread worked, if known."""

    front_end: float | None = None
    engine: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What held the next item back most, as in `Tally.held_s`; in words why, and for which share of the screening."""

    by: str
    why: str
    share: float


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Where an item's time went, what was busy throughout or else held items back (None: nothing), what to change."""

    phase: str
    share: float
    limit: Limit | None
    held: Held | None
    advice: str
    busy: Busy

    def facts(self) -> JsonObject:
        """Return the keys for run.json."""
        return {
            "phase": self.phase,
            "share": self.share,
            "limit": self.limit,
            "held_by": None if self.held is None else self.held.by,
            "held_share": None if self.held is None else self.held.share,
            "advice": self.advice,
            "front_end_busy_share": self.busy.front_end,
            "engine_busy_share": self.busy.engine,
        }

    def sentence(self) -> str:
        """Return one sentence for people."""
        most = f"most of an item's time: {self.phase} {100 * self.share:.0f} %"
        if self.limit is not None:
            return f"{most}; {_LIMITS[self.limit]} is the limit: {self.advice} would help first"
        if self.held is not None:
            held = f"items were held back {100 * self.held.share:.0f} % of the time: {self.held.why}"
            return f"{most}; {held}; {self.advice} would help first"
        if self.busy.engine is None:
            return f"{most}; {self.advice} would shorten it"
        return f"{most}; nothing was the limit: no part was busy throughout, and items were hardly held back"


@dataclass(frozen=True, slots=True)
class Ending:
    """All that is known of a run when it ends; `costs` are its accounts as in run.json, as far as known."""

    tally: Tally
    missing: Missing
    means: Means
    exit_code: int
    elapsed_s: float
    costs: JsonObject

    def facts(self) -> JsonObject:
        """Return what run.json says beside job and model."""
        tally, bottleneck = self.tally, find_bottleneck(self.tally, self.means, self.costs)
        return {
            "exit_code": self.exit_code,
            "listed": tally.done + tally.skipped,
            "skipped": tally.skipped,
            "gone": tally.gone,
            "rows": tally.done,
            "by_status": dict(tally.statuses),
            "by_verdict": dict(tally.verdicts),
            "by_reason": dict(tally.reasons),
            "late": tally.late,
            "missing": list(self.missing.first),
            "missing_count": self.missing.count,
            "missing_unchecked": self.missing.unchecked,
            "sla": sla_facts(tally, self.means.sla_s),
            "phase_s": dict(tally.phase_s),
            "phase_share": phase_shares(tally.phase_s),
            "occupancy": None if (supply := find_supply(self.costs)) is None else supply.facts(),
            "bottleneck": None if bottleneck is None else bottleneck.facts(),
            "elapsed_s": self.elapsed_s,
        } | self.costs

    def lines(self, name: str, how: str, output: object) -> Iterator[str]:
        """Yield the lines for people; `how` says in words how the run ended."""
        tally = self.tally
        counts = ", ".join(f"{count} {status}" for status, count in sorted(tally.statuses.items())) or "no new rows"
        held = f", {tally.skipped} done before" if tally.skipped else ""
        yield f"{name}: {how}: {counts}{held} in {output} (exit code {self.exit_code})"
        if tally.done:
            yield f"  {_sla_line(tally, self.means.sla_s)}"
        bottleneck = find_bottleneck(tally, self.means, self.costs)
        if bottleneck is not None and tally.done > self.means.most_items:  # fewer show no limit
            yield f"  {bottleneck.sentence()}"
            if (supply := find_supply(self.costs)) is not None:
                yield f"  {supply.sentence(self.means.cores)}"
        for reason, count in tally.reasons.most_common():
            yield f"  {count} x {reason}"
        if tally.gone:
            yield f"  {tally.gone} recordings were not found and keep the good rows they have"
        if self.missing.count:
            more = ", …" if self.missing.count > _SHOWN_MISSING else ""
            shown = ", ".join(self.missing.first[:_SHOWN_MISSING])
            yield f"  {self.missing.count} items have no row: {shown}{more}; report this"
        if self.missing.unchecked is not None:
            yield f"  whether every item has its row cannot be told: {self.missing.unchecked}"
        if dropped := self.costs.get("events_dropped", 0):
            yield f"  {dropped} events could not be written to events.jsonl: look at the output's disk"


def sla_facts(tally: Tally, sla_s: float) -> JsonObject:
    """Return how long items took from their first byte to their readable row: all rows, and those with an answer.

    A `deadline` row is never within the time, however early it was written.
    """
    return {
        "per_item_s": sla_s,
        "percentile_error": round(QUANTILE_ERROR, 4),
        **_spans(tally.spans, tally.late),
        "good": _spans(tally.good_spans, tally.good_late),
    }


def _spans(spans: Histogram, late: int) -> JsonObject:
    rows = spans.count
    return {
        "rows": rows,
        "within": rows - late,
        "within_share": (rows - late) / rows if rows else None,
        "p50_s": spans.quantile_s(0.50),
        "p95_s": spans.quantile_s(0.95),
        "p99_s": spans.quantile_s(0.99),
        "max_s": spans.max_s if rows else None,
    }


def _sla_line(tally: Tally, sla_s: float) -> str:
    shares = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
    times = ", ".join(f"{name} {_seconds(tally.spans.quantile_s(share) or 0.0)}" for name, share in shares.items())
    return f"within {sla_s:g} s: {tally.done - tally.late} of {tally.done} ({times})"


def _seconds(duration_s: float) -> str:
    return f"{duration_s:.1f} s" if duration_s < 10 else f"{duration_s:.0f} s"


def phase_shares(phase_s: Mapping[str, float]) -> dict[str, float]:
    """Return each phase's share (0..1) of all items' time without `commit`; empty if no time was spent."""
    total_s = sum(seconds for phase, seconds in phase_s.items() if phase != "commit")
    if total_s <= 0:
        return {}
    return {phase: seconds / total_s for phase, seconds in phase_s.items() if phase != "commit"}


def find_bottleneck(tally: Tally, means: Means, costs: JsonObject) -> Bottleneck | None:
    """Return what to change first, None before any item took time.

    Phases alone do not tell: an item's time in the engine grows with every item beside it. The limit is what was
    busy throughout. The front end comes first: had the engine been the limit, its workers would have waited for
    credits, while an engine's thread is busy with one request as with sixteen. Where nothing was busy throughout,
    it is what held items back.
    """
    shares = phase_shares(tally.phase_s)
    if not shares:
        return None
    phase = max(shares, key=lambda name: shares[name])
    busy = _busy(tally, means, costs)
    limit = _limit(tally, means, busy, find_supply(costs), tally.phase_s[phase])
    held = None if limit is not None else _held(costs)
    less = _FEWER_FRAMES if tally.video_tokens >= tally.audio_tokens else _LESS_SOUND
    advice = _held_advice(held, shares, less, means) if held is not None else _advice(limit, phase, shares, less, means)
    return Bottleneck(phase, shares[phase], limit, held, advice, busy)


def _busy(tally: Tally, means: Means, costs: JsonObject) -> Busy:
    screen_s: Any = costs.get("screen_s")
    if not screen_s:
        return Busy()
    worked_s = sum(tally.phase_s.get(phase, 0.0) for phase in _FRONT_END)
    front_end = min(1.0, worked_s / (means.workers * screen_s))
    thread: Any = costs.get("engine_thread")
    if not thread:
        return Busy(front_end)
    # idle_s also holds the time before the first prompt; known-answer clips are the only work before the screening.
    span_s = screen_s + costs.get("canary", {}).get("seconds", 0.0)
    return Busy(front_end, min(1.0, (thread["step_s"] + thread["outside_s"]) / span_s))


def _held(costs: JsonObject) -> Held | None:
    """Return what held the next item back most, None if hardly anything did or it is not known."""
    held_s: Any = costs.get("held_s")
    screen_s: Any = costs.get("screen_s")
    if not held_s or not screen_s:
        return None
    by = max(held_s, key=lambda reason: held_s[reason])
    share = min(1.0, held_s[by] / screen_s)
    if share < _HELD:
        return None
    return Held(by, _HELD_WHY.get(by, by), share)


def _limit(tally: Tally, means: Means, busy: Busy, supply: Supply | None, largest_s: float) -> Limit | None:
    writing_s = tally.phase_s.get("commit", 0.0) - tally.done * means.commit_every_s
    if writing_s > largest_s:
        return "output"
    starved = supply is not None and supply.starved_by(means.cores)
    if (busy.front_end or 0.0) >= _SATURATED or starved:
        return "front_end"
    return "engine" if (busy.engine or 0.0) >= _SATURATED else None


def _advice(limit: Limit | None, phase: str, shares: Mapping[str, float], less: str, means: Means) -> str:
    if limit == "output":
        return "faster storage for the output or smaller parts (output.rows_per_part)"
    if limit == "front_end":
        cause = max(_FRONT_END, key=lambda name: shares.get(name, 0.0))
        if cause == "fetch":
            return f"faster storage for the recordings or {_MORE_WORKERS}"
        return f"{_more_hands(means)} or {less}"
    if limit == "engine":
        cause = max(_ENGINE, key=lambda name: shares.get(name, 0.0))
        return f"{_engine_relief(cause, less)} or {_MORE_MACHINES}"
    if phase in ("fetch", "probe"):
        return "faster storage for the recordings"
    return _SHORTER_ANSWER if phase in ("generate", "parse") else less


def _held_advice(held: Held, shares: Mapping[str, float], less: str, means: Means) -> str:
    if held.by == "items":
        in_front_end, in_engine = (sum(shares.get(name, 0.0) for name in names) for names in (_FRONT_END, _ENGINE))
        return _more_hands(means) if in_front_end > in_engine else _MORE_REQUESTS
    if held.by == "memory":
        return "more memory or fewer front-end workers (front_end.workers)"
    if held.by == "object store":
        return less
    if held.by == "engine":
        cause = max(_ENGINE, key=lambda name: shares.get(name, 0.0))
        return f"{_engine_relief(cause, less)} or {_MORE_MACHINES}"
    return "a look at engine_died, engine_stalled and engine_recycled in events.jsonl"


def _more_hands(means: Means) -> str:
    return _MORE_WORKERS if means.workers < means.cores else f"more cores or {_MORE_MACHINES}"


def _engine_relief(cause: str, less: str) -> str:
    if cause == "wait":
        return _MORE_REQUESTS
    return _SHORTER_ANSWER if cause == "generate" else less
