"""The pictures of a scene at any time and size: a background, things in it, events, and what stands beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pipeline.embedded.scene import Event, Scene, generator

Frame = NDArray[np.uint8]
Canvas = NDArray[np.float32]

_WORDS = ("CAM 03", "REC", "12:41:07", "LIVE", "EXIT", "Room 4", "出口", "2026-11-30", "CH 2", "MUTE", "Lobby")
_LEAST_SHOT_S = 1.5
_SKETCH = (64, 36)
"""Width and height at which a background is painted to learn its colours."""
_SMALL_PIXELS = 20_000
"""Smaller frames are painted at twice their size, so that edges are as soft as after scaling."""


@dataclass(frozen=True, slots=True)
class _Thing:
    """A shape in the picture; centre and size as shares of the frame."""

    round: bool
    colour: tuple[float, float, float]
    x: float
    y: float
    width: float
    height: float


class Painter:
    """Paints a scene. The same scene, time and size give the same picture."""

    def __init__(self, scene: Scene) -> None:
        rng = generator(scene.seed, 2)
        self._scene = scene
        self._beside = frozenset(scene.beside_pictures)
        self._style_seed = int(rng.integers(1 << 31))
        self._noise = 0.0 if "frozen" in self._beside or rng.random() < 0.15 else float(rng.uniform(1, 7))
        self._shake = float(rng.uniform(0.004, 0.016)) if "shake" in self._beside else 0.0
        self._drift = rng.uniform(-0.05, 0.05, 2) if "drift" in self._beside else np.zeros(2)
        self._still_things = [_thing(rng) for _ in range(rng.integers(1, 4))] if "still_object" in self._beside else []
        self._walker = _Walker(rng) if "walker" in self._beside else None
        self._clock = _Clock(rng) if "clock" in self._beside else None
        self._cuts_s = _cuts_s(rng, scene.duration_s) if "cuts" in self._beside else None
        self._black = float(rng.uniform(0, 9))
        self._dark_spans = self._darkness(rng)
        self._flash = _Flash(scene.first("flashing"), rng)
        self._backgrounds: dict[tuple[int, int, int], Canvas] = {}
        self._motion = _Motion(scene.first("motion"), rng, self._behind_motion(), camera=self._shift_shows())
        self._fire = _Fire(rng) if "fire" in self._beside else None
        self._dimming = (
            (float(rng.uniform(0.05, 0.25)), float(rng.uniform(6, 25))) if "dimming" in self._beside else None
        )

    def frame(self, time_s: float, width: int, height: int) -> Frame:
        """Return the picture on screen at a time, (height, width, 3) RGB."""
        tick = round(time_s * 1000)
        rng = np.random.default_rng((self._scene.seed, 3, 0 if "frozen" in self._beside else tick))
        if any(start <= time_s < end for start, end in self._dark_spans):
            canvas = np.full((height, width, 3), self._black, np.float32)
            return _finish(canvas, rng, min(self._noise, 2.0))
        fine = 2 if width * height < _SMALL_PIXELS else 1
        size = (width * fine, height * fine)
        canvas = self._background(*size, self._shot(time_s)).copy()
        for thing in self._still_things:
            _draw(canvas, thing)
        if self._walker is not None:
            self._walker.paint(canvas, time_s)
        offset = self._drift * time_s + rng.normal(0, self._shake, 2) + self._motion.jerk(time_s)
        canvas = np.roll(canvas, (round(offset[0] * size[1]), round(offset[1] * size[0])), (0, 1))
        if self._fire is not None:
            self._fire.paint(canvas, rng)
        if self._clock is not None:
            self._clock.paint(canvas, time_s)
        self._flash.paint(canvas, time_s)
        self._motion.paint(canvas, time_s)
        if self._dimming is not None:
            depth, period_s = self._dimming
            canvas *= 1 - depth * (0.5 - 0.5 * np.cos(2 * np.pi * time_s / period_s))
        if fine > 1:
            canvas = _halved(canvas)
        return _finish(canvas, rng, self._noise)

    def _darkness(self, rng: np.random.Generator) -> list[tuple[float, float]]:
        scene, spans = self._scene, []
        dark = scene.first("dark")
        if dark is not None:
            spans.append((dark.start_s, float("inf")))
        first = min((event.start_s for event in scene.events if event.label in ("flashing", "motion")), default=None)
        room_s = scene.duration_s - 2.0 if first is None else first
        if "dark_start" in self._beside and room_s > 1.0:
            spans.append((0.0, float(rng.uniform(0.6, min(room_s, 12.0)))))
        if "dark_middle" in self._beside and room_s > 2.0:
            start_s = float(rng.uniform(0.5, room_s - 1.0))
            spans.append((start_s, min(room_s, start_s + float(rng.uniform(0.8, 5.0)))))
        return spans

    def _shots(self, event: Event) -> range:
        return range(self._shot(event.start_s), self._shot(event.end_s) + 1)

    def _shift_shows(self) -> bool:
        """Return whether a shift of the whole picture could be seen all the while there is motion."""
        motion, flashing = self._scene.first("motion"), self._scene.first("flashing")
        if motion is None or (flashing is not None and _overlap(motion, flashing)):
            return False
        kinds = [_kind(np.random.default_rng((self._style_seed, shot))) for shot in self._shots(motion)]
        return all(kind is _soft_scene for kind in kinds)

    def _behind_motion(self) -> list[NDArray[np.float32]]:
        """Return the mean colours (3,) of what motion passes before: each shot, and each one lit by a flash."""
        motion, flashing = self._scene.first("motion"), self._scene.first("flashing")
        if motion is None:
            return []
        plain = [self._background(*_SKETCH, shot).mean((0, 1)) for shot in self._shots(motion)]
        lit = flashing is not None and _overlap(motion, flashing)
        return plain + [self._flash.over(colour) for colour in plain] if lit else plain

    def _shot(self, time_s: float) -> int:
        """Return the number of cuts before a time."""
        return int(np.searchsorted(self._cuts_s, time_s, "right")) if self._cuts_s is not None else 0

    def _background(self, width: int, height: int, shot: int) -> Canvas:
        if (width, height, shot) not in self._backgrounds:
            rng = np.random.default_rng((self._style_seed, shot))
            self._backgrounds[width, height, shot] = _background(rng, width, height, "text" in self._beside)
        return self._backgrounds[width, height, shot]


def _overlap(one: Event, other: Event) -> bool:
    return one.start_s < other.end_s and other.start_s < one.end_s


def _cuts_s(rng: np.random.Generator, duration_s: float) -> NDArray[np.float64]:
    """Return the times of one to three cuts; closer together they would flash."""
    kept: list[float] = []
    for time_s in np.sort(rng.uniform(0, duration_s, rng.integers(1, 4))):
        if not kept or time_s - kept[-1] >= _LEAST_SHOT_S:
            kept.append(float(time_s))
    return np.array(kept)


class _Flash:
    """Light that goes on and off at uneven steps, in the whole picture or a large part of it."""

    def __init__(self, event: Event | None, rng: np.random.Generator) -> None:
        self._changes_s: NDArray[np.float64] = np.zeros(0)
        if event is None:
            return
        # Seen at two pictures a second some steps fall between pictures; draw until enough of them show.
        for _ in range(50):
            steps_s = rng.uniform(0.12, 0.75, max(4, round(3 * (event.end_s - event.start_s))))
            changes_s = event.start_s + np.concatenate(([0.0], np.cumsum(steps_s)))
            self._changes_s = changes_s[changes_s < event.end_s]
            if len(self._changes_s) % 2:
                self._changes_s = np.append(self._changes_s, event.end_s)
            if self._shown(event):
                break
        whole = rng.random() < 0.5
        self._part = (0.0, 0.0, 1.0, 1.0) if whole else _part(rng, 0.55)
        self._colour = np.array(_LIGHTS[rng.integers(len(_LIGHTS))], np.float32)
        self._strength = float(rng.uniform(0.6, 1.0))

    def _on(self, time_s: float) -> bool:
        return bool(np.searchsorted(self._changes_s, time_s, "right") % 2)

    def _shown(self, event: Event) -> bool:
        times_s = np.arange(np.ceil(event.start_s * 2) - 1, np.floor(event.end_s * 2) + 2) / 2
        states = [self._on(float(time_s)) for time_s in times_s]
        at_once = self._on(np.ceil(event.start_s * 2) / 2) or self._on(np.ceil(event.start_s * 2) / 2 + 0.5)
        # On and off only once is no flashing.
        needed = min(4, max(3, round(event.end_s - event.start_s)))
        return at_once and sum(a != b for a, b in itertools.pairwise(states)) >= needed

    def paint(self, canvas: Canvas, time_s: float) -> None:
        if self._on(time_s):
            place = canvas[_slices(canvas, self._part)]
            place += self._strength * (self._light(place.mean((0, 1))) - place)

    def over(self, behind: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the colour (3,) of a place of mean colour `behind` while the light is on."""
        return np.asarray(behind + self._strength * (self._light(behind) - behind), np.float32)

    def _light(self, behind: NDArray[np.float32]) -> NDArray[np.float32]:
        if np.abs(self._colour - behind).sum() >= _LEAST_CONTRAST:
            return self._colour
        return np.where(behind > 127, 15, 240).astype(np.float32)


_LEAST_CONTRAST = 200.0
"""Light that differs less from what it falls on, summed over red, green and blue, gives way to one that shows."""
_LIGHTS = ((255, 255, 255), (255, 255, 255), (255, 240, 200), (255, 60, 50), (70, 90, 255), (220, 240, 255))


class _Motion:
    """Something that darts through the picture, or the camera torn about."""

    def __init__(
        self, event: Event | None, rng: np.random.Generator, behind: Sequence[NDArray[np.float32]], camera: bool
    ) -> None:
        """`behind`: the colours (3,) that it must stand out from; `camera`: whether it may be the camera."""
        self._event = event
        self._camera = bool(rng.random() < 0.2) and camera
        thing = _thing(rng, 0.28, 0.5)
        self._thing = replace(thing, colour=_standing_out(thing.colour, behind))
        self._knots_s, self._places = np.zeros(1), np.zeros((1, 2))
        if event is None:
            return
        length_s = event.end_s - event.start_s
        steps_s = rng.uniform(0.5, 0.9, max(4, round(length_s * 2.5)))
        self._knots_s = event.start_s + np.concatenate(([0.0], np.cumsum(steps_s)))
        self._places = _leaps(rng, len(self._knots_s))
        self._appears = bool(rng.random() < 0.6)

    def _active(self, time_s: float) -> bool:
        return self._event is not None and self._event.start_s <= time_s < self._event.end_s

    def _at(self, time_s: float) -> NDArray[np.float64]:
        return np.array([np.interp(time_s, self._knots_s, self._places[:, axis]) for axis in (0, 1)])

    def jerk(self, time_s: float) -> NDArray[np.float64]:
        """Return the camera's shift as shares of height and width."""
        return (self._at(time_s) - 0.5) if self._camera and self._active(time_s) else np.zeros(2)

    def paint(self, canvas: Canvas, time_s: float) -> None:
        if self._event is None or self._camera:
            return
        if not self._active(time_s) and self._appears:
            return
        y, x = self._at(min(max(time_s, self._event.start_s), self._event.end_s))
        _draw(canvas, replace(self._thing, x=float(x), y=float(y)))


def _leaps(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return places (count, 2) of which each is far from the one before."""
    places = [rng.uniform(0.15, 0.85, 2)]
    while len(places) < count:
        place = rng.uniform(0.1, 0.9, 2)
        if np.max(np.abs(place - places[-1])) > 0.4:
            places.append(place)
    return np.array(places)


class _Walker:
    """Something that moves slowly: no sudden motion."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._thing = _thing(rng, 0.1, 0.4)
        self._speed = rng.uniform(0.02, 0.1) * rng.choice((-1, 1))

    def paint(self, canvas: Canvas, time_s: float) -> None:
        x = (self._thing.x + self._speed * time_s + 0.3) % 1.6 - 0.3
        _draw(canvas, replace(self._thing, x=float(x)))


class _Fire:
    """A warm, restless glow: no flashing."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._part = _part(rng, 0.3)
        self._colour = np.array((rng.uniform(200, 255), rng.uniform(90, 150), rng.uniform(10, 50)), np.float32)
        self._depth = float(rng.uniform(0.1, 0.3))

    def paint(self, canvas: Canvas, rng: np.random.Generator) -> None:
        place = canvas[_slices(canvas, self._part)]
        height, width = place.shape[:2]
        coarse = rng.uniform(0.75 - self._depth, 0.75, (4, 6)).astype(np.float32)
        mask = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR))[..., None]
        place += mask * (self._colour - place)


class _Clock:
    """A counter that shows another number every second or so, as test patterns and cameras have: no motion."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._step_s = float(rng.choice((0.5, 1.0, 1.0, 2.0)))
        self._place = rng.uniform(0.0, 0.6), rng.uniform(0.0, 0.75)
        self._height = float(rng.uniform(0.08, 0.25))
        self._first = int(rng.integers(0, 90))

    def paint(self, canvas: Canvas, time_s: float) -> None:
        text = f"{self._first + int(time_s / self._step_s)}"
        _write(canvas, text, self._place, self._height, boxed=True)


def _thing(rng: np.random.Generator, least: float = 0.08, most: float = 0.35) -> _Thing:
    red, green, blue = rng.uniform(0, 255, 3)
    width, height = rng.uniform(least, most, 2)
    x, y = rng.uniform(0.1, 0.9, 2)
    return _Thing(bool(rng.random() < 0.5), (red, green, blue), float(x), float(y), float(width), float(height))


def _draw(canvas: Canvas, thing: _Thing) -> None:
    """Paint a thing."""
    rows, columns = canvas.shape[:2]
    box = (thing.x - thing.width / 2, thing.y - thing.height / 2, thing.x + thing.width / 2, thing.y + thing.height / 2)
    area = _slices(canvas, box)
    place = canvas[area]
    if not place.size:
        return
    colour = np.array(thing.colour, np.float32)
    if not thing.round:
        place[:] = colour
        return
    y = (np.arange(area[0].start, area[0].stop) + 0.5) / rows - thing.y
    x = (np.arange(area[1].start, area[1].stop) + 0.5) / columns - thing.x
    inside = (y[:, None] / thing.height * 2) ** 2 + (x[None, :] / thing.width * 2) ** 2 < 1
    place[inside] = colour


_LEAST_STANDING_OUT = 150.0
"""How much a thing that darts about differs from what is behind it, summed over red, green and blue."""


def _standing_out(colour: Sequence[float], behind: Sequence[NDArray[np.float32]]) -> tuple[float, float, float]:
    """Return the colour, or the one that stands out most if it is too near one of those behind."""

    def least(one: Sequence[float]) -> float:
        return min((float(np.abs(np.array(one) - other).sum()) for other in behind), default=float("inf"))

    pure = itertools.product((20.0, 235.0), repeat=3)
    red, green, blue = colour if least(colour) >= _LEAST_STANDING_OUT else max(pure, key=least)
    return float(red), float(green), float(blue)


def _slices(canvas: Canvas, box: tuple[float, float, float, float]) -> tuple[slice, slice]:
    """Return the rows and columns of a box (left, top, right, bottom) in shares of the frame."""
    rows, columns = canvas.shape[:2]
    left, top, right, bottom = box
    top_row, bottom_row = max(0, round(top * rows)), min(rows, round(bottom * rows))
    left_column, right_column = max(0, round(left * columns)), min(columns, round(right * columns))
    return slice(top_row, max(top_row, bottom_row)), slice(left_column, max(left_column, right_column))


def _part(rng: np.random.Generator, least: float) -> tuple[float, float, float, float]:
    """Return a box of at least `least` of each side."""
    width, height = rng.uniform(least, 1.0, 2)
    left, top = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
    return float(left), float(top), float(left + width), float(top + height)


def _background(rng: np.random.Generator, width: int, height: int, text: bool) -> Canvas:
    """Return a still background: a scene of soft shapes, one colour, a test pattern or a page; at times with words."""
    canvas = _kind(rng)(rng, width, height)
    if text:
        place = rng.uniform(0, 0.6), rng.uniform(0, 0.85)
        _write(canvas, str(rng.choice(_WORDS)), place, rng.uniform(0.06, 0.16))
    return canvas


def _kind(rng: np.random.Generator) -> Callable[[np.random.Generator, int, int], Canvas]:
    kinds = (_soft_scene, _one_colour, _test_pattern, _page)
    return kinds[rng.choice(len(kinds), p=(0.8, 0.08, 0.09, 0.03))]


def _soft_scene(rng: np.random.Generator, width: int, height: int) -> Canvas:
    """Return a coarse colour field with texture and shapes."""
    base = rng.uniform(25, 190)
    coarse = base + rng.normal(0, 1, (rng.integers(2, 7), rng.integers(2, 7), 3)) * rng.uniform(5, 45)
    image = Image.fromarray(np.clip(coarse, 18, 225).astype(np.uint8))
    image = image.resize((width, height), Image.Resampling.BICUBIC if rng.random() < 0.7 else Image.Resampling.NEAREST)
    canvas = np.asarray(image, np.float32).copy()
    rows, columns = (int(n) for n in rng.integers(8, 40, 2))
    grain = Image.fromarray(rng.normal(0, 1, (rows, columns)).astype(np.float32))
    canvas += np.asarray(grain.resize((width, height), Image.Resampling.BILINEAR))[..., None] * rng.uniform(0, 22)
    for _ in range(rng.integers(0, 6)):
        _draw(canvas, _thing(rng, 0.05, 0.5))
    return np.clip(canvas, 14, 235)


_PURE = tuple(itertools.product((0, 255), repeat=3))[1:]
_LEAST_BRIGHT = 60.0


def _colour(rng: np.random.Generator) -> NDArray[np.float32]:
    """Return a colour (3,), often a pure one, that nobody would call black."""
    if rng.random() < 0.6:
        return np.array(_PURE[rng.integers(len(_PURE))], np.float32)
    colour = rng.uniform(0, 255, 3).astype(np.float32)
    return np.maximum(colour, _LEAST_BRIGHT) if colour.max() < _LEAST_BRIGHT else colour


def _one_colour(rng: np.random.Generator, width: int, height: int) -> Canvas:
    return np.tile(_colour(rng), (height, width, 1))


def _test_pattern(rng: np.random.Generator, width: int, height: int) -> Canvas:
    """Return bars, checks, stripes or a ramp, as broadcasters and ffmpeg make them."""
    x, y = np.arange(width) / width, np.arange(height) / height
    kind = rng.integers(4)
    if kind == 0:  # upright bars, at times with another row of them below
        bars = np.stack([_colour(rng) for _ in range(rng.integers(4, 10))])
        canvas = np.broadcast_to(bars[(x * len(bars)).astype(int)], (height, width, 3)).astype(np.float32)
        if rng.random() < 0.6:
            canvas[y > rng.uniform(0.6, 0.85)] = np.roll(bars, 2, 0)[(x * len(bars)).astype(int)]
        return canvas
    first, second = _colour(rng), _colour(rng)
    across, down = rng.integers(1, 12, 2)
    if kind == 1:
        odd = (np.floor(x * across)[None, :] + np.floor(y * down)[:, None]) % 2
    elif kind == 2:
        odd = np.broadcast_to((np.floor(y * (down + 2)) % 2)[:, None], (height, width))
    else:
        odd = np.clip((x[None, :] * rng.uniform(-1, 1) + y[:, None] * rng.uniform(-1, 1)) + 0.5, 0, 1)
    return np.asarray(first + odd[..., None].astype(np.float32) * (second - first), np.float32)


def _page(rng: np.random.Generator, width: int, height: int) -> Canvas:
    """Return a bright page with lines of writing: a document, a slide."""
    canvas = np.full((height, width, 3), rng.uniform(215, 255), np.float32)
    lines = int(rng.integers(3, 14))
    for line in range(lines):
        top, left, right = (line + 0.5) / (lines + 1), rng.uniform(0.04, 0.15), rng.uniform(0.4, 0.96)
        canvas[_slices(canvas, (left, top, right, top + 0.4 / (lines + 1)))] *= rng.uniform(0.2, 0.7)
    return canvas


def _write(canvas: Canvas, text: str, place: tuple[float, float], share: float, boxed: bool = False) -> None:
    """Write words in white at a place (across, down) and a height in shares of the frame; boxed ones stand on black."""
    height, width = canvas.shape[:2]
    image = Image.fromarray(np.clip(canvas, 0, 255).astype(np.uint8))
    drawing, font = ImageDraw.Draw(image), ImageFont.load_default(size=max(8, height * share))
    at = (place[0] * width, place[1] * height)
    if boxed:
        drawing.rectangle(drawing.textbbox(at, text, font=font), fill=(0, 0, 0))
    drawing.text(at, text, fill=(250, 250, 245), font=font)
    canvas[:] = np.asarray(image, np.float32)


def _halved(canvas: Canvas) -> Canvas:
    """Return the canvas at half its size, four pixels averaged into one."""
    return (canvas[::2, ::2] + canvas[1::2, ::2] + canvas[::2, 1::2] + canvas[1::2, 1::2]) / np.float32(4)


def _finish(canvas: Canvas, rng: np.random.Generator, noise: float) -> Frame:
    if noise > 0:
        canvas = canvas + rng.standard_normal(canvas.shape[:2], np.float32)[..., None] * noise
    return np.clip(canvas, 0, 255).astype(np.uint8)
