"""Files of the same content: one of them is looked at, the others get its answer, and none of them waits in vain."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.contents import Contents, KnownRows
from pipeline.copies import Copies
from pipeline.errors import EngineLost, ItemError
from pipeline.ledger import Todo, read_ledger
from pipeline.records import Completion, Item, Phases, Prepared
from pipeline.row import VerdictRow
from pipeline.sink import Sink
from pipeline.verdict import Outcome, build_row, parse_answer
from tests.test_driver import GOOD, READY, Scripted, drive
from tests.test_verdict import FACTS, POLICY, routing

OWN = {"row_id", "duplicate_of", "item_id", "uri", "status", "admitted_at", "committed_at", "sla_met"}


class Place:
    """An output, and items of which some have the same content; `contents` names that of each, by default its own."""

    def __init__(self, folder: Path, contents: Mapping[str, str]) -> None:
        self.folder = folder
        self.contents = contents
        self.fetched: list[str] = []
        self.looked_at: list[str] = []
        self.held_while_asked: list[int] = []
        self.look: Callable[[Item, Prepared], Any] = lambda _, known: known
        self.answer: Callable[[str], Any] = lambda _: GOOD
        self.workers = Scripted(self._prepare, self._ask, self._fetch)

    def digest(self, item: Item) -> str:
        return hashlib.sha256(self.contents.get(item.item_id, item.item_id).encode()).hexdigest()

    def _fetch(self, item: Item) -> Prepared:
        self.fetched.append(item.item_id)
        return Prepared(phases=Phases(fetch_s=0.25), content_sha256=self.digest(item), content_bytes=1)

    def _prepare(self, item: Item) -> Any:
        self.looked_at.append(item.item_id)
        return self.look(item, replace(READY, content_sha256=self.digest(item), content_bytes=1))

    def _ask(self, request_id: str) -> Any:
        self.held_while_asked.append(self.workers.held)
        return self.answer(request_id)

    def run(self, count: int, fingerprint: str = "print", **more: Any) -> dict[str, VerdictRow]:
        """Screen so many items of one size, or of `sizes`; nothing may be left of who waits for whom."""
        known = read_ledger(self.folder / "out", contents_of=fingerprint).contents
        assert known is not None
        copies = Copies(self.folder / "out", known)
        sink = Sink(self.folder / "out", f"run-{fingerprint}", rows_per_part=100, commit_every_s=0.5)
        facts = replace(more.pop("facts", FACTS), fingerprint=fingerprint)
        try:
            return drive(self.folder, self.workers, count, sink=sink, facts=facts, copies=copies, **more)
        finally:
            left = copies._under_way, copies._led, copies._unhashed, copies._first, copies._waiting, copies._readers
            assert not any(left) and not copies._uncommitted

    def earlier(self, *rows: VerdictRow) -> None:
        """Leave rows of a run before."""
        sink = Sink(self.folder / "out", "before", rows_per_part=100, commit_every_s=0.5)
        for row in rows:
            sink.add(row)
        sink.close()


def a_row(item_id: str, content: str, **changes: Any) -> VerdictRow:
    prepared = replace(READY, content_sha256=hashlib.sha256(content.encode()).hexdigest(), content_bytes=1)
    outcome = Outcome(prepared=prepared, attempts=1, answer=parse_answer(GOOD, POLICY), completion=GOOD)
    item = Item(item_id, f"/{item_id}", b"/", 1, 1, "key")
    row = build_row(item, outcome, FACTS, datetime(2026, 11, 30, tzinfo=UTC), None)
    return row.model_copy(update=changes)


def statuses(rows: Mapping[str, VerdictRow]) -> Counter[str]:
    return Counter(row.status for row in rows.values())


def same_for(count: int) -> dict[str, str]:
    return {f"item{number}": "the same" for number in range(count)}


def test_of_copies_under_way_one_is_looked_at_and_the_others_get_its_answer(tmp_path: Path) -> None:
    place = Place(tmp_path, same_for(5))
    place.answer = lambda _: asyncio.sleep(0.3, GOOD)
    rows = place.run(5, most_items=5)
    assert statuses(rows) == {"ok": 1, "duplicate": 4}
    assert place.looked_at == ["item0"] and len(place.held_while_asked) == 1
    first = rows["item0"]
    for number in range(1, 5):
        row = rows[f"item{number}"]
        assert (row.duplicate_of, row.follows_row_id, row.attempts) == (first.row_id, None, 1)
        assert (row.fetch_s, row.decode_s, row.generate_s) == (0.25, None, None)
        assert row.wait_s is not None and 0.2 < row.wait_s < 2.0
        phases = {name for name in VerdictRow.model_fields if name.endswith("_s")} - {"duration_s"}
        changed = {name for name in VerdictRow.model_fields if getattr(row, name) != getattr(first, name)}
        assert changed <= OWN | phases
        assert (row.verdict, row.confidence, row.labels) == ("pass", first.confidence, first.labels)
        assert (row.audio_tokens, row.item_id) == (READY.audio_tokens, f"item{number}")


def test_no_worker_is_held_while_a_copy_waits(tmp_path: Path) -> None:
    place = Place(tmp_path, same_for(4))
    held: list[int] = []

    async def answer(_: str) -> Completion:
        await asyncio.sleep(0.3)
        held.append(place.workers.held)
        return GOOD

    place.answer = answer
    assert statuses(place.run(4, most_items=4)) == {"ok": 1, "duplicate": 3}
    assert held == [0]


def test_who_waits_lends_its_credit_to_others(tmp_path: Path) -> None:
    place = Place(tmp_path, same_for(2))
    other_asked = asyncio.Event()

    async def answer(request_id: str) -> Completion:
        if request_id.startswith("item2"):
            other_asked.set()
        async with asyncio.timeout(3.0):
            await other_asked.wait()
        return GOOD

    # Two credits: the first item and its copy have them, and the first is answered after the third was asked.
    place.answer = answer
    assert statuses(place.run(3, most_items=2)) == {"ok": 2, "duplicate": 1}


@pytest.mark.parametrize("where", ["front end", "worker", "engine"])
def test_copies_of_an_item_that_fails_get_their_answer_by_a_look_of_their_own(tmp_path: Path, where: str) -> None:
    place = Place(tmp_path, same_for(4))

    async def look(item: Item, known: Prepared) -> Prepared:
        await asyncio.sleep(0.1)
        if where != "engine" and item.item_id == "item0":
            raise ItemError("not_media" if where == "front end" else "front_end_lost", "no")
        return known

    async def answer(request_id: str) -> Completion:
        await asyncio.sleep(0.1)
        if where == "engine" and request_id.startswith("item0"):
            raise ItemError("engine_rejected", "no")
        return GOOD

    place.look, place.answer = look, answer
    rows = place.run(4, most_items=4)
    assert rows["item0"].status == "error"
    # Who waits for the content alone goes on together; who waits for the answer has waited enough.
    assert statuses(rows) == ({"error": 1, "ok": 3} if where == "engine" else {"error": 1, "ok": 1, "duplicate": 2})
    assert {row.duplicate_of for row in rows.values()} <= {None, rows["item1"].row_id}


@pytest.mark.parametrize(
    ("changes", "taken_over"),
    [({"lesser_look": "half the frames"}, False), ({"coverage": 0.5}, True), ({"content_sha256": None}, False)],
)
def test_a_lesser_look_is_not_handed_on_and_a_look_within_the_budgets_is(
    tmp_path: Path, changes: dict[str, Any], taken_over: bool
) -> None:
    place = Place(tmp_path, same_for(3))
    place.look = lambda item, known: replace(known, **changes) if item.item_id == "item0" else known
    place.answer = lambda _: asyncio.sleep(0.2, GOOD)
    rows = place.run(3, most_items=3)
    first, *others = (rows[f"item{number}"] for number in range(3))
    assert first.status == "ok" and all((row.duplicate_of == first.row_id) == taken_over for row in others)
    assert all(row.degraded == (taken_over and first.degraded) for row in others)


@pytest.mark.parametrize("where", ["front end", "engine"])
def test_copies_of_an_item_that_hangs_are_screened_within_their_own_time(tmp_path: Path, where: str) -> None:
    place = Place(tmp_path, same_for(4))
    if where == "front end":
        place.look = lambda item, known: asyncio.sleep(60, known) if item.item_id == "item0" else known
    else:

        async def answer(request_id: str) -> Completion:
            if request_id.startswith("item0"):
                await asyncio.sleep(3.0)
                raise ItemError("deadline", "the item's time was over before its answer came")
            return GOOD

        place.answer = answer
    rows = place.run(4, sla_s=6.0, most_items=4)
    assert rows["item0"].status == "deadline"
    for number in range(1, 4):
        row = rows[f"item{number}"]
        assert row.status == "ok" and row.sla_met and (row.wait_s or 0.0) > 1.5


def test_other_contents_of_the_same_size_are_all_looked_at(tmp_path: Path) -> None:
    place = Place(tmp_path, {})
    place.look = lambda _, known: asyncio.sleep(0.05, known)
    assert statuses(place.run(8, most_items=4)) == {"ok": 8}
    assert sorted(place.fetched) == [f"item{number}" for number in range(1, 8)]


def test_an_item_of_a_size_of_its_own_costs_no_call_more(tmp_path: Path) -> None:
    place = Place(tmp_path, {})
    assert statuses(place.run(8, sizes={f"item{number}": 100 + number for number in range(8)})) == {"ok": 8}
    assert place.fetched == []


def test_a_copy_that_comes_when_the_row_is_committed_is_found_in_its_part(tmp_path: Path) -> None:
    place = Place(tmp_path, {"item0": "the same", "item2": "the same"})
    place.look = lambda item, known: asyncio.sleep(1.5, known) if item.item_id == "item1" else known
    rows = place.run(3, most_items=1)
    assert [rows[f"item{number}"].status for number in range(3)] == ["ok", "ok", "duplicate"]
    assert rows["item2"].duplicate_of == rows["item0"].row_id and place.looked_at == ["item0", "item1"]
    assert rows["item2"].admitted_at > rows["item0"].committed_at


def test_a_row_of_an_earlier_run_is_taken_over_and_a_duplicate_leads_to_the_original(tmp_path: Path) -> None:
    place = Place(tmp_path, {"item0": "old", "item1": "older", "item2": "new"})
    original = a_row("elsewhere", "old", engine="another version")
    place.earlier(original, a_row("copy", "older", status="duplicate", duplicate_of="gone"))
    rows = place.run(3)
    assert {name: (row.status, row.duplicate_of) for name, row in rows.items()} == {
        "item0": ("duplicate", original.row_id),
        "item1": ("duplicate", "gone"),
        "item2": ("ok", None),
    }
    assert place.looked_at == ["item2"]
    assert (rows["item0"].engine, rows["item0"].run_id) == ("another version", FACTS.run_id)
    assert rows["item0"].confidence == pytest.approx(original.confidence, abs=1e-6)


def test_a_row_of_another_fingerprint_is_never_taken_over(tmp_path: Path) -> None:
    place = Place(tmp_path, {"item0": "old"})
    old = a_row("item0", "old")
    place.earlier(old)
    entry = read_ledger(tmp_path / "out").latest("item0")
    rows = place.run(1, "another print", todo={"item0": Todo("rewrite", entry, old.row_id)})
    assert (rows["item0"].status, rows["item0"].fingerprint) == ("ok", "another print")
    assert place.looked_at == ["item0"] and read_ledger(tmp_path / "out").rows() == 1


def test_an_item_whose_file_was_only_touched_keeps_its_answer(tmp_path: Path) -> None:
    place = Place(tmp_path, {"item0": "old"})
    old = a_row("item0", "old")
    place.earlier(old)
    entry = read_ledger(tmp_path / "out").latest("item0")
    rows = place.run(1, todo={"item0": Todo("changed", entry, old.row_id)})
    row = rows["item0"]
    assert (row.status, row.duplicate_of, row.follows_row_id) == ("duplicate", old.row_id, old.row_id)
    assert place.looked_at == [] and read_ledger(tmp_path / "out").rows() == 1


def test_a_failure_that_is_tried_again_may_take_over_an_answer(tmp_path: Path) -> None:
    place = Place(tmp_path, {"item0": "old"})
    failed = a_row("item0", "old", status="error", reason="front_end_lost", degraded=False)
    place.earlier(failed, a_row("elsewhere", "old"))
    entry = read_ledger(tmp_path / "out").latest("item0")
    rows = place.run(1, todo={"item0": Todo("retry", entry, failed.row_id)})
    assert rows["item0"].status == "duplicate" and place.looked_at == []
    assert read_ledger(tmp_path / "out").rows() == 2


def test_a_part_that_cannot_be_read_back_leads_to_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, same_for(3))
    place.earlier(a_row("elsewhere", "the same"))

    def broken(*_: object) -> None:
        raise OSError("damaged part")

    monkeypatch.setattr(KnownRows, "find", broken)
    assert statuses(place.run(3)) == {"ok": 3}


def test_the_journal_calls_a_copy_that_goes_to_a_person_routed(tmp_path: Path) -> None:
    place = Place(tmp_path, same_for(2))
    rows = place.run(2, facts=routing(0.95))
    assert statuses(rows) == {"ok": 1, "duplicate": 1}
    assert {(row.verdict, row.model_verdict, row.reason) for row in rows.values()} == {
        ("review", "pass", "low_confidence")
    }
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["event"] for event in events] == ["item_routed"] * 2


def test_the_end_of_the_engine_ends_who_waits_too(tmp_path: Path) -> None:
    place = Place(tmp_path, same_for(4))

    async def answer(_: str) -> Completion:
        await asyncio.sleep(0.2)
        raise EngineLost("it died")

    place.answer = answer
    with pytest.raises(EngineLost, match="it died"):
        place.run(4, most_items=4)


def numbered(count: int) -> list[Item]:
    return [Item(f"item{number}", f"/{number}", b"/", 7, 1, "key") for number in range(count)]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def on_the_loop(folder: Path, steps: Callable[[Copies], Coroutine[Any, Any, None]]) -> None:
    async def begin() -> None:
        async with asyncio.timeout(5.0):
            await steps(Copies(folder, Contents(FACTS.fingerprint)))

    asyncio.run(begin())


def test_an_item_that_has_ended_leads_nobody_when_the_content_it_waited_for_is_known(tmp_path: Path) -> None:
    async def steps(copies: Copies) -> None:
        first, impatient, later = numbered(3)
        assert not copies.may_be_one(first) and copies.may_be_one(impatient)
        answer = copies.claim(impatient, digest("x"))
        assert answer is not None
        await asyncio.sleep(0)
        copies.ended(impatient.item_id)
        copies.looked_at(first.item_id, digest("y"))
        assert await answer is None
        assert copies.claim(later, digest("x")) is None

    on_the_loop(tmp_path, steps)


@pytest.mark.parametrize(
    "row", [a_row("item0", "y"), a_row("item0", "x", duplicate_of="another"), a_row("item0", "x", status="error"), None]
)
def test_what_is_no_answer_to_the_content_itself_is_told_to_nobody(tmp_path: Path, row: VerdictRow | None) -> None:
    async def steps(copies: Copies) -> None:
        first, waiting, later = numbered(3)
        assert copies.claim(first, digest("x")) is None
        answer = copies.claim(waiting, digest("x"))
        assert answer is not None
        copies.ended(first.item_id, row)
        assert await answer is None
        assert copies.claim(later, digest("x")) is None

    on_the_loop(tmp_path, steps)


def test_without_an_index_of_contents_copies_are_screened(tmp_path: Path) -> None:
    place = Place(tmp_path, same_for(3))
    rows = drive(tmp_path, place.workers, 3)
    assert statuses(rows) == {"ok": 3} and place.fetched == []
    assert isinstance(Contents("f").parts("0" * 64), list)
