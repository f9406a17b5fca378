"""How runs of the project and of its peers become rates and measures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.end_to_end import agree, figures, of_run, own_figures, without_start

BOTTLENECK = {"limit": None, "held_by": "engine"}
ROW = {"status": "ok", "degraded": False, "output_tokens": 20, "prompt_tokens": 1700}
COOKBOOK = {"items": 4, "items_per_s": 0.4, "load_s": 4.0, "generate_s": 6.0, "prompt_tokens": 1700}


def _ray_data(wall_s: float, small_wall_s: float, items: int = 4) -> dict[str, Any]:
    times = {"wall_s": wall_s, "small_wall_s": small_wall_s}
    rates = {"items_per_s": 1.0, "items_per_s_with_start": 0.1, "prompt_tokens": 1700}
    return {"items": items, "small_items": 1} | times | rates


def _run(rows: list[dict[str, Any]] | None = None, screen_s: float = 4.0) -> Any:
    return of_run(rows or [ROW] * 4, {"screen_s": screen_s, "bottleneck": BOTTLENECK}, 4)


def test_the_start_of_ray_data_is_what_a_run_of_fewer_items_took_as_well() -> None:
    assert without_start([_ray_data(40.0, 34.0)]) == 0.5
    assert without_start([_ray_data(40.0, 34.0), _ray_data(38.0, 36.0)]) == 0.75


@pytest.mark.parametrize(
    ("rates", "believed"), [([0.3, 0.4], True), ([0.3, 0.7], False), ([0.09, 0.1], False), ([0.4, 0.09], False)]
)
def test_runs_of_ray_data_are_believed_if_they_agree_and_are_not_slower_without_the_start(
    rates: list[float], believed: bool
) -> None:
    said = [_ray_data(40.0, 34.0) | {"items_per_s": rate, "items_per_s_with_start": 0.1} for rate in rates]
    assert agree(said) is believed


def test_a_run_is_rated_by_its_rows_and_the_time_from_the_engines_start_to_the_last_row() -> None:
    run = _run([ROW, ROW, ROW | {"output_tokens": 60, "prompt_tokens": 1720}, ROW])
    assert (run.items_per_s, run.output_tokens, run.prompt_tokens) == (1.0, 30, 1705)
    assert {figure.name: figure.value for figure in own_figures(run)}["ours_limit"] == "engine"
    assert not [figure for figure in own_figures(run) if figure.met is False]


@pytest.mark.parametrize(
    ("rows", "unmet"),
    [
        ([ROW] * 3, {"ours_good_rows"}),
        ([ROW] * 3 + [ROW | {"status": "deadline", "output_tokens": 0}], {"ours_good_rows"}),
        ([ROW] * 3 + [ROW | {"degraded": True}], {"ours_lesser_looks"}),
    ],
)
def test_rows_that_are_missing_bad_or_of_a_lesser_look_are_not_accepted(
    rows: list[dict[str, Any]], unmet: set[str]
) -> None:
    run = _run(rows)
    assert {figure.name for figure in own_figures(run) if figure.met is False} == unmet
    assert run.output_tokens == 20


def test_a_run_without_any_answer_is_no_rate() -> None:
    with pytest.raises(SystemExit, match="no row"):
        _run([ROW | {"status": "error"}] * 4)


def test_each_comparison_can_be_missed() -> None:
    run, ray_data = _run(), [_ray_data(40.0, 25.0)]  # 0.2 items a second
    assert not [figure for figure in figures(run, COOKBOOK, ray_data) if figure.met is False]
    slower = replace(run, items_per_s=0.99)
    assert _unmet(slower, COOKBOOK, ray_data) == {"ours_over_cookbook", "ours_over_ray_data"}
    assert _unmet(run, COOKBOOK | {"items": 3}, ray_data) == {"peers_answered_all"}
    assert "peers_answered_all" in _unmet(run, COOKBOOK, [*ray_data, _ray_data(40.0, 25.0, items=3)])


def _unmet(run: Any, cookbook: dict[str, Any], ray_data: list[dict[str, Any]]) -> set[str]:
    return {figure.name for figure in figures(run, cookbook, ray_data) if figure.met is False}
