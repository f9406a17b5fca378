"""What long recordings that are looked at seldom cost: `python -m bench.long_video [--rounds 3] [--keep FOLDER]`.

Ten and thirty minutes of 720p, with and without sound, each looked at in 32 frames by a warm front end (hash, probe,
decode, render), in CPU seconds of its process and what it starts, medians of alternating rounds; beside them a decode
of all frames of the ten minutes by `ffmpeg -threads 1 -f null`. What grows with the recording all the same is the
digest of its bytes and its sound, which is heard to its end: growth is told without the one, for pictures alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.clips import SECONDS, ffmpeg, make_clips
from bench.result import Figure, report
from bench.worker import Worker, item_of
from pipeline.front_end import fetch
from pipeline.media.process import cpu_s
from pipeline.records import Prepared

FRAMES = 32
LEAST_GAIN, MOST_GROWTH = 8.0, 1.5
# Half a minute less than thirty: more than thirty minutes of sound are heard in excerpts.
MINUTES = {"10_min": 10.0, "30_min": 29.5}
_OPTIONS = (
    *("media.audio.max_duration_s=1800", "media.video.min_rate_hz=0.001", f"media.video.max_frames={FRAMES}"),
    *("media.video.max_pixels_per_frame=131072", "engine.max_model_len=32768", "front_end.decode_timeout_s=600"),
    *("model.allow_untrained_policy=true", "model.dtype=bfloat16"),
)


def make_files(folder: Path) -> dict[str, Path]:
    """Write the recordings, each a piece of 20 s over and over, and return them by name."""
    (piece,) = make_clips(folder / "pieces", 1)
    files: dict[str, Path] = {}
    for length, minutes in MINUTES.items():
        for kind, options in {"with_sound": (), "pictures": ("-an",)}.items():
            path = files[f"{length}_{kind}"] = folder / f"{length}_{kind}.mp4"
            if not path.exists():
                loops = str(round(minutes * 60 / SECONDS) - 1)
                ffmpeg("-stream_loop", loops, "-i", str(piece), *options, "-c", "copy", str(path))
    return files


def timed_s(step: Callable[[], object]) -> float:
    """Return the CPU seconds of a step."""
    begun_s = cpu_s()
    step()
    return cpu_s() - begun_s


def full_decode(path: Path) -> None:
    """Decode all of a file on one thread, to nowhere."""
    command = ("ffmpeg", "-nostdin", "-v", "error", "-threads", "1", "-i", str(path), "-f", "null", "-")
    subprocess.run(command, check=True, timeout=1800)


def measure(folder: Path, rounds: int) -> list[Figure]:
    """Return the figures."""
    files, worker, last = make_files(folder), Worker(_OPTIONS), {}
    spent_s: dict[str, list[float]] = {name: [] for name in files}

    def look(name: str) -> None:
        prepared, _ = worker.front_end.prepare(item_of(os.fsencode(files[name])), "measured", 600.0)
        last[name] = prepared

    for round_number in range(rounds + 1):
        for name in files:
            took_s = timed_s(lambda name=name: look(name))  # type: ignore[misc]
            if round_number:  # the first one warms up
                spent_s[name].append(took_s)
    digest_s = {
        name: min(timed_s(lambda path=path: fetch(os.fsencode(path), lambda: 1.0)) for _ in range(rounds))  # type: ignore[misc]
        for name, path in files.items()
    }
    whole_s = timed_s(lambda: full_decode(files["10_min_with_sound"]))
    return figures({name: statistics.median(took) for name, took in spent_s.items()}, digest_s, whole_s, last)


def figures(
    spent_s: dict[str, float], digest_s: dict[str, float], whole_s: float, last: dict[str, Prepared]
) -> list[Figure]:
    """Return what was measured, and whether it is enough."""
    failed = [f"{name}: {one.error_message}" for name, one in last.items() if one.error_code is not None]
    frames = {one.frames for one in last.values()}
    gain = whole_s / spent_s["10_min_with_sound"]
    looks_s = {name: spent - digest_s[name] for name, spent in spent_s.items()}
    growth = looks_s["30_min_pictures"] / looks_s["10_min_pictures"]
    return [
        Figure("failed", "; ".join(failed) or "none", "", "none", not failed),
        Figure("frames", ", ".join(map(str, sorted(frames))), "of each", f"{FRAMES}", frames == {FRAMES}),
        *(Figure(f"{name}_cpu_s", spent, "CPU s") for name, spent in spent_s.items()),
        *(Figure(f"{name}_of_which_digest_cpu_s", spent, "CPU s") for name, spent in digest_s.items()),
        *(Figure(f"{name}_frames_off_s", one.frames_off_s or 0.0, "s at most") for name, one in last.items()),
        Figure("10_min_full_decode_cpu_s", whole_s, "CPU s"),
        Figure("times_less_than_full_decode", gain, "10 min with sound", f">= {LEAST_GAIN:g}", gain >= LEAST_GAIN),
        Figure("growth", growth, "30 to 10 min, pictures", f"<= {MOST_GROWTH:g}", growth <= MOST_GROWTH),
        Figure("growth_with_sound", spent_s["30_min_with_sound"] / spent_s["10_min_with_sound"], "30 to 10 min"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (default 3)")
    parser.add_argument("--keep", type=Path, help="folder for the files, kept for the next time")
    arguments = parser.parse_args()
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        return report("long_video", measure(arguments.keep, arguments.rounds))
    with tempfile.TemporaryDirectory() as folder:
        return report("long_video", measure(Path(folder), arguments.rounds))


if __name__ == "__main__":
    sys.exit(main())
