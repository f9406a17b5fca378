"""What is wrong is said in one message, before anything is started, with the exit code of the contract."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.lock import lock_output
from tests.end_to_end.conftest import ROOT, Workplace


@pytest.fixture
def ready(workplace: Workplace) -> Workplace:
    workplace.take("picture.jpg")
    return workplace


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"source": {"paths": ["nowhere"]}}, "source.paths: "),
        ({"source": {"paths": ["clips/*.mkv"]}}, "matches no file"),
        ({"source": {"manifest": "list.csv"}}, "source.manifest: "),
        ({"polcy": "x"}, 'did you mean "policy"?'),
        ({"policy": "nowhere.yaml"}, "policy "),
        ({"model": {"path": "nowhere"}}, "holds no checkpoint"),
        ({"model": {"path": "clips"}}, "holds no checkpoint"),
        ({"engine": {"max_model_len": 1024}}, "engine.max_model_len 1024 leaves"),
        ({"engine": {"max_model_len": 8192, "max_num_seq": 8}}, 'did you mean "max_num_seqs"?'),
    ],
)
def test_a_wrong_job_is_refused_with_exit_code_2_and_one_line(
    ready: Workplace, sections: dict[str, Any], message: str
) -> None:
    run = ready.run(ready.write_job(**sections))
    assert run.code == 2
    assert message in run.said
    assert run.said.count("\n") == 1
    assert not ready.output.exists()


def test_an_empty_folder_is_refused(workplace: Workplace) -> None:
    workplace.clips.mkdir()
    run = workplace.run(workplace.write_job())
    assert run.code == 2
    assert "holds no file" in run.said


def test_an_unreadable_policy_is_refused_by_name(ready: Workplace) -> None:
    (ready.folder / "broken.yaml").write_text("id: [", encoding="utf-8")
    run = ready.run(ready.write_job(policy="broken.yaml"))
    assert run.code == 2
    assert "broken.yaml is not valid YAML" in run.said


def test_a_checkpoint_of_another_architecture_is_refused(ready: Workplace) -> None:
    (ready.folder / "other").mkdir()
    config = ready.folder / "other" / "config.json"
    config.write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}), encoding="utf-8")
    run = ready.run(ready.write_job(model={"path": "other"}))
    assert run.code == 2
    assert "no Qwen3-Omni checkpoint" in run.said
    config.write_text(json.dumps({"architectures": ["Qwen3OmniMoeForConditionalGeneration"]}), encoding="utf-8")
    assert "holds no weights" in ready.run(ready.write_job(model={"path": "other"})).said


def test_an_output_held_by_another_run_is_refused_with_exit_code_3(ready: Workplace) -> None:
    with lock_output(ready.output, "other-run"):
        run = ready.run(ready.write_job())
    assert run.code == 3
    assert str(os.getpid()) in run.said


def test_an_output_that_cannot_be_made_is_refused(ready: Workplace) -> None:
    (ready.folder / "file").write_text("x", encoding="utf-8")
    run = ready.run(ready.write_job(output={"path": "file/out"}))
    assert run.code == 2
    assert "output.path" in run.said


def test_a_ray_that_cannot_start_is_said_with_exit_code_2(ready: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/proc/none")
    run = ready.run(ready.write_job())
    assert run.code == 2
    assert "Ray did not start" in run.said and "Traceback" not in run.said


@pytest.mark.parametrize("after_s", [0.8, 2.0, 5.0])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_stopped_while_it_starts_leaves_with_exit_code_4_and_a_sentence(
    ready: Workplace, number: signal.Signals, after_s: float
) -> None:
    process = ready.start(ready.write_job())
    time.sleep(after_s)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 4, said
    assert "everything so far is committed" in said.splitlines()[-1]


def test_a_reader_that_closes_the_pipe_of_a_dry_run_sees_no_traceback(ready: Workplace) -> None:
    command = f"{sys.executable} {ROOT / 'run_batch.py'} {ready.write_job()} --dry-run | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_a_dry_run_onto_a_full_disk_says_so(ready: Workplace) -> None:
    command = [sys.executable, str(ROOT / "run_batch.py"), str(ready.write_job()), "--dry-run"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == "run_batch: the standard output cannot be written: No space left on device\n"


def test_a_dry_run_prints_job_items_and_plans_and_writes_nothing(ready: Workplace) -> None:
    ready.take("telescope_mirror.mp4", "broken.mp4")
    run = ready.run(ready.write_job(), "--dry-run", "--set", "media.video.max_frames=64")
    assert run.code == 0
    resolved = yaml.safe_load(run.said.split("\n\n")[0])
    assert resolved["media"]["video"]["max_frames"] == 64
    assert resolved["sla"]["per_item_s"] == 60.0
    assert "3 items, 3 to be screened" in run.said
    assert "av (" in run.said and "audio tokens" in run.said
    assert "image (" in run.said
    assert "error not_media" in run.said
    assert not ready.output.exists()


def test_a_dry_run_shows_the_shard_the_retries_and_what_is_to_be_done(ready: Workplace) -> None:
    ready.take("telescope_mirror.mp4", "broken.mp4", "alarm.wav")
    found = []
    for number in (1, 2):
        run = ready.run(ready.write_job(), "--dry-run", "--retry", "all", "--shard", f"{number}/2")
        assert run.code == 0 and f"retry all, shard {number}/2\n" in run.said
        match = re.search(r"^(\d) items, \1 to be screened(?: \(\1 new\))?, 0 done before$", run.said, re.MULTILINE)
        assert match, run.said
        uris = re.findall(r"^  (/.*)$", run.said, re.MULTILINE)
        assert len(uris) == int(match[1])
        found += uris
    assert sorted(map(os.path.basename, found)) == ["alarm.wav", "broken.mp4", "picture.jpg", "telescope_mirror.mp4"]


@pytest.mark.parametrize("options", [("--shard", "5/4"), ("--retry", "everything")])
def test_a_wrong_shard_or_retry_is_refused_with_exit_code_2_and_one_line(
    ready: Workplace, options: tuple[str, str]
) -> None:
    run = ready.run(ready.write_job(), *options)
    assert run.code == 2
    assert options[0] in run.said and run.said.count("\n") == 1
    assert not ready.output.exists()


def test_a_dry_run_and_the_help_load_none_of_torch_vllm_and_ray(ready: Workplace) -> None:
    code = (
        "import sys, runpy\n"
        "sys.argv = ['run_batch.py', *sys.argv[1:]]\n"
        f"try: runpy.run_path({str(ROOT / 'run_batch.py')!r}, run_name='__main__')\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
        "print('LOADED', sorted({'torch', 'vllm', 'ray', 'transformers'} & set(sys.modules)))\n"
    )
    for arguments in ([str(ready.write_job()), "--dry-run"], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
        )
        assert done.stdout.splitlines()[-1] == "LOADED []"


def test_without_the_packages_the_message_says_how_to_get_them(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "run_batch.py", tmp_path / "run_batch.py")
    shutil.copytree(
        ROOT / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("checkpoint", "__pycache__")
    )
    base = Path(sys.base_prefix) / "bin" / "python3"
    done = subprocess.run(
        [str(base), "-E", "-s", "-S", str(tmp_path / "run_batch.py"), "job.yaml"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "make setup" in done.stderr


def test_help_takes_at_most_half_a_second() -> None:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run([sys.executable, str(ROOT / "run_batch.py"), "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - started)
    assert min(times) <= 0.5
