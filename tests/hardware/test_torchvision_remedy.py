"""The torchvision remedy acts where torchvision's compiled operators cannot load, and nowhere else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "pipeline" / "hardware" / "site"

# A torchvision in small, with the same three steps: load operators, import the stand-ins, or fail.
FAKE_EXTENSION = """
import torch
torch.library.define("torchvision::nms", "(Tensor own) -> Tensor")
torch.library.define("torchvision::qnms", "(Tensor own) -> Tensor")
"""
FAKE_STAND_INS = """
import torch
torch.library.register_fake("torchvision::nms", lambda own: own)
"""


def run_python(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter whose PYTHONPATH is `path` alone."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def is_cuda_build(package: str) -> bool:
    """Read an installed package's build off its version file, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return "+cu" in Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")


def test_torchvision_imports_with_the_remedy() -> None:
    code = "import torchvision.transforms.v2 as v2; print(v2.Resize.__name__)"
    done = run_python(code, SITE)
    assert done.stdout == "Resize\n", done.stderr


def test_the_remedy_is_still_needed_where_the_builds_differ() -> None:
    if is_cuda_build("torchvision") == is_cuda_build("torch"):
        pytest.skip("this torchvision was built for this kind of torch")
    done = run_python("import torchvision")
    assert done.returncode != 0
    assert "operator torchvision::nms does not exist" in done.stderr


def test_calling_a_declared_operator_raises() -> None:
    code = """if True:
        import torch, torchvision
        if torchvision.extension._has_ops():
            print("raised")
        try:
            torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
        except NotImplementedError:
            print("raised")
    """
    done = run_python(code, SITE)
    assert done.stdout == "raised\n", done.stderr


def test_operators_that_load_are_left_as_they_are(tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("from torchvision import extension, _meta_registrations")
    (package / "extension.py").write_text(FAKE_EXTENSION)
    (package / "_meta_registrations.py").write_text(FAKE_STAND_INS)
    code = "import torchvision, torch; print(torch.ops.torchvision.nms.default._schema)"
    done = run_python(code, SITE, tmp_path)
    assert done.stdout == "torchvision::nms(Tensor own) -> Tensor\n", done.stderr


def test_starting_python_with_the_remedy_loads_no_torch() -> None:
    code = "import sys; print(sys.modules['sitecustomize'].__file__, {'torch', 'torchvision'} & set(sys.modules))"
    done = run_python(code, SITE)
    assert done.stdout == f"{SITE / 'sitecustomize.py'} set()\n", done.stderr


def test_a_hidden_sitecustomize_still_runs_once(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    done = run_python("print('main')", SITE, tmp_path)
    assert done.stdout == "the other one\nmain\n", done.stderr


def test_two_copies_of_the_remedy_on_the_path_hand_on_once(tmp_path: Path) -> None:
    copy, other = tmp_path / "copy", tmp_path / "other"
    copy.mkdir()
    other.mkdir()
    (copy / "sitecustomize.py").write_bytes((SITE / "sitecustomize.py").read_bytes())
    (other / "sitecustomize.py").write_text("print('the other one')")
    done = run_python("print('main')", SITE, copy, other)
    assert done.stdout == "the other one\nmain\n", done.stderr
