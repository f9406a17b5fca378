"""Programs that wait and are forked: as confined and as separate as programs that are started for each file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.errors import ItemError
from pipeline.media import fork_server, process
from pipeline.media.fork_server import ForkServer, ForkServers, Limits, library, servers
from pipeline.media.probe import probe
from pipeline.media.process import Collected, Log, cpu_s, opened, run
from pipeline.media.sandbox import CONFINED, Confinement, bubblewrap, environment

TIMEOUT_S = 20.0
ROOM = Limits(3 << 30, 10, 15, 64)
OPEN = replace(CONFINED, sandbox="off")
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: programs are started anew")
closed_in = pytest.mark.skipif(bubblewrap() is None, reason="bubblewrap does not work on this system")


@pytest.fixture(autouse=True)
def own_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServers]:
    mine = ForkServers()
    monkeypatch.setattr(fork_server, "_servers", mine)
    yield mine
    mine.close()


def sh(script: str, file: Path, confinement: Confinement = OPEN, seconds: float = TIMEOUT_S) -> tuple[int, str, Log]:
    """Return exit status, output and messages of a script that runs as ffmpeg does, in the place of a busybox."""
    out, log = Collected(limit=10_000), Log()
    with opened(os.fsencode(file)) as fd:
        argv = ["sh", "-c", script.replace("FILE", f"/dev/fd/{fd}")]
        status = run(lambda _: argv, fd, [out], log, time.monotonic() + seconds, confinement)
    return status, out.data.decode(), log


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a"
    path.write_text("what the file holds", encoding="utf-8")
    return path


def only(own: ForkServers) -> ForkServer:
    (server,) = own.all
    return server


@pytest.mark.parametrize("confinement", [pytest.param(CONFINED, marks=closed_in), OPEN], ids=["closed in", "open"])
def test_one_start_serves_every_file_after_it(
    own_servers: ForkServers, tmp_path: Path, confinement: Confinement
) -> None:
    for number in range(5):
        path = tmp_path / str(number)
        path.write_text(f"this is {number}", encoding="utf-8")
        assert sh("cat FILE; exit $(cat FILE | tail -c 1)", path, confinement)[:2] == (number, f"this is {number}")
    assert len(own_servers.all) == 1


def test_a_file_sees_the_descriptors_that_are_its_own_and_no_other(file: Path) -> None:
    with open(file, "rb") as held_open:
        os.set_inheritable(held_open.fileno(), True)
        _, out, _ = sh("ls -l /proc/self/fd | sed 's/.* \\([0-9]*\\) -> /\\1 /'; :", file)
    seen = dict(line.split(" ", 1) for line in out.splitlines() if " " in line and line[0].isdigit())
    assert seen.pop("0") == "/dev/null"
    assert seen.pop("1").startswith("pipe:") and seen.pop("2").startswith("pipe:")
    assert sorted(seen.values()) == sorted([str(file), *(name for name in seen.values() if name.startswith("/proc/"))])


def test_the_limits_of_a_file_hold_for_it_and_not_for_the_next(file: Path) -> None:
    little = replace(OPEN, memory_bytes=512 << 20)
    said = {
        limited.memory_bytes: sh("ulimit -v; ulimit -n; ulimit -f; ulimit -c", file, limited)[1].split()
        for limited in (little, OPEN, little)
    }
    assert said[512 << 20] == [str(512 << 10), "256", "0", "0"]
    assert said[3 << 30] == [str(3 << 20), "256", "0", "0"]


def test_cpu_time_is_bounded_for_each_file_anew(
    own_servers: ForkServers, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_CPU_SHARE", 0.1)
    for _ in range(2):
        with pytest.raises(ItemError) as caught:
            sh("while :; do :; done", file)
        assert caught.value.code == "decoder_limit" and "CPU time" in caught.value.message
    monkeypatch.undo()
    only(own_servers)  # has seen 4 s of CPU time pass
    assert sh("cat FILE", file)[0] == 0


def test_what_a_program_says_and_how_it_ends_reaches_us(file: Path) -> None:
    assert sh("exit 7", file)[0] == 7
    assert sh("kill -SEGV $$", file)[0] == 128 + signal.SIGSEGV
    assert sh("kill -TERM $$", file)[0] == 128 + signal.SIGTERM
    assert sh("echo '[error] broken' >&2", file)[2].errors == 1


@closed_in
def test_nothing_that_a_file_started_is_there_when_the_next_one_comes(own_servers: ForkServers, file: Path) -> None:
    sh("setsid sh -c 'trap \"\" TERM HUP; exec sleep 98.7531' <&- >&- 2>&- & sleep 0.2", file, CONFINED)
    assert len(own_servers.all) == 1
    assert not subprocess.run(["pgrep", "-f", "^sleep 98.7531"], capture_output=True, check=False).stdout
    assert sh("ls /proc | grep -c '^[0-9]'", file, CONFINED)[1].strip() <= "6"


@closed_in
def test_a_program_can_neither_look_into_its_server_nor_stop_it_for_the_next(
    own_servers: ForkServers, file: Path
) -> None:
    looks = "for name in mem environ fd/3 maps; do cat /proc/1/$name >/dev/null 2>&1 && echo $name; done; :"
    assert sh(looks, file, CONFINED)[1] == ""
    sh("kill -STOP 1; kill -KILL 1; kill -TERM 1", file, CONFINED)
    assert sh("cat FILE", file, CONFINED)[1] == "what the file holds"


def test_a_server_that_died_while_it_waited_is_replaced(own_servers: ForkServers, file: Path) -> None:
    sh(":", file)
    old = only(own_servers)
    os.killpg(old._process.pid, signal.SIGKILL)
    old._process.wait()
    assert sh("cat FILE", file)[1] == "what the file holds"
    assert only(own_servers) is not old


def test_a_server_killed_with_its_program_is_no_fault_of_the_file(own_servers: ForkServers, file: Path) -> None:
    sh(":", file)

    def kill_it() -> None:
        time.sleep(0.5)
        os.killpg(only(own_servers)._process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_it)
    killer.start()
    with pytest.raises(RuntimeError, match="killed before its time"):
        sh("exec sleep 20", file)
    killer.join()
    assert sh("cat FILE", file)[1] == "what the file holds"


def test_a_server_that_dies_whenever_it_is_asked_is_given_up(
    own_servers: ForkServers, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = ForkServer.begin

    def die_first(server: ForkServer, *rest: object) -> None:
        os.killpg(server._process.pid, signal.SIGKILL)
        server._process.wait()
        begin(server, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ForkServer, "begin", die_first)
    assert sh("cat FILE", file)[1] == "what the file holds"
    assert not own_servers.all


@pytest.mark.parametrize("breakage", ["no compiler", "does not compile", "not preloaded", "too long", "not wanted"])
def test_where_there_can_be_no_server_the_program_is_started(
    own_servers: ForkServers, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breakage: str
) -> None:
    script, confinement = "cat FILE", OPEN
    library.cache_clear()
    if breakage == "no compiler":
        monkeypatch.setattr(shutil, "which", lambda _: None)
    elif breakage == "does not compile":
        (tmp_path / "broken.c").write_text("int x = ;")
        monkeypatch.setattr(fork_server, "_SOURCE", tmp_path / "broken.c")
    elif breakage == "not preloaded":
        (tmp_path / "empty.c").write_text("")
        monkeypatch.setattr(fork_server, "_SOURCE", tmp_path / "empty.c")
    elif breakage == "too long":
        monkeypatch.setattr(ForkServer, "begin", _refuses)
    else:
        confinement = replace(OPEN, warm=False)
    try:
        assert sh(script, file, confinement)[1] == "what the file holds"
        assert not own_servers.all
    finally:
        library.cache_clear()


def _refuses(*_: object) -> None:
    raise OSError(90, "Message too long")


def test_files_at_the_same_time_have_a_server_each(own_servers: ForkServers, file: Path) -> None:
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(sh("sleep 0.4; cat FILE", file)[1])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["what the file holds"] * 6
    assert len(own_servers.all) <= 4, "no more wait than are ever useful"


def test_a_server_outlives_the_thread_that_first_needed_it(own_servers: ForkServers, file: Path) -> None:
    first = threading.Thread(target=lambda: sh(":", file))
    first.start()
    first.join()
    server = only(own_servers)
    time.sleep(0.3)
    sh(":", file)
    assert only(own_servers) is server


def test_cpu_time_counts_what_servers_spend_and_never_falls(own_servers: ForkServers, file: Path) -> None:
    before = cpu_s()
    sh("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done", file)
    spent = cpu_s() - before
    assert spent > 0.1
    seen = cpu_s()
    own_servers.close()
    assert cpu_s() >= seen
    assert cpu_s() - before < 2 * spent + 0.5, "counted once"


def test_a_fork_of_the_process_has_servers_of_its_own(file: Path) -> None:
    program = """
        import os, sys, time
        from pathlib import Path
        from pipeline.media.fork_server import servers
        from tests.media.test_fork_server import sh

        file = Path(sys.argv[1])
        sh(":", file)
        (mine,) = servers().all
        child = os.fork()
        if child == 0:
            assert not servers().all
            assert sh("cat FILE", file)[1] == "what the file holds"
            (own,) = servers().all
            assert own is not mine
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert sh("cat FILE", file)[1] == "what the file holds"
        assert servers().all == {mine}
        print("both")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("both\n", "")


def test_servers_end_with_their_process(file: Path) -> None:
    program = "import sys, os; from pathlib import Path; from tests.media.test_fork_server import sh\n"
    program += "sh(':', Path(sys.argv[1])); print('ready', flush=True); sys.stdin.read()"
    owner = psutil.Popen(
        [sys.executable, "-c", program, str(file)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with owner:
        assert owner.stdout.readline() == b"ready\n"
        below = owner.children(recursive=True)
        assert below
        owner.kill()
    assert not psutil.wait_procs(below, timeout=5.0)[1]


def test_a_request_that_is_no_request_ends_the_server_with_a_word(tmp_path: Path) -> None:
    made = library()
    assert made is not None
    server = ForkServer((), "sh", environment(), made)
    try:
        with pytest.raises(fork_server.ServerGone), open(os.devnull, "rb") as null:
            server.begin([], {1: null.fileno()}, ROOM)
    finally:
        server.kill()


def test_ffprobe_says_the_same_whether_it_waited_or_was_started(make_clip, own_servers: ForkServers) -> None:  # type: ignore[no-untyped-def]
    clip = make_clip("a.mp4", "-f", "lavfi", "-i", "testsrc2=s=160x96:r=10:d=1", "-c:v", "libx264")
    waited = probe(os.fsencode(clip), TIMEOUT_S, CONFINED)
    assert len(servers().all) == 1
    assert waited == probe(os.fsencode(clip), TIMEOUT_S, replace(CONFINED, warm=False))
