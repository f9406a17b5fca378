"""The patches made here are those of Hugging Face's video processor, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import pixels
from pipeline.front_end import FrontEnd
from pipeline.records import Item

pytestmark = pytest.mark.engine
CLIP = Path(__file__).parents[2] / "jobs" / "demo" / "clips" / "telescope_mirror.mp4"
Pixels = np.typing.NDArray[np.uint8]


@pytest.fixture
def made_by(front_end: FrontEnd) -> Iterator[Callable[[str], Any]]:
    """Choose who makes patches: Hugging Face (`theirs`), the renderer (`ours`), or whatever is installed."""
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    ours = Qwen2VLVideoProcessor._preprocess

    def choose(name: str) -> Any:
        if name != "installed":
            Qwen2VLVideoProcessor._preprocess = ours if name == "ours" else ours.replaces
        return Qwen2VLVideoProcessor

    yield choose
    Qwen2VLVideoProcessor._preprocess = ours


def frames(count: int, height: int, width: int) -> Pixels:
    return np.random.default_rng(count).integers(0, 256, (count, height, width, 3), np.uint8)


def processed(processor: Any, settings: dict[str, Any], *videos: Pixels, **call: Any) -> dict[str, Any]:
    usual = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": 16, "temporal_patch_size": 2}
    arguments = {"do_resize": False, "do_sample_frames": False, "return_tensors": "pt"}
    return dict(processor(**usual | {"merge_size": 2} | settings)(videos=list(videos), **arguments | call))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"image_mean": [0.48, 0.45, 0.40], "image_std": [0.26, 0.26, 0.27]},
        {"patch_size": 14, "merge_size": 1},
        {"temporal_patch_size": 4},
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_patches_are_theirs_bit_for_bit(
    made_by: Callable[[str], Any], settings: dict[str, Any], dtype: str, count: int
) -> None:
    import torch

    side = settings.get("patch_size", 16) * settings.get("merge_size", 2)
    videos = frames(count, 3 * side, 5 * side), frames(count + 1, 2 * side, side)
    wanted = processed(made_by("theirs"), settings, *videos)
    pixels.install(getattr(torch, dtype))
    got = processed(made_by("installed"), settings, *videos)
    assert got["pixel_values_videos"].dtype == getattr(torch, dtype)
    assert torch.equal(got["pixel_values_videos"], wanted["pixel_values_videos"].to(getattr(torch, dtype)))
    assert torch.equal(got["video_grid_thw"], wanted["video_grid_thw"])


@pytest.mark.parametrize("call", [{"do_resize": True}, {"do_normalize": False}, {"do_rescale": False}])
def test_what_is_not_plain_bytes_goes_their_way(made_by: Callable[[str], Any], call: dict[str, Any]) -> None:
    import torch

    clip = frames(4, 64, 96)
    wanted, got = (processed(made_by(name), {}, clip, **call)["pixel_values_videos"] for name in ("theirs", "ours"))
    assert torch.equal(got, wanted)


def test_installing_again_keeps_the_way_back(made_by: Callable[[str], Any]) -> None:
    import torch

    theirs = made_by("theirs")._preprocess
    for _ in range(2):
        pixels.install(torch.float32)
        assert made_by("installed")._preprocess.replaces is theirs


def test_the_renderer_makes_its_patches_here_and_they_are_theirs(
    made_by: Callable[[str], Any], front_end: FrontEnd
) -> None:
    import torch

    item, made = Item("item", "uri", os.fsencode(CLIP), 1, 1, "key"), {}
    for name in ("theirs", "ours"):
        made_by(name)
        prepared, prompt = front_end.prepare(item, name, 60.0)
        assert prepared.error_code is None
        made[name] = prompt["mm_kwargs"]["video"][0].get_data()["pixel_values_videos"]
    assert torch.equal(made["ours"], made["theirs"])
