"""The real engine on the embedded checkpoint: answers under the grammar, nothing lost, nothing mixed up."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.engine.vllm import VllmEngine
from pipeline.errors import EngineLost, ItemError
from pipeline.front_end import FrontEnd
from pipeline.media.plan import audio_tokens, padded_samples
from pipeline.prompt import Renderer, expected_tokens
from pipeline.records import (
    SAMPLE_RATE_HZ,
    AudioStream,
    Completion,
    Decoded,
    MediaFacts,
    Plan,
    VideoStream,
    Window,
)
from pipeline.resolve import Resolved
from pipeline.verdict import parse_answer

pytestmark = pytest.mark.engine

SIDE = 64
# One request after the other in float32: equal prompts give equal numbers to the last bit or two.
SAME = 2e-6


def sound(seconds: float, pitch_hz: float) -> Any:
    ticks = np.arange(padded_samples(int(seconds * SAMPLE_RATE_HZ))) / SAMPLE_RATE_HZ
    return (0.5 * np.sin(2 * np.pi * pitch_hz * ticks)).astype(np.float32)


def recording(
    seconds: float, *, pitch_hz: float | None = 440.0, grey: int | None = 128, rate_hz: float = 2.0
) -> tuple[MediaFacts, Plan, Decoded]:
    """Return an item as the decoder would give it: a tone and frames of one grey."""
    frames = 0 if grey is None else max(2, int(seconds * rate_hz) // 2 * 2)
    pcm = np.zeros(0, np.float32) if pitch_hz is None else sound(seconds, pitch_hz)
    facts = MediaFacts(
        kind="av" if frames and len(pcm) else "audio" if len(pcm) else "video",
        container="test",
        duration_s=seconds,
        audio=AudioStream(1, "pcm", SAMPLE_RATE_HZ, 1, 0.0, seconds) if len(pcm) else None,
        video=VideoStream(0, "raw", SIDE, SIDE, rate_hz, 0.0, seconds) if frames else None,
    )
    plan = Plan(
        windows=(Window(0.0, seconds),),
        duration_known=True,
        audio=bool(len(pcm)),
        frames=frames,
        frame_rate_hz=rate_hz if frames else None,
        width=SIDE,
        height=SIDE,
        audio_tokens=0,
        video_tokens=0,
        coverage=1.0,
    )
    pictures = np.full((frames, SIDE, SIDE, 3), grey or 0, np.uint8)
    return facts, plan, Decoded(pcm, pictures, np.arange(frames) / rate_hz, seconds)


def prompt_of(front_end: FrontEnd, request_id: str, item: tuple[MediaFacts, Plan, Decoded]) -> Any:
    return front_end.renderer.render(request_id, *item, item[0].duration_s).prompt


def ask(engine: VllmEngine, request_id: str, prompt: Any) -> Completion:
    return engine.completion(engine.submit(request_id, prompt).result(timeout=120))


def picture_of(completion: Completion) -> list[float]:
    """Return the probabilities of an answer's first tokens: they depend on everything the model got."""
    return [token.logprob for token in completion.tokens[:8]]


def test_an_answer_keeps_to_the_grammar_and_accounts_for_every_token(
    engine: VllmEngine, front_end: FrontEnd, resolved: Resolved
) -> None:
    item = recording(4.0)
    completion = ask(engine, "grammar", prompt_of(front_end, "grammar", item))
    data = json.loads(completion.text)
    assert set(data) == {"labels", "verdict", "rationale"}
    answer = parse_answer(completion, resolved.policy)
    assert 0.0 < answer.confidence < 1.0
    assert all(0.0 < label.confidence < 1.0 for label in answer.labels)
    expected = expected_tokens(item[2], item[1])
    assert (completion.audio_tokens, completion.video_tokens) == (expected.audio, expected.video)
    assert completion.audio_tokens == 52
    assert completion.video_tokens == 4 * 4
    assert completion.prompt_tokens > completion.audio_tokens + completion.video_tokens
    assert completion.output_tokens == len(completion.tokens)


def test_occupancy_tells_of_the_screening_how_long_the_batch_was_full(
    engine: VllmEngine, front_end: FrontEnd, resolved: Resolved
) -> None:
    seats = resolved.engine.arguments["max_num_seqs"]
    before = engine.stats().occupancy
    assert before.seats == seats and before.answers == 0
    engine.more_to_come(True)
    prompts = [prompt_of(front_end, f"seat-{n}", recording(2.0)) for n in range(2 * seats)]
    for future in [engine.submit(f"seat-{n}", prompt) for n, prompt in enumerate(prompts)]:
        future.result(timeout=120)
    engine.more_to_come(False)
    ask(engine, "last", prompt_of(front_end, "last", recording(2.0)))
    found = engine.stats().occupancy
    assert found.answers == 2 * seats + 1 and 0 < found.full_answers <= 2 * seats
    assert found.full_s > 0 and found.tail_s > 0 and found.full_s + found.tail_s <= found.span_s


def test_the_same_prompt_gives_the_same_answer_again(engine: VllmEngine, front_end: FrontEnd) -> None:
    item = recording(3.0)
    first = ask(engine, "again-1", prompt_of(front_end, "again-1", item))
    second = ask(engine, "again-2", prompt_of(front_end, "again-2", item))
    assert first.text == second.text
    assert picture_of(first) == pytest.approx(picture_of(second), abs=SAME)


@pytest.mark.parametrize("change", ["sound", "pictures", "rate", "mute", "blind"])
def test_every_sense_and_the_frame_rate_reach_the_model(engine: VllmEngine, front_end: FrontEnd, change: str) -> None:
    changed: dict[str, dict[str, Any]] = {
        "sound": {"pitch_hz": 1500.0},
        "pictures": {"grey": 20},
        "rate": {"rate_hz": 1.0},
        "mute": {"pitch_hz": None},
        "blind": {"grey": None},
    }
    plain = ask(engine, f"{change}-a", prompt_of(front_end, f"{change}-a", recording(8.0)))
    other = ask(engine, f"{change}-b", prompt_of(front_end, f"{change}-b", recording(8.0, **changed[change])))
    assert picture_of(plain) != pytest.approx(picture_of(other), abs=SAME)


def test_half_the_rate_with_the_same_frames_is_told_to_the_model(engine: VllmEngine, front_end: FrontEnd) -> None:
    """Pre-sampled frames lose their rate without an error: same tokens, other times."""
    facts, plan, decoded = recording(8.0, pitch_hz=None)
    slow = replace(plan, frame_rate_hz=1.0)
    fast_answer = ask(engine, "fast", front_end.renderer.render("fast", facts, plan, decoded, None).prompt)
    slow_answer = ask(engine, "slow", front_end.renderer.render("slow", facts, slow, decoded, None).prompt)
    assert fast_answer.video_tokens == slow_answer.video_tokens
    assert picture_of(fast_answer) != pytest.approx(picture_of(slow_answer), abs=SAME)


def test_two_workers_prompts_in_flight_together_do_not_share_sound_or_pictures(
    engine: VllmEngine, resolved: Resolved
) -> None:
    """Each worker's renderer numbers its items alike; without own ids the engine would take one for the other."""
    low, high = recording(6.0, pitch_hz=200.0, grey=4), recording(6.0, pitch_hz=3000.0, grey=220)
    workers = [Renderer(resolved.engine, resolved.policy) for _ in range(2)]
    alone = [
        ask(engine, f"alone-{n}", worker.render(f"alone-{n}", *item, 6.0).prompt)
        for n, (worker, item) in enumerate(zip(workers, (low, high), strict=True))
    ]
    assert alone[0].text != alone[1].text  # the first one is dark
    assert picture_of(alone[0]) != pytest.approx(picture_of(alone[1]), abs=5e-5)
    prompts = [
        worker.render(f"both-{n}", *item, 6.0).prompt
        for n, (worker, item) in enumerate(zip(workers, (low, high), strict=True))
    ]
    futures = [engine.submit(f"both-{n}", prompt) for n, prompt in enumerate(prompts)]
    together = [engine.completion(future.result(timeout=120)) for future in futures]
    for one, two in zip(alone, together, strict=True):
        # Batched and single matrix products differ in the last bits.
        assert one.text == two.text
        assert picture_of(one) == pytest.approx(picture_of(two), abs=1e-5)


@pytest.mark.parametrize("seconds", [0.05, 1.0, 29.0, 31.0, 62.0, 1860.0])
def test_sound_is_never_cut_and_never_padded_to_thirty_seconds(front_end: FrontEnd, seconds: float) -> None:
    facts, plan, decoded = recording(seconds, grey=None)
    samples = len(decoded.pcm)
    rendered = front_end.renderer.render(f"length-{seconds}", facts, plan, decoded, seconds)
    assert rendered.tokens.audio == audio_tokens(samples)
    assert rendered.tokens.audio == pytest.approx(13 * seconds, abs=14)


def test_a_plain_prompt_rendered_by_the_engine_gives_the_same_answer(
    engine: VllmEngine, front_end: FrontEnd, resolved: Resolved
) -> None:
    item = recording(5.0)
    plain = Renderer(replace(resolved.engine, render_in="engine"), resolved.policy).render("plain", *item, 5.0)
    assert "multi_modal_data" in plain.prompt
    slow = ask(engine, "plain", plain.prompt)
    fast = ask(engine, "ready", prompt_of(front_end, "ready", item))
    assert (slow.audio_tokens, slow.video_tokens) == (fast.audio_tokens, fast.video_tokens)
    assert slow.text == fast.text
    assert picture_of(slow) == pytest.approx(picture_of(fast), abs=SAME)


def test_one_prompt_the_engine_refuses_does_not_touch_the_others(engine: VllmEngine, front_end: FrontEnd) -> None:
    good = engine.submit("good", prompt_of(front_end, "good", recording(2.0)))
    bad = engine.submit("bad", {"prompt_token_ids": []})
    assert engine.completion(good.result(timeout=120)).text
    with pytest.raises(ItemError) as caught:
        bad.result(timeout=120)
    assert caught.value.code == "engine_rejected"


def test_an_aborted_request_ends_as_deadline_and_the_engine_goes_on(engine: VllmEngine, front_end: FrontEnd) -> None:
    before = engine.stats().aborted
    future = engine.submit("late", prompt_of(front_end, "late", recording(20.0)))
    time.sleep(0.05)
    engine.abort("late")
    with pytest.raises(ItemError) as caught:
        future.result(timeout=120)
    assert caught.value.code == "deadline"
    assert engine.stats().aborted == before + 1
    assert ask(engine, "after", prompt_of(front_end, "after", recording(2.0))).text
    engine.abort("after")  # finished long ago: ignored


def test_the_time_account_adds_up(engine: VllmEngine, front_end: FrontEnd) -> None:
    before, started = engine.stats(), time.perf_counter()
    ask(engine, "account", prompt_of(front_end, "account", recording(2.0)))
    time.sleep(0.3)
    ask(engine, "account-2", prompt_of(front_end, "account-2", recording(2.0)))
    elapsed, after = time.perf_counter() - started, engine.stats()
    step, outside, idle = (getattr(after, name) - getattr(before, name) for name in ("step_s", "outside_s", "idle_s"))
    assert after.finished - before.finished == 2
    assert step > 0
    assert idle >= 0.2
    # The account of idle time is closed when the next request comes, so it may begin before this test.
    assert step + outside <= elapsed + 0.1


def test_a_thinking_checkpoint_reasons_within_its_budget_and_only_the_answer_is_read(
    front_end: FrontEnd, resolved: Resolved, thinking: tuple[VllmEngine, Renderer]
) -> None:
    engine, renderer = thinking
    completion = ask(engine, "thinking", renderer.render("thinking", *recording(2.0), 2.0).prompt)
    answer = parse_answer(completion, resolved.policy)
    assert completion.output_tokens >= len(completion.tokens) + 20
    assert "think" not in answer.rationale
    assert completion.text.startswith("{")


def test_requests_of_a_dead_engine_fail_at_once_and_name_the_cause(
    thinking: tuple[VllmEngine, Renderer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Last, because it takes an engine with it."""
    engine, renderer = thinking
    prompt = renderer.render("doomed", *recording(2.0), 2.0).prompt

    def burst() -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(engine._engine, "step", burst)
    for request_id in ("doomed", "later"):
        with pytest.raises(EngineLost, match="device lost"):
            engine.submit(request_id, prompt).result(timeout=30)


def test_a_hundred_dropped_requests_leave_no_cache_behind_and_the_next_is_answered(
    engine: VllmEngine, front_end: FrontEnd
) -> None:
    prompt = prompt_of(front_end, "dropped", recording(20.0))
    futures = [engine.submit(f"dropped-{n}", prompt) for n in range(100)]
    until = time.monotonic() + 60
    while engine.stats().cache_used == 0.0 and time.monotonic() < until:
        time.sleep(0.01)
    assert engine.stats().cache_used > 0.0 and engine.stats().unfinished > 50
    for n in range(100):
        engine.abort(f"dropped-{n}")
    ended = [future.exception(timeout=60) for future in futures]
    assert sum(isinstance(error, ItemError) and error.code == "deadline" for error in ended) > 80
    assert engine.stats().cache_used == 0.0 and engine.stats().unfinished == 0
    assert ask(engine, "after", prompt_of(front_end, "after", recording(2.0))).text


def test_a_short_answer_has_a_short_rationale(engine: VllmEngine, front_end: FrontEnd, resolved: Resolved) -> None:
    prompt = prompt_of(front_end, "short", recording(4.0))
    answer = parse_answer(engine.completion(engine.submit("short", prompt, short=True).result(120)), resolved.policy)
    assert 0 < len(answer.rationale) <= 60
