"""Recordings a second beside today's ways: `python -m bench.end_to_end --peers FOLDER [--clips 60]`.

The embedded model answers clips of 20 s of 720p, each with other bytes, by `run_batch.py`, by `FOLDER/cookbook.py` and,
twice, by `FOLDER/ray_data_llm.py`, one after the other: the same clips, frames, length of answers (the mean of the
project's own) and most requests at a time. Starting the engine is left out everywhere. The peers run in bfloat16, as
they are written; the project in its default, float32 on a CPU, which has to imitate bfloat16: what it does in bfloat16
is told, too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import peers, runs
from bench.clips import make_clips
from bench.looks import SMALL
from bench.result import Figure, report
from bench.runs import ROOT
from pipeline.job import EMBEDDED_PATH
from pipeline.records import JsonObject

LEAST_OVER_COOKBOOK, LEAST_OVER_RAY_DATA = 2.5, 5.0
MOST_AT_ONCE, MODEL_LEN = 16, 8192
_RAY_DATA_RUNS = 2
_MOST_APART = 2.0
_TIMEOUT_S = 3600


@dataclass(frozen=True, slots=True)
class Ours:
    """A run of the project: recordings a second without the start, and what its rows say."""

    items_per_s: float
    items: int
    good: int
    lesser_looks: int
    output_tokens: int
    prompt_tokens: int
    bottleneck: JsonObject


def ours(folder: Path, name: str, clips: Sequence[Path], options: Sequence[str] = ()) -> Ours:
    """Screen the clips by `run_batch.py` in the look that the peers have."""
    settings = [*SMALL.options(), f"engine.max_model_len={MODEL_LEN}", f"engine.max_num_seqs={MOST_AT_ONCE}", *options]
    # The clips with known answers have frames of another size.
    settings.append("canary.from_checkpoint=false")
    ended = runs.screen(folder, name, clips, None, [word for setting in settings for word in ("--set", setting)])
    return of_run(list(ended.rows.values()), ended.summary, len(clips))


def of_run(rows: Sequence[JsonObject], summary: JsonObject, items: int) -> Ours:
    """Return what a run of so many items did, of its rows and its run.json."""
    good = [row for row in rows if row["status"] == "ok"]
    if not good:
        raise SystemExit("no row of the project's run has an answer; the run's words are above")
    return Ours(
        items_per_s=len(rows) / summary["screen_s"],
        items=items,
        good=len(good),
        lesser_looks=sum(row["degraded"] for row in rows),
        output_tokens=round(sum(row["output_tokens"] for row in good) / len(good)),
        prompt_tokens=round(sum(row["prompt_tokens"] for row in good) / len(good)),
        bottleneck=summary["bottleneck"],
    )


def peer(script: Path, clips: Sequence[Path], max_tokens: int) -> dict[str, Any]:
    """Return what a peer's script prints at its end. Raises SystemExit if it fails."""
    settings = {"model": EMBEDDED_PATH, "fps": SMALL.rate_hz, "max-pixels": SMALL.told_pixels}
    settings |= {"max-tokens": max_tokens, "max-model-len": MODEL_LEN}
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(script), *words, *map(str, clips)]
    print(f"end_to_end: {script.name}", file=sys.stderr)
    done = subprocess.run(
        command, cwd=ROOT, env=peers.environment(), stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=False
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"{script.name} ended with exit code {done.returncode}; its words are above")
    said: dict[str, Any] = json.loads(lines[-1])
    return said


def without_start(said: Sequence[dict[str, Any]]) -> float:
    """Return the items a second of Ray Data's runs: what more items took longer, all runs together."""
    items = sum(one["items"] - one["small_items"] for one in said)
    return float(items / sum(one["wall_s"] - one["small_wall_s"] for one in said))


def agree(said: Sequence[dict[str, Any]]) -> bool:
    """Return whether Ray Data's runs can be believed: on a busy machine the difference of two of them is mostly noise.

    Without the start no run is slower than with it, and no run is twice as fast as another.
    """
    rates = [one["items_per_s"] for one in said]
    possible = all(one["items_per_s"] >= one["items_per_s_with_start"] for one in said)
    return possible and max(rates) <= _MOST_APART * min(rates)


def own_figures(run: Ours) -> list[Figure]:
    """Return what the project's own run must hold, and how fast it was."""
    return [
        Figure("ours_items_per_s", run.items_per_s, "1/s"),
        Figure("ours_good_rows", run.good, f"of {run.items}", f"{run.items}", run.good == run.items),
        Figure("ours_lesser_looks", run.lesser_looks, "rows", "0", run.lesser_looks == 0),
        Figure("output_tokens", run.output_tokens, "of all sides"),
        Figure("ours_prompt_tokens", run.prompt_tokens),
        Figure("ours_limit", str(run.bottleneck["limit"] or run.bottleneck["held_by"])),
    ]


def figures(run: Ours, cookbook: dict[str, Any], ray_data: Sequence[dict[str, Any]]) -> list[Figure]:
    """Return how the project's rate compares with the peers'."""
    rate = without_start(ray_data)
    over_cookbook, over_ray_data = run.items_per_s / cookbook["items_per_s"], run.items_per_s / rate
    complete = all(one["items"] == run.items for one in (cookbook, *ray_data))
    return [
        Figure("peers_answered_all", "yes" if complete else "no", "", "yes", complete),
        Figure("cookbook_items_per_s", cookbook["items_per_s"], "1/s"),
        Figure("cookbook_load_s", cookbook["load_s"], "s"),
        Figure("cookbook_generate_s", cookbook["generate_s"], "s"),
        Figure("cookbook_prompt_tokens", cookbook["prompt_tokens"]),
        Figure("ray_data_items_per_s", rate, "1/s"),
        *(Figure(f"ray_data_items_per_s_{n}", one["items_per_s"], "1/s") for n, one in enumerate(ray_data, 1)),
        *(Figure(f"ray_data_wall_s_{n}", one["wall_s"], f"s, of {one['items']}") for n, one in enumerate(ray_data, 1)),
        *(
            Figure(f"ray_data_small_wall_s_{n}", one["small_wall_s"], f"s, of {one['small_items']}")
            for n, one in enumerate(ray_data, 1)
        ),
        Figure("ray_data_runs_agree", "yes" if agree(ray_data) else "no", "", "yes", agree(ray_data)),
        Figure("ray_data_items_per_s_with_start", max(one["items_per_s_with_start"] for one in ray_data), "1/s"),
        Figure("ray_data_prompt_tokens", ray_data[0]["prompt_tokens"]),
        _ratio("ours_over_cookbook", over_cookbook, LEAST_OVER_COOKBOOK),
        _ratio("ours_over_ray_data", over_ray_data, LEAST_OVER_RAY_DATA),
    ]


def _ratio(name: str, value: float, least: float) -> Figure:
    return Figure(name, value, "times", f">= {least:g}", value >= least)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.end_to_end", description=__doc__)
    peers.add_option(parser)
    parser.add_argument("--clips", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="l1-end-to-end-") as scratch:
        folder = Path(scratch)
        clips = make_clips(folder / "clips", options.clips)
        run = ours(folder, "ours", clips)
        if options.peers is None:
            return report("end_to_end", [*own_figures(run), peers.left_out()])
        peers.install()
        cookbook = peer(options.peers / "cookbook.py", clips, run.output_tokens)
        ray_data = [peer(options.peers / "ray_data_llm.py", clips, run.output_tokens)]
        imitated = ours(folder, "ours-bfloat16", clips, ["model.dtype=bfloat16"])
        while len(ray_data) < _RAY_DATA_RUNS:
            ray_data.append(peer(options.peers / "ray_data_llm.py", clips, run.output_tokens))
    told = Figure("ours_items_per_s_bfloat16", imitated.items_per_s, "1/s")
    return report("end_to_end", [*own_figures(run), told, *figures(run, cookbook, ray_data)])


if __name__ == "__main__":
    sys.exit(main())
