"""Frames become the vision encoder's patches: the numbers of Hugging Face's video processor, in a fraction of its time.

That one turns all frames to 32-bit floats first, and moves them around afterwards, several times over. Here bytes are
moved, once, a pair of frames at a time, and looked up in a table of their 256 values in the model's own type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
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
    tables = _tables(mean, std, dtype)
    into = _as_numpy(out)
    moved = np.empty(into.shape[1:], np.uint8)
    for number, block in enumerate(blocks):
        in_order = block.permute(2, 5, 3, 6, 1, 0, 4, 7).numpy()
        np.copyto(moved.reshape(in_order.shape), in_order)  # half of torch's time
        _look_up(tables, moved, into[number])
    return out.flatten(0, 1), grid


def _tables(mean: Tensor, std: Tensor, dtype: torch.dtype) -> NDArray[Any]:
    """Return what each byte becomes, (channels, 256), as bits; one row if that is the same for all channels."""
    import torch

    values = (torch.arange(256, dtype=torch.float32) - mean.view(-1, 1)).div_(std.view(-1, 1)).to(dtype)
    bits = _as_numpy(values)
    return bits[:1] if (bits == bits[0]).all() else bits


def _as_numpy(values: Tensor) -> NDArray[Any]:
    """Return an array over the same memory: of integers for the 16-bit floats, not all of which NumPy has."""
    import torch

    array: NDArray[Any] = (values.view(torch.int16) if values.element_size() == 2 else values).numpy()
    return array


def _look_up(tables: NDArray[Any], moved: NDArray[np.uint8], into: NDArray[Any]) -> None:
    """Put the values of bytes `moved` (patches, channels and the bytes of each) `into` an array of that shape."""
    import cv2

    if len(tables) == 1:
        cv2.LUT(moved, tables, into)
        return
    by_channel = moved.reshape(len(moved), len(tables), -1)
    for channel, table in enumerate(tables):
        into.reshape(by_channel.shape)[:, channel] = cv2.LUT(np.ascontiguousarray(by_channel[:, channel]), table[None])


def install(dtype: torch.dtype) -> None:
    """Have Qwen's video processor make its patches here, in this process, of frames that are bytes of the right size.

    vLLM makes a new processor for each set of arguments that a request may bring: hence the class is changed.
    """
    import cv2
    import torch
    from transformers.image_processing_utils import BatchFeature
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    cv2.setNumThreads(1)
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
