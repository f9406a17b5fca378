"""Sides of a comparison answer from processes of their own."""

from __future__ import annotations

import os

import pytest

from bench.sides import Side


def test_a_side_answers_each_question_whatever_else_it_prints() -> None:
    with Side("tests.bench.echo_side", [], dict(os.environ)) as side:
        assert side.ask({"clip": "a b\n"}) == {"asked": {"clip": "a b\n"}}
        assert side.ask({"clip": "ß"}) == {"asked": {"clip": "ß"}}


def test_a_side_that_ends_is_said_with_its_exit_code() -> None:
    with (
        pytest.raises(SystemExit, match="echo_side ended with exit code 7"),
        Side("tests.bench.echo_side", [], dict(os.environ)) as side,
    ):
        side.ask({"leave": True})
