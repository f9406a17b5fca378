"""The answer's grammar as the engine's own backend compiles it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pipeline.hardware.environment import prepare_this_process
from pipeline.job import EMBEDDED_PATH
from pipeline.policy import answer_schema
from tests.test_policy import policy

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def accepts() -> Callable[[int, str], bool]:
    """Return a function that says whether a rationale passes under a policy's `max_chars`."""
    prepare_this_process("cpu")
    import xgrammar
    from transformers import AutoTokenizer

    info = xgrammar.TokenizerInfo.from_huggingface(AutoTokenizer.from_pretrained(EMBEDDED_PATH))
    compiler = xgrammar.GrammarCompiler(info)

    def check(max_chars: int, rationale: str) -> bool:
        schema = json.dumps(answer_schema(policy(rationale={"max_chars": max_chars})))
        grammar = compiler.compile_json_schema(schema, any_whitespace=False, separators=(",", ":"))
        start = '{"labels":{"alarm":true,"flashing":false},"verdict":"pass","rationale":"'
        return bool(xgrammar.GrammarMatcher(grammar).accept_string(start + rationale + '"}'))

    return check


@pytest.mark.parametrize("max_chars", [16, 128, 129, 240, 2000])
def test_a_rationale_of_every_allowed_length_passes_and_one_character_more_does_not(
    accepts: Callable[[int, str], bool], max_chars: int
) -> None:
    for char in ("x", "\u8b66", "\U0001f6a8"):
        assert accepts(max_chars, char * max_chars)
        assert not accepts(max_chars, char * (max_chars + 1))


@pytest.mark.parametrize("rationale", ["", '\\"', "\\n", "\\u0041"])
def test_an_empty_rationale_and_escapes_do_not_pass(accepts: Callable[[int, str], bool], rationale: str) -> None:
    assert not accepts(240, rationale)
