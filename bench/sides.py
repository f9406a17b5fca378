"""Two sides of a comparison in processes of their own, so that neither changes the libraries of the other.

A side gets one JSON line for each question and answers with one; what else it prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from bench.runs import ROOT
from pipeline.records import JsonObject

_ENDING_S = 60


class Side:
    """A running `python -m MODULE ARGUMENTS`, whose main calls `serve`."""

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._name = " ".join((module, *arguments))
        command = [sys.executable, "-m", module, *arguments]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True)

    def ask(self, question: JsonObject) -> JsonObject:
        """Return the answer to a question. Raises SystemExit if the side has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            line = ""
        else:
            line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} ended with exit code {self._process.wait(_ENDING_S)}; its words are above")
        answer: JsonObject = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """Let it end, or end it if something went wrong."""
        if kind is not None:
            self._process.kill()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_ENDING_S)
        self._process.stdout.close()


def serve(make: Callable[[], Callable[[JsonObject], JsonObject]]) -> None:
    """Make what answers, and answer questions from standard input until it ends."""
    # Libraries print to standard output; the answers keep it for themselves.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        answer = make()
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))), file=out, flush=True)
