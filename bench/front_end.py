"""What the front end costs beside today's way: `python -m bench.front_end --peers FOLDER [--rounds 3]`.

CPU seconds from a file to the prompt that the engine gets, of 20 s of 720p H.264 with AAC, in two looks: the default of
qwen-omni-utils (2 frames a second, 1024x576) and a small one (1 frame a second, 512x288). Taken in turn, clip by clip:
the project's front end; qwen-omni-utils and vLLM's renderer as in `FOLDER/cookbook.py`; and a bare decode,
`ffmpeg -threads 1 -i CLIP -f null -`. Compared within each round; the contents of the four clips differ in what they
cost to decode, so each is told, and the median of the four is what is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import peers
from bench.clips import CONTENTS, make_clips
from bench.looks import LOOKS
from bench.result import Figure, report
from bench.sides import Side
from pipeline.hardware.environment import child_environment

_MODULE = "bench.front_end_sides"
_DECODE_TIMEOUT_S = 300
# By look: how many times as much the peer must cost, and how much of a bare decode ours may.
WANTED = {"default": (5.0, 1.25), "small": (3.0, 0.85)}
MOST_TOKENS_APART = 0.05


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of one clip, also by phase, and the prompt's tokens."""

    cpu_s: float
    tokens: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)


Round = dict[str, Cost]
"""What one clip cost in one round: `ours`, `bare` and, if measured, `peer`."""


def bare_decode_s(clip: Path) -> float:
    """Return the CPU seconds of decoding all of a clip on one thread. Raises SystemExit if ffmpeg fails."""
    command = ["ffmpeg", "-nostdin", "-v", "error", "-threads", "1", "-i", str(clip), "-f", "null", "-"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def measured(look: str, clips: Sequence[Path], rounds: int, running: Mapping[str, Side]) -> dict[str, list[Round]]:
    """Return the rounds by content; the first question to each side warms it up and is not counted."""
    for side in running.values():
        side.ask({"look": look, "clip": str(clips[0])})
    found: dict[str, list[Round]] = defaultdict(list)
    for _ in range(rounds):
        for content, clip in zip(CONTENTS, clips, strict=True):
            one = {name: Cost(**side.ask({"look": look, "clip": str(clip)})) for name, side in running.items()}
            found[content].append(one | {"bare": Cost(bare_decode_s(clip))})
    return dict(found)


def ratio(rounds: Sequence[Round], above: str, below: str) -> float:
    """Return the median over the rounds of what one costs divided by what the other costs in the same round."""
    return statistics.median(one[above].cpu_s / one[below].cpu_s for one in rounds)


def figures(look: str, found: Mapping[str, Sequence[Round]]) -> list[Figure]:
    """Return the measures of a look: the median over the contents, and each content's own."""
    least_peer, most_bare = WANTED[look]
    bare = _ratios(look, found, "ours", "bare")
    made = [replace(bare[0], wanted=f"<= {most_bare:g}", met=float(bare[0].value) <= most_bare), *bare[1:]]
    if _sides(found) >= {"peer"}:
        peer = _ratios(look, found, "peer", "ours")
        made += [replace(peer[0], wanted=f">= {least_peer:g}", met=float(peer[0].value) >= least_peer), *peer[1:]]
        made += _tokens(look, found)
    return made


def _sides(found: Mapping[str, Sequence[Round]]) -> set[str]:
    return set(next(iter(found.values()))[0])


def _ratios(look: str, found: Mapping[str, Sequence[Round]], above: str, below: str) -> list[Figure]:
    each = {content: ratio(rounds, above, below) for content, rounds in found.items()}
    name = f"{look}_{above}_over_{below}"
    middle = Figure(name, statistics.median(each.values()), "times")
    return [middle, *(Figure(f"{name}_{content}", value, "times") for content, value in each.items())]


def _tokens(look: str, found: Mapping[str, Sequence[Round]]) -> list[Figure]:
    """Return both sides' prompt tokens: who looks at less is no quicker."""
    first = [rounds[0] for rounds in found.values()]
    apart = max(abs(one["ours"].tokens / one["peer"].tokens - 1) for one in first)
    within = f"<= {MOST_TOKENS_APART:g}"
    return [
        Figure(f"{look}_ours_tokens", first[0]["ours"].tokens),
        Figure(f"{look}_peer_tokens", first[0]["peer"].tokens),
        Figure(f"{look}_tokens_apart", apart, "of the peer's", within, apart <= MOST_TOKENS_APART),
    ]


def costs(found: Mapping[str, Mapping[str, Sequence[Round]]]) -> tuple[Table, list[Figure]]:
    """Return CPU seconds by look, side and phase: a column for each content, and the median of the contents."""
    contents = list(next(iter(found.values())))
    table = Table("look", "side", "phase", *contents, "median", title="CPU seconds a clip, median of the rounds")
    figures: list[Figure] = []
    for look, by_content in found.items():
        for side in sorted(_sides(by_content), key=["ours", "peer", "bare"].index):
            phases = list(by_content[contents[0]][0][side].phases)
            for phase in [*phases, "all"]:
                values = [
                    statistics.median(one[side].phases.get(phase, one[side].cpu_s) for one in rounds)
                    for rounds in by_content.values()
                ]
                middle = statistics.median(values)
                table.add_row(look, side, phase, *(f"{value:.3f}" for value in (*values, middle)))
                figures.append(Figure(f"{look}_{side}_{phase}_cpu_s", middle, "s"))
            table.add_section()
    return table, figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.front_end", description=__doc__)
    peers.add_option(parser)
    parser.add_argument("--rounds", type=int, default=3, help="how often each clip is taken by each side")
    parser.add_argument("--dtype", default="bfloat16", help="the model's numbers; bfloat16 as on every accelerator")
    options = parser.parse_args()
    ours = {**os.environ, **child_environment("cpu")}
    with tempfile.TemporaryDirectory(prefix="l1-front-end-") as scratch, ExitStack() as stack:
        clips = make_clips(Path(scratch) / "clips", len(CONTENTS))
        running = {"ours": stack.enter_context(Side(_MODULE, ["ours", options.dtype], ours))}
        if options.peers:
            peers.install()
            command = ["peer", options.dtype, str(options.peers)]
            running["peer"] = stack.enter_context(Side(_MODULE, command, peers.environment()))
        found = {look: measured(look, clips, options.rounds, running) for look in LOOKS}
    table, told = costs(found)
    Console(width=100).print(table)
    compared = [] if options.peers else [peers.left_out()]
    return report("front_end", [*told, *(one for look in LOOKS for one in figures(look, found[look])), *compared])


if __name__ == "__main__":
    sys.exit(main())
