"""Today's ways to run Qwen3-Omni over recordings, which the project is measured against.

They are scripts in a folder that `--peers` names, outside the repository. What they need beside the project's pins
goes into a folder of its own: `python -m bench.peers` (`make peers`) fills it, and nothing that is pinned is in it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from bench.result import Figure
from bench.runs import ROOT
from pipeline.hardware.environment import SITE

INSTALLED = ROOT / "out" / "peers"
# decord is qwen-omni-utils' one video reader that loads here; the others are what `ray[data]` asks for.
NEEDS = {"decord": "0.6.0", "pandas": "3.1.1", "python-dateutil": "4.0.0", "tzdata": "2026.6"}
SCRIPTS = ("cookbook.py", "ray_data_llm.py")


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--peers FOLDER`."""
    parser.add_argument("--peers", type=_folder, metavar="FOLDER", help=f"folder with {' and '.join(SCRIPTS)}")


def left_out() -> Figure:
    """Return what stands in the place of the comparison when `--peers` is not given."""
    print("Without --peers FOLDER the project was measured alone: the comparison was left out.", file=sys.stderr)
    return Figure("comparison", "left out", "", "--peers FOLDER", False)


def _folder(text: str) -> Path:
    folder = Path(text).absolute()
    missing = [name for name in SCRIPTS if not (folder / name).is_file()]
    if missing:
        raise argparse.ArgumentTypeError(f"{folder} holds no {missing[0]}")
    return folder


def lacking(folder: Path = INSTALLED) -> dict[str, str]:
    """Return the packages, and their versions, that are neither in the environment nor yet in the folder."""
    there = {found.metadata["Name"].lower(): found.version for found in distributions(path=[str(folder)])}
    return {name: wanted for name, wanted in NEEDS.items() if there.get(name) != wanted and not _pinned(name)}


def _pinned(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def install() -> None:
    """Bring what the peers lack into their folder; nothing else, so that no pinned package is overshadowed.

    Raises CalledProcessError with pip's words above.
    """
    wanted = [f"{name}=={number}" for name, number in lacking().items()]
    if wanted:
        print(f"peers: installing {', '.join(wanted)} into {INSTALLED.relative_to(ROOT)}", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq"]
        subprocess.run([*pip, "install", "--no-deps", "--upgrade", "--target", str(INSTALLED), *wanted], check=True)


def environment() -> dict[str, str]:
    """Return the variables of a peer's process: those of this one, and its packages last on PYTHONPATH."""
    variables = dict(os.environ)
    paths = [str(SITE), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep)), str(INSTALLED)]
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    # librosa announces the end of what qwen-omni-utils calls, once a clip.
    return variables | {"FORCE_QWENVL_VIDEO_READER": "decord", "PYTHONWARNINGS": "ignore"}


def prompt(folder: Path) -> str:
    """Return the words that the cookbook's way asks with."""
    spec = spec_from_file_location("peer_cookbook", folder / "cookbook.py")
    assert spec is not None and spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.PROMPT)


if __name__ == "__main__":
    install()
