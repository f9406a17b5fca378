"""`python -m bench.occupancy`: does the front end keep an engine's batch full?

The real front end feeds a rehearsed engine of SEATS seats that answers so many items a second. Short sounds (3 s of
tones and noise, each of other bytes) for 5 and 20 items a second, and clips of 20 s of 720p that are too much for a few
cores. Where the cores suffice by the CPU seconds that an item was measured to take, the batch must be full, or nothing
left to do, for 95 % of the time; where they, or what other work on the machine leaves of them, do not, run.json must
name the front end and the cores it takes.
`--rates 3,4,5` finds the highest rate that this machine keeps up with.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.clips import make_clips
from bench.result import Figure, report
from bench.runs import Ended, screen

SEATS = 8
LEAST_OCCUPANCY = 0.95
SCREEN_S = 40
HEAVY_RATE, HEAVY_CLIPS = 20.0, 24
# Without a core for driver, Ray and the engine's thread, the front end does not get what the machine has.
_FOR_OTHERS = 0.85
_SOUND_S, _SOUND_HZ = 3, 16_000


@dataclass(frozen=True, slots=True)
class Fed:
    """One run against an engine of `rate` items a second."""

    name: str
    rate: float
    items: int
    ended: Ended

    @property
    def supply(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ended.summary["occupancy"]
        return found

    def figures(self) -> list[Figure]:
        """Return what the run showed: full batches where the cores suffice, else the front end as the limit."""
        supply, summary = self.supply, self.ended.summary
        bottleneck, name = summary["bottleneck"], self.name
        good = sum(row["status"] == "ok" for row in self.ended.rows.values())
        share, cores = supply["share"], supply["front_end_cores_needed"]
        here = os.cpu_count() or 1
        had = min(here, supply["front_end_cores_had"])
        suffices = cores is not None and cores <= _FOR_OTHERS * had
        fed = share >= LEAST_OCCUPANCY
        named = bottleneck["limit"] == "front_end" and cores is not None
        return [
            Figure(f"{name}_good_rows", good, "", f"{self.items}", good == self.items),
            Figure(f"{name}_late_rows", summary["late"], "", "0", summary["late"] == 0),
            Figure(f"{name}_items_per_s", self.items / summary["screen_s"], "1/s"),
            Figure(f"{name}_engine_items_per_s", supply["engine_items_per_s"] or 0.0, "1/s", f"about {self.rate:g}"),
            Figure(f"{name}_front_end_cpu_s_per_item", supply["front_end_cpu_s_per_item"] or 0.0, "s"),
            Figure(f"{name}_front_end_cores_needed", cores or 0.0),
            Figure(f"{name}_front_end_cores_had", had, "", f"beside other work, of {here}"),
            Figure(
                f"{name}_occupancy",
                share,
                "",
                f">= {LEAST_OCCUPANCY}" if suffices else f"the limit named, or >= {LEAST_OCCUPANCY}",
                fed or (named and not suffices),
            ),
            Figure(f"{name}_limit", str(bottleneck["limit"])),
            Figure(f"{name}_held", f"{bottleneck['held_by']} {bottleneck['held_share'] or 0:.2f}"),
            Figure(f"{name}_workers_busy", bottleneck["front_end_busy_share"] or 0.0),
        ]


def feed(folder: Path, name: str, clips: Path, rate: float, options: Sequence[str]) -> Fed:
    """Screen a folder of clips with the real front end and an engine that answers `rate` items a second."""
    changes = {"rehearsal": {"front_end": "real", "answer_s": SEATS / rate}, "engine": {"max_num_seqs": SEATS}}
    return Fed(name, rate, sum(1 for _ in clips.iterdir()), screen(folder, name, [clips], changes, options))


def make_sounds(folder: Path, count: int) -> Path:
    """Write `count` WAV files of 3 s, a tone in noise, no two with the same bytes; return the folder."""
    folder.mkdir()
    times_s = np.arange(_SOUND_S * _SOUND_HZ) / _SOUND_HZ
    for number in range(count):
        random = np.random.default_rng(number)
        sound = 0.2 * np.sin(2 * np.pi * (200 + 7 * number) * times_s) + 0.05 * random.standard_normal(len(times_s))
        with wave.open(str(folder / f"{number:05d}.wav"), "wb") as out:
            out.setparams((1, 2, _SOUND_HZ, 0, "NONE", ""))
            out.writeframes((32767 * np.clip(sound, -1, 1)).astype("<i2").tobytes())
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.occupancy", description=__doc__)
    parser.add_argument("--rates", default="5,20", help="items a second of engines fed with short sounds")
    parser.add_argument("--seconds", type=int, default=SCREEN_S, help="how long each engine has work")
    parser.add_argument("--no-heavy", action="store_true", help="leave the clips of 720p out")
    parser.add_argument("--set", action="append", default=[], dest="options", help="as of run_batch.py")
    asked = parser.parse_args()
    options = [part for option in asked.options for part in ("--set", option)]
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="l1-occupancy-") as name:
        folder = Path(name)
        for rate in map(float, filter(None, asked.rates.split(","))):
            sounds = make_sounds(folder / f"sounds-{rate:g}", max(4 * SEATS, round(rate * asked.seconds)))
            figures += feed(folder, f"sound_{rate:g}", sounds, rate, options).figures()
        if not asked.no_heavy:
            make_clips(folder / "clips", HEAVY_CLIPS)
            heavy = feed(folder, "clips_720p", folder / "clips", HEAVY_RATE, options)
            named = heavy.ended.summary["bottleneck"]["limit"] == "front_end"
            figures += heavy.figures()
            figures.append(Figure("clips_720p_limit_named", str(named), "", "True", named))
    return report("occupancy", figures)


if __name__ == "__main__":
    sys.exit(main())
