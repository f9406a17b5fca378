"""Builds the embedded checkpoint from a seed: config, tokenizer, processor files and (untrained) weights.

The same seed gives the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.checkpoint import TRAINING_FILE
from pipeline.embedded.scene import draw_scene
from pipeline.embedded.truth import truth
from pipeline.hardware.environment import prepare_this_process
from pipeline.policy import instructions, load_policy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3OmniMoeConfig

NAME = "embedded-qwen3-omni-3m"
VOCABULARY = 1024

# Qwen3-Omni's own special tokens, in the order of its vocabulary.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<think>",
    "</think>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
)

DEMO_POLICY = Path(__file__).parents[2] / "jobs" / "policies" / "demo.yaml"
"""The one policy that the embedded model is trained on."""
DEMO_JOB = DEMO_POLICY.parents[1] / "demo.yaml"
"""The job whose media settings it is trained with."""

_CORPUS_SCENES = 3000
# Numbers, truth values and verdicts stay tokens of their own: each is one decision, and has a probability of its own.
_DECISIONS = r"[0-9]|true|false|pass|review|reject|user|assistant|system|\n"


def build(folder: Path, seed: int = 0) -> None:
    """Write the checkpoint into `folder`, replacing what is there; it appears whole or not at all."""
    prepare_this_process("cpu")
    draft = folder.with_name(folder.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(draft)
    config = _config(tokenizer)
    config.save_pretrained(draft)
    _save_processor(tokenizer, draft)
    parameters = _save_weights(config, seed, draft)
    training = {"name": NAME, "state": "untrained", "seed": seed, "parameters": parameters}
    (draft / TRAINING_FILE).write_text(json.dumps(training, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(draft, folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer over the demo policy's text and answers, with Qwen's special tokens.

    Merges cross words, so that the policy's sentences and the answer's frame are few tokens.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_DECISIONS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(_corpus(), trainer)
    bpe.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS),
        image_token="<|image_pad|>",
        audio_token="<|audio_pad|>",
        video_token="<|video_pad|>",
        vision_bos_token="<|vision_start|>",
        vision_eos_token="<|vision_end|>",
        audio_bos_token="<|audio_start|>",
        audio_eos_token="<|audio_end|>",
    )


def _corpus() -> Iterator[str]:
    """Yield what the model reads and writes: policy, chat, sentences on times, answers."""
    yield instructions(load_policy(DEMO_POLICY))
    yield from ("user", "assistant", "system", "This is a still picture. Screen it.") * 3
    for seed in range(_CORPUS_SCENES):
        scene = draw_scene(seed)
        yield f"The recording lasts {scene.duration_s:.1f} seconds. Screen it."
        yield truth(scene).answer()


def _config(tokenizer: PreTrainedTokenizerFast) -> Qwen3OmniMoeConfig:
    """Return Qwen3-Omni's configuration at a small width and depth; every mechanism of the full one is kept."""
    from transformers import Qwen3OmniMoeConfig

    def token(text: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(text))

    width = 128
    audio = {
        "num_mel_bins": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 2 * width,
        "d_model": width,
        "output_dim": width,
        "downsample_hidden_size": 32,
        "n_window": 50,
        "n_window_infer": 800,
    }
    # vLLM reads image_size, apply_vit_abs_pos_embed and spatial_patch_size although transformers has no use for them.
    vision = {
        "depth": 2,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_heads": 4,
        "out_hidden_size": width,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [0, 1],
        "patch_size": 16,
        "spatial_patch_size": 16,
        "image_size": 768,
        "apply_vit_abs_pos_embed": True,
        "in_chans": 3,
        "tokens_per_second": 2,
    }
    text = {
        "vocab_size": -(-len(tokenizer) // 128) * 128,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "moe_intermediate_size": 64,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "max_position_embeddings": 65_536,
        "rope_parameters": {
            "rope_theta": 1_000_000.0,
            "rope_type": "default",
            "mrope_section": [4, 6, 6],
            "interleaved": True,
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": False,
    }
    thinker = {
        "audio_config": audio,
        "vision_config": vision,
        "text_config": text,
        "audio_token_id": token("<|audio_pad|>"),
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "audio_start_token_id": token("<|audio_start|>"),
        "audio_end_token_id": token("<|audio_end|>"),
        "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"),
        "user_token_id": token("user"),
        "seconds_per_chunk": 2,
        "position_id_per_seconds": 13,
    }
    config = Qwen3OmniMoeConfig(
        thinker_config=thinker,
        enable_audio_output=False,
        im_start_token_id=token("<|im_start|>"),
        im_end_token_id=token("<|im_end|>"),
    )
    config.architectures = ["Qwen3OmniMoeForConditionalGeneration"]
    return config


def _save_processor(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the processor files with the values of Qwen3-Omni's own: 128 mel bins, patches of 16, pairs of frames."""
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        Qwen3OmniMoeProcessor,
        WhisperFeatureExtractor,
    )

    patches = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    half = [0.5, 0.5, 0.5]
    Qwen3OmniMoeProcessor(
        image_processor=Qwen2VLImageProcessor(**patches, image_mean=half, image_std=half),
        video_processor=Qwen2VLVideoProcessor(**patches, image_mean=half, image_std=half),
        feature_extractor=WhisperFeatureExtractor(
            feature_size=128,
            sampling_rate=16_000,
            hop_length=160,
            chunk_length=300,
            n_fft=400,
            return_attention_mask=True,
        ),
        tokenizer=tokenizer,
        chat_template=(Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8"),
    ).save_pretrained(folder)


def _save_weights(config: Qwen3OmniMoeConfig, seed: int, folder: Path) -> int:
    """Write seeded weights as bfloat16 safetensors and return how many parameters they are."""
    import torch
    from safetensors.torch import save_file
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerForConditionalGeneration

    torch.manual_seed(seed)
    thinker = Qwen3OmniMoeThinkerForConditionalGeneration(config.thinker_config)
    tensors = {f"thinker.{name}": value.to(torch.bfloat16).contiguous() for name, value in thinker.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(value.numel() for value in thinker.parameters())
