"""One real engine and one real renderer for all engine tests: starting them costs half a minute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.engine.vllm import VllmEngine
from pipeline.front_end import FrontEnd
from pipeline.hardware.environment import prepare_this_process
from pipeline.job import load_job
from pipeline.prompt import Renderer
from pipeline.resolve import Resolved, resolve

DEMO = Path(__file__).parents[2] / "jobs" / "demo.yaml"


@pytest.fixture(scope="session")
def resolved() -> Resolved:
    prepare_this_process("cpu")
    return resolve(load_job(DEMO, ["engine.max_model_len=32768"]))


@pytest.fixture(scope="session")
def front_end(resolved: Resolved) -> FrontEnd:
    return FrontEnd(resolved.front_end)


@pytest.fixture(scope="session")
def engine(resolved: Resolved) -> Iterator[VllmEngine]:
    engine = VllmEngine(resolved.engine, resolved.form)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def thinking() -> Iterator[tuple[VllmEngine, Renderer]]:
    """The embedded checkpoint treated as a Thinking edition, with 20 tokens to reason."""
    prepare_this_process("cpu")
    resolved = resolve(load_job(DEMO, ["model.reasoning=true", "answer.reasoning_max_tokens=20"]))
    engine = VllmEngine(resolved.engine, resolved.form)
    yield engine, Renderer(resolved.engine, resolved.policy)
    engine.close()
