"""The placeholders are put in Hugging Face's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline import placeholders
from pipeline.resolve import Resolved

pytestmark = pytest.mark.engine
TEXT = "a <vb><V><ve> b"


@pytest.fixture
def both(resolved: Resolved) -> Iterator[tuple[Callable[..., list[str]], Callable[..., list[str]]]]:
    from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import Qwen3OmniMoeProcessor as Processor

    before = Processor.replace_multimodal_special_tokens
    placeholders.install()
    placeholders.install()
    ours = Processor.replace_multimodal_special_tokens
    yield ours, ours.replaces
    Processor.replace_multimodal_special_tokens = before


def processor() -> Any:
    tokens = {"audio_token": "<A>", "image_token": "<I>", "video_token": "<V>"}
    marks = {
        "vision_bos_token": "<vb>",
        "vision_eos_token": "<ve>",
        "audio_bos_token": "<ab>",
        "audio_eos_token": "<ae>",
    }
    merging = SimpleNamespace(merge_size=2)
    return SimpleNamespace(**tokens, **marks, video_processor=merging, image_processor=merging)


def said(method: Callable[..., list[str]], text: list[str], **changes: Any) -> list[str]:
    usual: dict[str, Any] = {
        "sounds": [26],
        "images": [],
        "grids": [(2, 4, 6)],
        "seconds": [1.0],
        "together": True,
        "rate": 13.0,
    }
    given = usual | changes
    grids, images = ([np.array(grid) for grid in given[name]] for name in ("grids", "images"))
    iterators = iter(given["sounds"]), iter(images), iter(grids), iter(given["seconds"])
    return method(processor(), list(text), *iterators, given["together"], given["rate"], 2.0)


@pytest.mark.parametrize("sounds", [1, 13, 26, 27, 500])
@pytest.mark.parametrize("pairs", [1, 2, 7, 20])
@pytest.mark.parametrize("seconds", [1.0, 0.5, 0.3337, 4.0])
def test_one_video_with_sound_is_ordered_as_theirs(both: Any, sounds: int, pairs: int, seconds: float) -> None:
    ours, theirs = (said(one, [TEXT], sounds=[sounds], grids=[(pairs, 4, 6)], seconds=[seconds]) for one in both)
    assert ours == theirs
    assert ours[0].count("<V>") == pairs * 6 and ours[0].count("<A>") == sounds


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (["<V>"], {}),
        ([TEXT], {"together": False}),
        (["<A>"], {"grids": []}),
        (["<I>"], {"images": [(1, 4, 4)], "grids": []}),
        ([TEXT + TEXT], {"sounds": [5, 9], "grids": [(2, 4, 6), (3, 4, 4)], "seconds": [1.0, 0.5]}),
        ([TEXT, TEXT], {"sounds": [5, 9], "grids": [(2, 4, 6), (3, 4, 4)], "seconds": [1.0, 0.5]}),
        (["<A>" + TEXT], {"sounds": [3, 9]}),
    ],
)
def test_other_texts_become_theirs_too(both: Any, text: list[str], changes: dict[str, Any]) -> None:
    ours, theirs = (said(one, text, **changes) for one in both)
    assert ours == theirs
