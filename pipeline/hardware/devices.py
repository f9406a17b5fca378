"""Which device computes, and the vLLM arguments that follow from job, checkpoint and device."""

from __future__ import annotations

import glob
from dataclasses import dataclass

from pipeline.checkpoint import Checkpoint
from pipeline.errors import JobError
from pipeline.job import Job
from pipeline.records import JsonObject

# Alternatives returned for each token: more than the tokens that can begin or continue one of three verdicts.
LOGPROBS = 20
# Most CPUs have no bfloat16 arithmetic and imitate it: three times slower, measured with the embedded model.
_DTYPE = {"cpu": "float32", "cuda": "bfloat16", "ascend": "bfloat16"}


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """All that front end and engine must agree on; `arguments` are keyword arguments of vLLM's EngineArgs."""

    device: str
    arguments: JsonObject
    reasoning: bool
    render_in: str


_DEVICE_FILES = {"ascend": "/dev/davinci[0-9]*", "cuda": "/dev/nvidia[0-9]*"}


def detect_device(wanted: str) -> str:
    """Return `ascend`, `cuda` or `cpu`; with `auto` from the device files, without importing torch.

    Raises JobError if the device that is wanted is not here.
    """
    found = [device for device, pattern in _DEVICE_FILES.items() if glob.glob(pattern)]
    if wanted == "auto":
        return found[0] if found else "cpu"
    if wanted in _DEVICE_FILES and wanted not in found:
        raise JobError(f"engine.device: {wanted} is wanted, but there is no {_DEVICE_FILES[wanted]} on this machine")
    return wanted


def engine_setup(job: Job, checkpoint: Checkpoint) -> EngineSetup:
    """Return how the engine is started for this job and checkpoint. Raises JobError."""
    device = detect_device(job.engine.device) if job.rehearsal is None else "cpu"
    arguments: JsonObject = {
        "model": str(checkpoint.folder),
        "dtype": job.model.dtype if job.model.dtype != "auto" else _DTYPE[device],
        "quantization": job.model.quantization,
        "max_model_len": job.engine.max_model_len,
        "max_num_seqs": job.engine.max_num_seqs,
        "tensor_parallel_size": job.engine.tensor_parallel_size,
        "limit_mm_per_prompt": {"audio": 1, "video": 1, "image": 1},
        # vLLM's multimodal cache can drop the sound of a recording that comes again with other pictures
        # (vllm#44538), and the prefix cache keys on the same hashes.
        "mm_processor_cache_gb": 0,
        "enable_prefix_caching": False,
        # After the grammar's mask: probabilities among what the answer may say.
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": LOGPROBS,
        "structured_outputs_config": _structured_outputs(checkpoint.reasoning),
        "generation_config": "vllm",
        "seed": 0,
        "disable_log_stats": False,
    }
    taken = sorted(set(arguments) & set(job.engine.extra))
    if taken:
        raise JobError(f'engine.extra: "{taken[0]}" is not for the job to set; what the rows say rests on it')
    if checkpoint.reasoning:
        arguments["reasoning_config"] = {"reasoning_parser": "qwen3"}
    if device == "cpu":
        arguments |= {"enforce_eager": True, "skip_mm_profiling": True}
    if device == "ascend":
        arguments["distributed_executor_backend"] = "mp"
    return EngineSetup(device, arguments | job.engine.extra, checkpoint.reasoning, job.engine.render_in)


def _structured_outputs(reasoning: bool) -> JsonObject:
    # Without free white space an untrained or confused model cannot fill its answer with blanks.
    settings: JsonObject = {"backend": "xgrammar", "disable_any_whitespace": True}
    return settings | ({"reasoning_parser": "qwen3"} if reasoning else {})
