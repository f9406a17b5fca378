"""The rehearsal's engine keeps an engine's promises, and fails where it is told to."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipeline.engine.base import AnswerForm
from pipeline.engine.fake import FakeEngine, FakePrompt, fault_of
from pipeline.errors import EngineLost, ItemError
from pipeline.job import Faults, Rehearsal
from pipeline.policy import answer_schema
from pipeline.tokens import PlaceholderIds
from pipeline.verdict import parse_answer
from tests.test_policy import policy

FORM = AnswerForm(answer_schema(policy()), answer_schema(policy(), 60), 100, 0, 0.0)


@contextmanager
def engine(seats: int = 4, **settings: object) -> Iterator[FakeEngine]:
    made = FakeEngine(Rehearsal.model_validate(settings), seats, FORM)
    yield made
    made.close()


def prompt() -> FakePrompt:
    return FakePrompt(26, 0, 126)


def test_an_answer_follows_the_policys_schema_and_is_no_clean_pass() -> None:
    with engine(answer_s=0.01) as one:
        completion = one.completion(one.submit("a-1", prompt()).result(5))
    answer = parse_answer(completion, policy())
    assert answer.verdict == "review" and not any(label.present for label in answer.labels)
    assert completion.audio_tokens == 26


def test_a_rendered_prompt_is_answered_with_the_tokens_it_really_holds() -> None:
    rendered = {"prompt_token_ids": [5, 1, 1, 1, 6, 3, 3, 2, 7]}
    one = FakeEngine(Rehearsal(answer_s=0.0), 1, FORM, PlaceholderIds(audio=1, image=2, video=3))
    completion = one.submit("a-1", rendered).result(5)
    assert (completion.audio_tokens, completion.video_tokens, completion.prompt_tokens) == (3, 3, 9)
    one.close()
    with engine() as blind, pytest.raises(TypeError, match="takes no dict"):
        blind.submit("a-1", rendered)


def test_requests_run_together_as_many_as_there_are_seats() -> None:
    with engine(seats=4, answer_s=0.2) as one:
        started = time.monotonic()
        futures = [one.submit(f"{n}-1", prompt()) for n in range(8)]
        for future in futures:
            future.result(5)
        assert 0.4 <= time.monotonic() - started < 0.8
        assert one.stats().finished == 8


def test_occupancy_tells_how_long_all_seats_were_taken_while_more_was_to_come() -> None:
    with engine(seats=2, answer_s=0.2) as one:
        one.submit("warm-up", prompt()).result(5)
        one.more_to_come(True)
        one.submit("a-1", prompt()).result(5)
        for future in [one.submit(f"{n}-1", prompt()) for n in range(4)]:
            future.result(5)
        one.more_to_come(False)
        one.submit("z-1", prompt()).result(5)
        found = one.stats().occupancy
    assert (found.seats, found.answers) == (2, 6)
    assert found.full_s == pytest.approx(0.4, abs=0.15) and found.tail_s == pytest.approx(0.2, abs=0.1)
    assert found.span_s == pytest.approx(0.8, abs=0.25) and found.full_answers >= 2


def test_a_dropped_request_frees_its_seat_and_says_deadline() -> None:
    with engine(seats=1, faults={"hang": 1.0}) as one:
        running, waiting = one.submit("a-1", prompt()), one.submit("b-1", prompt())
        time.sleep(0.3)
        assert one.stats().unfinished == 2 and one.stats().cache_used == 1.0
        for name, future in (("b-1", waiting), ("a-1", running)):
            one.abort(name)
            with pytest.raises(ItemError) as caught:
                future.result(5)
            assert caught.value.code == "deadline"
        assert one.stats().unfinished == 0 and one.stats().cache_used == 0.0 and one.stats().aborted == 2


def test_a_closed_engine_fails_what_it_holds() -> None:
    with engine(faults={"hang": 1.0}) as one:
        future = one.submit("a-1", prompt())
        time.sleep(0.1)
    with pytest.raises(EngineLost):
        future.result(5)


def test_garbage_is_no_answer() -> None:
    with engine(answer_s=0.0, faults={"garbage": 1.0}) as one:
        completion = one.submit("a-1", prompt()).result(5)
    with pytest.raises(ItemError, match="JSONDecodeError"):
        parse_answer(completion, policy())


def test_nothing_befalls_the_warm_up() -> None:
    with engine(answer_s=0.0, faults={"poison": 1.0}) as one:
        assert one.submit("warm-up", prompt()).result(5).text


@pytest.mark.parametrize(("fault", "attempt", "dies"), [("engine_dies", 1, True), ("poison", 2, True)])
def test_what_kills_the_engine_ends_its_process(fault: str, attempt: int, dies: bool) -> None:
    code = (
        "from tests.engine.test_fake import *\n"
        f"with engine(answer_s=0.0, faults={{{fault!r}: 1.0}}) as one:\n"
        f"    one.submit('a-{attempt}', prompt()).result(5)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=60)
    assert (done.returncode == 70) is dies, done.stderr.decode()


def test_an_engine_that_dies_once_answers_the_second_try() -> None:
    with engine(answer_s=0.0, faults={"engine_dies": 1.0}) as one:
        assert one.submit("a-2", prompt()).result(5).finish_reason == "stop"


def test_faults_befall_their_share_of_items_the_same_ones_each_time_and_others_with_another_seed() -> None:
    script = Rehearsal(faults=Faults(slow=0.1, poison=0.05))
    struck = {name: fault_of(name, script) for name in map(str, range(4000))}
    assert struck == {name: fault_of(name, script) for name in struck}
    shares = [list(struck.values()).count(fault) / 4000 for fault in ("slow", "poison")]
    assert shares == pytest.approx([0.1, 0.05], abs=0.015)
    other = Rehearsal(seed=1, faults=script.faults)
    assert {name for name in struck if fault_of(name, other)} != {name for name, fault in struck.items() if fault}


def test_faults_of_more_than_all_items_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 1"):
        Faults(slow=0.7, hang=0.4)
