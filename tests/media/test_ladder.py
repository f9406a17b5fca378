"""The ladder of lesser looks: each rung is reached as time runs short, and none that would help nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.deadline import seconds
from pipeline.errors import REASONS, ItemError
from pipeline.job import Media, Video
from pipeline.media.ladder import SAFETY, Forecast, Look, _decode_s, choose, describe, looked_at_s, looks, predicted_s
from pipeline.media.plan import plan
from pipeline.records import MediaFacts, Plan, VideoStream
from tests.media.test_plan import recording

BUDGET = 30_000
SLOW_ENGINE = Forecast(decode_s_per_gigapixel=0.1, engine_tokens_per_s=300.0, generate_s=0.5, short_generate_s=0.2)
LONG_ANSWERS = Forecast(generate_s=30.0, short_generate_s=10.0)
SLOW_DECODER = Forecast(decode_s_per_gigapixel=10.0)
ORDER = ("full", "fewer_frames", "smaller_frames", "shorter_answer", "half", "quarter", "glimpse")
WITHOUT_SHORTER = tuple(name for name in ORDER if name != "shorter_answer")
PICTURE = MediaFacts("image", "png_pipe", None, None, VideoStream(0, "png", 4000, 3000, None, 0.0, None))
SOUND_ALONE = recording(3_600.0, size=None)


def ladder(facts: MediaFacts, budget: int = BUDGET, forecast: Forecast = SLOW_ENGINE) -> list[tuple[Look, Plan]]:
    return list(looks(facts, Media(), budget, forecast))


def chosen(facts: MediaFacts, left_s: float, forecast: Forecast = SLOW_ENGINE) -> tuple[Look, Plan]:
    return choose(facts, Media(), BUDGET, forecast, left_s)


def could_take_s(facts: MediaFacts, look: Look, planned: Plan) -> float:
    return SAFETY * predicted_s(facts, planned, SLOW_ENGINE, look.short_answer)


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        (recording(1_800.0, sound=False), WITHOUT_SHORTER),
        (recording(400.0), WITHOUT_SHORTER),
        (recording(100.0), WITHOUT_SHORTER[:-1]),
        (SOUND_ALONE, ("full", "half", "quarter", "glimpse")),
        (recording(100.0, size=None), ("full", "half", "quarter")),
        (recording(1.0, size=None), ("full", "shorter_answer")),
        (PICTURE, ("full", "smaller_frames")),
        (recording(1.0, sound=False), ("full", "shorter_answer")),
        (recording(100.0, size=(32, 32), sound=False), ("full", "shorter_answer", "half")),
    ],
    ids=["long", "middling", "short", "sound", "short sound", "brief sound", "picture", "two frames", "tiny frames"],
)
def test_a_recording_has_the_rungs_that_make_it_quicker(facts: MediaFacts, names: tuple[str, ...]) -> None:
    found = ladder(facts)
    assert tuple(look.name for look, _ in found) == names
    assert len({(planned, look.short_answer) for look, planned in found}) == len(found)


def test_a_short_answer_helps_where_the_answer_is_what_takes_the_time() -> None:
    found = ladder(recording(20.0), forecast=LONG_ANSWERS)
    (full, planned), (look, same), *_ = found
    assert (full.name, look.name) == ("full", "shorter_answer")
    assert look.short_answer and same == planned


def test_pictures_stay_as_they_are_where_decoding_takes_the_time() -> None:
    found = ladder(recording(1_000.0), forecast=SLOW_DECODER)
    assert [look.name for look, _ in found] == ["full", "half", "quarter", "glimpse"]
    assert len({(planned.width, planned.height, planned.frame_rate_hz) for _, planned in found}) == 1


@pytest.mark.parametrize("facts", [recording(400.0), SOUND_ALONE, PICTURE], ids=["av", "sound", "picture"])
def test_each_rung_is_reached_as_time_runs_short(facts: MediaFacts) -> None:
    found = ladder(facts)
    for (look, planned), (lesser, _) in pairwise(found):
        enough_s = could_take_s(facts, look, planned)
        as_chosen, as_planned = chosen(facts, enough_s)
        assert (as_chosen.name, as_planned) == (look.name, planned)
        assert chosen(facts, enough_s * 0.999)[0].name == lesser.name
    assert chosen(facts, 0.0)[0].name == found[-1][0].name


def test_a_short_clip_gets_the_whole_look_as_planned_without_a_ladder() -> None:
    look, planned = chosen(recording(20.0), 57.0, Forecast())
    assert look.name == "full" and look.media == Media() and planned == plan(recording(20.0), Media(), BUDGET)


@pytest.mark.parametrize("left_s", [0.0, 0.5])
def test_the_least_is_tried_when_nothing_fits(left_s: float) -> None:
    look, planned = chosen(recording(7_200.0), left_s, SLOW_DECODER)
    assert look.name == "glimpse" and 40 <= looked_at_s(planned) <= 60
    last = planned.windows[-1]
    assert planned.windows[0].start_s == 0 and last.start_s + last.duration_s == pytest.approx(7_200)


@pytest.mark.parametrize(
    ("duration_s", "budget"), [(20.0, 30_000), (20.0, 1_500), (300.0, 30_000), (300.0, 6_000), (7_200.0, 30_000)]
)
def test_half_is_half_whichever_limit_bound_the_whole_look(duration_s: float, budget: int) -> None:
    found = {look.name: planned for look, planned in ladder(recording(duration_s), budget)}
    full, fewer, smaller, half = (found[name] for name in ("full", "fewer_frames", "smaller_frames", "half"))
    assert fewer.frames == pytest.approx(full.frames / 2, abs=2) and fewer.coverage >= 0.9 * full.coverage
    assert (fewer.width, fewer.height) == (full.width, full.height)
    assert smaller.width * smaller.height <= full.width * full.height / 2
    assert smaller.frames == fewer.frames and smaller.coverage == fewer.coverage
    assert looked_at_s(half) == pytest.approx(looked_at_s(full) / 2, rel=0.25)


@pytest.mark.parametrize(
    ("facts", "left_s", "said"),
    [
        (recording(20.0), 57.0, "the whole look"),
        (recording(400.0), 45.0, "half the frames"),
        (recording(400.0), 38.0, "half the frames, half the pixels"),
        (SOUND_ALONE, 0.0, "60 s of the recording"),
        (PICTURE, 0.0, "half the pixels"),
        (recording(100.0), 0.0, "half the frames, half the pixels, a quarter as much of the recording"),
    ],
)
def test_a_row_says_what_was_given_up_and_why(facts: MediaFacts, left_s: float, said: str) -> None:
    look, _ = chosen(facts, left_s)
    given_up, _, why = describe(look).partition(": ")
    assert given_up == said
    assert why.endswith(" s were left") == (look.name != "full")


def test_the_seconds_are_those_decided_by() -> None:
    whole_s = SAFETY * predicted_s(SOUND_ALONE, plan(SOUND_ALONE, Media(), BUDGET), Forecast())
    look, _ = choose(SOUND_ALONE, Media(), BUDGET, Forecast(), whole_s / 2)
    said = f"the whole look could have taken {seconds(whole_s)}, {seconds(whole_s / 2)} were left"
    assert look.name != "full" and look.why == said and describe(look).endswith(f": {said}")


@pytest.mark.parametrize(
    ("facts", "forecast"),
    [(recording(400.0), SLOW_DECODER), (SOUND_ALONE, Forecast(sound_decode_s_per_hour=120.0))],
    ids=["av", "sound"],
)
@pytest.mark.parametrize("limit_s", [70.0, 55.0, 40.0])
def test_what_decoding_has_no_time_for_is_left_out_and_nothing_else(
    facts: MediaFacts, forecast: Forecast, limit_s: float
) -> None:
    whole = plan(facts, Media(), BUDGET)
    look, planned = choose(facts, Media(), BUDGET, forecast, 1_000.0, limit_s)
    assert (look.name, look.media, look.short_answer, look.given_up) == ("decodable", Media(), False, ())
    decode_s = SAFETY * _decode_s(facts, planned, forecast)
    assert 0.9 * limit_s <= decode_s <= limit_s < SAFETY * _decode_s(facts, whole, forecast)
    assert planned.width * planned.height >= whole.width * whole.height
    assert (planned.frame_rate_hz or 0) >= (whole.frame_rate_hz or 0)
    what, _, why = describe(look).partition(": ")
    assert what.endswith(" s of the recording") and why.endswith(f"decode_timeout_s allows {limit_s:.0f} s")


def test_what_can_be_decoded_whole_is_looked_at_whole() -> None:
    facts = recording(400.0)
    enough_s = SAFETY * _decode_s(facts, plan(facts, Media(), BUDGET), SLOW_DECODER)
    assert choose(facts, Media(), BUDGET, SLOW_DECODER, 1_000.0, enough_s)[0].name == "full"


def test_a_look_that_decoding_and_the_rest_have_no_time_for_gives_up_both() -> None:
    facts, slow = recording(400.0), replace(SLOW_ENGINE, decode_s_per_gigapixel=5.0)
    look, planned = choose(facts, Media(), BUDGET, slow, 70.0, 35.0)
    assert look.given_up == ("half the frames",) and SAFETY * _decode_s(facts, planned, slow) <= 35.0
    assert describe(look).startswith("half the frames, 234 s of the recording: decoding the whole")
    assert SAFETY * predicted_s(facts, planned, slow) <= 70.0


def test_however_slow_decoding_is_a_glimpse_is_tried() -> None:
    _, planned = choose(recording(7_200.0), Media(), BUDGET, SLOW_DECODER, 1_000.0, 1.0)
    assert 40 <= looked_at_s(planned) <= 60
    assert choose(PICTURE, Media(), BUDGET, SLOW_DECODER, 1_000.0, 0.001)[0].name == "full"


@pytest.mark.parametrize(
    ("facts", "forecast", "wanted_s"),
    [
        (recording(10.0), Forecast(1, 0, 0, 1e12, 0, 0), 1280 * 720 * 250 / 1e9),
        (PICTURE, Forecast(1, 0, 0, 1e12, 0, 0), 0.012),
        (recording(1_800.0, size=None), Forecast(0, 10, 0, 1e12, 0, 0), 5.0),
        (recording(100.0, size=None), Forecast(0, 0, 2, 1e12, 0, 0), 2.6),
        (recording(100.0, size=None), Forecast(0, 0, 0, 100, 7, 3), 13.0 + 7),
        (recording(100.0, size=None), Forecast(0, 0, 0, 100, 7, 30), 30.0),
    ],
    ids=["decode", "picture", "sound", "render", "engine", "answer"],
)
def test_the_forecast_adds_up(facts: MediaFacts, forecast: Forecast, wanted_s: float) -> None:
    assert predicted_s(facts, plan(facts, Media(), BUDGET), forecast) == pytest.approx(wanted_s, rel=1e-6)


def test_a_recording_that_cannot_be_planned_is_refused_as_ever() -> None:
    with pytest.raises(ItemError, match="tokens do not hold"):
        choose(recording(10.0), Media(), 1, Forecast(), 57.0)


def test_the_reason_is_final_and_no_failure() -> None:
    assert not REASONS["reduced_look"].failure and not REASONS["reduced_look"].retryable


@st.composite
def cases(draw: st.DrawFn) -> tuple[MediaFacts, Media, int]:
    size = draw(st.one_of(st.none(), st.tuples(st.integers(16, 4_000), st.integers(16, 4_000))))
    facts = recording(draw(st.one_of(st.none(), st.floats(0.1, 43_000))), size=size, sound=size is None)
    video = Video(max_rate_hz=draw(st.floats(0.25, 8)), max_frames=draw(st.integers(2, 300)))
    return draw(st.sampled_from([facts, PICTURE])), Media(video=video), draw(st.integers(200, 30_000))


@settings(max_examples=60, deadline=None)
@given(cases(), st.lists(st.floats(0, 200), min_size=2, max_size=6))
def test_less_time_never_gives_a_fuller_look(case: tuple[MediaFacts, Media, int], lefts_s: list[float]) -> None:
    facts, media, budget = case
    found = [choose(facts, media, budget, SLOW_ENGINE, left_s) for left_s in sorted(lefts_s)]
    rungs = [ORDER.index(look.name) for look, _ in found]
    assert rungs == sorted(rungs, reverse=True)
    times_s = [could_take_s(facts, look, planned) for look, planned in found]
    assert times_s == sorted(times_s)
