"""The model really listens and watches: what would break a sense, its order or its time breaks answers, and is seen.

Each fault is one that pipelines have had: it changes sound or frames on the way to the prompt, and answers must get
worse by far. The first test is the one that fails when such a fault comes into the pipeline itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest

from pipeline.embedded.exam import TOLERANCE_S, labels_right, wholly_right
from pipeline.embedded.examples import decoded_of, facts_of
from pipeline.embedded.scene import HEARD, SEEN, Scene, draw_scene
from pipeline.embedded.sounds import Voices
from pipeline.embedded.truth import Truth, named_seconds, truth
from pipeline.engine.vllm import VllmEngine
from pipeline.front_end import FrontEnd
from pipeline.media.decode import decode
from pipeline.media.plan import plan
from pipeline.media.probe import probe
from pipeline.records import SAMPLE_RATE_HZ, Answer, Decoded, MediaFacts, Plan
from pipeline.resolve import Resolved
from pipeline.verdict import parse_answer
from tests.end_to_end.conftest import CLIPS

pytestmark = pytest.mark.engine

SEEDS = 800_000
FEWEST = 20
LEAST_DROP = 0.2
_numbers = count()


@dataclass(frozen=True, eq=False)
class Case:
    """A scene, its right answer, and what the front end has made of it."""

    scene: Scene
    right: Truth
    facts: MediaFacts
    plan: Plan
    decoded: Decoded


Fault = Callable[[Case], Case]


@pytest.fixture(scope="module")
def voices() -> Voices:
    """Recorded voices from the demo's clips."""
    return Voices(speech=[_pcm(name) for name in ("speech_english.mp3", "speech_chinese.flac", "speech_short.opus")])


def _pcm(name: str) -> np.ndarray:
    path = bytes(CLIPS / name)
    facts = probe(path, 20.0)
    from pipeline.job import Media

    pcm = decode(path, facts, plan(facts, Media(), 8000), 60.0).pcm
    return np.rint(pcm * 32767).astype(np.int16)


@pytest.fixture(scope="module")
def cases(resolved: Resolved, voices: Voices) -> list[Case]:
    """Clips of all kinds, and long ones in which something is heard only after 30 s."""
    scenes = [draw_scene(SEEDS + number, 24.0, 4.0) for number in range(100)]
    long = (draw_scene(SEEDS + 1000 + number, 48.0, 38.0) for number in range(1000))
    scenes += islice((scene for scene in long if _heard_late(scene)), 24)
    return [_case(scene, resolved, voices) for scene in scenes if not scene.still]


def _case(scene: Scene, resolved: Resolved, voices: Voices) -> Case:
    facts = facts_of(scene)
    chosen = plan(facts, resolved.job.media, resolved.token_budget)
    return Case(scene, truth(scene), facts, chosen, decoded_of(scene, chosen, voices))


@pytest.fixture(scope="module")
def ask(resolved: Resolved, front_end: FrontEnd, engine: VllmEngine) -> Callable[[Sequence[Case]], list[Answer]]:
    def ask_all(asked: Sequence[Case]) -> list[Answer]:
        futures = []
        for case in asked:
            name = f"senses-{next(_numbers)}"
            rendered = front_end.renderer.render(name, case.facts, case.plan, case.decoded, case.scene.duration_s)
            futures.append(engine.submit(name, rendered.prompt))
        return [parse_answer(engine.completion(future.result(120)), resolved.policy) for future in futures]

    return ask_all


@pytest.fixture(scope="module")
def baseline(cases: list[Case], ask: Callable[[Sequence[Case]], list[Answer]]) -> list[Answer]:
    return ask(cases)


def share(right: Sequence[bool]) -> float:
    return sum(right) / len(right)


def test_the_model_is_right_on_fresh_clips(cases: list[Case], baseline: list[Answer]) -> None:
    verdicts = share([case.right.verdict == answer.verdict for case, answer in zip(cases, baseline, strict=True)])
    labels = share([labels_right(case.right, answer) for case, answer in zip(cases, baseline, strict=True)])
    times = share([wholly_right(case.right, answer) for case, answer in zip(cases, baseline, strict=True)])
    print(f"verdict {verdicts:.3f}, all labels {labels:.3f}, all seconds {times:.3f}")
    assert verdicts >= 0.94 and labels >= 0.85 and times >= 0.7


# ---- faults, and the clips that each must hurt


def _frames(change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    return lambda case: replace(case, decoded=replace(case.decoded, frames=change(case.decoded.frames)))


def _sound(change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    return lambda case: replace(case, decoded=replace(case.decoded, pcm=change(case.decoded.pcm)))


def _half_rate(case: Case) -> Case:
    return replace(case, plan=replace(case.plan, frame_rate_hz=(case.plan.frame_rate_hz or 2.0) / 2))


def _shuffled(frames: np.ndarray) -> np.ndarray:
    return frames[np.random.default_rng(0).permutation(len(frames))]


def _mirrored_spectrum(pcm: np.ndarray) -> np.ndarray:
    """Return the sound with every frequency f at 8 kHz - f, as mel filters in the wrong order would show it."""
    return pcm * np.where(np.arange(len(pcm)) % 2, -1, 1).astype(np.float32)


def seen_in_time(right: Truth, answer: Answer) -> bool:
    """Return whether every label is right, and the second of each seen event."""
    named = named_seconds(answer.rationale)
    seen = [(label, second) for label, second in right.starts_s.items() if label in SEEN]
    return labels_right(right, answer) and all(
        abs(named.get(label, -99) - second) <= TOLERANCE_S for label, second in seen
    )


def _seen_elsewhere_when_reversed(case: Case) -> bool:
    """Return whether some seen event of the reversed clip begins elsewhere, or is no longer there."""
    length_s = case.scene.duration_s
    return any(
        event.label in SEEN
        and ((event.label == "dark" and event.start_s > 0) or _far(length_s - event.end_s, event.start_s))
        for event in case.scene.events
    )


def _far(one_s: float, other_s: float) -> bool:
    return abs(one_s - other_s) > TOLERANCE_S + 1.5


def _has(labels: Sequence[str]) -> Callable[[Case], bool]:
    return lambda case: any(event.label in labels for event in case.scene.events)


def _seen_late(case: Case) -> bool:
    return any(event.label in SEEN and event.start_s > 2 * TOLERANCE_S + 1 for event in case.scene.events)


def _heard_late(scene: Scene) -> bool:
    return any(event.label in HEARD and event.start_s > 30.5 for event in scene.events)


def _late_sound(case: Case) -> bool:
    return _heard_late(case.scene)


FAULTS: dict[str, tuple[Fault, Callable[[Case], bool], Callable[[Truth, Answer], bool]]] = {
    "frames in reverse": (_frames(lambda frames: frames[::-1].copy()), _seen_elsewhere_when_reversed, seen_in_time),
    "frames in disorder": (_frames(_shuffled), _has(SEEN), seen_in_time),
    "half the frame rate": (_half_rate, _seen_late, seen_in_time),
    "grey instead of frames": (_frames(lambda frames: np.full_like(frames, 128)), _has(SEEN), labels_right),
    "sound cut after 30 s": (_sound(lambda pcm: pcm[: 30 * SAMPLE_RATE_HZ]), _late_sound, labels_right),
    "silence instead of sound": (_sound(np.zeros_like), _has(HEARD), labels_right),
    "no sound track": (_sound(lambda pcm: pcm[:0]), _has(HEARD), labels_right),
    "mel filters in the wrong order": (_sound(_mirrored_spectrum), _has(HEARD), labels_right),
}
"""Fault -> how it changes a case, which cases it must hurt, and by what their answers are judged."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_at_least_twenty_points(
    name: str, cases: list[Case], baseline: list[Answer], ask: Callable[[Sequence[Case]], list[Answer]]
) -> None:
    fault, affected, is_right = FAULTS[name]
    hurt = [(case, answer) for case, answer in zip(cases, baseline, strict=True) if affected(case)]
    assert len(hurt) >= FEWEST
    before = share([is_right(case.right, answer) for case, answer in hurt])
    answers = ask([fault(case) for case, _ in hurt])
    after = share([is_right(case.right, answer) for (case, _), answer in zip(hurt, answers, strict=True)])
    print(f"{name}: {before:.3f} -> {after:.3f} on {len(hurt)} clips")
    assert before - after >= LEAST_DROP


def test_recorded_speech_is_speech_and_neither_alarm_nor_bang(
    resolved: Resolved, front_end: FrontEnd, engine: VllmEngine
) -> None:
    for name in ("speech_english.mp3", "speech_chinese.flac", "speech_short.opus"):
        answer = _screen(CLIPS / name, resolved, front_end, engine)
        labels = {label.id: label for label in answer.labels}
        # The last one is muffled: the model may be unsure of it, and then a person hears it.
        assert labels["speech"].present or labels["speech"].confidence < 0.8, name
        for event in ("alarm", "bang"):
            assert not (labels[event].present and labels[event].confidence >= 0.8), (name, event)


def _screen(path: Path, resolved: Resolved, front_end: FrontEnd, engine: VllmEngine) -> Answer:
    from pipeline.records import Item

    name = f"senses-{next(_numbers)}"
    prepared, prompt = front_end.prepare(Item(name, "", bytes(path), None, None, ""), name, 60.0)
    assert prompt is not None, prepared.error_message
    return parse_answer(engine.completion(engine.submit(name, prompt).result(120)), resolved.policy)
