"""Weights that are not whole are refused before anything starts, by file, with what is wrong and what to do."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline import cli
from pipeline.errors import JobError
from pipeline.job import EMBEDDED_PATH
from pipeline.weights import INDEX_FILE, check_weights, find_faults
from tests.test_checkpoint import DEMO, write_checkpoint

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 6769448\n".format("0" * 64)


def write_shards(folder: Path, total: int = 3, first: int = 1, index: bool = True) -> list[Path]:
    """Write weights of one tensor of 256 bytes a shard, and return the shards."""
    paths = [folder / f"model-{first + i:05d}-of-{total:05d}.safetensors" for i in range(total)]
    for i, path in enumerate(paths):
        save_file({f"layer.{i}": np.full((8, 8), i, np.float32)}, path)
    if index:
        weight_map = {f"layer.{i}": path.name for i, path in enumerate(paths)}
        (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
    return paths


def write_file(folder: Path) -> Path:
    """Write weights in one file and return it."""
    path = folder / "model.safetensors"
    save_file({"a": np.zeros((8, 8), np.float32), "b": np.zeros(3, np.int8)}, path, metadata={"format": "pt"})
    return path


def refusal(folder: Path, embedded: bool = False) -> str:
    with pytest.raises(JobError) as caught:
        check_weights(folder, embedded)
    said = str(caught.value)
    assert said.startswith("model.path: ") and "\n" not in said
    return said


def cut(path: Path, size_bytes: int) -> None:
    os.truncate(path, size_bytes)


@pytest.mark.parametrize(
    "write",
    [
        write_file,
        write_shards,
        partial(write_shards, index=False),
        partial(write_shards, index=False, first=0),
    ],
    ids=["one file", "shards", "no index", "no index, from zero"],
)
def test_whole_weights_are_taken(tmp_path: Path, write: Callable[[Path], Any]) -> None:
    write(tmp_path)
    check_weights(tmp_path)


def test_the_embedded_models_weights_are_whole() -> None:
    check_weights(EMBEDDED_PATH, embedded=True)


def test_a_file_that_is_cut_short_is_refused_with_the_bytes_it_has_and_must_have(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    whole_bytes = path.stat().st_size
    cut(path, whole_bytes - 1)
    expected = f"is cut short: it has {whole_bytes - 1} bytes and must have {whole_bytes} by its header"
    assert refusal(tmp_path) == f"model.path: {path} {expected}; copy or download it again"


def test_a_file_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    content = path.read_bytes()
    for size_bytes in range(0, len(content), 9):
        path.write_bytes(content[:size_bytes])
        said = refusal(tmp_path)
        assert f"{size_bytes} bytes" in said and "copy or download it again" in said


def test_a_file_cut_within_its_header_is_refused_with_the_bytes_of_the_header(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    header_bytes = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    cut(path, 20)
    assert f"is cut short: it has 20 bytes and its header alone takes {header_bytes};" in refusal(tmp_path)


def test_a_file_with_bytes_after_its_tensors_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path)
    whole_bytes = path.stat().st_size
    cut(path, whole_bytes + 7)
    assert f"is too long: it has {whole_bytes + 7} bytes and must have {whole_bytes}" in refusal(tmp_path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert refusal(tmp_path).endswith("model.safetensors has 0 bytes; copy or download it again")


def test_a_git_lfs_pointer_is_refused_with_the_command_that_fetches_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text(POINTER, encoding="ascii")
    said = refusal(tmp_path)
    assert f"is a Git LFS pointer of {len(POINTER)} bytes, not the content of 6769448 bytes" in said
    assert said.endswith(f"; run `git lfs pull` in {tmp_path}")


@pytest.mark.parametrize(
    "content",
    [
        b"<!DOCTYPE html><title>503 Service Unavailable</title>",
        bytes(1000),
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b'{"a": {}}',
        (37).to_bytes(8, "little") + b'{"a": {"data_offsets": [0, Infinity]}}'[:37],
        (38).to_bytes(8, "little") + b'{"a": {"data_offsets": [0, Infinity]}}',
    ],
    ids=["web page", "zeros", "list", "no offsets", "no JSON", "endless"],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    said = refusal(tmp_path)
    assert "is no safetensors file" in said and f"{len(content)} bytes" in said


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (Path.unlink, f"is missing, and {INDEX_FILE} lists it; copy or download it again"),
        (lambda path: cut(path, 100), "is cut short: it has 100 bytes and must have "),
        (lambda path: cut(path, 0), "has 0 bytes; copy"),
        (lambda path: path.write_text(POINTER, encoding="ascii"), "is a Git LFS pointer"),
        (lambda path: (path.unlink(), path.symlink_to("gone")), "is a link to a file that is not there"),
        (lambda path: (path.unlink(), path.mkdir()), "is not a regular file"),
    ],
    ids=["missing", "cut", "empty", "pointer", "link", "folder"],
)
def test_the_one_shard_of_many_that_is_not_whole_is_named(
    tmp_path: Path, damage: Callable[[Path], Any], wrong: str
) -> None:
    shard = write_shards(tmp_path)[1]
    damage(shard)
    assert f"model.path: {shard} {wrong}" in refusal(tmp_path)


def test_of_several_damaged_shards_the_first_is_described_and_the_next_are_named(tmp_path: Path) -> None:
    for shard in write_shards(tmp_path, total=8)[2:]:
        shard.unlink()
    said = refusal(tmp_path)
    assert said.startswith(f"model.path: {tmp_path}/model-00003-of-00008.safetensors is missing")
    named = ", ".join(f"model-{number:05d}-of-00008.safetensors" for number in (4, 5, 6))
    assert f" (missing or damaged as well: {named} and 2 more); " in said


def test_a_missing_shard_is_noticed_without_the_index_as_after_an_interrupted_copy(tmp_path: Path) -> None:
    shard = write_shards(tmp_path, index=False)[2]
    shard.unlink()
    assert f"{shard} is missing, and the names of the other shards count it;" in refusal(tmp_path)


def test_a_file_that_the_index_does_not_name_is_not_looked_at_since_vllm_does_not_read_it(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "consolidated-00001-of-00009.safetensors").touch()
    check_weights(tmp_path)


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("", "has 0 bytes"),
        (POINTER, "is a Git LFS pointer"),
        ('{"weight_map": {"a": "mod', "is damaged: its 25 bytes are no JSON with a weight_map"),
        ("{}", "is damaged: its 2 bytes"),
        ('{"weight_map": {}}', "is damaged"),
        ('{"weight_map": ["a"]}', "is damaged"),
    ],
)
def test_an_index_that_is_not_whole_is_refused(tmp_path: Path, content: str, wrong: str) -> None:
    write_shards(tmp_path)
    (tmp_path / INDEX_FILE).write_text(content, encoding="utf-8")
    assert f"{tmp_path / INDEX_FILE} {wrong}" in refusal(tmp_path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    write_file(tmp_path)
    monkeypatch.setattr(Path, "open", denied)
    assert "cannot be read (Permission denied); let the user of the run read it" in refusal(tmp_path)


def test_for_the_embedded_model_the_message_says_how_to_make_it_anew(tmp_path: Path) -> None:
    cut(write_file(tmp_path), 100)
    assert refusal(tmp_path, embedded=True).endswith(
        "; restore it from the repository, or make it anew with `make train-embedded`"
    )


def test_weights_of_60_gb_take_a_fraction_of_a_second(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, total=15)
    for shard in shards:  # 4 GB each in 1800 tensors, as in Qwen3-Omni-30B-A3B; a hole in the file, not written
        tensor_bytes = 2_222_224
        tensors = {
            f"thinker.model.layers.{i}.mlp.experts.{i}.down_proj.weight": {
                "dtype": "U8",
                "shape": [tensor_bytes],
                "data_offsets": [i * tensor_bytes, (i + 1) * tensor_bytes],
            }
            for i in range(1800)
        }
        header = json.dumps(tensors).encode()
        shard.write_bytes(len(header).to_bytes(8, "little") + header)
        cut(shard, 8 + len(header) + 1800 * tensor_bytes)
    assert sum(shard.stat().st_size for shard in shards) > 60e9

    started_s = time.process_time()
    assert find_faults(tmp_path) == []
    assert time.process_time() - started_s < 0.5

    cut(shards[-1], shards[-1].stat().st_size - 1)
    assert [fault.path for fault in find_faults(tmp_path)] == [shards[-1]]


def test_the_command_refuses_damaged_weights_with_exit_code_2_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path / "m")
    cut(folder / "model.safetensors", 70)
    sets = [argument for key in (f"model.path={folder}", f"output.path={tmp_path}/out") for argument in ("--set", key)]
    for mode in ([], ["--dry-run"]):
        assert cli.main([str(DEMO), *sets, *mode]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"run_batch: model.path: {folder}/model.safetensors is cut short: it has 70 bytes")
        assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
