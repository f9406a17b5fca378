"""How much of a clip both sides of a comparison look at: one budget in the words of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Look:
    """Frames a second, the largest frame (pixels) that qwen-omni-utils is told of, None for its own default, and the
    one that the project is told of so that both come to frames of the same size."""

    name: str
    rate_hz: float
    told_pixels: int | None
    pixels: int

    def options(self) -> list[str]:
        """Return the job settings (`a.b=c`) that give this look, and leave room for it."""
        return [
            f"media.video.min_rate_hz={self.rate_hz}",
            f"media.video.max_rate_hz={self.rate_hz}",
            f"media.video.max_pixels_per_frame={self.pixels}",
            "media.video.max_tokens=16384",
            "engine.max_model_len=32768",
            "model.allow_untrained_policy=true",  # the embedded model learned on smaller frames
        ]

    def of_the_peer(self) -> dict[str, Any]:
        """Return what is said of a video to qwen-omni-utils."""
        return {"fps": self.rate_hz} | ({"max_pixels": self.told_pixels} if self.told_pixels else {})


# 720p by default: 1008x560 from qwen-omni-utils (768 tokens of 28x28 pixels at most, 2 frames a second), 1024x576 from
# the processor, which wants multiples of 32 and takes the nearest.
DEFAULT = Look("default", 2.0, None, 768 * 28 * 28)
# 476x252 from qwen-omni-utils, which the processor enlarges to 512x288: it takes no less than 128 tokens a frame.
SMALL = Look("small", 1.0, 128 * 32 * 32, 144 * 32 * 32)
LOOKS = {look.name: look for look in (DEFAULT, SMALL)}
