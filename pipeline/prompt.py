"""Item and policy become a prompt: conversation, media, vLLM's renderer, and the check that nothing was lost.

Runs in the front-end workers; the engine's thread gets ready tokens and tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline import pixels, placeholders
from pipeline.engine.arguments import engine_config
from pipeline.errors import ItemError
from pipeline.hardware.devices import EngineSetup
from pipeline.media.plan import audio_tokens, image_tokens, video_tokens
from pipeline.policy import Policy, instructions
from pipeline.records import SAMPLE_RATE_HZ, Decoded, JsonObject, MediaFacts, Plan
from pipeline.tokens import MediaTokens, check_tokens, count_media_tokens, placeholder_ids

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# Room for what stands in the prompt besides the system message: chat tokens and the sentences on times.
_FRAME_BYTES = 512


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt ready for the engine; `prompt_tokens` is 0 when the engine itself will tokenise it.

    `array_bytes` is what its tensors and arrays hold: what it takes in the object store but for a few kilobytes.
    """

    prompt: Any
    tokens: MediaTokens
    prompt_tokens: int
    array_bytes: int


def text_token_bound(policy: Policy) -> int:
    """Return an upper bound of the prompt's text tokens: no token is shorter than a byte of UTF-8."""
    return len(instructions(policy).encode()) + _FRAME_BYTES


def expected_tokens(decoded: Decoded, plan: Plan) -> MediaTokens:
    """Return the media tokens that a prompt made of these samples and frames must hold."""
    sound = audio_tokens(len(decoded.pcm)) if len(decoded.pcm) else 0
    count = len(decoded.frames)
    if plan.frame_rate_hz is None:
        return MediaTokens(sound, image_tokens(plan.width, plan.height) if count else 0)
    return MediaTokens(sound, video_tokens(count, plan.width, plan.height))


def conversation(policy: Policy, plan: Plan, duration_s: float | None, parts: Sequence[str]) -> list[JsonObject]:
    """Return the messages: the policy as system message, then the media and what their times mean.

    `parts` are the media placeholders in order (`audio`, `video`, `image`).
    """
    media = [{"type": part} for part in parts]
    words = {"type": "text", "text": _times(plan, duration_s, "image" in parts)}
    return [
        {"role": "system", "content": instructions(policy)},
        {"role": "user", "content": [*media, words]},
    ]


def _times(plan: Plan, duration_s: float | None, still: bool) -> str:
    """Return what the model must know to speak of times."""
    if still:
        return "This is a still picture. Screen it."
    length = f"The recording lasts {duration_s:.1f} seconds. " if duration_s else ""
    if len(plan.windows) == 1:
        return f"{length}Screen it."
    starts = ", ".join(f"{window.start_s:.0f}" for window in plan.windows)
    seconds = plan.windows[0].duration_s
    return (
        f"{length}You get {len(plan.windows)} excerpts of {seconds:.1f} seconds each, one after the other; in the "
        f"recording they begin at second {starts}. Give times of the recording. Screen it."
    )


class Renderer:
    """vLLM's own renderer without an engine; one per front-end worker.

    With `render_in: engine`, or a vLLM that has no such renderer, prompts stay plain (`multi_modal_data`) and the
    engine renders them.
    """

    def __init__(self, setup: EngineSetup, policy: Policy) -> None:
        self._policy = policy
        self._reasoning = setup.reasoning
        self._config: VllmConfig = engine_config(setup)
        self._renderer = _open_renderer(self._config, setup.render_in)
        if self._renderer is not None:
            pixels.install(self._config.model_config.dtype)
            placeholders.install()
        self._template, self._tokenizer = _chat_template(self._config)
        self._ids = placeholder_ids(self._config.model_config.hf_config)

    def render(
        self, request_id: str, facts: MediaFacts, plan: Plan, decoded: Decoded, duration_s: float | None
    ) -> Rendered:
        """Return the prompt. Raises ItemError `render_failed`, `prompt_too_long` or `token_mismatch`."""
        plain = self._plain(request_id, facts, plan, decoded, duration_s)
        expected = expected_tokens(decoded, plan)
        if self._renderer is None:
            return Rendered(plain, expected, 0, _array_bytes(plain))
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        try:
            (ready,) = self._renderer.render_cmpl(
                [parse_model_prompt(self._config.model_config, plain)], self._renderer.default_cmpl_tok_params
            )
        except Exception as error:
            # The seam for everything vLLM and the HF processors raise about one prompt.
            raise ItemError("render_failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from error
        tokens = ready["prompt_token_ids"]
        longest = self._config.model_config.max_model_len
        if len(tokens) >= longest:
            raise ItemError(
                "prompt_too_long", f"the prompt has {len(tokens)} tokens, engine.max_model_len is {longest}"
            )
        check_tokens(count_media_tokens(tokens, self._ids), expected)
        return Rendered(ready, expected, len(tokens), _array_bytes(ready.get("mm_kwargs")))

    def _plain(
        self, request_id: str, facts: MediaFacts, plan: Plan, decoded: Decoded, duration_s: float | None
    ) -> JsonObject:
        data, kwargs, parts = _media(facts, plan, decoded)
        messages = conversation(self._policy, plan, duration_s, parts)
        text = self._tokenizer.apply_chat_template(
            messages, chat_template=self._template, tokenize=False, add_generation_prompt=True
        )
        if self._reasoning and "<think>" not in text[text.rfind("assistant") :]:
            # Reasoning is opened here, so that its budget counts from the first token on.
            text += "<think>\n"
        return {
            "prompt": text,
            "multi_modal_data": data,
            # A fresh mapping each time: shared ones have been changed by earlier requests (vllm#36431).
            "mm_processor_kwargs": kwargs,
            # Without own ids each worker's renderer numbers its items from 1, and two workers' sounds would share
            # one entry of the engine's encoder cache: the second item would be answered for the first one's sound.
            "multi_modal_uuids": {name: [f"{request_id}-{name}"] for name in data},
        }


def _array_bytes(value: Any) -> int:
    """Return the bytes of all tensors and arrays in nested mappings, sequences and vLLM's field elements."""
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(value, Mapping):
        return sum(map(_array_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_array_bytes, value))
    # vLLM's MultiModalFieldElem holds its tensor in `data`.
    return _array_bytes(value.data) if hasattr(value, "data") else 0


def _media(facts: MediaFacts, plan: Plan, decoded: Decoded) -> tuple[JsonObject, JsonObject, list[str]]:
    """Return vLLM's multi_modal_data and processor arguments, and the placeholders the conversation needs."""
    if facts.kind == "image":
        from PIL import Image

        return {"image": [Image.fromarray(decoded.frames[0])]}, {"do_resize": False}, ["image"]
    data: JsonObject = {}
    kwargs: JsonObject = {}
    if len(decoded.pcm):
        data["audio"] = [(decoded.pcm, SAMPLE_RATE_HZ)]
    if len(decoded.frames):
        # Colour by colour, as they lie in memory: else the processor copies them twice to get there.
        data["video"] = [(decoded.frames.transpose(0, 3, 1, 2), _video_metadata(plan, decoded))]
        # Frames are chosen and sized already; `fps` sets the time between them (the metadata's is not read).
        kwargs |= {"do_resize": False, "do_sample_frames": False, "fps": plan.frame_rate_hz}
    both = len(data) == 2
    if both:
        kwargs["use_audio_in_video"] = True
    return data, kwargs, ["video"] if both else list(data)


def _video_metadata(plan: Plan, decoded: Decoded) -> JsonObject:
    count = len(decoded.frames)
    rate = plan.frame_rate_hz or 1.0
    return {
        "fps": rate,
        "duration": count / rate,
        "total_num_frames": count,
        "frames_indices": list(range(count)),
        "do_sample_frames": False,
    }


def _open_renderer(config: VllmConfig, render_in: str) -> Any:
    """Return vLLM's renderer, or None where prompts are to stay plain."""
    if render_in == "engine":
        return None
    try:
        from vllm.renderers import renderer_from_config
    except ImportError:
        if render_in == "front_end":
            raise
        return None
    return renderer_from_config(config)


def _chat_template(config: VllmConfig) -> tuple[str | None, Any]:
    """Return the checkpoint's chat template and tokenizer; the processor's template comes first."""
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(config.model_config.model)
    return processor.chat_template, processor.tokenizer
