"""Environment variables and import hooks that vLLM and Ray processes need, by device; set before their imports."""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

SITE = Path(__file__).parent / "site"
ROOT = Path(__file__).parents[2]
_HOOK_NAME = "torchvision_remedy"

_EVERYWHERE = {
    # In-process engine: no second process between the actor and vLLM's step loop.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Nobody looks at Ray's record of tasks, and a driver that keeps it grows by a kilobyte an item.
    "RAY_task_events_report_interval_ms": "0",
    "TRANSFORMERS_VERBOSITY": "error",
    # Large arrays in pages of 2 MB: frames and patches are new memory each time, and faulting it in by 4 KB took
    # a fifth of rendering.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "THP_MEM_ALLOC_ENABLE": "1",
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
    if _HOOK_NAME not in sys.modules and not _hooked_at_start():
        # Under a name of its own, so that the interpreter's other sitecustomize does not run a second time.
        spec = spec_from_file_location(_HOOK_NAME, SITE / "sitecustomize.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules[_HOOK_NAME] = module_from_spec(spec)
        spec.loader.exec_module(module)


def _hooked_at_start() -> bool:
    """Return whether Python ran the hook by itself, because its folder was on PYTHONPATH."""
    loaded = sys.modules.get("sitecustomize")
    return loaded is not None and Path(str(loaded.__file__)).parent == SITE
