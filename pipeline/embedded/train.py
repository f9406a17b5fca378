"""Trains the embedded model's weights.

Clips are drawn anew for every step and rendered by the pipeline's own plan, prompt and renderer. Beside the answer's
tokens the model learns, at every sound and picture token, what goes on there, what begins there and which second it
is; those heads only speed learning and are not kept. A run that is stopped goes on from its last state.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed, multiprocessing, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from pipeline.embedded.build import DEMO_JOB
from pipeline.embedded.examples import Inputs, batch_of, inputs_of, prompt_of_file, rendered
from pipeline.embedded.files import write_clip
from pipeline.embedded.recordings import load_recordings
from pipeline.embedded.scene import HEARD, LONGEST_S, SEEN, SHORTEST_S, Scene, draw_length_s, draw_scene, generator
from pipeline.embedded.sounds import Voices, voices_of
from pipeline.embedded.truth import LABELS, truth
from pipeline.front_end import FrontEnd
from pipeline.hardware.environment import prepare_this_process
from pipeline.records import JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TRAINING_SEEDS = 1_000_000
"""Scenes of training have seeds from here on; fresh ones for measuring lie below."""
_TOKENS_A_SECOND = 13
_TENS, _ONES = 7, 10
_BEGINNING_S, _BEGINNING_WEIGHT = 0.3, 10.0
# Files cost fifty times what scenes rendered in memory do; a few keep the model used to codecs.
_CODED, _LONGEST_CODED_S = 200, 15.0
_STEPS_AHEAD, _SAVE_EVERY = 3, 200
_MADE_BY = ("scene.py", "sounds.py", "pictures.py", "truth.py", "train.py")


@dataclass(frozen=True, slots=True)
class Course:
    """How the training goes; the same course gives the same batches."""

    steps: int = 3100
    tokens_a_step: int = 5000
    peak_rate: float = 2e-3
    warm_up: float = 0.08
    weight_decay: float = 0.01
    short_share: float = 0.25
    seed: int = 0

    def digest(self) -> str:
        """Return a short name (hex) that another course, or one on other clips, does not have."""
        made_by = [(Path(__file__).parent / name).read_bytes() for name in _MADE_BY]
        named = json.dumps(asdict(self), sort_keys=True).encode()
        return hashlib.sha256(b"".join((named, *made_by))).hexdigest()[:12]


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """One clip to learn from: inputs, answer tokens, and what goes on at each prompt token.

    `active` and `begins` (tokens, labels) are 1, 0 or -1 (no such sense there); `seconds` (tokens,) or -1.
    """

    inputs: Inputs
    answer: list[int]
    active: torch.Tensor
    begins: torch.Tensor
    seconds: torch.Tensor


class LessonMaker:
    """Renders scenes with the renderer, policy and media settings of the demo job."""

    def __init__(self, folder: Path, voices: Voices) -> None:
        from transformers import AutoTokenizer

        from pipeline.job import load_job
        from pipeline.resolve import resolve

        self._resolved = resolve(load_job(DEMO_JOB, [f"model.path={folder}"]))
        self._front_end = FrontEnd(self._resolved.front_end)
        self.tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder)
        self._model = thinker_of(folder, empty=True)
        self._voices = voices

    def inputs(self, scene: Scene) -> Inputs:
        """Return the scene's prompt; every `_CODED`th scene goes through a real file."""
        if scene.seed % _CODED == 0 and scene.duration_s <= _LONGEST_CODED_S:
            prompt = self._from_file(scene)
        else:
            media, budget = self._resolved.job.media, self._resolved.token_budget
            prompt = rendered(scene, self._front_end.renderer, media, budget, self._voices).prompt
        return inputs_of(prompt, self._model.get_rope_index)

    def _from_file(self, scene: Scene) -> Any:
        with tempfile.TemporaryDirectory() as scratch:
            return prompt_of_file(write_clip(scene, self._voices, Path(scratch)), self._front_end)

    def lesson(self, scene: Scene) -> Lesson:
        inputs = self.inputs(scene)
        answer = [*self.tokenizer.encode(truth(scene).answer()), int(self.tokenizer.eos_token_id or 0)]
        return Lesson(inputs, answer, *(torch.from_numpy(wanted) for wanted in self._goings_on(scene, inputs)))

    def _goings_on(self, scene: Scene, inputs: Inputs) -> tuple[NDArray[np.float32], ...]:
        """Return what is active and what begins (tokens, labels) and the second (tokens,) at each prompt token."""
        ids = inputs.ids.numpy()
        active = np.full((len(ids), len(LABELS)), -1, np.float32)
        begins = active.copy()
        seconds = np.full(len(ids), -1, np.float32)
        config = self._model.config
        heard = np.flatnonzero(ids == config.audio_token_id)
        seconds[heard] = np.arange(len(heard)) / _TOKENS_A_SECOND
        seen = np.flatnonzero(ids == config.video_token_id)
        if len(seen):
            times = inputs.positions[0, seen].numpy()
            seconds[seen] = (times - times[0]) / config.position_id_per_seconds
        for tokens, labels, width_s in ((heard, HEARD, 1 / _TOKENS_A_SECOND), (seen, SEEN, 1.0)):
            for label in labels:
                if label == "dark" and {"dark_start", "dark_middle"} & set(scene.beside_pictures):
                    continue
                event, column, from_s = scene.first(label), LABELS.index(label), seconds[tokens]
                active[tokens, column] = begins[tokens, column] = 0
                if event is not None:
                    ended = from_s + width_s <= event.start_s
                    active[tokens, column] = ~ended & (from_s < event.end_s)
                    begins[tokens, column] = ~ended & (from_s <= event.start_s + max(0.0, _BEGINNING_S - width_s))
        return active, begins, seconds


class Model(nn.Module):  # type: ignore[misc]  # torch is Any to mypy here
    """The thinker with the two heads that only training needs."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.thinker = thinker_of(folder)
        width = self.thinker.config.text_config.hidden_size
        self.heard = nn.Linear(width, len(LABELS))
        # Below the last layer, which reads there what it answers.
        self.known = nn.ModuleDict(
            {
                name: nn.Sequential(nn.RMSNorm(width), nn.Linear(width, outputs))
                for name, outputs in (("active", len(LABELS)), ("begins", len(LABELS)), ("second", _TENS + _ONES))
            }
        )
        self._sound: torch.Tensor | None = None
        self._state: torch.Tensor | None = None
        self.thinker.audio_tower.register_forward_hook(self._keep_sound)
        self.thinker.model.layers[-2].register_forward_hook(self._keep_state)

    def _keep_sound(self, _module: nn.Module, _arguments: Any, output: Any) -> None:
        self._sound = output.last_hidden_state

    def _keep_state(self, _module: nn.Module, _arguments: Any, output: Any) -> None:
        self._state = output[0] if isinstance(output, tuple) else output

    def forward(self, lessons: Sequence[Lesson], padding: int, light: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the losses and how many answers were right; `light` (vocabulary,) marks tokens of little weight."""
        batch = batch_of([one.inputs for one in lessons], [one.answer for one in lessons], padding)
        self._sound = self._state = None
        logits = self.thinker(**batch, use_cache=False).logits
        assert self._state is not None
        losses = _answer_loss(logits, lessons, light)
        tokens = torch.cat([self._state[row, : len(one.inputs.ids)] for row, one in enumerate(lessons)])
        active = torch.cat([one.active for one in lessons])
        seconds = torch.cat([one.seconds for one in lessons])
        losses["second"] = losses["heard"] = tokens.new_zeros(())
        losses["active"] = _active_loss(self.known["active"](tokens), active)
        begins = torch.cat([one.begins for one in lessons])
        losses["begins"] = _active_loss(self.known["begins"](tokens), begins, _BEGINNING_WEIGHT)
        media = seconds >= 0
        if media.any():
            tens, ones = self.known["second"](tokens[media]).split((_TENS, _ONES), -1)
            whole = seconds[media].long()
            losses["second"] = functional.cross_entropy(
                tens, (whole // 10).clamp(max=_TENS - 1)
            ) + functional.cross_entropy(ones, whole % 10)
        if self._sound is not None:
            audio_id = self.thinker.config.audio_token_id
            ids = torch.cat([one.inputs.ids for one in lessons])
            losses["heard"] = _active_loss(self.heard(self._sound), active[ids == audio_id])
        return losses


def _active_loss(logits: torch.Tensor, wanted: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    """Return the loss where the truth is known; `weight` is that of what is there against what is not."""
    known = wanted >= 0
    if not known.any():
        return logits.sum() * 0
    return functional.binary_cross_entropy_with_logits(logits[known], wanted[known], pos_weight=torch.tensor(weight))


def _answer_loss(logits: torch.Tensor, lessons: Sequence[Lesson], light: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the loss over the answers' tokens, and the share of answers whose labels, verdict and all are right."""
    total, weights = logits.new_zeros(()), logits.new_zeros(())
    right = judged = 0
    for row, one in enumerate(lessons):
        first = len(one.inputs.ids)
        wanted = torch.tensor(one.answer)
        said = logits[row, first - 1 : first - 1 + len(wanted)]
        weight = torch.where(light[wanted], 0.05, 1.0)
        total = total + (functional.cross_entropy(said, wanted, reduction="none") * weight).sum()
        weights = weights + weight.sum()
        hits = said.argmax(-1) == wanted
        decisions = 2 * len(LABELS) + 2
        judged += int(hits[:decisions].all())
        right += int(hits.all())
    count = torch.tensor(float(len(lessons)))
    return {"answer": total / weights, "judged": judged / count, "right": right / count}


def _scenes(course: Course, step: int) -> list[Scene]:
    """Return the scenes of a step, of similar length; early steps have short ones."""
    rng = generator(course.seed * 1_000_003 + step, 7)
    longest_s = 8.0 if step < course.short_share * course.steps else LONGEST_S
    length_s = draw_length_s(rng, longest_s)
    least_s, most_s = max(SHORTEST_S, length_s * 0.85), min(LONGEST_S, length_s * 1.15)
    count = int(np.clip(course.tokens_a_step / (90 + 21 * length_s), 4, 32))
    first = TRAINING_SEEDS * (1 + course.seed) + step * 64
    return [draw_scene(first + number, most_s, least_s) for number in range(count)]


def thinker_of(folder: Path, empty: bool = False) -> Any:
    from safetensors.torch import load_file
    from transformers import AutoConfig
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerForConditionalGeneration

    config = AutoConfig.from_pretrained(folder).thinker_config
    with torch.device("meta" if empty else "cpu"):
        thinker = Qwen3OmniMoeThinkerForConditionalGeneration(config)
    if not empty:
        stored = load_file(folder / "model.safetensors")
        thinker.load_state_dict({name.removeprefix("thinker."): value.float() for name, value in stored.items()})
    return thinker


def _rate(course: Course, step: int) -> float:
    """Return the learning rate: linear warm-up, then half a cosine to nothing."""
    warm = max(1, round(course.warm_up * course.steps))
    if step < warm:
        return course.peak_rate * (step + 1) / warm
    return course.peak_rate * max(0.01, 0.5 + 0.5 * math.cos(math.pi * (step - warm) / max(1, course.steps - warm)))


def _light_tokens(tokenizer: PreTrainedTokenizerFast, vocabulary: int) -> torch.Tensor:
    """Return which tokens (vocabulary,) only frame the answer: they follow without any decision."""
    light = torch.zeros(vocabulary, dtype=torch.bool)
    for token in range(len(tokenizer)):
        text = tokenizer.decode([token])
        light[token] = text.endswith('":') or text.endswith('":"')
    return light


def train(folder: Path, state_file: Path, course: Course, recordings: Path, workers: int) -> JsonObject:
    """Train the checkpoint in `folder` with `workers` processes; the state is kept in `state_file` and taken up.

    Returns what the training was: course, clips, seconds.
    """
    with tempfile.TemporaryDirectory() as scratch:
        arguments = (workers, Path(scratch) / "meeting", folder, state_file, course, recordings)
        multiprocessing.spawn(_work, arguments, nprocs=workers)
    state = torch.load(state_file, weights_only=True)
    clips = sum(len(_scenes(course, step)) for step in range(course.steps))
    parameters = sum(value.numel() for name, value in state["model"].items() if name.startswith("thinker."))
    trained = {
        "clips": clips,
        "parameters": parameters,
        "seconds": round(state["seconds"]),
        "workers": workers,
    }
    return {"course": asdict(course)} | trained


def weights_of(state_file: Path, folder: Path) -> None:
    """Write the thinker's weights of a training state into the checkpoint as bfloat16 safetensors."""
    from safetensors.torch import save_file

    state = torch.load(state_file, weights_only=True)["model"]
    thinker = {name: value for name, value in state.items() if name.startswith("thinker.")}
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in thinker.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _work(
    rank: int,
    workers: int,
    meeting: Path,
    folder: Path,
    state_file: Path,
    course: Course,
    recordings: Path | None,
    last: int | None = None,
) -> None:
    """Be one of the processes: each makes and learns its share of every step's clips, on one thread.

    With `last` the process stops before that step, as if it had been stopped there.
    """
    prepare_this_process("cpu")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=workers)
    torch.manual_seed(course.seed)
    maker = LessonMaker(folder, voices_of(load_recordings(recordings).train) if recordings else Voices())
    learner = Learner(folder, course, maker.tokenizer)
    first, spent_s = learner.load(state_file)
    steps = range(first, course.steps if last is None else last)
    log = _Log(course)
    parent, begun = os.getppid(), time.monotonic()
    for step, lessons in zip(steps, _ahead(maker, course, steps, rank, workers), strict=True):
        if os.getppid() != parent:
            os._exit(1)  # the command was killed
        losses = learner.learn(step, lessons)
        if rank == 0:
            log.add(step + 1, losses)
            if (step + 1) % _SAVE_EVERY == 0 or step + 1 == steps.stop:
                learner.save(state_file, step + 1, spent_s + time.monotonic() - begun)
    distributed.destroy_process_group()


class Learner:
    """Model and optimizer, and how one step changes them."""

    def __init__(self, folder: Path, course: Course, tokenizer: PreTrainedTokenizerFast) -> None:
        self._course = course
        self._model = Model(folder).train()
        # A process whose clips have no sound, say, has no gradients for the audio encoder.
        self._shared = DistributedDataParallel(self._model, find_unused_parameters=True)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), course.peak_rate, betas=(0.9, 0.98), weight_decay=course.weight_decay
        )
        self._padding = int(tokenizer.pad_token_id or 0)
        self._light = _light_tokens(tokenizer, self._model.thinker.config.text_config.vocab_size)

    def learn(self, step: int, lessons: Sequence[Lesson]) -> dict[str, torch.Tensor]:
        """Take one step on this process's lessons and everybody's gradients; return the losses."""
        for group in self._optimizer.param_groups:
            group["lr"] = _rate(self._course, step)
        losses = self._shared(lessons, self._padding, self._light)
        self._optimizer.zero_grad(set_to_none=False)
        known = losses["active"] + 0.5 * losses["begins"] + 0.3 * losses["second"] + losses["heard"]
        (losses["answer"] + known).backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        found: dict[str, torch.Tensor] = losses
        return found

    def save(self, path: Path, step: int, seconds: float) -> None:
        draft = path.with_suffix(".draft")
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save(state | {"step": step, "seconds": seconds}, draft)
        draft.replace(path)

    def load(self, path: Path) -> tuple[int, float]:
        """Take up a stopped training; return the first step to do and the seconds spent before."""
        if not path.exists():
            return 0, 0.0
        state = torch.load(path, weights_only=True)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        return int(state["step"]), float(state["seconds"])


def _ahead(maker: LessonMaker, course: Course, steps: range, rank: int, workers: int) -> Iterator[list[Lesson]]:
    """Yield a process's lessons of each step; the next ones are made while it learns and waits for the others."""

    def make(step: int) -> list[Lesson]:
        return [maker.lesson(scene) for scene in _scenes(course, step)[rank::workers]]

    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(make, step) for step in steps[:_STEPS_AHEAD])
        for step in steps:
            if step + _STEPS_AHEAD in steps:
                waiting.append(pool.submit(make, step + _STEPS_AHEAD))
            yield waiting.popleft().result()


class _Log:
    """Prints the mean of the losses every 50 steps."""

    def __init__(self, course: Course) -> None:
        self._course, self._begun, self._count = course, time.monotonic(), 0
        self._sums: dict[str, float] = {}

    def add(self, step: int, losses: dict[str, torch.Tensor]) -> None:
        for name, value in losses.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value.detach())
        self._count += 1
        if step % 50 == 0:
            means = "  ".join(f"{name} {total / self._count:.4f}" for name, total in self._sums.items())
            print(f"step {step} of {self._course.steps}, {time.monotonic() - self._begun:.0f} s: {means}", flush=True)
            self._sums, self._count = {}, 0
