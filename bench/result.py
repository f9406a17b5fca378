"""How every measurement ends: a table of figures with what they must be, one JSON line, an exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value; `wanted` says in words what it must be, `met` whether it is, None if it is only told."""

    name: str
    value: float | int | str
    unit: str = ""
    wanted: str = ""
    met: bool | None = None


def report(bench: str, figures: Sequence[Figure]) -> int:
    """Print the figures and return 0 if each measure is met, else 1."""
    table = Table("figure", "value", "unit", "wanted", "met", title=bench)
    for figure in figures:
        value = f"{figure.value:.4g}" if isinstance(figure.value, float) else str(figure.value)
        table.add_row(figure.name, value, figure.unit, figure.wanted, {None: "", True: "yes", False: "NO"}[figure.met])
    Console(width=100).print(table)
    met = all(figure.met is not False for figure in figures)
    print(json.dumps({"bench": bench, "met": met} | {figure.name: figure.value for figure in figures}))
    return 0 if met else 1
