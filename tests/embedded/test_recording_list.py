"""The list of recordings keeps those trained on and those held out apart, and names every licence."""

from __future__ import annotations

import re

import pytest

from pipeline.embedded.recording_list import PACKAGES, SOURCES, espeak_voices


def test_a_held_out_voice_shares_neither_language_nor_variant_with_those_trained_on() -> None:
    voices = list(espeak_voices())
    train = [(language, variant) for language, variant, held_out in voices if not held_out]
    held_out = [(language, variant) for language, variant, held_out in voices if held_out]

    assert len({language for language, _, _ in voices}) >= 20
    assert len(set(voices)) == len(voices)
    assert not {variant for _, variant in train} & {variant for _, variant in held_out}
    spoken = [{language.split("-")[0] for language, _ in pool} for pool in (train, held_out)]
    assert not spoken[0] & spoken[1]
    assert 0.15 < len(held_out) / len(voices) < 0.3


@pytest.mark.parametrize("kind", ["speech", "music"])
def test_a_fifth_or_so_of_the_real_voices_is_held_out(kind: str) -> None:
    sources = [source for source in SOURCES if source.kind == kind]

    assert len({source.voice for source in sources}) == len(sources)
    assert 0.15 < sum(source.held_out for source in sources) / len(sources) < 0.3


def test_a_language_of_the_volunteers_is_held_out_in_both_packages_or_in_none() -> None:
    volunteers = [source for source in SOURCES if re.match("klettres|ktuberling", source.voice)]
    held_out = {source.voice.split(":")[1] for source in volunteers if source.held_out}

    assert held_out
    assert not held_out & {source.voice.split(":")[1] for source in volunteers if not source.held_out}


def test_every_package_is_listed_once_with_its_licence() -> None:
    assert len({package.name for package in PACKAGES}) == len(PACKAGES)
    assert all(package.what and package.licence for package in PACKAGES)
