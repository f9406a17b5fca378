"""How right the embedded model is: `python -m bench.accuracy [--clips 600] [--swaps 200] [--keep FOLDER]`.

Fresh clips, of seeds and voices that training never saw, are encoded by ffmpeg and screened by `run_batch.py` with
the demo job; the rows are compared with what the generator put into the clips.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench import runs
from bench.result import Figure, report
from pipeline.embedded.exam import TOLERANCE_S
from pipeline.embedded.files import write_clip
from pipeline.embedded.recordings import default_cache, load_recordings
from pipeline.embedded.scene import Scene, draw_scene, with_sound_of
from pipeline.embedded.sounds import Voices, voices_of
from pipeline.embedded.truth import LABELS, Truth, named_seconds, truth

FRESH_SEEDS = 500_000
"""First seed of the measured clips: training draws from a million on, calibration from 200 000."""
SWAP_SEEDS = 600_000
_BINS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Clip:
    """A scene, the name of its file, and what a right answer is."""

    name: str
    scene: Scene
    right: Truth


def fresh(count: int, first: int = FRESH_SEEDS) -> list[Clip]:
    """Return that many clips as the demo policy's generator draws them."""
    scenes = [draw_scene(first + number) for number in range(count)]
    return [Clip(f"{scene.seed:07d}", scene, truth(scene)) for scene in scenes]


def swapped(count: int) -> list[tuple[Clip, Clip]]:
    """Return pairs of clips with the same pictures, whose sounds call for different verdicts."""
    pairs: list[tuple[Clip, Clip]] = []
    seed = SWAP_SEEDS
    while len(pairs) < count:
        scene, seed = draw_scene(seed), seed + 2
        if not (scene.sound and scene.pictures):
            continue
        other = draw_scene(seed - 1, scene.duration_s, scene.duration_s)
        changed = with_sound_of(scene, other)
        if other.sound and truth(changed).verdict != truth(scene).verdict:
            names = f"{scene.seed:07d}", f"{scene.seed:07d}-swapped"
            pairs.append((Clip(names[0], scene, truth(scene)), Clip(names[1], changed, truth(changed))))
    return pairs


@functools.cache
def _voices() -> Voices:
    return voices_of(load_recordings(default_cache()).held_out)


def _write(clip: Clip, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        path = write_clip(clip.scene, _voices(), Path(scratch))
        path.rename(folder / f"{clip.name}{path.suffix}")


def write_all(clips: Sequence[Clip], folder: Path) -> None:
    """Encode the clips that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {path.stem for path in folder.iterdir()}
    missing = [clip for clip in clips if clip.name not in there]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_write, missing, [folder] * len(missing)))


def screen(folder: Path, output: Path, options: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Run the demo job over the clips and return the rows by clip name."""
    rows = runs.screen(output.parent, output.name, [folder], None, options).rows
    return {Path(os.fsdecode(path)).stem: row for path, row in rows.items()}


def figures(clips: Sequence[Clip], rows: dict[str, dict[str, Any]]) -> list[Figure]:
    """Return the measures over clips and their rows."""
    judged = [(clip, rows[clip.name]) for clip in clips]
    said = [str(row["model_verdict"]) for _, row in judged]
    hits = [verdict == clip.right.verdict for (clip, _), verdict in zip(judged, said, strict=True)]
    accuracy = float(np.mean(hits))
    rejects = [row for clip, row in judged if clip.right.verdict == "reject"]
    passed = sum(row["verdict"] == "pass" for row in rejects)
    elsewhere = sum(row["model_verdict"] != "reject" for row in rejects)
    errors = sum(row["status"] != "ok" for _, row in judged)
    ece = calibration_error([row["confidence"] or 0.0 for _, row in judged], hits)
    routed = float(np.mean([row["verdict"] != row["model_verdict"] for _, row in judged]))
    shown = float(np.mean([row["verdict"] == clip.right.verdict for clip, row in judged]))
    times = [ok for clip, row in judged for ok in _times_right(clip.right, row["rationale"] or "")]
    found = [Figure("clips", len(judged)), Figure("error_rows", errors, "", "0", errors == 0)]
    found.append(Figure("verdict_accuracy", accuracy, "", ">= 0.97", accuracy >= 0.97))
    found += [_label_figure(label, judged) for label in LABELS]
    found.append(Figure("calibration_error", ece, "", "<= 0.05", ece <= 0.05))
    found.append(_share_figure("missed_rejects", passed, len(rejects), "of rejects passed", 0.01))
    found.append(_share_figure("rejects_not_called_reject", elsewhere, len(rejects), "of rejects", None))
    found.append(_share_figure("times_right", sum(times), len(times), f"of named events within {TOLERANCE_S} s", None))
    found.append(Figure("routed_to_review", routed, "of clips"))
    found.append(Figure("accuracy_after_routing", shown))
    return found


def _share_figure(name: str, hits: int, of: int, unit: str, limit: float | None) -> Figure:
    """Return a share with what it must not exceed; of nothing there is none."""
    wanted = f"<= {limit}" if limit is not None else ""
    if not of:
        return Figure(name, "none drawn", unit, wanted)
    return Figure(name, hits / of, unit, wanted, None if limit is None else hits / of <= limit)


def _label_figure(label: str, judged: Sequence[tuple[Clip, dict[str, Any]]]) -> Figure:
    both = wrong = 0
    for clip, row in judged:
        present = any(entry["present"] for entry in row["labels"] if entry["id"] == label)
        expected = label in clip.right.starts_s
        both += present and expected
        wrong += present != expected
    if not any(label in clip.right.starts_s for clip, _ in judged):
        return Figure(f"f1_{label}", "none drawn", "", ">= 0.95")
    f1 = 2 * both / max(1, 2 * both + wrong)
    return Figure(f"f1_{label}", f1, "", ">= 0.95", f1 >= 0.95)


def _times_right(right: Truth, rationale: str) -> list[bool]:
    """Return for each event that is there and named whether its second is right."""
    named = named_seconds(rationale)
    return [abs(named[label] - second) <= TOLERANCE_S for label, second in right.starts_s.items() if label in named]


def _followed(pair: tuple[Clip, Clip], rows: dict[str, dict[str, Any]]) -> bool:
    """Return whether the other sound changed the verdict, to the one that the rule gives."""
    before, after = (rows[clip.name]["model_verdict"] for clip in pair)
    return bool(after != before and after == pair[1].right.verdict)


def calibration_error(confidences: Sequence[float], hits: Sequence[bool], bins: int = 15) -> float:
    """Return the expected calibration error over bins of equal width (Guo et al. 2017, eq. 3)."""
    edges = np.minimum((np.asarray(confidences) * bins).astype(int), bins - 1)
    right, sure = np.asarray(hits, float), np.asarray(confidences, float)
    gaps = [abs(right[edges == b].mean() - sure[edges == b].mean()) * np.mean(edges == b) for b in set(edges.tolist())]
    return float(sum(gaps))


def reliability(clips: Sequence[Clip], rows: dict[str, dict[str, Any]]) -> Table:
    """Return a table: of the verdicts at each confidence, how many were right."""
    table = Table("confidence", "clips", "mean confidence", "right", title="reliability of the verdict's confidence")
    sure = np.array([rows[clip.name]["confidence"] or 0.0 for clip in clips])
    hits = np.array([rows[clip.name]["model_verdict"] == clip.right.verdict for clip in clips])
    for low, high in itertools.pairwise(_BINS):
        inside = (sure >= low) & (sure < high)
        if inside.any():
            row = (
                f"{low:.2f} to {high:.2f}",
                str(inside.sum()),
                f"{sure[inside].mean():.3f}",
                f"{hits[inside].mean():.3f}",
            )
            table.add_row(*row)
    return table


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1 is needed")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=__doc__)
    parser.add_argument("--clips", type=_count, default=600, help="fresh clips to screen; the measures want 600")
    parser.add_argument("--swaps", type=_count, default=200, help="pairs of clips with another sound")
    parser.add_argument("--keep", type=Path, help="folder for clips and rows; what is there is used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="l1-accuracy-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        clips, pairs = fresh(options.clips), swapped(options.swaps)
        write_all([*clips, *(clip for pair in pairs for clip in pair)], folder / "clips")
        rows = screen(folder / "clips", folder / "out")
    found = figures(clips, rows)
    if pairs:
        share = float(np.mean([_followed(pair, rows) for pair in pairs]))
        found.append(Figure("swaps_followed", share, f"of {len(pairs)} swaps of sound", ">= 0.95", share >= 0.95))
    Console(width=100).print(reliability(clips, rows))
    return report("accuracy", found)


if __name__ == "__main__":
    sys.exit(main())
