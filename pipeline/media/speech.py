"""How much of the sound is somebody speaking, by silero's voice activity detector; loaded when first asked for."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.records import SAMPLE_RATE_HZ

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPEECH_PROBABILITY = 0.5
"""From here on a piece counts as speech: silero's own default."""
_PIECE = 512  # samples at 16 kHz, the one length that silero's model takes


class SpeechDetector:
    """Finds speech, about 10 ms of CPU time for a second of sound, on one thread. Not for two threads at once."""

    def __init__(self) -> None:
        self._model: Any = None

    def share(self, pcm: NDArray[np.float32]) -> float | None:
        """Return the share of the sound, float32 (samples,) at 16 kHz, that is speech; None below a piece of 32 ms."""
        if len(pcm) < _PIECE:
            return None
        import torch

        if self._model is None:
            from silero_vad import load_silero_vad

            with warnings.catch_warnings():  # silero comes as TorchScript, which torch would rather see no more
                warnings.simplefilter("ignore", DeprecationWarning)
                self._model = load_silero_vad()
        self._model.reset_states()
        pieces = torch.from_numpy(np.ascontiguousarray(pcm[: len(pcm) // _PIECE * _PIECE])).view(-1, _PIECE)
        with torch.inference_mode():
            speaks = [float(self._model(piece, SAMPLE_RATE_HZ)) >= SPEECH_PROBABILITY for piece in pieces]
        return sum(speaks) / len(speaks)
