"""The decoder sees one file and nothing else: no network, no other file, no rights, no more than its share."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.errors import ItemError, JobError
from pipeline.job import FrontEnd as Limits
from pipeline.job import Media
from pipeline.media import sandbox
from pipeline.media.decode import decode
from pipeline.media.looking import Looker
from pipeline.media.plan import plan
from pipeline.media.probe import probe
from pipeline.media.process import Collected, Log, TimedOut, opened, run
from pipeline.media.sandbox import CONFINED, Confinement, bubblewrap, check_sandbox
from pipeline.records import Item
from pipeline.work import Work
from tests.media.conftest import MakeClip

TONE = ("-f", "lavfi", "-i", "sine=f=440:d=1")
PICTURES = ("-f", "lavfi", "-i", "testsrc2=s=160x96:r=10:d=1")
OPEN = replace(CONFINED, sandbox="off")
TIMEOUT_S = 20.0

closed_in = pytest.mark.skipif(bubblewrap() is None, reason="bubblewrap does not work on this system")


def said_by(argv: list[str], file: Path, confinement: Confinement = CONFINED) -> tuple[int, str]:
    """Return exit status and output of a program that runs as ffmpeg does."""
    out = Collected(limit=10_000)
    with opened(os.fsencode(file)) as fd:
        status = run(lambda _: argv, fd, [out], Log(), time.monotonic() + TIMEOUT_S, confinement)
    return status, out.data.decode()


@closed_in
def test_a_program_inside_has_no_network_no_files_no_rights_and_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    (tmp_path / "a").write_text("x")
    home = str(Path.home())
    for command, wanted in {
        f"ls {tmp_path}": "",
        f"ls {home}": "",
        "cat /etc/passwd": "",
        "env | grep SECRET": "",
        "touch /usr/x /x /tmp/x": "",
        "grep CapEff /proc/self/status": "CapEff:\t0000000000000000\n",
        "grep NoNewPrivs /proc/self/status": "NoNewPrivs:\t1\n",
        "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '": "lo\n",
        "ls /proc | grep -c '^[0-9]'": None,
    }.items():
        _, out = said_by(["sh", "-c", command], tmp_path / "a")
        assert (out == wanted) if wanted is not None else int(out) <= 6, command


@closed_in
def test_ffmpeg_inside_reaches_neither_a_file_nor_a_socket_it_is_told_of(make_clip: MakeClip, tmp_path: Path) -> None:
    clip = make_clip("a.wav", *TONE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        for source in (f"file:{clip}", f"tcp://127.0.0.1:{server.getsockname()[1]}"):
            told = ["ffmpeg", "-nostdin", "-loglevel", "error", "-i", source, "-f", "null", "-"]
            assert said_by(told, clip)[0] != 0, source
        with pytest.raises(TimeoutError):
            server.accept()
    assert (
        said_by(["ffmpeg", "-nostdin", "-loglevel", "error", "-i", f"file:{clip}", "-f", "null", "-"], clip, OPEN)[0]
        == 0
    )


class Trap:
    """A pipe and a socket beside the recordings: whoever opens the one or calls the other is caught."""

    def __init__(self, folder: Path) -> None:
        self.pipe = folder / "marker.wav"
        os.mkfifo(self.pipe)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(0.05)
        self.port = self._server.getsockname()[1]
        self.caught: list[str] = []
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._run)
        self._watch.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:  # only works while somebody waits to read
                os.close(os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK))
                self.caught.append("file")
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
            with suppress(TimeoutError):
                self._server.accept()[0].close()
                self.caught.append("socket")

    def close(self) -> None:
        time.sleep(0.2)
        self._over.set()
        self._watch.join()
        self._server.close()


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    trap = Trap(tmp_path)
    yield trap
    trap.close()


def test_the_trap_catches_whoever_walks_into_it(trap: Trap) -> None:
    subprocess.run(["timeout", "1", "cat", trap.pipe], check=False)
    socket.create_connection(("127.0.0.1", trap.port)).close()
    time.sleep(0.3)
    assert {"file", "socket"} <= set(trap.caught)


TRICKS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{uri}\n#EXT-X-ENDLIST\n",
    "hls master": "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{uri}\n",
    "hls key": '#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXT-X-KEY:METHOD=AES-128,URI="{uri}"\n#EXTINF:5,\n{uri}\n',
    "ffconcat": "ffconcat version 1.0\nfile {uri}\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
    '<Representation id="1"><BaseURL>{uri}</BaseURL></Representation></AdaptationSet></Period></MPD>',
    "svg": '<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64"><image href="{uri}" width="64"/></svg>',
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio {port} TCP/RTP/AVP 0\n",
    "rtsp redirector": "RTSPtextrtsp://127.0.0.1:{port}/x",
    "asx": '<asx version="3"><entry><ref href="{uri}"/></entry></asx>',
    "pls": "[playlist]\nFile1={uri}\n",
    "subtitles": "1\n00:00:00,000 --> 00:00:01,000\n<img src='{uri}'>\n",
    "webvtt": "WEBVTT\n\nSTYLE\n::cue {{ background: url({uri}) }}\n\n00:00.000 --> 00:01.000\nx\n",
    "ass": "[Script Info]\nScriptType: v4.00+\nAudio URI: {uri}\nVideo File: {uri}\n[Events]\n",
    "vobsub": "# VobSub index file, v7\nsize: 720x576\nid: en, index: 0\ntimestamp: 00:00:00:000, filepos: 000000000\n",
    "cue": 'FILE "{uri}" WAVE\n  TRACK 01 AUDIO\n    INDEX 01 00:00:00\n',
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_script_that_names_other_files_opens_none(trap: Trap, tmp_path: Path, trick: str) -> None:
    """Even where nothing closes ffmpeg in."""
    uris = (
        "marker.wav",
        str(trap.pipe),
        f"file://{trap.pipe}",
        f"http://127.0.0.1:{trap.port}/a.ts",
        f"concat:{trap.pipe}",
    )
    for number, uri in enumerate(uris):
        for ending in ("mp4", "m3u8") if trick.startswith("hls") else ("mp4",):
            path = tmp_path / f"{number}.{ending}"
            path.write_text(TRICKS[trick].format(uri=uri, port=trap.port))
            with pytest.raises(ItemError):
                probe(os.fsencode(path), 5.0, OPEN)
    trap.close()
    assert trap.caught == []


def with_external_data(mov: bytes, target: Path) -> bytes:
    """Return a QuickTime file whose data reference is an alias to another file (as ffmpeg's mov demuxer reads it)."""
    path = os.fsencode(target)
    path += b"\0" * (len(path) % 2)
    tail = (2).to_bytes(2, "big") + len(path).to_bytes(2, "big") + path + b"\xff\xff\0\0"
    alias = b"alis" + bytes(4 + 10 + 1 + 27 + 12 + 1 + 63 + 16 + 4 + 16) + tail
    entry = (4 + len(alias)).to_bytes(4, "big") + alias
    at = mov.index(b"dref") + 12  # version and flags, number of entries
    old = int.from_bytes(mov[at : at + 4], "big")
    data = bytearray(mov[:at] + entry + mov[at + old :])
    for box in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        start = data.rindex(box, 0, at) - 4
        size = int.from_bytes(data[start : start + 4], "big") + len(entry) - old
        data[start : start + 4] = size.to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("confinement", [CONFINED, OPEN], ids=["closed in", "not closed in"])
def test_a_recording_whose_data_lie_in_another_file_opens_none(
    trap: Trap, make_clip: MakeClip, tmp_path: Path, confinement: Confinement
) -> None:
    clip = make_clip("ref.mov", *PICTURES, "-c:v", "libx264", "-pix_fmt", "yuv420p")
    path = tmp_path / "elsewhere.mov"
    path.write_bytes(with_external_data(clip.read_bytes(), trap.pipe))
    warned = subprocess.run(["ffprobe", "-v", "warning", path], capture_output=True, text=True, check=False).stderr
    assert "external track" in warned and str(trap.pipe) in warned  # ffmpeg understands what it is asked to do
    looker = Looker(Media(), Limits(sandbox=confinement.sandbox), 8_000)
    with pytest.raises(ItemError):
        looker.look(Item("i", "u", os.fsencode(path), 1, 1, "k"), Work(20.0), None)
    trap.close()
    assert trap.caught == []


@pytest.mark.parametrize(
    "name", ["concat:a|b", "data:,x", "subfile,,start,0,end,0,,:x", "http:__127.0.0.1", "pipe:0", "-"]
)
def test_a_name_that_looks_like_an_address_is_a_name(make_clip: MakeClip, tmp_path: Path, name: str) -> None:
    shutil.copy(make_clip("a.wav", *TONE), tmp_path / name)
    assert probe(os.fsencode(tmp_path / name), 5.0).kind == "audio"


@closed_in
@pytest.mark.parametrize("warm", [True, False])
def test_a_timeout_leaves_no_process_behind(make_clip: MakeClip, warm: bool) -> None:
    clip, mark = make_clip("a.wav", *TONE), "97.531"
    confinement = replace(CONFINED, warm=warm)
    argv = ["sh", "-c", f"sleep {mark} & sleep {mark}"]
    with pytest.raises(TimedOut), opened(os.fsencode(clip)) as fd:
        run(lambda _: argv, fd, [Collected(10)], Log(), time.monotonic() + 0.5, confinement)
    time.sleep(0.3)
    assert not running(f"^sleep {mark}")


@pytest.mark.parametrize("mode", ["auto", "off"])
@pytest.mark.parametrize("warm", [True, False])
def test_a_killed_worker_leaves_no_decoder_behind(make_clip: MakeClip, mode: str, warm: bool) -> None:
    clip, mark = make_clip("a.wav", *TONE), f"98.64{len(mode)}{int(warm)}"
    program = (
        "import time, pipeline.media.process as p\n"
        "from pipeline.media.sandbox import Confinement\n"
        f"with p.opened({os.fsencode(clip)!r}) as fd:\n"
        f"    p.run(lambda _: ['sh', '-c', 'exec sleep {mark}'], fd, [p.Collected(10)], p.Log(),\n"
        f"          time.monotonic() + 60, Confinement(sandbox={mode!r}, warm={warm}))\n"
    )
    worker = psutil.Popen([sys.executable, "-c", program])
    until = time.monotonic() + 20
    while not running(f"^sleep {mark}") and time.monotonic() < until:
        time.sleep(0.05)
    below = worker.children(recursive=True)
    assert below
    worker.kill()
    worker.wait()
    _, left = psutil.wait_procs(below, timeout=5.0)
    assert not left
    assert not running(f"^sleep {mark}")


def running(mark: str) -> bool:
    found = subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True, check=False)
    return bool(found.stdout.strip())


def test_too_much_memory_is_an_error_of_its_own(make_clip: MakeClip) -> None:
    clip = make_clip("vast.png", "-f", "lavfi", "-i", "testsrc2=s=9000x9000", "-frames:v", "1")
    facts = probe(os.fsencode(clip), TIMEOUT_S)
    little = replace(CONFINED, memory_bytes=450 << 20)
    with pytest.raises(ItemError) as caught:
        decode(os.fsencode(clip), facts, plan(facts, Media(), 8_000), TIMEOUT_S, little)
    assert caught.value.code == "decoder_limit" and "GiB of memory" in caught.value.message
    assert len(decode(os.fsencode(clip), facts, plan(facts, Media(), 8_000), TIMEOUT_S).frames) == 1


def test_too_much_cpu_time_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("x")
    monkeypatch.setattr("pipeline.media.process._CPU_SHARE", 0.05)
    with pytest.raises(ItemError) as caught:
        said_by(["sh", "-c", "sh -c 'while :; do :; done'; exit $?"], tmp_path / "a")
    assert caught.value.code == "decoder_limit" and "CPU time" in caught.value.message


def test_ffmpeg_that_takes_the_signal_itself_is_known_by_its_words(make_clip: MakeClip, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    words = "echo 'Exiting normally, received signal 24.' >&2; exit 255"
    with pytest.raises(ItemError) as caught:
        said_by(["sh", "-c", words], tmp_path / "a")
    assert caught.value.code == "decoder_limit"


@pytest.mark.parametrize("confinement", [CONFINED, OPEN], ids=["closed in", "not closed in"])
def test_a_decoder_that_cannot_start_is_no_fault_of_the_file(tmp_path: Path, confinement: Confinement) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(RuntimeError, match="could not be started"):
        said_by(["no-such-program"], tmp_path / "a", confinement)


def test_a_decoder_that_somebody_killed_is_no_fault_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(RuntimeError, match="was killed"):
        said_by(["sh", "-c", "sh -c 'kill -9 $$'; exit $?"], tmp_path / "a")


@closed_in
def test_a_worker_without_bubblewrap_refuses_where_the_job_requires_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("x")
    without_bubblewrap(monkeypatch)
    with pytest.raises(RuntimeError, match="required"):
        said_by(["true"], tmp_path / "a", replace(CONFINED, sandbox="required"))


@closed_in
def test_a_program_in_a_home_folder_shows_nothing_else_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("x")
    shutil.copy(shutil.which("ffmpeg") or "", tmp_path / "ffmpeg")
    assert said_by([str(tmp_path / "ffmpeg"), "-version"], tmp_path / "secret")[0] == 0
    told = [
        str(tmp_path / "ffmpeg"),
        "-loglevel",
        "error",
        "-f",
        "data",
        "-i",
        str(tmp_path / "secret"),
        "-f",
        "data",
        "-",
    ]
    assert said_by([*told[:7], "-map", "0", *told[7:]], tmp_path / "secret")[1] == ""


@pytest.mark.parametrize("name", ["large.png", "large.jpg", "large.mp4"])
def test_pictures_beyond_the_limit_are_refused_before_they_are_decoded(make_clip: MakeClip, name: str) -> None:
    clip = make_clip(name, "-f", "lavfi", "-i", "testsrc2=s=1280x720", "-frames:v", "1")
    with pytest.raises(ItemError) as caught:
        probe(os.fsencode(clip), TIMEOUT_S, replace(CONFINED, max_pixels=500_000))
    assert (caught.value.code, "1280x720" in caught.value.message) == ("too_many_pixels", True)


def test_a_header_that_claims_fewer_pixels_does_not_get_around_the_limit(make_clip: MakeClip) -> None:
    clip = os.fsencode(make_clip("large.mp4", "-f", "lavfi", "-i", "testsrc2=s=1280x720", "-frames:v", "1"))
    facts = probe(clip, TIMEOUT_S)
    with pytest.raises(ItemError) as caught:
        decode(clip, facts, plan(facts, Media(), 8_000), TIMEOUT_S, replace(CONFINED, max_pixels=500_000))
    assert caught.value.code == "too_many_pixels"


def test_the_jobs_limits_reach_the_decoder(make_clip: MakeClip) -> None:
    clip = make_clip("large.png", "-f", "lavfi", "-i", "testsrc2=s=1280x720", "-frames:v", "1")
    looker = Looker(Media(), Limits(max_pixels=500_000), 8_000)
    with pytest.raises(ItemError) as caught:
        looker.look(Item("i", "u", os.fsencode(clip), 1, 1, "k"), Work(60.0), None)
    assert caught.value.code == "too_many_pixels"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read files of others")
@closed_in
def test_root_reads_another_users_file_inside(make_clip: MakeClip, tmp_path: Path) -> None:
    path = tmp_path / "private.wav"
    shutil.copy(make_clip("a.wav", *TONE), path)
    os.chown(path, 12345, 12345)
    path.chmod(0o600)
    assert probe(os.fsencode(path), TIMEOUT_S).kind == "audio"


def without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "bubblewrap", lambda: None)


def test_a_system_without_bubblewrap_decodes_and_says_so(make_clip: MakeClip, monkeypatch: pytest.MonkeyPatch) -> None:
    without_bubblewrap(monkeypatch)
    warning = check_sandbox("auto")
    assert warning is not None and "not closed in: bubblewrap" in warning
    assert probe(os.fsencode(make_clip("a.wav", *TONE)), TIMEOUT_S).kind == "audio"


@pytest.mark.parametrize("prlimit", ["/usr/bin/prlimit", None])
def test_a_job_that_requires_the_sandbox_is_refused_without_it(
    monkeypatch: pytest.MonkeyPatch, prlimit: str | None
) -> None:
    without_bubblewrap(monkeypatch)
    monkeypatch.setattr(sandbox, "_prlimit", lambda: prlimit)
    with pytest.raises(JobError, match=r"front_end\.sandbox: required, but bubblewrap"):
        check_sandbox("required")


def test_a_system_without_prlimit_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_prlimit", lambda: None)
    assert "prlimit (util-linux) is not installed" in str(check_sandbox("auto"))


@closed_in
def test_where_it_works_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_sandbox("auto") is None and check_sandbox("required") is None
    assert "is off" in str(check_sandbox("off"))
