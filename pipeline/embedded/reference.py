"""The embedded model under transformers: the independent second opinion on what vLLM answers to the same prompt.

Answers are decided under the same grammar: at each label true or false, then one of the verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pipeline.embedded.examples import Inputs, batch_of, inputs_of
from pipeline.embedded.train import thinker_of
from pipeline.embedded.truth import LABELS
from pipeline.records import VERDICTS, Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Opinion:
    """Labels, verdict and the verdict's probability among the verdicts; `confidence` is the least of all of them."""

    labels: dict[str, bool]
    verdict: Verdict
    probability: float
    confidence: float


class Reference:
    """The checkpoint's thinker in `dtype`, eager, on one prompt at a time."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from transformers import AutoTokenizer

        self._model = thinker_of(folder).to(dtype).eval()
        self._dtype = dtype
        self._tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder)
        self._frame = [self._tokens(f'{{"labels":{{"{LABELS[0]}":')]
        self._frame += [self._tokens(f',"{label}":') for label in LABELS[1:]] + [self._tokens('},"verdict":"')]
        truths = {True: self._token("true"), False: self._token("false")}
        verdicts = {verdict: self._token(verdict) for verdict in VERDICTS}
        self._choices: list[dict[Any, int]] = [truths] * len(LABELS) + [verdicts]

    @property
    def rope_index(self) -> Any:
        """What gives tokens their positions."""
        return self._model.get_rope_index

    def opinion(self, prompt: Any) -> Opinion:
        """Return the decisions to a rendered prompt, the likeliest one at each place."""
        opinion: Opinion = self.opinion_on(inputs_of(prompt, self.rope_index))
        return opinion

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def opinion_on(self, inputs: Inputs) -> Opinion:
        """Return the decisions to a prompt in transformers' own form."""
        made: list[Any] = [False] * len(LABELS) + ["pass"]
        # Each pass settles at least the first decision that came out otherwise; mostly two passes do.
        for _ in range(len(made) + 1):
            likeliest, probabilities = self._decide(inputs, made)
            if likeliest == made:
                break
            first = next(k for k, (now, before) in enumerate(zip(likeliest, made, strict=True)) if now != before)
            made = made[:first] + likeliest[first:]
        labels = dict(zip(LABELS, made, strict=False))
        return Opinion(labels, made[-1], probabilities[-1], min(probabilities))

    def _decide(self, inputs: Inputs, made: list[Any]) -> tuple[list[Any], list[float]]:
        """Return the likeliest value at each decision, given those in `made` before it, and its probability."""
        answer: list[int] = []
        places = []
        for frame, choice, value in zip(self._frame, self._choices, made, strict=True):
            answer += frame
            places.append(len(inputs.ids) + len(answer) - 1)
            answer.append(choice[value])
        batch = batch_of([inputs], [answer], 0)
        for name, value in batch.items():
            batch[name] = value.to(self._dtype) if value.is_floating_point() else value
        logits = self._model(**batch, use_cache=False).logits[0].float()
        likeliest, probabilities = [], []
        for place, choice in zip(places, self._choices, strict=True):
            share = torch.softmax(logits[place, list(choice.values())], -1)
            best = int(share.argmax())
            likeliest.append(list(choice)[best])
            probabilities.append(float(share[best]))
        return likeliest, probabilities

    def _tokens(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))

    def _token(self, text: str) -> int:
        (token,) = self._tokens(text)
        return token
