"""Whether the front end kept the engine's batch full, and how many cores would have. Pure, from a run's accounts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.records import JsonObject

# Of the engine's time; the rest is the start, when the batch fills up.
WELL_FED = 0.95
# Fewer answers of a full batch, or less time of it, tell no rate.
_FEWEST_ANSWERS, _SHORTEST_S = 16, 2.0


@dataclass(frozen=True, slots=True)
class Supply:
    """How well the engine was fed.

    `occupancy` is the share (0..1) of the time from its first request to its last answer in which all `seats` were
    taken or nothing more was to come. `engine_items_per_s` is what it answers with a full batch: measured, or, where
    its batch was hardly ever full (`extrapolated`), what it would if answers took no longer then; that is an upper
    bound. `cpu_s_per_item` is what the front end takes for an item, its programs included; `cores_had` is what it
    took a second, and what nobody used: no more was there for it beside others.
    """

    occupancy: float
    seats: int
    engine_items_per_s: float | None
    extrapolated: bool
    cpu_s_per_item: float | None
    cores_had: float | None = None

    @property
    def cores_needed(self) -> float | None:
        """How many cores the front end needs to keep the engine's batch full; None if that is not known."""
        if self.engine_items_per_s is None or self.cpu_s_per_item is None:
            return None
        return self.engine_items_per_s * self.cpu_s_per_item

    def starved_by(self, cores: int) -> bool:
        """Return whether the engine waited because these cores, or what others left of them, were too few."""
        had = cores if self.cores_had is None else min(cores, self.cores_had)
        return self.occupancy < WELL_FED and (self.cores_needed or 0.0) > had

    def facts(self) -> JsonObject:
        """Return the keys for run.json."""
        return {
            "share": self.occupancy,
            "seats": self.seats,
            "engine_items_per_s": self.engine_items_per_s,
            "engine_items_per_s_extrapolated": self.extrapolated,
            "front_end_cpu_s_per_item": self.cpu_s_per_item,
            "front_end_cores_needed": self.cores_needed,
            "front_end_cores_had": self.cores_had,
        }

    def sentence(self, cores: int) -> str:
        """Return one sentence for people."""
        said = f"the engine had a full batch or nothing left to do {100 * self.occupancy:.0f} % of its time"
        if self.cores_needed is None or self.occupancy >= WELL_FED:
            return said
        rate = f"{'at most ' if self.extrapolated else ''}{self.engine_items_per_s:.3g} items/s"
        left = "" if self.cores_had is None else f", of which it could have {min(cores, self.cores_had):.1f}"
        return (
            f"{said}; keeping up with its {rate} at {self.cpu_s_per_item:.2g} CPU seconds an item in the front end "
            f"takes {self.cores_needed:.1f} cores, here are {cores}{left}"
        )


def find_supply(costs: JsonObject) -> Supply | None:
    """Return how well the engine was fed by what run.json holds of it, None if that tells nothing."""
    account: Any = (costs.get("engine_thread") or {}).get("occupancy")
    if not account or account["span_s"] <= 0:
        return None
    cpu: Any = costs.get("front_end_cpu") or {}
    screen_s, idle_s = costs.get("screen_s"), costs.get("idle_cpu_s")
    had = (cpu.get("cpu_s", 0.0) + idle_s) / screen_s if screen_s and idle_s is not None else None
    rate, extrapolated = _full_rate(account)
    return Supply(
        occupancy=min(1.0, (account["full_s"] + account["tail_s"]) / account["span_s"]),
        seats=account["seats"],
        engine_items_per_s=rate,
        extrapolated=extrapolated,
        cpu_s_per_item=cpu["cpu_s"] / cpu["items"] if cpu.get("items") else None,
        cores_had=had,
    )


def _full_rate(account: JsonObject) -> tuple[float | None, bool]:
    """Return the items a second of a full batch, and whether that is reckoned from fuller and emptier ones."""
    if account["full_answers"] >= _FEWEST_ANSWERS and account["full_s"] >= _SHORTEST_S:
        return account["full_answers"] / account["full_s"], False
    if not account["answers"] or not account["seat_s"]:
        return None, False
    return account["seats"] * account["answers"] / account["seat_s"], True
