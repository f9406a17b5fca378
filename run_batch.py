#!/usr/bin/env python3
"""Screens recordings: `python run_batch.py jobs/x.yaml`. All logic lives in `pipeline.cli`."""

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path


def _in_project_environment() -> None:
    """Go on in the project's own environment if this interpreter lacks the packages and `make setup` made one."""
    own = Path(__file__).resolve().parent / ".venv" / "bin" / "python"
    if find_spec("pydantic") is None and own.exists() and Path(sys.prefix) != own.parents[1]:
        os.execv(own, [str(own), *sys.argv])


if __name__ == "__main__":
    _in_project_environment()
    from pipeline.cli import main

    code = main()
    if "ray" in sys.modules:
        # Stopped while it started, it may crash on Python's way out and take the exit code with it. Everything is
        # closed by now, and Ray's own processes die with this one.
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)
