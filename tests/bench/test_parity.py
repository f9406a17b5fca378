"""How two ways of answering are compared, and that the plain one looks at the same instants."""

from __future__ import annotations

import numpy as np
import pytest

from bench.accuracy import fresh
from bench.parity import Said, disagreements, drawn, figures
from bench.plain_way import stretches
from pipeline.records import Verdict


def _said(verdict: Verdict = "pass", probability: float = 0.9, labels: tuple[str, ...] = ()) -> Said:
    return Said(verdict, probability, probability / 2, labels, (1, 2, 3))


def test_one_verdict_in_a_hundred_may_differ_and_not_two() -> None:
    said = [_said() for _ in range(200)]
    for different, met in ((2, True), (3, False)):
        other = [_said("reject")] * different + said[different:]
        (same,) = [figure for figure in figures(said, other) if figure.name == "same_verdict"]
        assert same.met is met
        assert same.value == 1 - different / 200


def test_probabilities_are_compared_where_the_verdict_is_the_same() -> None:
    found = {one.name: one.value for one in figures([_said(), _said()], [_said("reject", 0.1), _said("pass", 0.8)])}
    assert found["verdict_probability_apart_largest"] == pytest.approx(0.1)
    assert found["least_finding_probability_apart_mean"] == pytest.approx(0.05)


def test_the_table_names_clips_that_differ_in_a_label_alone_too() -> None:
    clips = fresh(3)
    same = _said()
    table = disagreements(clips, [same, same, _said(labels=("dark",))], [same, _said("reject"), same])
    assert list(table.columns[0].cells) == [clips[1].name, clips[2].name]
    assert list(table.columns[4].cells) == ["", "dark"]


def test_clips_that_the_plain_way_refuses_are_left_out_and_counted() -> None:
    taken, left_out = drawn(30)
    assert len(taken) == 30
    assert left_out > 0
    assert all(clip.scene.sound or clip.scene.still for clip in taken)


@pytest.mark.parametrize(
    ("length_s", "inside"), [(10.0, 20), (10.2, 21), (0.5, 1), (0.3, 1), (0.9, 2), (1.4, 3), (90.0, 40)]
)
def test_the_plain_way_takes_the_frames_at_the_plans_instants(length_s: float, inside: int) -> None:
    instants: list[float] = []
    for one in stretches(length_s, 40, 2.0):
        end_s = length_s if one.end_s is None else one.end_s
        instants += list(
            np.linspace(one.start_s or 0.0, end_s, one.frames)[slice(*one.kept)]
        )  # as qwen-omni-utils spreads them
        assert one.frames % 2 == 0
    assert instants == pytest.approx([k / 2.0 for k in range(inside)])
