"""One real engine and one real renderer for all engine tests: starting them costs half a minute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.embedded.build import build
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
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmEngine, Renderer]]:
    """Untrained weights treated as a Thinking edition with 20 tokens to reason: they would go on for ever."""
    prepare_this_process("cpu")
    folder = tmp_path_factory.mktemp("thinking") / "checkpoint"
    build(folder)
    options = [f"model.path={folder}", "model.reasoning=true", "answer.reasoning_max_tokens=20"]
    resolved = resolve(load_job(DEMO, options))
    engine = VllmEngine(resolved.engine, resolved.form)
    yield engine, Renderer(resolved.engine, resolved.policy)
    engine.close()
