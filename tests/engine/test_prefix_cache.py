"""Prefix caching shares the policy's words between recordings, and never what one of them says or shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pipeline.engine.vllm import VllmEngine
from pipeline.front_end import FrontEnd
from pipeline.resolve import Resolved
from tests.engine.test_vllm import ask, picture_of, prompt_of, recording

pytestmark = pytest.mark.engine

# A prompt is reckoned in two pieces where its beginning is known.
CLOSE = 1e-4
# Of equal token counts: all that tells them apart is what the tokens stand for.
ALIKE: tuple[dict[str, Any], ...] = (
    {"pitch_hz": 440.0, "grey": 128},
    {"pitch_hz": 1500.0, "grey": 128},
    {"pitch_hz": 440.0, "grey": 20},
)


# Until the session ends: an engine that closes takes vLLM's process groups with it, and every other engine here.
@pytest.fixture(scope="session")
def caching(resolved: Resolved) -> Iterator[VllmEngine]:
    # Only whole blocks are shared, and the demo's words fill none of the usual 128 tokens.
    wanted = {"enable_prefix_caching": True, "block_size": 32}
    setup = replace(resolved.engine, arguments=resolved.engine.arguments | wanted)
    engine = VllmEngine(setup, resolved.form)
    yield engine
    engine.close()


def test_recordings_of_equal_token_counts_get_their_own_answers_beside_a_shared_prefix(
    engine: VllmEngine, caching: VllmEngine, front_end: FrontEnd
) -> None:
    alone, beside = [], []
    for number, kind in enumerate(ALIKE):
        item = recording(12.0, **kind)
        alone.append(picture_of(ask(engine, f"plain-{number}", prompt_of(front_end, f"plain-{number}", item))))
        beside.append(picture_of(ask(caching, f"shared-{number}", prompt_of(front_end, f"shared-{number}", item))))
    for own, others in zip(beside, alone, strict=True):
        assert own == pytest.approx(others, abs=CLOSE)
    assert beside[0] != pytest.approx(beside[1], abs=1e-3) and beside[0] != pytest.approx(beside[2], abs=1e-3)


def test_the_policys_words_come_from_the_cache_and_the_media_of_another_try_do_not(
    caching: VllmEngine, front_end: FrontEnd
) -> None:
    item = recording(12.0)
    ask(caching, "first-1", prompt_of(front_end, "first-1", item))
    prompt = prompt_of(front_end, "second-1", item)
    words = prompt["prompt_token_ids"].index(front_end.renderer._ids.audio)
    found = caching.submit("second-1", prompt).result(timeout=120).num_cached_tokens
    assert found is not None and words // 2 <= found <= words
