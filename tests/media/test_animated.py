"""Pictures that only Pillow reads, and animations of every kind."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import features

from pipeline.errors import ItemError
from pipeline.job import Media, Video
from pipeline.media.decode import decode
from pipeline.media.plan import plan
from pipeline.media.probe import measured_duration_s, probe
from tests.media.conftest import NUMBERED, MakeClip
from tests.media.samples import draw
from tests.media.test_decode import TIMEOUT_S, looked_at, numbers

ANIMATION = """
frames = [Image.new("RGBA", (96, 64), colour) for colour in ("red", "lime", "blue", (255, 0, 0, 0))]
frames[0].save(path, save_all=True, append_images=frames[1:], duration={delays}, loop=0, lossless=True)
"""


def test_an_animated_webp_is_a_video_without_sound(tmp_path: Path) -> None:
    clip = draw(tmp_path, "moving.webp", ANIMATION.format(delays=[500, 1000, 500, 500]))
    facts, _, decoded = looked_at(clip)
    assert facts.kind == "video" and facts.audio is None and facts.duration_s == 2.5
    assert not decoded.remarks and decoded.decoded_s == 2.5
    assert decoded.times_s.tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    shown = [[255, 0, 0], [0, 255, 0], [0, 255, 0], [0, 0, 255], [128] * 3, [128] * 3]
    assert np.abs(decoded.frames.mean(axis=(1, 2)) - shown).max() <= 1


def test_windows_of_an_animated_webp_hold_their_own_times(tmp_path: Path) -> None:
    clip = draw(tmp_path, "long.webp", ANIMATION.format(delays=[20_000, 20_000, 20_000, 20_000]))
    _, planned, decoded = looked_at(clip, Media(video=Video(min_rate_hz=1, max_rate_hz=2, max_frames=8)))
    assert len(planned.windows) == 2
    assert decoded.frames.mean(axis=(1, 2)).round().tolist() == [[255, 0, 0]] * 4 + [[128] * 3] * 4


def test_frames_without_delay_are_shown_a_tenth_of_a_second(make_clip: MakeClip, tmp_path: Path) -> None:
    assert probe(os.fsencode(draw(tmp_path, "zero.webp", ANIMATION.format(delays=0))), TIMEOUT_S).duration_s == 0.4
    gif = bytearray(make_clip("five_frames.gif", "-f", "lavfi", "-i", "testsrc2=s=64x64:r=5:d=1").read_bytes())
    control = b"\x21\xf9\x04"
    for at in [at for at in range(len(gif)) if gif[at : at + 3] == control]:
        gif[at + 4 : at + 6] = bytes(2)
    (tmp_path / "zero.gif").write_bytes(gif)
    assert probe(os.fsencode(tmp_path / "zero.gif"), TIMEOUT_S).duration_s == pytest.approx(0.5)


def test_animations_are_played_once(make_clip: MakeClip) -> None:
    source = ("-f", "lavfi", "-i", NUMBERED.format(seconds=2, step=10) + ",format=rgb24")
    for name, loops in (("loops.apng", ("-plays", "0", "-f", "apng")), ("loops.gif", ("-loop", "0"))):
        clip = make_clip(name, *source, *loops)
        facts = probe(os.fsencode(clip), TIMEOUT_S)
        assert facts.kind == "video"
        length_s = facts.duration_s or measured_duration_s(os.fsencode(clip), facts, TIMEOUT_S)
        assert length_s == pytest.approx(2.0, abs=0.11)
        facts = replace(facts, duration_s=length_s)
        decoded = decode(os.fsencode(clip), facts, plan(facts, Media(), 30_000), TIMEOUT_S)
        assert numbers(decoded, step=10)[:4] == [0, 5, 10, 15]


def test_a_damaged_webp_costs_its_own_row(tmp_path: Path) -> None:
    whole = draw(tmp_path, "whole.webp", ANIMATION.format(delays=500)).read_bytes()
    (tmp_path / "cut.webp").write_bytes(whole[:60])
    with pytest.raises(ItemError) as caught:
        looked_at(tmp_path / "cut.webp")
    assert caught.value.code in ("unsupported_codec", "decode_failed")


def test_an_avif_still_that_is_hdr_or_moves_says_so(tmp_path: Path) -> None:
    if not features.check("avif"):
        pytest.skip("this Pillow is built without AVIF")
    moving = 'Image.new("RGB", (64, 64)).save(path, save_all=True, append_images=[Image.new("RGB", (64, 64), "red")])'
    data = draw(tmp_path, "moving.avif", moving).read_bytes()
    (tmp_path / "named_still.avif").write_bytes(data.replace(b"ftypavis", b"ftypavif", 1))
    still = draw(tmp_path, "still.avif", 'Image.new("RGB", (64, 64)).save(path)').read_bytes()
    at = still.index(b"colrnclx") + 10
    (tmp_path / "hdr.avif").write_bytes(still[:at] + b"\0\x10" + still[at + 2 :])
    said = {
        name: [remark.code for remark in probe(os.fsencode(tmp_path / f"{name}.avif"), TIMEOUT_S).remarks]
        for name in ("still", "named_still", "hdr", "moving")
    }
    assert said == {"still": [], "named_still": ["tracks_ignored"], "hdr": ["colour_unconverted"], "moving": []}


def test_a_heic_picture_is_named_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    with pytest.raises(ItemError) as caught:
        probe(os.fsencode(tmp_path / "photo.heic"), TIMEOUT_S)
    assert caught.value.code == "unsupported_codec" and "HEIC" in caught.value.message


def test_missing_pillow_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = draw(tmp_path, "moving.webp", ANIMATION.format(delays=500))
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # -S: no installed packages
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(ItemError) as caught:
        probe(os.fsencode(clip), TIMEOUT_S)
    assert caught.value.code == "unsupported_codec" and "Pillow is not installed" in caught.value.message
