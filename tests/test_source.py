"""The source: everything there is to screen, each once, in a fixed order, with nothing left out unsaid."""

from __future__ import annotations

import inspect
import json
import os
import socket
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import JobError
from pipeline.job import Source
from pipeline.records import Item
from pipeline.source import check_source, id_key, list_ids, list_items
from pipeline.uri import path_of, uri_of


def fill(folder: Path, *names: str) -> Path:
    """Make files of one byte."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def names(folder: Path, *paths: str, **settings: Any) -> list[str]:
    """Return what paths below a folder list, relative to it."""
    source = Source(paths=tuple(str(folder / path) for path in paths), **settings)
    return [os.path.relpath(os.fsdecode(item.path), folder) for item in list_items(source)]


def from_manifest(folder: Path, name: str, content: str, *paths: str) -> list[tuple[str, str]]:
    """Return id and uri of what a manifest lists."""
    (folder / name).write_text(content, encoding="utf-8")
    return [(item.item_id, item.uri) for item in list_items(Source(manifest=folder / name, paths=paths))]


# Paths


def test_a_folder_is_searched_to_the_bottom_in_sorted_order(tmp_path: Path) -> None:
    fill(tmp_path, "b.mp4", "a/z.wav", "a/b/c.mp3", "c/d.png", "B.mp4")
    assert names(tmp_path, "") == ["B.mp4", "a/b/c.mp3", "a/z.wav", "b.mp4", "c/d.png"]


def test_dot_names_are_never_taken_from_folders_and_globs_but_when_written_out(tmp_path: Path) -> None:
    fill(tmp_path, ".a.mp4", ".cache/b.mp4", "c.mp4")
    assert names(tmp_path, "") == ["c.mp4"]
    assert names(tmp_path, "*", "**/*.mp4", ".*") == ["c.mp4"]
    assert names(tmp_path, ".a.mp4", ".cache/*.mp4") == [".a.mp4", ".cache/b.mp4"]


def test_include_and_exclude_apply_to_names_found_in_folders_only(tmp_path: Path) -> None:
    fill(tmp_path, "a.mp4", "b.txt", "c.part.mp4", "sub/\u00e9.mp4")
    filters = {"include": ("*.mp4",), "exclude": ("*.part.*",)}
    assert names(tmp_path, "", **filters) == ["a.mp4", "sub/\u00e9.mp4"]
    assert names(tmp_path, "b.txt", "c*", **filters) == ["b.txt", "c.part.mp4"]
    assert names(tmp_path, "sub", include=("?.mp4",)) == ["sub/\u00e9.mp4"]


def test_symlinked_folders_are_not_followed_and_links_to_files_are_listed(tmp_path: Path) -> None:
    fill(tmp_path, "real/a.mp4", "outside/b.mp4")
    (tmp_path / "real" / "loop").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "dir").symlink_to(tmp_path / "outside")
    (tmp_path / "real" / "link.mp4").symlink_to(tmp_path / "outside" / "b.mp4")
    (tmp_path / "real" / "self").symlink_to("self")
    assert names(tmp_path, "real") == ["real/a.mp4", "real/link.mp4", "real/self"]
    assert names(tmp_path, "real/**/*.mp4") == ["real/a.mp4", "real/link.mp4"]
    assert names(tmp_path, "real/dir") == ["real/dir/b.mp4"]


def test_pipes_and_sockets_in_folders_are_no_recordings(tmp_path: Path) -> None:
    fill(tmp_path, "a.mp4")
    os.mkfifo(tmp_path / "pipe.mp4")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert names(tmp_path, "") == ["a.mp4"]


def test_globs_match_files_folders_and_any_depth(tmp_path: Path) -> None:
    fill(tmp_path, "a.mp4", "b.wav", "x1/c.mp4", "x1/y/d.mp4", "x2/e.wav")
    assert names(tmp_path, "*.mp4") == ["a.mp4"]
    assert names(tmp_path, "**/*.mp4") == ["a.mp4", "x1/c.mp4", "x1/y/d.mp4"]
    assert names(tmp_path, "x1/**") == ["x1/c.mp4", "x1/y/d.mp4"]
    assert names(tmp_path, "**/y/*") == ["x1/y/d.mp4"]
    assert names(tmp_path, "x?") == ["x1/c.mp4", "x1/y/d.mp4", "x2/e.wav"]
    assert names(tmp_path, "[ab].*") == ["a.mp4", "b.wav"]
    assert names(tmp_path, "x[!1]/../a*") == ["a.mp4"]


def test_names_with_glob_characters_are_found_as_written(tmp_path: Path) -> None:
    fill(tmp_path, "[1]/a.mp4", "1/b.mp4", "what?.mp4", "whats.mp4")
    assert names(tmp_path, "[1]/*.mp4") == ["[1]/a.mp4"]
    assert names(tmp_path, "[1]/a.mp4") == ["[1]/a.mp4"]
    assert names(tmp_path, "what?.mp4") == ["what?.mp4", "whats.mp4"]


def test_overlapping_paths_list_a_recording_once(tmp_path: Path) -> None:
    fill(tmp_path, "a.mp4", "b/c.mp4")
    assert names(tmp_path, "b/c.mp4", "", "**/*", "b/./../b/c.mp4") == ["b/c.mp4", "a.mp4"]


def test_a_folder_that_cannot_be_read_becomes_an_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "a.mp4", "locked/b.mp4")
    real = os.scandir

    def scandir(path: bytes) -> Any:
        if os.path.basename(path) == b"locked":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for path in ("", "**/*.mp4", "**/b.mp4", "locked/*", "*/*.mp4", "locked"):
        assert "locked" in names(tmp_path, path)
    with pytest.raises(JobError, match="locked cannot be read: Permission denied"):
        check_source(Source(paths=(str(tmp_path / "locked"),)))


def test_a_deep_tree_is_listed(tmp_path: Path) -> None:
    fill(tmp_path, "/".join(["d"] * 200) + "/a.mp4")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 100)
    try:
        assert len(names(tmp_path, "")) == 1
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no.mp4", r"source\.paths: .*/no\.mp4 does not exist$"),
        ("s3://bucket/x", "does not exist; only local files are supported yet"),
        ("*.mov", r"\*\.mov matches no file"),
        ("empty", "empty holds no file that source.include and source.exclude let through"),
    ],
)
def test_a_path_that_names_nothing_is_a_job_error(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(JobError, match=message):
        check_source(Source(paths=(str(tmp_path) + "/" + path,)))


def test_a_named_file_that_vanishes_after_the_check_is_still_an_item(tmp_path: Path) -> None:
    fill(tmp_path, "a.mp4")
    source = Source(paths=(str(tmp_path / "a.mp4"),))
    check_source(source)
    (tmp_path / "a.mp4").unlink()
    (item,) = list_items(source)
    assert (item.size_bytes, item.modified_ns) == (None, None)


# Identity


def test_the_source_key_changes_with_size_and_time_and_the_id_does_not(tmp_path: Path) -> None:
    fill(tmp_path, "a.mp4")
    source = Source(paths=(str(tmp_path),))
    seen: list[Item] = []
    for content, time_ns in ((b"x", 10**18), (b"xx", 10**18), (b"xx", 10**18 + 1)):
        (tmp_path / "a.mp4").write_bytes(content)
        os.utime(tmp_path / "a.mp4", ns=(time_ns, time_ns))
        seen.extend(list_items(source))
    assert len({item.source_key for item in seen}) == 3
    assert len({item.item_id for item in seen}) == 1
    assert [item.size_bytes for item in seen] == [1, 2, 2]
    assert seen == [*seen[:2], *list_items(source)]


@given(st.binary(min_size=1).filter(lambda name: b"\0" not in name))
def test_every_name_has_a_clean_uri_that_leads_back_to_it(name: bytes) -> None:
    path = b"/" + name
    uri = uri_of(path)
    assert path_of(uri) == path
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in uri)
    assert uri.encode("utf-8").decode("utf-8") == uri


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))))
def test_a_clean_name_is_its_own_uri(name: str) -> None:
    assert uri_of(b"/" + name.encode()) == "/" + name


@given(st.text(alphabet="0aA ", max_size=33), st.text(alphabet="0aA ", max_size=33))
def test_ids_share_a_key_only_if_they_are_the_same(one: str, other: str) -> None:
    assert (id_key(one) == id_key(other)) == (one == other)
    assert id_key("0a" * 16) == bytes.fromhex("0a" * 16) != id_key("0A" * 16)


def test_names_that_are_no_utf8_are_listed(tmp_path: Path) -> None:
    for name in (b"caf\xe9.mp4", b"new\nline.mp4", b"50%.mp4"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name))).write_bytes(b"x")
    items = list(list_items(Source(paths=(str(tmp_path),))))
    prefix = str(tmp_path)
    assert [item.uri for item in items] == [
        f"{prefix}/50%.mp4", f"file://{prefix}/caf%E9.mp4", f"file://{prefix}/new%0Aline.mp4"
    ]  # fmt: skip
    assert all(item.size_bytes == 1 for item in items)


# Manifests


def test_a_manifest_takes_absolute_relative_and_file_uris(tmp_path: Path) -> None:
    fill(tmp_path, "a b.mp4", "sub/c.mp4")
    rows = [
        "a b.mp4,1",
        "./sub/../sub/c.mp4,",
        f"file://{tmp_path}/a%20b.mp4,1",
        "FILE://localhost/d.mp4,4",
        '"/e,f.mp4",5',
    ]
    content = "\ufeffuri,id,note\r\n" + "".join(f"{row},x\r\n" for row in rows)
    listed = from_manifest(tmp_path, "list.csv", content)
    assert [uri for _, uri in listed] == [
        f"{tmp_path}/a b.mp4",
        f"{tmp_path}/sub/c.mp4",
        "/d.mp4",
        "/e,f.mp4",
    ]
    assert [given_id for given_id, _ in listed if len(given_id) < 32] == ["1", "4", "5"]


def test_the_three_kinds_of_manifest_list_the_same(tmp_path: Path) -> None:
    rows = [{"uri": f"{number}.mp4", "id": number} for number in range(5)]
    expected = [(str(number), f"{tmp_path}/{number}.mp4") for number in range(5)]
    lines = "".join(f"{row['uri']},{row['id']}\n" for row in rows)
    assert from_manifest(tmp_path, "list.csv", "uri,id\n" + lines) == expected
    assert from_manifest(tmp_path, "list.jsonl", "\n".join(map(json.dumps, rows))) == expected
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "list.parquet")
    assert [(i.item_id, i.uri) for i in list_items(Source(manifest=tmp_path / "list.parquet"))] == expected


def test_a_row_whose_id_is_null_or_nan_gets_a_derived_one(tmp_path: Path) -> None:
    for number, ids in enumerate(([None, 1.5], [float("nan"), 1.5])):
        pq.write_table(pa.table({"uri": ["a", "b"], "id": pa.array(ids, pa.float64())}), tmp_path / f"{number}.parquet")
        listed = list(list_items(Source(manifest=tmp_path / f"{number}.parquet")))
        assert [len(item.item_id) for item in listed] == [32, 3]


def test_names_that_are_no_utf8_can_stand_in_manifests(tmp_path: Path) -> None:
    expected = f"file://{tmp_path}/caf%E9"
    pq.write_table(pa.table({"uri": [b"caf\xe9"]}), tmp_path / "list.parquet")
    assert [item.uri for item in list_items(Source(manifest=tmp_path / "list.parquet"))] == [expected]
    assert from_manifest(tmp_path, "list.jsonl", json.dumps({"uri": "caf\udce9"}))[0][1] == expected


def test_a_recording_in_the_manifest_and_a_path_keeps_the_manifests_id(tmp_path: Path) -> None:
    fill(tmp_path, "clips/a.mp4", "clips/b.mp4")
    listed = from_manifest(tmp_path, "list.jsonl", '{"uri": "clips/b.mp4", "id": "b"}', str(tmp_path / "clips"))
    assert [uri.removeprefix(f"{tmp_path}/clips/") for _, uri in listed] == ["b.mp4", "a.mp4"]
    assert listed[0][0] == "b"


def test_a_manifest_row_whose_file_is_missing_is_an_item_and_no_job_error(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("uri\ngone.mp4\n")
    source = Source(manifest=tmp_path / "list.csv")
    check_source(source)
    (item,) = list_items(source)
    assert item.size_bytes is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.csv", "path\na\n", r'l\.csv has no column "uri"; it has: path'),
        ("l.csv", "", 'no column "uri"; it has: none'),
        ("l.csv", "uri\n", "lists no recording"),
        ("l.csv", "uri,id\na,1\n,2\n", r"l\.csv, line 3: the row has no uri"),
        ("l.csv", "id,uri\n1\n", "line 2: the row has no uri"),
        ("l.csv", 'uri\n"a\nb\nc\n', "bad CSV"),
        (
            "l.csv",
            "uri\na\ns3://bucket/b\n",
            'line 3: only local files are supported yet, not the scheme "s3://"',
        ),
        ("l.csv", "uri\nfile://server/b\n", "line 2: .* lies on another host"),
        ("l.csv", "uri\nfile:///a%00b\n", "line 2: .* cannot be a file name"),
        ("l.csv", "uri,id\na,1\nb,1\n", 'line 3: the id "1" belongs to two recordings'),
        ("l.csv", "uri,id\na,1\na,2\n", "line 3: .*/a is listed twice with different ids"),
        ("l.jsonl", '{"uri": "a"}\n{"uri": \n', r"l\.jsonl, line 2: bad JSON"),
        ("l.jsonl", "[" * 100_000, "line 1: bad JSON"),
        ("l.jsonl", '\n["a"]\n', "line 2: must be a JSON object"),
        ("l.jsonl", '{"id": "a"}\n', "line 1: the row has no uri"),
        ("l.jsonl", '{"uri": 7}\n', "line 1: uri must be text, not int"),
        ("l.jsonl", '{"uri": "a", "id": [1]}\n', "line 1: id must be text or a number, not list"),
        ("l.jsonl", '{"uri": "a", "id": "\\ud800"}\n', "line 1: the id .* is not valid text"),
        ("l.jsonl", '{"uri": "\\ud800"}\n', "line 1: .* cannot be a file name"),
        ("l.parquet", "nothing", r"l\.parquet is not a readable Parquet file"),
        ("l.txt", "a", r"must be a \.csv, \.jsonl or \.parquet file"),
    ],
)
def test_a_manifest_that_cannot_be_understood_is_a_job_error_before_anything_starts(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(JobError, match=message):
        check_source(Source(manifest=tmp_path / name))


def test_a_missing_or_foreign_manifest_is_a_job_error(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"list\.csv does not exist"):
        check_source(Source(manifest=tmp_path / "list.csv"))
    (tmp_path / "list.csv").write_bytes("uri\nä\n".encode("utf-16"))
    with pytest.raises(JobError, match="is not UTF-8"):
        check_source(Source(manifest=tmp_path / "list.csv"))
    pq.write_table(pa.table({"uri": ["a", None]}), tmp_path / "list.parquet")
    with pytest.raises(JobError, match="row 2: the row has no uri"):
        check_source(Source(manifest=tmp_path / "list.parquet"))
    (tmp_path / "dir.csv").mkdir()
    with pytest.raises(JobError, match="cannot be read: Is a directory"):
        check_source(Source(manifest=tmp_path / "dir.csv"))


def test_a_given_id_that_is_another_recordings_derived_id_is_a_job_error(tmp_path: Path) -> None:
    fill(tmp_path, "a.mp4")
    (item,) = list_items(Source(paths=(str(tmp_path / "a.mp4"),)))
    with pytest.raises(JobError, match="belongs to two recordings"):
        from_manifest(tmp_path, "l.csv", f"uri,id\nmoved.mp4,{item.item_id}\n", str(tmp_path / "a.mp4"))


def test_listing_is_lazy(tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_text('{"uri": "a"}\nbroken\n')
    items = list_items(Source(manifest=tmp_path / "l.jsonl"))
    assert next(items).uri == f"{tmp_path}/a"
    with pytest.raises(JobError, match="line 2"):
        next(items)


def test_ids_alone_are_those_of_the_items(tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).write_bytes(b"sound")
    (tmp_path / "m.csv").write_text(f"uri,id\n{tmp_path}/b.wav,second\n{tmp_path}/gone.wav,\n", encoding="utf-8")
    source = Source(paths=(str(tmp_path / "*.wav"),), manifest=tmp_path / "m.csv")
    items = [item.item_id for item in list_items(source)]
    assert list(list_ids(source)) == items and items[0] == "second" and len(items) == 3
