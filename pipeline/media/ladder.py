"""Which look at a recording can still be answered in its time: the whole one, or lesser ones. Pure, no I/O.

What decoding has no time for is left out first. Then a look is given up in this order: frames, frame size, length of
the answer, parts of the recording, evenly spread. Each rung keeps what the rungs above it gave up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.deadline import seconds
from pipeline.job import Media
from pipeline.media.plan import FRAMES_PER_GRID, PATCH_PIXELS, frame_size, plan
from pipeline.media.skipping import jumps
from pipeline.records import MediaFacts, Plan, VideoStream

LookName = Literal[
    "full", "decodable", "fewer_frames", "smaller_frames", "shorter_answer", "half", "quarter", "glimpse"
]

SAFETY = 1.3
"""A look is chosen only if so many times its predicted seconds are left."""
GLIMPSE_S = 60.0
LEAST_GAIN = 0.05
"""A rung that saves a smaller share of the predicted seconds is not worth what it gives up."""

_FEWEST_PIXELS = PATCH_PIXELS**2
_USUAL_RATE_HZ = 25.0
# A key frame takes as long to decode as so many others.
_KEY_FRAME_COST = 4


@dataclass(frozen=True, slots=True)
class Forecast:
    """How long each step takes, learned from earlier items.

    `decode_s_per_gigapixel` counts pixels of the source (width x height x source frames of what is looked at),
    `sound_decode_s_per_hour` hours of recordings without pictures. `queue_s` is the engine's work ahead of the item,
    `engine_tokens_per_s` how many prompt tokens of whole requests, answers and all, it gets done; `generate_s` and
    `short_generate_s` are the seconds of a usual and of a short answer, the least that one takes.
    """

    decode_s_per_gigapixel: float = 4.0
    sound_decode_s_per_hour: float = 20.0
    render_s_per_kilotoken: float = 0.15
    engine_tokens_per_s: float = 2_000.0
    queue_s: float = 0.0
    generate_s: float = 4.0
    short_generate_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Look:
    """One rung of the ladder: what to plan with, and whether to ask for a short answer.

    At most `max_recording_s` seconds of the recording are looked at, in words `part`. `given_up` says in words what
    else is less than in the whole look, `why` the seconds that made it so.
    """

    name: LookName
    media: Media
    max_recording_s: float | None = None
    short_answer: bool = False
    given_up: tuple[str, ...] = ()
    part: str | None = None
    why: str | None = None


def looks(
    facts: MediaFacts, media: Media, token_budget: int, forecast: Forecast, decode_limit_s: float = math.inf
) -> Iterator[tuple[Look, Plan]]:
    """Yield the looks at a recording from full to least, each with its plan and quicker than the one before.

    If decoding the whole could take longer than `decode_limit_s`, the first look is at as much as can be decoded. A
    rung that would make this recording hardly quicker is passed over and gives up nothing: sound has no frames to
    halve, a still picture no parts, and where decoding takes nearly all the time, fewer frames help nothing.
    Raises ItemError as `plan` does for the whole look.
    """
    look, planned = Look("full", media), plan(facts, media, token_budget)
    whole_s = looked_at_s(planned)
    full_decode_s = SAFETY * _decode_s(facts, planned, forecast)
    if full_decode_s > decode_limit_s and whole_s > 0:
        part_s = max(whole_s * decode_limit_s / full_decode_s, _glimpse_s(whole_s))
        look = _part(look, "decodable", f"{seconds(part_s)} of the recording", part_s)
        took, limit = seconds(full_decode_s), seconds(decode_limit_s)
        why = f"decoding the whole could have taken {took}, front_end.decode_timeout_s allows {limit}"
        look = replace(look, why=why)
        planned = plan(facts, media, token_budget, part_s)
    yield look, planned
    first, look_s = planned, predicted_s(facts, planned, forecast)
    for lesser in _rungs(whole_s, first.width * first.height):
        next_look = lesser(look if look.given_up else replace(look, media=_as_used(facts, media, first)))
        most_s = math.inf if next_look.max_recording_s is None else next_look.max_recording_s
        next_plan = plan(facts, next_look.media, token_budget, most_s)
        next_s = predicted_s(facts, next_plan, forecast, next_look.short_answer)
        if next_s < look_s * (1 - LEAST_GAIN):
            look, look_s = next_look, next_s
            yield look, next_plan


def choose(
    facts: MediaFacts,
    media: Media,
    token_budget: int,
    forecast: Forecast,
    left_s: float,
    decode_limit_s: float = math.inf,
) -> tuple[Look, Plan]:
    """Return the fullest look whose predicted seconds fit `left_s`, and those of its decoding `decode_limit_s`, with
    the safety factor, else the least one.

    The least is tried even if it seems to take too long: the forecast may be wrong, and without a try the item
    has no answer for certain. Raises ItemError as `plan` does for the whole look.
    """
    full_look_s = 0.0
    for look, planned in looks(facts, media, token_budget, forecast, decode_limit_s):
        could_take_s = SAFETY * predicted_s(facts, planned, forecast, look.short_answer)
        full_look_s = full_look_s or could_take_s
        if could_take_s <= left_s:
            break
    if look.name != "full" and look.why is None:
        took, left = seconds(full_look_s), seconds(left_s)
        look = replace(look, why=f"the whole look could have taken {took}, {left} were left")
    return look, planned


def glimpse(facts: MediaFacts, media: Media, token_budget: int, tried_s: float) -> tuple[Look, Plan]:
    """Return the look at the least part of a recording of which decoding more did not end in `tried_s`."""
    part_s = _glimpse_s(looked_at_s(plan(facts, media, token_budget)))
    look = _part(Look("full", media), "glimpse", f"{seconds(part_s)} of the recording", part_s)
    look = replace(look, why=f"decoding more did not end in {seconds(tried_s)}")
    return look, plan(facts, media, token_budget, part_s)


def predicted_s(facts: MediaFacts, planned: Plan, forecast: Forecast, short_answer: bool = False) -> float:
    """Return the seconds from decoding to the answer's end that a plan takes by the forecast."""
    tokens = planned.audio_tokens + planned.video_tokens
    generate_s = min(forecast.generate_s, forecast.short_generate_s) if short_answer else forecast.generate_s
    front_end_s = _decode_s(facts, planned, forecast) + tokens / 1_000 * forecast.render_s_per_kilotoken
    # The engine's speed is that of whole requests, answers and all; but no answer comes sooner than it takes.
    return front_end_s + max(forecast.queue_s + tokens / forecast.engine_tokens_per_s, generate_s)


def source_gigapixels(facts: MediaFacts, planned: Plan) -> float:
    """Return the source's pixels that decoding a plan goes through, in 1e9; 0 for sound alone."""
    if facts.video is None:
        return 0.0
    if jumps(facts, planned):
        frames = float(_KEY_FRAME_COST * planned.frames)
    else:
        frames = 1.0 if facts.kind == "image" else looked_at_s(planned) * (facts.video.frame_rate_hz or _USUAL_RATE_HZ)
    return facts.video.width * facts.video.height * frames / 1e9


def looked_at_s(planned: Plan) -> float:
    """Return the seconds of the recording inside the plan's windows."""
    return sum(window.duration_s for window in planned.windows)


def describe(look: Look) -> str:
    """Return what a row says of a lesser look: what was given up, and the seconds that made it so."""
    less = look.given_up if look.part is None else (*look.given_up, look.part)
    what = ", ".join(less) or "the whole look"
    return what if look.why is None else f"{what}: {look.why}"


def _rungs(whole_s: float, pixels: int) -> tuple[Callable[[Look], Look], ...]:
    """Return the steps down from the first look, whose frames have so many pixels; each makes a lesser look of the one
    before. Parts are of the `whole_s` seconds that the whole look sees."""
    return (
        lambda look: _less(look, "fewer_frames", "half the frames", _half_the_frames(look.media)),
        lambda look: _less(look, "smaller_frames", "half the pixels", _at_most(pixels // 2, look.media)),
        lambda look: replace(_less(look, "shorter_answer", "a short answer", look.media), short_answer=True),
        lambda look: _part(look, "half", "half as much of the recording", whole_s / 2),
        lambda look: _part(look, "quarter", "a quarter as much of the recording", whole_s / 4),
        lambda look: _part(look, "glimpse", f"{GLIMPSE_S:.0f} s of the recording", _glimpse_s(whole_s)),
    )


def _glimpse_s(whole_s: float) -> float:
    return min(GLIMPSE_S, whole_s / 4)


def _less(look: Look, name: LookName, gives_up: str, media: Media) -> Look:
    return replace(look, name=name, given_up=(*look.given_up, gives_up), media=media)


def _part(look: Look, name: LookName, part: str, part_s: float) -> Look:
    """Return the look at a part, in place of a larger part."""
    return replace(look, name=name, max_recording_s=part_s, part=part)


def _as_used(facts: MediaFacts, media: Media, full: Plan) -> Media:
    """Return the settings cut down to what the whole look uses: half of a limit above that would change nothing."""
    if facts.video is None or full.frame_rate_hz is None:
        return media
    video = media.video
    rate_hz = min(video.max_rate_hz, full.frame_rate_hz)
    used = {
        "min_rate_hz": min(video.min_rate_hz, rate_hz),
        "max_rate_hz": rate_hz,
        "max_frames": min(video.max_frames, full.frames),
        "max_pixels_per_frame": _pixel_limit(facts.video, full, video.max_pixels_per_frame),
    }
    return media.model_copy(update={"video": video.model_copy(update=used)})


def _pixel_limit(picture: VideoStream, full: Plan, most: int) -> int:
    """Return the least limit that gives frames of the whole look's size."""
    size = full.width, full.height
    limits = (*range(full.width * full.height, most, _FEWEST_PIXELS), most)
    return next((limit for limit in limits if frame_size(picture.width, picture.height, limit) == size), most)


def _half_the_frames(media: Media) -> Media:
    """Return half the rates, the lowest too, so that no recording time is lost to it, and half the frames."""
    video = media.video
    halved = {
        "min_rate_hz": video.min_rate_hz / 2,
        "max_rate_hz": video.max_rate_hz / 2,
        "max_frames": max(1, math.ceil(video.max_frames / 2 / FRAMES_PER_GRID)) * FRAMES_PER_GRID,
    }
    return media.model_copy(update={"video": video.model_copy(update=halved)})


def _at_most(pixels: int, media: Media) -> Media:
    """Return the settings with frames and pictures of at most so many pixels."""
    limit = max(_FEWEST_PIXELS, pixels)
    video = media.video.model_copy(update={"max_pixels_per_frame": min(limit, media.video.max_pixels_per_frame)})
    image = media.image.model_copy(update={"max_pixels": min(limit, media.image.max_pixels)})
    return media.model_copy(update={"video": video, "image": image})


def _decode_s(facts: MediaFacts, planned: Plan, forecast: Forecast) -> float:
    sound_s = looked_at_s(planned) / 3_600 * forecast.sound_decode_s_per_hour
    if facts.video is None:
        return sound_s
    apart_s = sound_s if jumps(facts, planned) and facts.audio is not None else 0.0
    return source_gigapixels(facts, planned) * forecast.decode_s_per_gigapixel + apart_s
