"""From a scene to what a model is trained or asked on: the very prompt that the pipeline renders, as tensors.

`rendered` makes sound and frames in memory, at the times and sizes that the plan chooses. `Inputs` hold what
transformers' Qwen3-Omni takes, read out of the prompt that vLLM's engine would get.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.embedded.pictures import Painter
from pipeline.embedded.scene import Scene
from pipeline.embedded.sounds import Voices, sound
from pipeline.front_end import FrontEnd
from pipeline.job import Media
from pipeline.media.plan import padded_samples, plan
from pipeline.prompt import Rendered, Renderer
from pipeline.records import SAMPLE_RATE_HZ, AudioStream, Decoded, Item, MediaFacts, MediaKind, Plan, VideoStream

if TYPE_CHECKING:
    import torch

_FILE_TIME_S = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """One prompt for transformers.

    `ids` (tokens,); `positions` (3, tokens); `features` (128, mel frames) or None; `patches` (patches, 1536) with
    `grid` (time, rows, columns) or None; `image` says that the patches are a still picture's.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    features: torch.Tensor | None
    patches: torch.Tensor | None
    grid: torch.Tensor | None
    image: bool


def facts_of(scene: Scene) -> MediaFacts:
    """Return what a probe would find in the scene's file."""
    kinds: dict[tuple[bool, bool], MediaKind] = {(True, True): "av", (True, False): "audio", (False, True): "video"}
    length_s = scene.duration_s
    audio = AudioStream(1, "aac", SAMPLE_RATE_HZ, 1, 0.0, length_s) if scene.sound else None
    video = VideoStream(0, "h264", scene.width, scene.height, scene.frame_rate_hz, 0.0, length_s)
    if scene.still:
        return MediaFacts("image", "image2", None, None, video)
    kind = kinds[scene.sound, scene.pictures]
    return MediaFacts(kind, "generated", length_s, audio, video if scene.pictures else None)


def decoded_of(scene: Scene, chosen: Plan, voices: Voices) -> Decoded:
    """Return the scene's sound and frames as the decoder would give them, without any codec between."""
    pcm = sound(scene, voices) if scene.sound else np.zeros(0, np.float32)
    if scene.sound:
        pcm = np.pad(pcm, (0, padded_samples(len(pcm)) - len(pcm)))
    times_s = np.zeros(0)
    frames = np.zeros((0, 0, 0, 3), np.uint8)
    if scene.pictures:
        times_s = np.arange(chosen.frames) / (chosen.frame_rate_hz or 1.0)
        painter = Painter(scene)
        # A file shows each picture until the next one, and its last one to the end.
        last_s = max(0.0, scene.duration_s - 1.0 / scene.frame_rate_hz)
        shown_s = np.minimum(np.floor(times_s * scene.frame_rate_hz + 1e-6) / scene.frame_rate_hz, last_s)
        frames = np.stack([painter.frame(float(t), chosen.width, chosen.height) for t in shown_s])
    return Decoded(pcm, frames, times_s, scene.duration_s)


def rendered(scene: Scene, renderer: Renderer, media: Media, token_budget: int, voices: Voices) -> Rendered:
    """Return the scene's prompt, by the pipeline's own plan and renderer."""
    facts = facts_of(scene)
    chosen = plan(facts, media, token_budget)
    decoded = decoded_of(scene, chosen, voices)
    return renderer.render(f"scene-{scene.seed}", facts, chosen, decoded, None if scene.still else scene.duration_s)


def prompt_of_file(path: Path, front_end: FrontEnd) -> Any:
    """Return a file's prompt by the whole front end. Raises RuntimeError if the front end refuses it."""
    item = Item(path.name, "", os.fsencode(path), None, None, "")
    prepared, prompt = front_end.prepare(item, path.name, _FILE_TIME_S)
    if prompt is None:
        raise RuntimeError(f"{path}: {prepared.error_code}: {prepared.error_message}")
    return prompt


def inputs_of(prompt: Any, rope_index: Any) -> Inputs:
    """Return a rendered prompt as transformers' inputs; `rope_index` is the model's `get_rope_index`."""
    import torch

    items: dict[str, Any] = {name: values[0].get_data() for name, values in prompt["mm_kwargs"].items()}
    heard, video, picture = items.get("audio"), items.get("video"), items.get("image")
    ids = torch.tensor(prompt["prompt_token_ids"])
    features = heard["input_audio_features"] if heard else None
    if video:
        seconds = float(video["second_per_grid_ts"])
        return inputs_from(
            ids, features, video["pixel_values_videos"], video["video_grid_thw"], rope_index, second_per_grid=seconds
        )
    if picture:
        return inputs_from(ids, features, picture["pixel_values"], picture["image_grid_thw"], rope_index, image=True)
    return inputs_from(ids, features, None, None, rope_index)


def inputs_from(
    ids: torch.Tensor,
    features: torch.Tensor | None,
    patches: torch.Tensor | None,
    grid: torch.Tensor | None,
    rope_index: Any,
    *,
    image: bool = False,
    second_per_grid: float | None = None,
) -> Inputs:
    """Return transformers' inputs of tokens, features and patches, with the positions that follow from them.

    `second_per_grid` is the time between two grids of a video, seconds.
    """
    import torch

    positions, _ = rope_index(
        ids[None],
        image_grid_thw=grid[None] if grid is not None and image else None,
        video_grid_thw=grid[None] if grid is not None and not image else None,
        attention_mask=torch.ones_like(ids)[None],
        use_audio_in_video=grid is not None and not image and features is not None,
        audio_seqlens=None if features is None else torch.tensor([features.shape[1]]),
        second_per_grids=None if second_per_grid is None else torch.tensor([second_per_grid]),
    )
    return Inputs(ids, positions[:, 0].long(), features, patches, grid, image)


def batch_of(inputs: Sequence[Inputs], answers: Sequence[Sequence[int]], padding: int) -> dict[str, Any]:
    """Return transformers' forward arguments for several prompts, each followed by its answer's tokens."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    whole = [
        torch.cat((one.ids, torch.tensor(answer, dtype=torch.long)))
        for one, answer in zip(inputs, answers, strict=True)
    ]
    positions = [_continued(one.positions, len(answer)) for one, answer in zip(inputs, answers, strict=True)]
    ids = pad_sequence(whole, batch_first=True, padding_value=padding)
    mask = pad_sequence([torch.ones_like(row) for row in whole], batch_first=True)
    batch: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": pad_sequence([row.T for row in positions], batch_first=True).permute(2, 0, 1),
    }
    features = [one.features for one in inputs if one.features is not None]
    if features:
        batch["input_features"] = pad_sequence([row.T for row in features], batch_first=True).transpose(1, 2)
        batch["feature_attention_mask"] = pad_sequence(
            [torch.ones(row.shape[1], dtype=torch.long) for row in features], batch_first=True
        )
    for image, patches, grid in (
        (False, "pixel_values_videos", "video_grid_thw"),
        (True, "pixel_values", "image_grid_thw"),
    ):
        chosen = [one for one in inputs if one.patches is not None and one.image is image]
        if chosen:
            batch[patches] = torch.cat([one.patches for one in chosen if one.patches is not None])
            batch[grid] = torch.stack([one.grid for one in chosen if one.grid is not None])
    return batch


def _continued(positions: torch.Tensor, count: int) -> torch.Tensor:
    """Return positions (3, tokens) with `count` text tokens more."""
    import torch

    following = positions.max() + 1 + torch.arange(count)
    return torch.cat((positions, following.expand(3, -1)), dim=1)
