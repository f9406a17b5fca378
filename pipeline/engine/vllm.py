"""vLLM in this process: one thread that steps as long as there is work and takes new requests between steps.

Rendering, detokenising and parsing never happen on that thread. The only reader of vLLM's outputs.
"""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.engine.arguments import engine_arguments
from pipeline.engine.base import AnswerForm, EngineStats
from pipeline.engine.occupancy import OccupancyMeter
from pipeline.errors import EngineLost, ItemError
from pipeline.hardware.devices import LOGPROBS, EngineSetup
from pipeline.records import Completion, TokenChoice
from pipeline.tokens import count_media_tokens, placeholder_ids

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams

# Where the engine's thread renders, more would keep those in the batch waiting.
_TAKEN_BETWEEN_STEPS = 16
_THINK_END = "</think>"


@dataclass(frozen=True, slots=True)
class _Add:
    request_id: str
    prompt: Any
    short: bool
    future: Future[RequestOutput]


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class _MoreToCome:
    more: bool


class VllmEngine:
    """vLLM's `LLM` with a continuous step loop; see `pipeline.engine.base.Engine`."""

    def __init__(self, setup: EngineSetup, form: AnswerForm) -> None:
        from vllm import LLM

        self._llm = LLM(**engine_arguments(setup))
        self._engine = self._llm.llm_engine
        self._tokenizer = self._llm.get_tokenizer()
        self._placeholders = placeholder_ids(self._llm.llm_engine.model_config.hf_config)
        self._texts: dict[int, str] = {}
        self._think_end = self._tokenizer.convert_tokens_to_ids(_THINK_END) if setup.reasoning else None
        self._sampling = {short: _sampling(form, setup.reasoning, short) for short in (False, True)}
        self._device = setup.device
        self._occupancy = OccupancyMeter(setup.arguments["max_num_seqs"])
        self._inbox: queue.SimpleQueue[_Add | _Abort | _MoreToCome | None] = queue.SimpleQueue()
        self._waiting: dict[str, Future[RequestOutput]] = {}
        self._lost: EngineLost | None = None
        self._step_s = self._outside_s = self._idle_s = 0.0
        self._steps = self._finished = self._aborted = 0
        self._beats = self._taking = 0
        self._thread = threading.Thread(target=self._run, name="engine-steps", daemon=True)
        self._thread.start()

    def submit(self, request_id: str, prompt: Any, short: bool = False) -> Future[RequestOutput]:
        """See Engine.submit. `prompt` is a rendered `EngineInput` or a plain multimodal prompt."""
        future: Future[RequestOutput] = Future()
        self._inbox.put(_Add(request_id, prompt, short, future))
        if self._lost is not None:
            self._fail_all(self._lost)
        return future

    def completion(self, output: RequestOutput) -> Completion:
        """See Engine.completion. Reasoning is counted in the output tokens and left out of text and tokens."""
        generated = output.outputs[0]
        ids = list(generated.token_ids)
        first = ids.index(self._think_end) + 1 if self._think_end in ids else 0
        logprobs = generated.logprobs or [{}] * len(ids)
        tokens = tuple(self._choice(token, logprobs[first + k]) for k, token in enumerate(ids[first:]))
        finish_reason = str(generated.finish_reason)
        if self._think_end is not None and first == 0:
            finish_reason, tokens = "length", ()
        times = output.metrics
        prompt_ids = output.prompt_token_ids or []
        media = count_media_tokens(prompt_ids, self._placeholders)
        return Completion(
            text=self._decode(ids[first:]) if tokens else "",
            tokens=tokens,
            finish_reason=finish_reason,
            prompt_tokens=len(prompt_ids),
            audio_tokens=media.audio,
            video_tokens=media.video,
            output_tokens=len(ids),
            wait_s=_between(times, "queued_ts", "scheduled_ts"),
            prefill_s=_between(times, "scheduled_ts", "first_token_ts"),
            generate_s=_between(times, "first_token_ts", "last_token_ts"),
        )

    def abort(self, request_id: str) -> None:
        self._inbox.put(_Abort(request_id))

    def more_to_come(self, more: bool) -> None:
        self._inbox.put(_MoreToCome(more))

    def stats(self) -> EngineStats:
        return EngineStats(
            step_s=self._step_s,
            outside_s=self._outside_s,
            idle_s=self._idle_s,
            steps=self._steps,
            finished=self._finished,
            aborted=self._aborted,
            beats=self._beats,
            unfinished=self._inbox.qsize() + self._taking + len(self._waiting),
            cache_used=self._cache_used(),
            occupancy=self._occupancy.account(),
        )

    def _cache_used(self) -> float:
        """Return the share of KV blocks in use; versions that hide their scheduler say nothing."""
        try:
            return float(self._engine.engine_core.engine_core.scheduler.kv_cache_manager.usage)
        except AttributeError:
            return 0.0

    def describe(self) -> str:
        import vllm

        return f"vllm {vllm.__version__} {self._device}"

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join(timeout=30)

    # The step loop

    def _run(self) -> None:
        try:
            while self._take_requests():
                started = time.perf_counter()
                outputs = self._engine.step() if self._engine.has_unfinished_requests() else []
                stepped = time.perf_counter()
                self._steps += 1
                self._beats += 1
                self._step_s += stepped - started
                for output in outputs:
                    if output.finished:
                        self._settle(output)
                self._outside_s += time.perf_counter() - stepped
            self._fail_all(EngineLost("the engine was closed"))
        except BaseException as error:
            self._fail_all(EngineLost(f"the engine's step loop died: {type(error).__name__}: {error}"))
            raise

    def _take_requests(self) -> bool:
        """Hand what is in the inbox to vLLM, but no more than a few at a time, waiting if there is no work.

        Returns False when told to stop.
        """
        for _ in range(_TAKEN_BETWEEN_STEPS):
            started = time.perf_counter()
            idle = not self._waiting
            try:
                command = self._inbox.get(block=idle)
            except queue.Empty:
                self._outside_s += time.perf_counter() - started
                return True
            taken = time.perf_counter()
            self._idle_s += (taken - started) if idle else 0.0
            if command is None:
                return False
            self._taking = 1
            if isinstance(command, _Add):
                self._add(command)
            elif isinstance(command, _MoreToCome):
                self._occupancy.more_to_come(command.more, time.monotonic())
            else:
                self._drop(command)
            self._taking = 0
            self._beats += 1
            self._outside_s += time.perf_counter() - (taken if idle else started)
        return True

    def _add(self, request: _Add) -> None:
        try:
            self._engine.add_request(request.request_id, request.prompt, self._sampling[request.short].clone())
        except Exception as error:
            # The seam for everything vLLM raises about one request: bad lengths, grammars, shapes.
            request.future.set_exception(ItemError("engine_rejected", f"{type(error).__name__}: {_short(error)}"))
        else:
            self._waiting[request.request_id] = request.future
            self._occupancy.taken(time.monotonic())

    def _drop(self, request: _Abort) -> None:
        future = self._waiting.pop(request.request_id, None)
        if future is not None:
            self._engine.abort_request([request.request_id])
            self._aborted += 1
            self._occupancy.dropped(time.monotonic())
            future.set_exception(ItemError("deadline", "the request was aborted in the engine"))

    def _settle(self, output: RequestOutput) -> None:
        future = self._waiting.pop(output.request_id, None)
        if future is not None:
            self._finished += 1
            self._occupancy.answered(time.monotonic())
            future.set_result(output)

    def _fail_all(self, error: EngineLost) -> None:
        self._lost = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
        while not self._inbox.empty():
            command = self._inbox.get()
            if isinstance(command, _Add) and not command.future.done():
                command.future.set_exception(error)

    # Reading outputs

    def _choice(self, token: int, logprobs: Any) -> TokenChoice:
        """Return a token with its alternatives; those that the grammar forbids have probability zero and go."""
        chosen = logprobs.get(token)
        others = [(self._text(other), value.logprob) for other, value in logprobs.items() if other != token]
        return TokenChoice(
            text=self._text(token),
            logprob=chosen.logprob if chosen is not None else 0.0,
            alternatives=tuple((text, logprob) for text, logprob in others if logprob > _FORBIDDEN),
        )

    def _text(self, token: int) -> str:
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._decode([token])
        return text

    def _decode(self, tokens: list[int]) -> str:
        # Tidied spaces would no longer be the text that the grammar allowed.
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


# What the grammar masks out has a log-probability of minus infinity.
_FORBIDDEN = -1e6
_CLOSING_TOKENS = 16


def _sampling(form: AnswerForm, reasoning: bool, short: bool) -> SamplingParams:
    """Return vLLM's sampling parameters for every request of the run that wants a short answer, or does not."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    # Older versions have no budget for reasoning; there it ends by itself or with max_tokens.
    limited = reasoning and hasattr(SamplingParams, "thinking_token_budget")
    budget = {"thinking_token_budget": form.reasoning_max_tokens} if limited else {}
    return SamplingParams(
        temperature=form.temperature,
        max_tokens=form.max_tokens + (form.reasoning_max_tokens + _CLOSING_TOKENS if reasoning else 0),
        logprobs=LOGPROBS,
        structured_outputs=StructuredOutputsParams(json=form.short_schema if short else form.schema),
        output_kind=RequestOutputKind.FINAL_ONLY,
        detokenize=False,
        seed=0,
        **budget,
    )


def _between(times: Any, start: str, end: str) -> float:
    """Return the seconds between two of vLLM's time stamps; 0 where one was never set."""
    first, last = getattr(times, start, 0.0), getattr(times, end, 0.0)
    return max(0.0, last - first) if first and last else 0.0


def _short(error: Exception) -> str:
    """Return the first 300 characters of an error on one line: vLLM can print whole tensors into it."""
    return " ".join(str(error).split())[:300]
