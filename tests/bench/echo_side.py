"""A side for the tests: it prints beside its answers, and ends without one when it is asked to."""

from __future__ import annotations

import os
from collections.abc import Callable

from bench import sides
from pipeline.records import JsonObject


def _make() -> Callable[[JsonObject], JsonObject]:
    print("made")
    return _answer


def _answer(asked: JsonObject) -> JsonObject:
    print("asked", asked)
    if "leave" in asked:
        os._exit(7)
    return {"asked": asked}


if __name__ == "__main__":
    sides.serve(_make)
