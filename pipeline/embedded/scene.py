"""What happens in a generated clip, drawn from a seed: events with their times, and what stands beside them.

A scene is plain data. `sounds.py` and `pictures.py` make it heard and seen, `truth.py` says what a right answer is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

Label = Literal["alarm", "bang", "speech", "flashing", "motion", "dark"]
HEARD: tuple[Label, ...] = ("alarm", "bang", "speech")
SEEN: tuple[Label, ...] = ("flashing", "motion", "dark")

SHORTEST_S, LONGEST_S = 0.5, 60.0
BRIEF_S, BRIEF_SHARE = 2.0, 0.06
"""A few recordings are shorter than this, and have no seen events."""

FRAME_SIZES = ((320, 180), (426, 240), (320, 240), (240, 320), (180, 320), (256, 256), (384, 216), (352, 288))
FRAME_RATES_HZ = (7.5, 10.0, 12.0, 15.0, 20.0, 24.0, 25.0, 30.0)
_MOST_FRAMES = 450

LOUD = "loud"
"""Among `beside_sound`: what stands beside is at the level of a broadcast, not of a background."""
_SOUND_BESIDE = ("noise", "hum", "tone", "music", "tune", "ticking", "beep")
_PICTURE_BESIDE = (
    "shake",
    "text",
    "clock",
    "drift",
    "dimming",
    "fire",
    "still_object",
    "walker",
    "cuts",
    "dark_start",
    "dark_middle",
    "frozen",
)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a label of the demo policy names; seconds from the start of the recording."""

    label: Label
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Scene:
    """A clip before it is rendered.

    `seed` and `sound_seed` are where pictures and sound get their numbers from. `sound` and `pictures` say which
    tracks there are; `still` makes it one picture. `silent`: the sound track holds nothing. `width`, `height` and
    `frame_rate_hz` are those of the file. `beside_*` name what is no event.
    """

    seed: int
    sound_seed: int
    duration_s: float
    sound: bool
    pictures: bool
    still: bool
    silent: bool
    width: int
    height: int
    frame_rate_hz: float
    events: tuple[Event, ...]
    beside_sound: tuple[str, ...]
    beside_pictures: tuple[str, ...]

    def first(self, label: Label) -> Event | None:
        """Return the earliest event of a label, None if there is none."""
        found = [event for event in self.events if event.label == label]
        return min(found, key=lambda event: event.start_s) if found else None


def generator(seed: int, purpose: int) -> np.random.Generator:
    """Return the random numbers of one purpose (scene, sound, pictures, file) of one clip."""
    return np.random.default_rng((seed, purpose))


def draw_scene(seed: int, longest_s: float = LONGEST_S, shortest_s: float | None = None) -> Scene:
    """Return the scene of a seed, no longer than `longest_s`; without `shortest_s` a few are brief."""
    rng = generator(seed, 0)
    kind = rng.choice(4, p=(0.79, 0.11, 0.07, 0.03))
    sound, pictures, still = kind in (0, 1), kind in (0, 2, 3), kind == 3
    duration_s = 0.0 if still else round(draw_length_s(rng, longest_s, shortest_s), 2)
    silent = bool(sound and rng.random() < (0.35 if kind == 1 else 0.15))
    events: list[Event] = []
    if sound and not silent:
        events += _heard(rng, duration_s)
    dark_s = _dark_from(rng, duration_s, still) if pictures else None
    if dark_s is not None:
        events.append(Event("dark", dark_s, duration_s))
    lit_s = duration_s if dark_s is None else dark_s
    if pictures and not still:
        events += _seen(rng, lit_s)
    width, height = FRAME_SIZES[rng.integers(len(FRAME_SIZES))]
    rates_hz = [rate for rate in FRAME_RATES_HZ if rate * duration_s <= _MOST_FRAMES]
    return Scene(
        seed=seed,
        sound_seed=seed,
        duration_s=duration_s,
        sound=sound,
        pictures=pictures,
        still=still,
        silent=silent,
        width=width,
        height=height,
        frame_rate_hz=float(rng.choice(rates_hz)),
        events=tuple(events),
        beside_sound=_beside_sound(rng, events, silent) if sound else (),
        beside_pictures=_beside_pictures(rng, lit_s, still, dark_s) if pictures else (),
    )


def draw_length_s(rng: np.random.Generator, longest_s: float, shortest_s: float | None = None) -> float:
    """Return a length, even on a logarithmic scale; without `shortest_s` a few are brief, the rest are not."""
    if shortest_s is None and rng.random() < BRIEF_SHARE:
        return float(rng.uniform(SHORTEST_S, BRIEF_S))
    least_s = BRIEF_S if shortest_s is None else shortest_s
    return float(np.exp(rng.uniform(np.log(least_s), np.log(longest_s))))


def with_sound_of(scene: Scene, other: Scene) -> Scene:
    """Return the scene with another one's sound, which must be as long."""
    events = [event for event in scene.events if event.label in SEEN]
    events += [event for event in other.events if event.label in HEARD]
    return replace(
        scene,
        sound_seed=other.sound_seed,
        sound=other.sound,
        silent=other.silent,
        events=tuple(events),
        beside_sound=other.beside_sound,
    )


def without_pictures(scene: Scene) -> Scene:
    """Return the scene's sound alone."""
    heard = tuple(event for event in scene.events if event.label in HEARD)
    return replace(scene, pictures=False, events=heard, beside_pictures=())


def _heard(rng: np.random.Generator, duration_s: float) -> list[Event]:
    which = rng.choice(4, p=(0.46, 0.21, 0.21, 0.12))
    events = []
    if which in (1, 3) and duration_s >= 1.5:
        events.append(_stretch(rng, "alarm", duration_s, 1.5, 20.0))
    if which in (2, 3) and duration_s >= 0.7:
        events.append(_stretch(rng, "bang", duration_s, 0.5, 0.5))
    if rng.random() < 0.4 and duration_s >= 1.2:
        events.append(_stretch(rng, "speech", duration_s, 1.2, 40.0))
    return events


def _seen(rng: np.random.Generator, lit_s: float) -> list[Event]:
    if lit_s < BRIEF_S:
        return []
    which = rng.choice(4, p=(0.42, 0.22, 0.22, 0.14))
    events = []
    if which in (1, 3):
        events.append(_stretch(rng, "flashing", lit_s, 2.0, 15.0))
    if which in (2, 3):
        events.append(_stretch(rng, "motion", lit_s, 1.5, 8.0))
    return events


def _stretch(rng: np.random.Generator, label: Label, room_s: float, least_s: float, most_s: float) -> Event:
    """Return an event of a length between `least_s` and `most_s` somewhere in the room."""
    length_s = float(rng.uniform(least_s, max(least_s, min(most_s, room_s))))
    length_s = min(length_s, room_s)
    start_s = float(rng.uniform(0.0, max(0.0, room_s - length_s)))
    return Event(label, round(start_s, 2), round(start_s + length_s, 2))


def _dark_from(rng: np.random.Generator, duration_s: float, still: bool) -> float | None:
    """Return the second from which the picture stays black, None if it does not."""
    chance = rng.random()
    if still:
        return 0.0 if chance < 0.3 else None
    if chance < 0.05:
        return 0.0
    if chance < 0.16 and duration_s >= 4.0:
        return round(float(rng.uniform(1.5, duration_s - 1.5)), 2)
    return None


def _beside_sound(rng: np.random.Generator, events: list[Event], silent: bool) -> tuple[str, ...]:
    if silent:
        return ("faint_noise",) if rng.random() < 0.5 else ()
    count = rng.choice(3, p=(0.25, 0.5, 0.25))
    if not events:
        count = max(1, count)
    names = [str(name) for name in rng.choice(_SOUND_BESIDE, size=count, replace=False)]
    if rng.random() < 0.22 and all(event.label != "bang" for event in events):
        names.append(LOUD)
    return tuple(names)


def _beside_pictures(rng: np.random.Generator, lit_s: float, still: bool, dark_s: float | None) -> tuple[str, ...]:
    if lit_s < 1.5 and not still:
        return ()
    count = rng.choice(4, p=(0.25, 0.35, 0.25, 0.15))
    names = {str(name) for name in rng.choice(_PICTURE_BESIDE, size=count, replace=False)}
    if dark_s is not None or lit_s < 5.0:
        names -= {"dark_start", "dark_middle"}
    if "dark_start" in names:
        names -= {"dark_middle"}
    return tuple(sorted(names))
