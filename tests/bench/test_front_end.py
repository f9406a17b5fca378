"""How the costs of the front ends become measures."""

from __future__ import annotations

import pytest

from bench.front_end import Cost, Round, costs, figures, ratio
from bench.looks import LOOKS
from pipeline.job import Video
from pipeline.media.plan import frame_size


def _round(ours_s: float, bare_s: float, peer_s: float | None = None, tokens: tuple[int, int] = (100, 100)) -> Round:
    one = {"ours": Cost(ours_s, tokens[0], {"decode": ours_s}), "bare": Cost(bare_s)}
    return one | ({} if peer_s is None else {"peer": Cost(peer_s, tokens[1], {"load": peer_s})})


def test_a_ratio_compares_within_each_round_so_that_a_busy_moment_cancels_out() -> None:
    rounds = [_round(1.0, 1.0, 5.0), _round(10.0, 10.0, 50.0), _round(2.0, 2.0, 6.0)]
    assert ratio(rounds, "peer", "ours") == 5.0


def test_what_is_measured_is_the_median_of_the_contents() -> None:
    found = {name: [_round(1.0, 1.0, peer_s)] for name, peer_s in (("a", 4.0), ("b", 6.0), ("c", 9.0))}
    by_name = {figure.name: figure for figure in figures("default", found)}
    assert by_name["default_peer_over_ours"].value == 6.0
    assert by_name["default_peer_over_ours_a"].value == 4.0
    assert by_name["default_peer_over_ours_a"].met is None


@pytest.mark.parametrize(
    ("look", "round_", "unmet"),
    [
        ("default", _round(1.25, 1.0, 6.25), set()),
        ("default", _round(1.26, 1.0, 6.4), {"default_ours_over_bare"}),
        ("default", _round(1.2, 1.0, 5.9), {"default_peer_over_ours"}),
        ("small", _round(0.85, 1.0, 2.55), set()),
        ("small", _round(0.86, 1.0, 2.5), {"small_ours_over_bare", "small_peer_over_ours"}),
        ("small", _round(0.8, 1.0, 4.0, (94, 100)), {"small_tokens_apart"}),
    ],
)
def test_each_measure_can_be_missed(look: str, round_: Round, unmet: set[str]) -> None:
    assert {figure.name for figure in figures(look, {"a": [round_]}) if figure.met is False} == unmet


def test_without_a_peer_only_our_own_cost_is_measured() -> None:
    assert {figure.name for figure in figures("default", {"a": [_round(1.0, 1.0)]})} == {
        "default_ours_over_bare",
        "default_ours_over_bare_a",
    }


def test_costs_are_told_by_phase_and_content() -> None:
    _, told = costs({"small": {"a": [_round(1.0, 2.0, 3.0)], "b": [_round(2.0, 4.0, 5.0)]}})
    assert {figure.name: figure.value for figure in told} == {
        "small_ours_decode_cpu_s": 1.5,
        "small_ours_all_cpu_s": 1.5,
        "small_peer_load_cpu_s": 4.0,
        "small_peer_all_cpu_s": 4.0,
        "small_bare_all_cpu_s": 3.0,
    }


@pytest.mark.parametrize(("look", "size"), [("default", (1024, 576)), ("small", (512, 288))])
def test_the_project_gets_the_frames_that_the_peers_processor_makes(look: str, size: tuple[int, int]) -> None:
    assert frame_size(1280, 720, LOOKS[look].pixels) == size
    assert Video(max_pixels_per_frame=LOOKS[look].pixels)
