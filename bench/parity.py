"""Whether the fast way says what the plain way says: `python -m bench.parity --peers FOLDER [--clips 200]`.

Fresh clips of the generator, through the project's front end and vLLM; and loaded by qwen-omni-utils (with decord),
made into features by Hugging Face's processor and answered by transformers, in a process that holds nothing of the fast
way but the conversation and the model. Both get the same instants, frame size and number of frames. qwen-omni-utils
wants sound in every video: clips without are left out, and counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import peers
from bench.accuracy import Clip, fresh, write_all
from bench.result import Figure, report
from bench.sides import Side
from bench.worker import item_of
from pipeline.embedded.exam import Examiner
from pipeline.errors import JobError
from pipeline.job import EMBEDDED_PATH
from pipeline.prompt import conversation
from pipeline.records import MediaKind, Prepared, Verdict
from pipeline.verdict import parse_answer, verdict_probability

SEEDS = 750_000
LEAST_SAME = 0.99
_SHOWN = 20
_TIME_S = 300.0
_PARTS: dict[MediaKind, str] = {"av": "video", "audio": "audio", "image": "image"}


@dataclass(frozen=True, slots=True)
class Said:
    """What one way said of a clip: verdict, its probability given the labels before it, the least of all findings'
    probabilities, and the labels that are there; with the prompt's tokens."""

    verdict: Verdict
    probability: float
    confidence: float
    labels: tuple[str, ...]
    tokens: tuple[int, ...]


def drawn(count: int) -> tuple[list[Clip], int]:
    """Return so many clips that the plain way takes, and how many were left out on the way."""
    taken: list[Clip] = []
    left_out = 0
    while len(taken) < count:
        (clip,) = fresh(1, SEEDS + len(taken) + left_out)
        if clip.scene.sound or clip.scene.still:
            taken.append(clip)
        else:
            left_out += 1
    return taken, left_out


def fast(paths: Sequence[Path]) -> tuple[list[Said], list[dict[str, Any]]]:
    """Return what the project says of the files, and what the plain way must be told of each to look at the same."""
    examiner = Examiner(EMBEDDED_PATH)
    try:
        made = [examiner.front_end.prepare(item_of(os.fsencode(path)), path.name, _TIME_S) for path in paths]
        broken = [f"{path}: {one.error_message}" for path, (one, prompt) in zip(paths, made, strict=True) if not prompt]
        if broken:
            raise SystemExit(broken[0])
        policy = examiner.resolved.policy
        completions = examiner.completions(prompt for _, prompt in made)
        answers = [parse_answer(completion, policy) for completion in completions]
        said = [
            Said(
                answer.verdict,
                verdict_probability(completion, answer.verdict),
                answer.confidence,
                tuple(sorted(label.id for label in answer.labels if label.present)),
                tuple(prompt["prompt_token_ids"]),
            )
            for answer, completion, (_, prompt) in zip(answers, completions, made, strict=True)
        ]
        return said, [_question(examiner, path, one) for path, (one, _) in zip(paths, made, strict=True)]
    finally:
        examiner.close()


def _question(examiner: Examiner, path: Path, prepared: Prepared) -> dict[str, Any]:
    plan, facts = prepared.plan, prepared.facts
    assert plan is not None and facts is not None
    part = _PARTS[facts.kind]
    messages = conversation(examiner.resolved.policy, plan, prepared.duration_s, [part])
    look = {"frames": prepared.frames, "rate_hz": plan.frame_rate_hz, "width": plan.width, "height": plan.height}
    return {"path": str(path), "part": part, "messages": messages, **look}


def plain(questions: Sequence[dict[str, Any]]) -> list[Said]:
    """Return what the plain way says of the files."""
    with Side("bench.plain_way", [str(EMBEDDED_PATH)], peers.environment()) as side:
        said = [side.ask(question) for question in questions]
    return [Said(**one | {"labels": tuple(one["labels"]), "tokens": tuple(one["tokens"])}) for one in said]


def figures(fast_said: Sequence[Said], plain_said: Sequence[Said]) -> list[Figure]:
    """Return how the two ways agree."""
    pairs = list(zip(fast_said, plain_said, strict=True))
    same = [(one, other) for one, other in pairs if one.verdict == other.verdict]
    share = len(same) / len(pairs)
    found = [Figure("same_verdict", share, f"of {len(pairs)}", f">= {LEAST_SAME}", share >= LEAST_SAME)]
    found.append(_share("same_labels", [one.labels == other.labels for one, other in pairs]))
    found.append(_share("same_tokens", [one.tokens == other.tokens for one, other in pairs]))
    apart = sorted(abs(one.probability - other.probability) for one, other in same)
    least_apart = sorted(abs(one.confidence - other.confidence) for one, other in same)
    for name, values in (("verdict", apart), ("least_finding", least_apart)):
        found += [
            Figure(f"{name}_probability_apart_mean", sum(values) / max(1, len(values)), "of those of one verdict"),
            Figure(f"{name}_probability_apart_p95", values[int(0.95 * len(values))] if values else 0.0),
            Figure(f"{name}_probability_apart_largest", values[-1] if values else 0.0),
        ]
    return found


def _share(name: str, held: Sequence[bool]) -> Figure:
    return Figure(name, sum(held) / len(held), f"of {len(held)}")


def disagreements(clips: Sequence[Clip], fast_said: Sequence[Said], plain_said: Sequence[Said]) -> Table:
    """Return the clips of which the two ways say different things, verdicts first."""
    table = Table("clip", "right", "fast", "plain", "labels of the fast way only", "of the plain way only")
    rows = [row for row in zip(clips, fast_said, plain_said, strict=True) if _differ(*row[1:])]
    for clip, one, other in sorted(rows, key=lambda row: row[1].verdict == row[2].verdict)[:_SHOWN]:
        only = [" ".join(sorted(set(a.labels) - set(b.labels))) for a, b in ((one, other), (other, one))]
        verdicts = [f"{said.verdict} {said.confidence:.2f}" for said in (one, other)]
        table.add_row(clip.name, clip.right.verdict, *verdicts, *only)
    return table


def _differ(one: Said, other: Said) -> bool:
    return one.verdict != other.verdict or one.labels != other.labels


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.parity", description=__doc__)
    peers.add_option(parser)
    parser.add_argument("--clips", type=int, default=200, help="how many clips are compared")
    parser.add_argument("--keep", type=Path, help="folder for the clips; what is there is used again")
    options = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    clips, left_out = drawn(options.clips)
    try:
        with tempfile.TemporaryDirectory(prefix="l1-parity-") as scratch:
            folder = (options.keep or Path(scratch)) / "clips"
            write_all(clips, folder)
            by_name = {path.stem: path for path in folder.iterdir()}
            fast_said, questions = fast([by_name[clip.name].absolute() for clip in clips])
            right = _share(
                "fast_way_right", [s.verdict == c.right.verdict for s, c in zip(fast_said, clips, strict=True)]
            )
            if options.peers is None:
                return report("parity", [right, peers.left_out()])
            peers.install()
            plain_said = plain(questions)
    except JobError as error:
        print(f"bench.parity: {error}", file=sys.stderr)
        return 2
    Console(width=110).print(disagreements(clips, fast_said, plain_said))
    told = _share("plain_way_right", [s.verdict == c.right.verdict for s, c in zip(plain_said, clips, strict=True)])
    told_out = Figure("left_out_without_sound", left_out, "clips")
    return report("parity", [*figures(fast_said, plain_said), right, told, told_out])


if __name__ == "__main__":
    sys.exit(main())
