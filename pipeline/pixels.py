"""Frames become the vision encoder's patches: the numbers of Hugging Face's video processor, in a fraction of its time.

That one turns all frames to 32-bit floats first, and moves them around afterwards, several times over. Here bytes are
moved, once, and a pair of frames at a time becomes floats of the model's own type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def patches(
    video: Tensor,
    mean: Tensor,
    std: Tensor,
    patch: int,
    merge: int,
    together: int,
    dtype: torch.dtype,
) -> tuple[Tensor, tuple[int, int, int]]:
    """Return (patches, values in each) of a video, and its grid: pairs of frames, rows and columns of patches.

    `video` is uint8 (frames, channels, height, width), sides multiples of `patch * merge`; `together` frames are in
    each patch, the last frame repeated where one lacks. Values are (byte - mean) / std by channel, computed as 32-bit
    floats. Patches come in blocks of `merge` x `merge`, which become one token.
    """
    import torch

    frames, channels, height, width = video.shape
    if lacking := -frames % together:
        video = torch.cat([video, video[-1:].expand(lacking, -1, -1, -1)])
    grid = (len(video) // together, height // patch, width // patch)
    blocks = video.view(grid[0], together, channels, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch)
    out = torch.empty((grid[0], grid[1] * grid[2], channels * together * patch**2), dtype=dtype)
    mean, std = mean.view(-1, 1), std.view(-1, 1)
    for block, into in zip(blocks, out, strict=True):
        moved = np.ascontiguousarray(block.permute(2, 5, 3, 6, 1, 0, 4, 7).numpy())  # half of torch's time
        values = torch.from_numpy(moved).view(len(into), channels, -1)
        into.copy_(values.to(torch.float32).sub_(mean).div_(std).view(len(into), -1))
    return out.flatten(0, 1), grid


def install(dtype: torch.dtype) -> None:
    """Have Qwen's video processor make its patches here, in this process, of frames that are bytes of the right size.

    vLLM makes a new processor for each set of arguments that a request may bring: hence the class is changed.
    """
    import torch
    from transformers.image_processing_utils import BatchFeature
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    theirs = getattr(Qwen2VLVideoProcessor._preprocess, "replaces", Qwen2VLVideoProcessor._preprocess)

    def ours(self: Any, videos: list[Tensor], **settings: Any) -> BatchFeature:
        plain = settings["do_rescale"] and settings["do_normalize"] and not settings["do_resize"]
        if not plain or any(video.dtype != torch.uint8 for video in videos):
            return theirs(self, videos=videos, **settings)
        scale = 1.0 / settings["rescale_factor"]
        mean, std = (torch.tensor(settings[name]) * scale for name in ("image_mean", "image_std"))
        sizes = (settings["patch_size"], settings["merge_size"], settings["temporal_patch_size"])
        made = [patches(video, mean, std, *sizes, dtype) for video in videos]
        values = made[0][0] if len(made) == 1 else torch.cat([one for one, _ in made])
        grids = torch.tensor([grid for _, grid in made])
        return BatchFeature(data={"pixel_values_videos": values, "video_grid_thw": grids})

    ours.replaces = theirs  # type: ignore[attr-defined]
    Qwen2VLVideoProcessor._preprocess = ours
