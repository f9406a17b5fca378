"""The seam to vLLM's EngineArgs: unknown arguments are refused by name, newer ones dropped for older versions."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pipeline.errors import JobError, nearest
from pipeline.hardware.devices import EngineSetup
from pipeline.records import JsonObject
from pipeline.tokens import PlaceholderIds, placeholder_ids

# Arguments of ours that a version may lack: it then works as before they were introduced.
_OPTIONAL = ("reasoning_config", "skip_mm_profiling")


def engine_arguments(setup: EngineSetup) -> JsonObject:
    """Return the arguments that this vLLM takes. Raises JobError for one of `engine.extra` that it does not know."""
    from vllm.engine.arg_utils import EngineArgs

    known = {field.name for field in fields(EngineArgs)}
    for name in setup.arguments:
        if name not in known and name not in _OPTIONAL:
            raise JobError(f'engine.extra: vLLM has no argument "{name}"{nearest(name, known)}')
    return {name: value for name, value in setup.arguments.items() if name in known}


def engine_config(setup: EngineSetup) -> Any:
    """Return vLLM's configuration without starting an engine, as a renderer needs it."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(**engine_arguments(setup)).create_engine_config()


def prompt_ids(setup: EngineSetup) -> PlaceholderIds:
    """Return the tokens that stand for media in this checkpoint's prompts; loads vLLM, and no weights."""
    return placeholder_ids(engine_config(setup).model_config.hf_config)
