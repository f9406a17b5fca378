"""The command that trains: what it refuses before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.embedded.__main__ import NotACheckpoint, make
from pipeline.embedded.train import Course


def test_a_folder_that_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(NotACheckpoint, match=r"holds files and no training\.json"):
        make(tmp_path, tmp_path / "work", Course(steps=1), 1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
