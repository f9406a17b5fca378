"""Prefix caching shares the policy's words between recordings, and never what one of them says or shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pipeline.engine.vllm import VllmEngine
from pipeline.front_end import FrontEnd
from pipeline.resolve import Resolved
from tests.engine.test_vllm import SAME, ask, picture_of, prompt_of, recording

pytestmark = pytest.mark.engine

# Of equal token counts: all that tells them apart is what the tokens stand for.
ALIKE: tuple[dict[str, Any], ...] = (
    {"pitch_hz": 440.0, "grey": 128},
    {"pitch_hz": 1500.0, "grey": 128},
    {"pitch_hz": 440.0, "grey": 20},
)


@pytest.fixture(scope="module")
def caching(resolved: Resolved) -> Iterator[VllmEngine]:
    setup = replace(resolved.engine, arguments=resolved.engine.arguments | {"enable_prefix_caching": True})
    engine = VllmEngine(setup, resolved.form)
    yield engine
    engine.close()


def cached_tokens(engine: VllmEngine, request_id: str, prompt: Any) -> int:
    return int(engine.submit(request_id, prompt).result(timeout=120).num_cached_tokens or 0)


def test_recordings_of_equal_token_counts_get_their_own_answers_beside_a_shared_prefix(
    engine: VllmEngine, caching: VllmEngine, front_end: FrontEnd
) -> None:
    alone, beside = [], []
    for number, kind in enumerate(ALIKE):
        item = recording(4.0, **kind)
        alone.append(picture_of(ask(engine, f"plain-{number}", prompt_of(front_end, f"plain-{number}", item))))
        beside.append(picture_of(ask(caching, f"shared-{number}", prompt_of(front_end, f"shared-{number}", item))))
    for own, others in zip(beside, alone, strict=True):
        assert own == pytest.approx(others, abs=SAME)
    assert beside[0] != pytest.approx(beside[1], abs=1e-3) and beside[0] != pytest.approx(beside[2], abs=1e-3)


def test_the_policys_words_come_from_the_cache_and_the_media_of_another_try_do_not(
    caching: VllmEngine, front_end: FrontEnd
) -> None:
    item = recording(4.0)
    ask(caching, "warm-0", prompt_of(front_end, "warm-0", item))
    prompt = prompt_of(front_end, "again-1", item)
    tokens = prompt["prompt_token_ids"]
    words = next(k for k, token in enumerate(tokens) if token in (front_end.renderer._ids.audio,))
    found = cached_tokens(caching, "again-1", prompt)
    assert 0 < found <= words
    assert found >= words // 2
