"""What today's ways need stays out of the way of what is pinned."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from bench import peers


def test_nothing_that_the_environment_has_is_installed_for_the_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "NEEDS", {"numpy": "1.0", "no-such-package": "2.0"})
    assert peers.lacking(tmp_path) == {"no-such-package": "2.0"}


def test_what_is_installed_for_the_peers_in_that_version_is_not_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "NEEDS", {"this-one": "2.0", "that-one": "3.0"})
    for name, number in (("this-one", "2.0"), ("that-one", "2.9")):
        folder = tmp_path / f"{name.replace('-', '_')}-{number}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    assert peers.lacking(tmp_path) == {"that-one": "3.0"}


def test_the_peers_packages_come_last_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "mine")
    paths = peers.environment()["PYTHONPATH"].split(os.pathsep)
    assert paths[-2:] == ["mine", str(peers.INSTALLED)]


def test_a_folder_without_the_scripts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    peers.add_option(parser)
    (tmp_path / "cookbook.py").touch()
    with pytest.raises(SystemExit):
        parser.parse_args(["--peers", str(tmp_path)])
    assert "holds no ray_data_llm.py" in capsys.readouterr().err


def test_a_comparison_left_out_is_a_measure_that_is_not_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.left_out().met is False
    assert "left out" in capsys.readouterr().err
