"""The command line: arguments in, exit code out. No logic of its own; heavy imports only when needed."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import stopping, streams

if TYPE_CHECKING:
    from pipeline.job import Job
    from pipeline.selection import Selection

EPILOG = """exit codes:
  0  every item has a good row
  1  finished, but some rows are errors or missed the SLA beyond what the job accepts
  2  the job or the environment is wrong, or a known-answer clip was answered otherwise; nothing was screened
  3  another run holds this output
  4  stopped early (signal, engine lost); everything so far is committed
"""


STOPPED = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    streams.secure()
    stopping.listen()
    try:
        return _run(_parser().parse_args(arguments))
    except KeyboardInterrupt:
        print("run_batch: stopped early; everything so far is committed", file=sys.stderr)
        return STOPPED


def _run(args: argparse.Namespace) -> int:
    """Do what the arguments say."""
    try:
        from pipeline.errors import PipelineError
        from pipeline.job import load_job
        from pipeline.selection import parse_selection
    except ModuleNotFoundError as error:
        print(f"run_batch: the package {error.name} is missing; `make setup` installs what is needed", file=sys.stderr)
        return 2
    try:
        selection = parse_selection(args.retry, args.shard)
        job = load_job(args.job, args.set)
        if args.dry_run:
            return _dry_run(job, selection)
        from rich.console import Console

        from pipeline.run import run_job

        return run_job(job, Console(stderr=True), selection)
    except PipelineError as error:
        print(f"run_batch: {error}", file=sys.stderr)
        return error.exit_code
    except Exception:
        # What was committed stays; 1 would claim that the run finished.
        traceback.print_exc()
        print("run_batch: stopped by a defect of this program; please report the lines above", file=sys.stderr)
        return STOPPED


def _dry_run(job: Job, selection: Selection) -> int:
    """Print what a run would do; a reader that has seen enough ends it, a full disk does with a message."""
    from pipeline.dry_run import dry_run

    try:
        code = dry_run(job, sys.stdout, selection)
        sys.stdout.flush()
        return code
    except OSError as error:
        if error.filename is not None:  # no fault of the standard output
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 0
        print(f"run_batch: the standard output cannot be written: {error.strerror}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run_batch.py",
        description="Listen to and watch recordings, screen them by a policy, write one verdict row each to Parquet.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", type=Path, metavar="JOB.yaml", help="the job file, for instance jobs/demo.yaml")
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="set one key of the job; may be repeated"
    )
    parser.add_argument(
        "--retry",
        default="errors",
        metavar="all|errors|none",
        help="which rows without an answer are tried again: those that another try may help (errors, the default), "
        "all, or none; new and changed recordings are always screened",
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="take the I-th of N shares of the source, for instance 2/5, so that N machines share it; give each its "
        "own output.path",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the resolved job, the items found and the first plans; run nothing",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
