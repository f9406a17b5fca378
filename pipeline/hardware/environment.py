"""Environment variables and import hooks that vLLM and Ray processes need, by device; set before their imports."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SITE = Path(__file__).parent / "site"
ROOT = Path(__file__).parents[2]

_EVERYWHERE = {
    # In-process engine: no second process between the actor and vLLM's step loop.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TRANSFORMERS_VERBOSITY": "error",
}
# Source of the Ascend values: vLLM-Ascend's deployment guide for Qwen3-Omni-30B-A3B.
_BY_DEVICE = {
    "cpu": {
        # GiB; the embedded model needs a few MB of it.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Without a compiler pass the first answer comes seconds earlier, steps cost the same, and no gcc is needed.
        "TORCHDYNAMO_DISABLE": "1",
        # A small model is fastest on one thread, and decoders need the other cores; set more for a larger model.
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    },
    "cuda": {},
    "ascend": {
        "HCCL_OP_EXPANSION_MODE": "AIV",
        "HCCL_BUFFSIZE": "1024",
        "OMP_PROC_BIND": "false",
        "OMP_NUM_THREADS": "1",
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    },
}


def child_environment(device: str) -> dict[str, str]:
    """Return the variables for a Ray worker or a vLLM subprocess; what the user has set already wins."""
    wanted = {**_EVERYWHERE, **_BY_DEVICE[device]}
    environment = {name: os.environ.get(name, value) for name, value in wanted.items()}
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(SITE), str(ROOT), *(path for path in inherited if path)]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return environment


def prepare_this_process(device: str) -> None:
    """Give the running process what `child_environment` gives children; call before torch or vllm is imported."""
    os.environ.update(child_environment(device))
    if str(SITE) not in sys.path:
        sys.path.insert(0, str(SITE))
    # The hook must be this project's, not the interpreter's own sitecustomize loaded at start-up.
    loaded = sys.modules.get("sitecustomize")
    if loaded is None or Path(str(loaded.__file__)).parent != SITE:
        sys.modules.pop("sitecustomize", None)
        __import__("sitecustomize")
