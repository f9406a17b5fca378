"""The list of recordings: the packages with their licences, what is taken from each, and the synthetic voices.

It fetches and reads nothing; that is `recordings.py`, whose `VERSION` is raised when a change here gives other
recordings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package that is fetched; what is in it and its licence are for the model card."""

    name: str
    what: str
    licence: str


PACKAGES = (
    Package("espeak-ng", "speech synthesiser", "GPL-3+"),
    Package("espeak-ng-data", "voices of the synthesiser", "GPL-3+"),
    Package("libespeak-ng1", "library of the synthesiser", "GPL-3+"),
    Package("libpcaudio0", "library the synthesiser loads", "GPL-3+"),
    Package("libsonic0", "library the synthesiser loads", "Apache-2.0"),
    Package("asterisk-core-sounds-en-g722", "telephone prompts by Allison Smith, in English", "CC-BY-SA-3.0"),
    Package("asterisk-core-sounds-fr-g722", "telephone prompts by June Wallack, in French", "CC-BY-SA-3.0"),
    Package("asterisk-core-sounds-it-g722", "telephone prompts by Carlo Flora, in Italian", "CC-BY-3.0"),
    Package("asterisk-core-sounds-ru-g722", "telephone prompts by ivrvoice.ru (Maxim Topal), in Russian", "CC-BY-3.0"),
    Package("asterisk-prompt-es-co", "telephone prompts by July E. Jiménez, in Spanish", "GPL-2"),
    Package("asterisk-prompt-fr-armelle", "telephone prompts by Armelle Desjardins, in French", "BSD-style"),
    Package("asterisk-prompt-it-menardi-gsm", "telephone prompts by Paola Dal Zot, in Italian", "CC-BY-SA-3.0-IT"),
    Package("fillets-ng-data-cs", "dialogues of a game, in Czech", "GPL-2"),
    Package("fillets-ng-data-nl", "dialogues of a game, in Dutch", "GPL-2"),
    Package("pocketsphinx-testdata", "two readers, in English", "BSD-2-Clause"),
    Package("alsa-utils", "names of loudspeakers, in English", "GPL-2"),
    Package("klettres-data", "letters and syllables by 18 voices", "GPL-2+"),
    Package("ktuberling-data", "words by 23 voices", "GPL-2+"),
    Package("asterisk-moh-opsound-g722", "music by Macroform, Manolo Camp and Reno Project", "CC-BY-SA-3.0"),
    Package("asc-music", "music by Michael Kievernagel", "GPL-2+"),
    Package("performous", "music of a game", "GPL-2+"),
    Package("fb-music-high", "music by Matthias Le Bidan", "GPL-2+"),
    Package("biniax2-data", "music of a game", "Zlib"),
    Package("tecnoballz-data", "music of a game", "GPL-3+"),
    Package("tumiki-fighters-data", "music by Kenta Cho", "BSD-2-Clause"),
    Package("seahorse-adventures", "music of a game", "GPL-2"),
    Package("epiphany-data", "music of a game", "GPL-2"),
    Package("toppler", "music of a game", "GPL-2+"),
    Package("funnyboat", "music by Joona Karjalainen", "MIT"),
    Package("gltron", "music of a game", "GPL-2+"),
    Package("circuslinux-data", "music of a game", "GPL"),
    Package("abe-data", "music of a game", "GPL-2+"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where one voice, or one source of music, comes from."""

    kind: Literal["speech", "music"]
    voice: str
    files: str
    """Pattern of its files below the root that all packages are unpacked into."""
    most_s: float
    """About as much is taken of it at most."""
    held_out: bool = False
    skip: str = r"(?!)"
    """Files whose path has a match of this are left out."""


def _prompts(voice: str, folder: str, most_s: float, held_out: bool = False) -> Source:
    files, no_speech = f"usr/share/asterisk/sounds/{folder}/**/*.*", r"/silence/|/letters/|/beep|-2tone|/tt-"
    return Source("speech", f"asterisk:{voice}", files, most_s, held_out, no_speech)


def _fillets(language: str, who: str, letter: str, held_out: bool = False) -> Source:
    files = f"usr/share/games/fillets-ng/sound/*/{language}/*-{letter}-*.ogg"
    return Source("speech", f"fillets:{language}-{who}", files, 180.0, held_out)


def _pocketsphinx(voice: str, held_out: bool = False) -> Source:
    return Source("speech", f"pocketsphinx:{voice}", f"usr/share/pocketsphinx/**/{voice}/*.wav", 60.0, held_out)


def _klettres(language: str) -> Source:
    files = f"usr/share/klettres/{language}/*/*.ogg"
    return Source("speech", f"klettres:{language}", files, 25.0, language in _KDE_HELD_OUT)


def _ktuberling(language: str) -> Source:
    files, no_speech = f"usr/share/ktuberling/sounds/{language}/*.*", r"(tux|say)-|robin_|theme"
    return Source("speech", f"ktuberling:{language}", files, 30.0, language in _KDE_HELD_OUT, no_speech)


def _music(voice: str, files: str, most_s: float, held_out: bool = False) -> Source:
    return Source("music", voice, files, most_s, held_out)


# Left out of klettres: Malayalam and Tswana, whose recordings are clipped. The languages held out are the same in both
# packages, since it may be the same volunteer who spoke them.
_KLETTRES = "ar cs da de en en_GB es fr he hu it lt nb nds nl pt_BR ru uk"
_KTUBERLING = "ca da de el en es fi fr ga gl it lt nds nl nn pt ro ru sl sr sv uk wa"
_KDE_HELD_OUT = ("da", "fi", "gl", "hu", "lt", "sl", "uk")

SOURCES = (
    _prompts("en", "en_US_f_Allison", most_s=110.0),
    _prompts("fr", "fr_CA_f_June", most_s=110.0),
    _prompts("it", "it_IT_m_Carlo", most_s=110.0, held_out=True),
    _prompts("ru", "ru_RU_f_IvrvoiceRU", most_s=110.0),
    _prompts("es-co", "es", most_s=80.0),
    _prompts("fr-armelle", "fr", most_s=80.0, held_out=True),
    _prompts("it-menardi", "it_IT_f_Menardi", most_s=80.0),
    _fillets("cs", "small", "m"),
    _fillets("cs", "big", "v"),
    _fillets("nl", "small", "m", held_out=True),
    _fillets("nl", "big", "v"),
    _pocketsphinx("librivox"),
    _pocketsphinx("cards", held_out=True),
    Source("speech", "alsa:en", "usr/share/sounds/alsa/*_*.wav", 60.0),
    *(_klettres(language) for language in _KLETTRES.split()),
    *(_ktuberling(language) for language in _KTUBERLING.split()),
    _music("moh:macroform", "usr/share/asterisk/moh/macroform-*", 240.0),
    _music("moh:reno_project", "usr/share/asterisk/moh/reno_project-*", 120.0),
    _music("moh:manolo_camp", "usr/share/asterisk/moh/manolo_camp-*", 90.0, held_out=True),
    _music("game:asc", "usr/share/games/asc/music/[ft]*.mp3", 200.0),  # the third has what sounds like an explosion
    _music("game:performous", "usr/share/games/performous/themes/default/menu.ogg", 90.0),
    _music("game:frozen-bubble", "usr/share/games/frozen-bubble/snd/*.xm", 90.0),
    _music("game:biniax2", "usr/share/games/biniax2/music/biniax_common*.it", 280.0),
    _music("game:tecnoballz", "usr/share/games/tecnoballz/musics/*[!2].mod", 280.0),
    _music("game:tumiki-fighters", "usr/share/games/tumiki-fighters/sounds/*_*.ogg", 180.0),
    _music("game:seahorse-adventures", "usr/share/games/seahorse-adventures/data/music/*.ogg", 150.0),
    _music("game:epiphany", "usr/share/epiphany/sfx/epiphany_*.ogg", 80.0),
    _music("game:toppler", "usr/share/games/toppler/toppler.ogg", 75.0),
    _music("game:funnyboat", "usr/share/games/funnyboat/data/JDruid-*.ogg", 90.0),
    _music("game:gltron", "usr/share/games/gltron/music/*.it", 90.0, held_out=True),
    _music("game:circuslinux", "usr/share/games/circuslinux/data/music/*.mod", 150.0, held_out=True),
    _music("game:abe", "usr/share/games/abe/sounds/*.ogg", 90.0, held_out=True),
)

# espeak-ng: a voice is a language in a variant. Of the held-out languages only held-out variants speak, of the others
# only the others, so neither the language nor the variant of a held-out voice is ever trained on.
ESPEAK_TRAIN = (
    *("en-us", "en-gb", "en-gb-scotland", "de", "fr-fr", "es", "es-419", "it", "pt-br", "nl", "pl", "cs", "ru", "uk"),
    *("fi", "nb", "hu", "bg", "ar", "hi", "cmn", "ja", "sw"),
)
ESPEAK_HELD_OUT = ("sv", "tr", "el", "ro", "id", "ko")
VARIANTS_TRAIN = ("m1", "m2", "m3", "m5", "m7", "m8", "f1", "f3", "f4", "f5", "croak", "whisper", "Alex", "Annie")
VARIANTS_HELD_OUT = ("m4", "m6", "f2", "Andrea", "steph")
VARIANTS_PER_LANGUAGE = 4
UTTERANCES_PER_ESPEAK_VOICE = 2

FLITE_TRAIN = ("kal", "awb", "slt")
FLITE_HELD_OUT = ("rms",)
UTTERANCES_PER_FLITE_VOICE = 12


def espeak_voices() -> Iterator[tuple[str, str, bool]]:
    """Yield language, variant and whether it is held out, for each of espeak-ng's voices."""
    for languages, variants, held_out in (
        (ESPEAK_TRAIN, VARIANTS_TRAIN, False),
        (ESPEAK_HELD_OUT, VARIANTS_HELD_OUT, True),
    ):
        for number, language in enumerate(languages):
            for step in range(VARIANTS_PER_LANGUAGE):
                yield language, variants[(number * VARIANTS_PER_LANGUAGE + step) % len(variants)], held_out
