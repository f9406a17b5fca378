"""One run from job to exit code: the composition root.

list ─▶ skip what the ledger holds ─▶ admit by credit ─▶ front end ─▶ engine ─▶ verdict ─▶ sink ─▶ report

Before the first item is admitted, known-answer clips go the same way, as far as the verdict.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from pipeline import stopping
from pipeline.admission import Admission, Lanes
from pipeline.atomic import write_json_atomic
from pipeline.canary import NO_CANARIES, Report, as_facts, ask_canaries, failure_table
from pipeline.copies import Copies
from pipeline.deadline import ItemClock
from pipeline.driver import Driver, Intake
from pipeline.errors import EngineLost, JobError, WorkersLost
from pipeline.events import EventLog
from pipeline.hardware.memory import keep_memory_level, total_bytes
from pipeline.hardware.processors import idle_cpu_s
from pipeline.job import Job
from pipeline.ledger import Ledger, check_fingerprints, describe, read_ledger
from pipeline.lock import lock_output, run_folder
from pipeline.media.sandbox import check_sandbox
from pipeline.progress import Progress, Tally, open_progress
from pipeline.records import Item, JsonObject
from pipeline.resolve import Resolved, resolve
from pipeline.scratch import scratch_folder
from pipeline.screening import Screener
from pipeline.selection import EVERYTHING, Selection
from pipeline.sink import Sink, remove_rows, steady_utc
from pipeline.source import check_source
from pipeline.summary import Ending, Means, Missing, gather_missing
from pipeline.verdict import Outcome, RunFacts
from pipeline.worklist import Worklist

if TYPE_CHECKING:
    from pipeline.workers import Workers

T = TypeVar("T")

OK, WITH_ERRORS, REFUSED, STOPPED = 0, 1, 2, 4


@dataclass(frozen=True, slots=True)
class _Early:
    """How a run ended that did not come to the end of its list, in words, and its exit code."""

    how: str
    code: int = STOPPED
    output_is_gone: bool = False


_REFUSED = _Early("refused by known-answer clips, nothing was screened", REFUSED)
_STOPPED = _Early("stopped early, everything so far is committed")
_UNWRITABLE = _Early("stopped early, what could be written is committed")
_GONE = _Early("stopped early", output_is_gone=True)
_REFRESH_S = 0.5
_RAY_POLL_S = 1.0
_SIGNALS_BACK_S = 0.005
_OBJECT_STORE_BYTES = 2 * 2**30
# Beyond it Ray would spill prompts to disk.
_PROMPTS_BYTES = _OBJECT_STORE_BYTES * 6 // 10
# Host memory left free, so that no worker is the kernel's next victim.
# Ray kills workers when less than a twentieth is free.
_RESERVE_BYTES, _RESERVE_SHARE = 2**30, 0.07


def run_job(job: Job, console: Console, selection: Selection = EVERYTHING) -> int:
    """Run the job and return its exit code. Raises JobError and OutputLocked before anything is started."""
    keep_memory_level()
    check_source(job.source)
    resolved = resolve(job)
    unconfined = check_sandbox(job.front_end.sandbox) if job.has_real_front_end else None
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    with lock_output(job.output.path, run_id) as dead:
        reuse = job.source.duplicates == "reuse"
        ledger = read_ledger(job.output.path, contents_of=resolved.fingerprint if reuse else None)
        model = resolved.model
        about = describe(resolved.policy.id, resolved.policy.version, model)
        check_fingerprints(ledger, resolved.fingerprint, job.output.on_change, about)
        folder = run_folder(job.output.path, run_id)
        with EventLog(folder / "events.jsonl") as events, open_progress(console) as progress:
            if dead is not None:
                progress.say(f"{job.name}: run {dead.get('run_id')} ended without letting go of the output; going on")
            if unconfined is not None:
                events.write("decoder_not_closed_in", message=unconfined)
                progress.say(f"{job.name}: {unconfined}")
            # Ray prints there what it knows of workers that died; a person reads ours.
            with redirect_stdout(events.as_stream("ray")):
                return asyncio.run(_run(resolved, ledger, selection, run_id, folder, events, progress))


async def _run(
    resolved: Resolved,
    ledger: Ledger,
    selection: Selection,
    run_id: str,
    folder: Path,
    events: EventLog,
    progress: Progress,
) -> int:
    started = time.monotonic()
    tally = Tally()
    worklist = Worklist(resolved, ledger, tally, selection)
    about = {"fingerprint": resolved.fingerprint, "calibrated": resolved.calibration is not None} | selection.facts()
    events.write("run_started", run_id=run_id, job=resolved.job.name, **about)
    early: _Early | None = None
    facts: JsonObject = {"canary": Report().summary()}
    if await asyncio.to_thread(worklist.first) is None:
        progress.say(f"{resolved.job.name}: {_nothing_to_do(tally, selection)}; nothing to do")
    else:
        # What vLLM leaves in the folder for temporary files goes with the run.
        with scratch_folder() as scratch:
            early, costs = await _screen_all(resolved, worklist, run_id, tally, events, progress, scratch)
            facts |= costs
    missing = Missing() if early is not None else await asyncio.to_thread(_close_books, resolved, worklist, run_id)
    code = _exit_code(resolved.job, tally, worklist, missing) if early is None else early.code
    events.write("run_ended", exit_code=code, done=tally.done, missing=missing.count, events_dropped=events.dropped)
    facts["events_dropped"] = events.dropped
    ending = Ending(tally, missing, _means(resolved), code, time.monotonic() - started, facts)
    try:
        write_json_atomic(folder / "run.json", _identity(resolved, run_id, selection) | ending.facts())
    except OSError as error:
        cause = error.strerror or error
        progress.say(f"{resolved.job.name}: run.json of this run cannot be written to {folder}: {cause}")
    gone = early is not None and early.output_is_gone
    output = f"{resolved.job.output.path}{', which was removed, moved or replaced during the run' if gone else ''}"
    finished = "finished" if missing.unchecked is None else "finished, but not checked"
    for line in ending.lines(resolved.job.name, finished if early is None else early.how, output):
        progress.say(line)
    stopping.ignore()
    return code


def _nothing_to_do(tally: Tally, selection: Selection) -> str:
    if tally.skipped == 0 and selection.shard is not None:
        return f"no item of the source is in shard {selection.shard}"
    return f"all {tally.skipped} items have their final row"


async def _screen_all(
    resolved: Resolved,
    worklist: Worklist,
    run_id: str,
    tally: Tally,
    events: EventLog,
    progress: Progress,
    scratch: str,
) -> tuple[_Early | None, JsonObject]:
    """Start the workers and screen everything; return how the run ended if it ended early, and what it cost."""
    from pipeline.workers import Keeping, Workers, start_ray

    job, begun = resolved.job, time.monotonic()
    stop = asyncio.Event()
    progress.say(f"{job.name}: starting {resolved.model} and {resolved.workers} front-end workers")
    _stop_on_signals(stop)
    start_ray(resolved.workers, resolved.engine.device, scratch, _OBJECT_STORE_BYTES)
    _stop_on_signals(stop)  # Ray has set handlers of its own meanwhile
    counting = asyncio.create_task(_count(worklist, tally))
    watching = asyncio.create_task(_watch_ray(resolved, events, progress, stop))
    workers: Workers | None = None
    costs: JsonObject = {}
    try:
        keeping = Keeping(
            stall_s=job.engine.stall_s,
            max_restarts=job.engine.max_restarts,
            max_growth_bytes=round(job.engine.max_growth_gib * 2**30),
        )
        starting = Workers.start(resolved.front_end, resolved.form, resolved.workers, keeping, events)
        workers = await _unless_stopped(stop, starting)
        if workers is None:
            return _STOPPED, costs
        start_s = time.monotonic() - begun
        events.write("engine_ready", engine=workers.description, start_s=start_s)
        progress.say(f"{job.name}: {workers.description} ready after {start_s:.0f} s{_listed(tally)}")
        costs["start_s"] = start_s
        canary = await _unless_stopped(stop, _ask_canaries(resolved, workers, events, progress))
        if canary is None:
            return _STOPPED, costs
        costs["canary"] = canary.summary()
        if canary.failed:
            return _REFUSED, costs
        screened, idle_s = time.monotonic(), idle_cpu_s()
        early = await _drive(resolved, workers, worklist, run_id, tally, events, progress, stop)
        costs["screen_s"] = time.monotonic() - screened
        if idle_s is not None:
            costs["idle_cpu_s"] = (idle_cpu_s() or idle_s) - idle_s
        workers.stop_watching()
        costs |= {"held_s": dict(tally.held_s), "engine_restarts": workers.engine_restarts()}
        if not watching.done():  # who lost Ray has a minute left
            costs |= await _engine_costs(workers)
        return early, costs
    except WorkersLost as error:
        _say_broken(resolved, events, progress, str(error))
        return _STOPPED, costs
    finally:
        counting.cancel()
        watching.cancel()
        if workers is not None:
            workers.stop_watching()
        await _close(Workers.close, stop)


async def _close(close: Callable[[], None], stop: asyncio.Event) -> None:
    """End Ray, which takes a second; early in it, Ray gives SIGTERM its deadly default back."""
    closing = asyncio.create_task(asyncio.to_thread(close))
    while not closing.done():
        _stop_on_signals(stop)
        await asyncio.wait({closing}, timeout=_SIGNALS_BACK_S)
    _stop_on_signals(stop)
    await closing


async def _ask_canaries(resolved: Resolved, workers: Workers, events: EventLog, progress: Progress) -> Report:
    """Ask the known-answer clips, if there are any, and tell what came. Raises WorkersLost."""
    if not resolved.canaries:
        progress.say(f"{resolved.job.name}: {NO_CANARIES}")
        return Report()
    name, sla_s = resolved.job.name, resolved.job.sla.per_item_s
    screener, now = Screener(workers, resolved.policy, events), steady_utc()

    async def screen(item: Item) -> Outcome:
        outcome, _ = await screener.screen(item, ItemClock(sla_s, 0.0, now=now))
        return outcome

    max_restarts = resolved.job.engine.max_restarts
    report = await ask_canaries(
        resolved.canaries, screen, resolved.calibration, sla_s, engine=workers, max_restarts=max_restarts
    )
    events.write("canaries", **report.summary(), results=[as_facts(result) for result in report.results])
    if report.failed:
        progress.show(failure_table(report))
    else:
        progress.say(f"{name}: {len(report.results)} known-answer clips answered as expected in {report.seconds:.0f} s")
    return report


async def _drive(
    resolved: Resolved,
    workers: Workers,
    worklist: Worklist,
    run_id: str,
    tally: Tally,
    events: EventLog,
    progress: Progress,
    stop: asyncio.Event,
) -> _Early | None:
    """Let the driver work through the list; return how it ended if it was early."""
    job, now = resolved.job, steady_utc()
    sink = Sink(
        job.output.path,
        run_id,
        rows_per_part=job.output.rows_per_part,
        commit_every_s=job.output.commit_every_s,
        clock=now,
    )
    driver = Driver(
        workers,
        sink,
        _run_facts(resolved, run_id, workers.description),
        tally,
        events,
        intake=_intake(resolved, worklist),
        commit_every_s=job.output.commit_every_s,
        now=now,
    )
    tally.began = time.monotonic()
    showing = asyncio.create_task(_show(progress, tally))
    try:
        await driver.run(aiter(worklist), stop)
    except WorkersLost as error:
        _say_broken(resolved, events, progress, str(error))
        return _STOPPED
    except JobError as error:
        _say_broken(resolved, events, progress, f"the source could not be listed to its end: {error}")
        return _STOPPED
    except OSError as error:
        cause = f"rows cannot be written to {job.output.path}: {error.strerror or error}"
        _say_broken(resolved, events, progress, cause)
        return _GONE if error.errno == errno.ESTALE else _UNWRITABLE
    finally:
        showing.cancel()
    return _STOPPED if stop.is_set() else None


def _say_broken(resolved: Resolved, events: EventLog, progress: Progress, cause: str) -> None:
    events.write("run_broken", message=cause)
    progress.say(f"{resolved.job.name}: stopped early: {cause}")


async def _watch_ray(resolved: Resolved, events: EventLog, progress: Progress, stop: asyncio.Event) -> None:
    """End the run in good order when a process of Ray's own has ended."""
    from pipeline.workers import lost_part

    while (part := lost_part()) is None:
        await asyncio.sleep(_RAY_POLL_S)
    _say_broken(resolved, events, progress, f"Ray's {part} has ended; look for out-of-memory kills, and run again")
    stop.set()


async def _show(progress: Progress, tally: Tally) -> None:
    while True:
        progress.update(tally)
        await asyncio.sleep(_REFRESH_S)


def _intake(resolved: Resolved, worklist: Worklist) -> Intake:
    """Return what admits items: two rounds of the engine's at most, far fewer until it has shown its speed."""
    admission = Admission(
        sla_s=resolved.job.sla.per_item_s,
        most_items=_most_items(resolved),
        first_items=resolved.workers + 1,
        store_bytes=_PROMPTS_BYTES,
        reserve_bytes=max(_RESERVE_BYTES, round(_RESERVE_SHARE * total_bytes())),
    )
    contents = worklist.contents
    copies = None if contents is None else Copies(resolved.job.output.path, contents)
    return Intake(admission, Lanes(resolved.workers), copies=copies)


def _most_items(resolved: Resolved) -> int:
    return 2 * resolved.job.engine.max_num_seqs + resolved.workers


async def _count(worklist: Worklist, tally: Tally) -> None:
    """Count what is listed, for the time that is left; a large source takes its time."""
    with suppress(JobError):  # of a source that changed; the run's own listing meets it, too
        tally.total = await asyncio.to_thread(lambda: sum(1 for _ in worklist.ids()))


def _listed(tally: Tally) -> str:
    return "" if tally.total is None else f"; {tally.total} items listed"


def _run_facts(resolved: Resolved, run_id: str, engine: str) -> RunFacts:
    return RunFacts(
        run_id=run_id,
        job_name=resolved.job.name,
        fingerprint=resolved.fingerprint,
        policy=resolved.policy,
        model=resolved.model,
        engine=engine,
        accel_patches=(),
        sla_s=resolved.job.sla.per_item_s,
        calibration=resolved.calibration,
    )


def _stop_on_signals(stop: asyncio.Event) -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP end the run in good order."""
    loop = asyncio.get_running_loop()
    if stopping.asked():
        stop.set()

    def heed() -> None:
        with suppress(RuntimeError):  # the loop is closed: the result is known
            loop.call_soon_threadsafe(stop.set)

    stopping.listen(heed)


async def _unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, or None if the run was told to stop first."""
    task = asyncio.ensure_future(work)
    watch = asyncio.create_task(stop.wait())
    await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
    watch.cancel()
    if task.done():
        return task.result()
    task.cancel()
    # Not left behind: it would go on with workers that are gone.
    await asyncio.gather(task, return_exceptions=True)
    return None


async def _engine_costs(workers: Workers) -> JsonObject:
    """Return the engine thread's time account, if it tells, the CPU time of the front end, and the peak memory of every
    process that does."""
    costs: JsonObject = {"peak_memory_bytes": await workers.memory()}
    costs["front_end_cpu"] = asdict(await workers.front_end_effort())
    with suppress(EngineLost, TimeoutError):
        costs["engine_thread"] = asdict(await workers.engine_stats())
    return costs


def _close_books(resolved: Resolved, worklist: Worklist, run_id: str) -> Missing:
    """Remove the older rows that a rewrite leaves, and check that every item has its row; or say why that cannot be."""
    output, rewrites = resolved.job.output.path, resolved.job.output.on_change == "rewrite"
    try:
        if not output.is_dir():
            raise JobError(f"the output folder {output} is gone")
        held = read_ledger(output)
        if rewrites:  # what a run that was killed left, too
            remove_rows(output, run_id, held.superseded(resolved.fingerprint))
        return _missing(worklist, held, resolved.fingerprint)
    except (JobError, OSError) as error:
        return Missing(unchecked=f"{error}. Mend that and run the job again: it screens what lacks a row and checks")


def _missing(worklist: Worklist, held: Ledger, fingerprint: str) -> Missing:
    """Return the items that were listed and have no row: there must be none."""
    return gather_missing(
        item_id for item_id in worklist.ids() if worklist.knows(item_id) and held.find(item_id, fingerprint) is None
    )


def _exit_code(job: Job, tally: Tally, worklist: Worklist, missing: Missing) -> int:
    if missing.unchecked is not None:
        return STOPPED
    items = max(1, worklist.items_listed)
    errors = tally.statuses["error"] + worklist.held_bad
    late = tally.late + worklist.held_late
    accepted = errors <= job.accept.error_share * items and late <= job.accept.late_share * items
    return OK if accepted and not missing.count else WITH_ERRORS


def _identity(resolved: Resolved, run_id: str, selection: Selection) -> JsonObject:
    """Return what run.json says of the run before it did anything."""
    return {
        "run_id": run_id,
        "job": resolved.job.model_dump(mode="json"),
        "fingerprint": resolved.fingerprint,
        "model": resolved.model,
        "calibrated": resolved.calibration is not None,
        **selection.facts(),
    }


def _means(resolved: Resolved) -> Means:
    return Means(
        workers=resolved.workers,
        most_items=_most_items(resolved),
        cores=os.cpu_count() or 1,
        sla_s=resolved.job.sla.per_item_s,
        commit_every_s=resolved.job.output.commit_every_s,
    )
