"""The sound of a scene: 16 kHz mono, every event and what stands beside it made from seeded numbers.

Speech and real music come from `recordings.py`; without recordings a formant synthesiser speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import fft, signal

from pipeline.embedded.recordings import Recording
from pipeline.embedded.scene import LOUD, Event, Scene, generator
from pipeline.records import SAMPLE_RATE_HZ

Samples = NDArray[np.float32]

_RATE = SAMPLE_RATE_HZ
_VOWELS_HZ = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))
"""First three formants of a, i, u, e, o (Peterson and Barney 1952, men)."""


@dataclass(frozen=True)
class Voices:
    """Recordings to take speech and music from: PCM (samples,) int16 at 16 kHz each; may be empty."""

    speech: Sequence[NDArray[np.int16]] = field(default=())
    music: Sequence[NDArray[np.int16]] = field(default=())


def voices_of(recordings: Iterable[Recording]) -> Voices:
    """Return recordings sorted into speech and music."""
    pool = list(recordings)
    return Voices(
        speech=[one.pcm for one in pool if one.kind == "speech"], music=[one.pcm for one in pool if one.kind == "music"]
    )


def sound(scene: Scene, voices: Voices) -> Samples:
    """Return the scene's sound (samples,), values within -1..1."""
    samples = round(scene.duration_s * _RATE)
    rng = generator(scene.sound_seed, 1)
    mix = np.zeros(samples, np.float64)
    if scene.silent:
        if "faint_noise" in scene.beside_sound:
            mix += rng.normal(0, 10 ** rng.uniform(-4.7, -3.7), samples)
        return mix.astype(np.float32)
    floor = 10 ** (rng.uniform(-66, -46) / 20)
    mix += floor * _noise(rng, samples)
    for name in scene.beside_sound:
        if name != LOUD:
            mix += _beside(rng, name, samples, voices, LOUD in scene.beside_sound)
    background = max(_rms(mix), 10 ** (-50 / 20))
    for event in sorted(scene.events, key=lambda event: _LAYERS.get(event.label, 0)):
        _add(mix, event, rng, background, voices)
    if rng.random() < 0.35:
        mix = _echo(rng, mix)
    if rng.random() < 0.15:
        mix = _band_limited(rng, mix)
    if rng.random() < 0.35:
        mix = _cut_off(rng, mix)
    peak = float(np.max(np.abs(mix), initial=1e-9))
    level = 10 ** (rng.uniform(-14, 0) / 20)
    mix *= level / max(peak, 1.0) if peak * level > 1 else level
    return np.clip(mix, -1, 1).astype(np.float32)


def _beside(rng: np.random.Generator, name: str, samples: int, voices: Voices, loud: bool) -> NDArray[np.float64]:
    made = _BESIDE[name](rng, samples, voices)
    if name in _SPARSE:
        return 10 ** (rng.uniform(-44, -26) / 20) * _peaked(made)
    return 10 ** (rng.uniform(*((-26, -8) if loud else (-44, -26))) / 20) * _unit(made)


_LAYERS = {"alarm": 1, "speech": 2, "bang": 3}
"""The order in which events are added: what comes later must be heard over what is there already."""


def _add(mix: NDArray[np.float64], event: Event, rng: np.random.Generator, background: float, voices: Voices) -> None:
    """Add one event to the mix, loud enough to be heard over the background (root mean square) and former events."""
    start = round(event.start_s * _RATE)
    length = min(round((event.end_s - event.start_s) * _RATE), len(mix) - start)
    there = _rms(mix[start : start + length])
    if event.label == "alarm":
        loud = max(background * _gain(rng, 5, 14), _gain(rng, -30, -5))
        mix[start : start + length] += loud * _faded(_unit(alarm(rng, length)))
    elif event.label == "bang":
        burst = bang(rng, min(len(mix) - start, round(3.0 * _RATE)))
        loud = max(background * _gain(rng, 24, 30), there * _gain(rng, 15, 24), _gain(rng, -9, 0))
        mix[start : start + len(burst)] += loud * burst
    elif event.label == "speech":
        loud = max(background * _gain(rng, 5, 14), there * _gain(rng, -9, 3), _gain(rng, -32, -13))
        mix[start : start + length] += loud * _unit(speech(rng, length, voices))


def _gain(rng: np.random.Generator, least_db: float, most_db: float) -> float:
    return float(10 ** (rng.uniform(least_db, most_db) / 20))


def alarm(rng: np.random.Generator, samples: int) -> NDArray[np.float64]:
    """Return an alarm or siren: two tones, a sweep, beeps, a bell or a buzzer."""
    t = np.arange(samples) / _RATE
    kind = rng.integers(6)
    if kind == 0:  # two tones in turn
        low, period_s = rng.uniform(380, 900), rng.uniform(0.25, 0.9)
        high = low * rng.uniform(1.2, 1.9)
        return _voiced(rng, np.where((t // period_s) % 2 < 1, low, high))
    if kind in (1, 2):  # wail, yelp
        rate_hz = rng.uniform(0.35, 0.9) if kind == 1 else rng.uniform(1.5, 4.0)
        low = rng.uniform(350, 900)
        high = low * rng.uniform(1.6, 2.6)
        phase = (t * rate_hz + rng.random()) % 1
        shape = 0.5 - 0.5 * np.cos(2 * np.pi * phase) if rng.random() < 0.6 else phase
        return _voiced(rng, low + (high - low) * shape)
    if kind == 3:  # beeps of a detector
        rate_hz, share = rng.uniform(1.6, 5.0), rng.uniform(0.35, 0.65)
        return _voiced(rng, np.full(samples, rng.uniform(800, 3600))) * ((t * rate_hz) % 1 < share)
    if kind == 4:  # bell with a fast hammer
        partials = rng.uniform(500, 900) * np.array([1, 2.0, 2.4, 3.0, 4.5])
        ring = sum(rng.uniform(0.3, 1) * np.sin(2 * np.pi * f * t) for f in partials if f < 7000)
        hammer_hz = rng.uniform(8, 20)
        return np.asarray(ring * np.exp(-4 * ((t * hammer_hz) % 1)))
    pulse_hz = rng.uniform(1.0, 3.0)  # buzzer
    return np.asarray(
        signal.square(2 * np.pi * rng.uniform(250, 600) * t) * ((t * pulse_hz) % 1 < rng.uniform(0.5, 0.8))
    )


def bang(rng: np.random.Generator, room: int) -> NDArray[np.float64]:
    """Return one to three impacts, peak 1: broadband, at once loud, gone within half a second."""
    out = np.zeros(room)
    at = 0
    for _ in range(rng.integers(1, 4)):
        length = min(room - at, round(rng.uniform(0.2, 0.7) * _RATE))
        if length < 800:
            break
        t = np.arange(length) / _RATE
        burst = rng.normal(0, 1, length) * np.exp(-t / rng.uniform(0.02, 0.12))
        cutoff_hz = rng.uniform(1500, 7500)
        burst = signal.sosfilt(signal.butter(2, cutoff_hz, fs=_RATE, output="sos"), burst)
        burst /= np.max(np.abs(burst)) + 1e-9
        burst += (
            rng.uniform(0, 0.8) * np.sin(2 * np.pi * rng.uniform(45, 130) * t) * np.exp(-t / rng.uniform(0.05, 0.15))
        )
        out[at : at + length] += rng.uniform(0.7, 1.0) * burst
        at += round(rng.uniform(0.25, 1.2) * _RATE)
        if at >= room:
            break
    return np.asarray(out / (np.max(np.abs(out)) + 1e-9))


def speech(rng: np.random.Generator, samples: int, voices: Voices) -> NDArray[np.float64]:
    """Return speech that fills the stretch, from one recording's voice or the formant synthesiser."""
    if not voices.speech or rng.random() < 0.03:
        return _babble(rng, samples)
    out = np.zeros(samples)
    at = 0
    while at < samples - 1600:
        take = voices.speech[int(rng.integers(len(voices.speech)))].astype(np.float64)
        take = take[rng.integers(max(1, len(take) - samples)) :] if at == 0 and len(take) > samples else take
        take = take[: samples - at]
        out[at : at + len(take)] = take / (_rms(take) + 1.0)
        at += len(take) + round(rng.uniform(0.05, 0.5) * _RATE)
    return out


def _babble(rng: np.random.Generator, samples: int) -> NDArray[np.float64]:
    """Return syllables of a buzzing source through moving formants: speech-like, no language."""
    out = np.zeros(samples)
    pitch_hz, at = rng.uniform(85, 240), 0
    while at < samples - 800:
        length = min(samples - at, round(rng.uniform(0.09, 0.26) * _RATE))
        t = np.arange(length) / _RATE
        glide = pitch_hz * (1 + rng.uniform(-0.15, 0.15) * t / t[-1]) * rng.uniform(0.9, 1.12)
        syllable = signal.sawtooth(2 * np.pi * np.cumsum(glide) / _RATE) + 0.1 * rng.normal(0, 1, length)
        if rng.random() < 0.3:
            hiss = round(length * rng.uniform(0.2, 0.5))
            syllable[:hiss] = rng.normal(0, 1, hiss)
        voiced = np.zeros(length)
        for formant_hz in _VOWELS_HZ[rng.integers(len(_VOWELS_HZ))]:
            centre_hz = formant_hz * rng.uniform(0.9, 1.2)
            voiced += signal.lfilter(*signal.iirpeak(centre_hz, 6, fs=_RATE), syllable)
        out[at : at + length] = voiced * np.hanning(length) ** 0.5
        at += length + (round(rng.uniform(0.1, 0.4) * _RATE) if rng.random() < 0.18 else round(0.02 * _RATE))
    return out


# ---- what is no event


def _noise(rng: np.random.Generator, samples: int) -> NDArray[np.float64]:
    """Return white, pink or brown noise of root mean square 1."""
    length = fft.next_fast_len(samples, real=True)
    spectrum = fft.rfft(rng.standard_normal(length, np.float32))
    tilt = float(rng.choice((0.0, 0.5, 1.0)))
    if tilt:
        spectrum /= np.maximum(np.arange(len(spectrum)), 20.0 * length / _RATE).astype(np.float32) ** tilt
    return _unit(np.asarray(fft.irfft(spectrum, length)[:samples], np.float64))


def _steady_noise(rng: np.random.Generator, samples: int, _: Voices) -> NDArray[np.float64]:
    noise = _noise(rng, samples)
    if rng.random() < 0.5:  # wind or traffic: slow swells
        knots = rng.uniform(0.3, 1.0, max(2, samples // (2 * _RATE) + 2))
        noise *= np.interp(np.linspace(0, len(knots) - 1, samples), np.arange(len(knots)), knots)
    return noise


def _hum(rng: np.random.Generator, samples: int, _: Voices) -> NDArray[np.float64]:
    t = np.arange(samples) / _RATE
    base_hz = rng.choice((50.0, 60.0, 100.0, 120.0))
    return np.asarray(sum(rng.uniform(0, 1) / k * np.sin(2 * np.pi * base_hz * k * t) for k in range(1, 8)))


def _tone(rng: np.random.Generator, samples: int, _: Voices) -> NDArray[np.float64]:
    """Return one steady tone: a test tone, a fan, a transformer."""
    return _voiced(rng, np.full(samples, np.exp(rng.uniform(np.log(120), np.log(3000)))))


def _tune(rng: np.random.Generator, samples: int, _: Voices) -> NDArray[np.float64]:
    """Return plucked notes and chords of a scale, at times with drums."""
    out = np.zeros(samples)
    scale = 55.0 * 2 ** (rng.uniform(0, 2) + np.array([0, 2, 4, 5, 7, 9, 11, 12, 14, 16, 17, 19, 24]) / 12)
    beat = round(rng.uniform(0.16, 0.5) * _RATE)
    drums = rng.random() < 0.5
    for number, at in enumerate(range(0, samples, beat)):
        length = min(samples - at, round(beat * rng.uniform(0.9, 3.0)))
        t = np.arange(length) / _RATE
        envelope = np.minimum(1, t / 0.01) * np.exp(-t / rng.uniform(0.12, 0.6))
        for pitch_hz in rng.choice(scale, size=rng.integers(1, 4), replace=False):
            wave = sum(np.sin(2 * np.pi * pitch_hz * k * t) / k ** rng.uniform(1, 2) for k in range(1, 6))
            out[at : at + length] += rng.uniform(0.3, 1) * envelope * wave
        if drums and number % 2 == 0:
            hit = min(samples - at, 1600)
            decay = np.exp(-np.arange(hit) / 300)
            out[at : at + hit] += (
                rng.uniform(0.3, 1.2)
                * decay
                * (rng.normal(0, 0.4, hit) + np.sin(np.arange(hit) * 2 * np.pi * 70 / _RATE))
            )
    return out


def _music(rng: np.random.Generator, samples: int, voices: Voices) -> NDArray[np.float64]:
    if not voices.music:
        return _tune(rng, samples, voices)
    out = np.zeros(samples)
    at = 0
    while at < samples:
        take = voices.music[int(rng.integers(len(voices.music)))].astype(np.float64)
        take = take[rng.integers(max(1, len(take) // 2)) :][: samples - at]
        out[at : at + len(take)] = take / (_rms(take) + 1.0)
        at += len(take)
    return out


def _ticking(rng: np.random.Generator, samples: int, _: Voices) -> NDArray[np.float64]:
    out = np.zeros(samples)
    regular, step_s = rng.random() < 0.6, rng.uniform(0.12, 1.0)
    at = float(rng.uniform(0, step_s))
    length = round(rng.uniform(0.003, 0.015) * _RATE)
    tick = rng.normal(0, 1, length) * np.exp(-np.arange(length) / (length / 4))
    while round(at * _RATE) + length < samples:
        start = round(at * _RATE)
        out[start : start + length] += tick * rng.uniform(0.6, 1)
        at += step_s if regular else step_s * rng.uniform(0.3, 2.0)
    return out


def _beep(rng: np.random.Generator, samples: int, _: Voices) -> NDArray[np.float64]:
    """Return one or two short beeps: a message, a key; no alarm."""
    out = np.zeros(samples)
    pitch_hz = rng.uniform(400, 2500)
    for _beep_number in range(rng.integers(1, 3)):
        length = min(samples, round(rng.uniform(0.08, 0.3) * _RATE))
        start = rng.integers(0, max(1, samples - length))
        out[start : start + length] += _faded(np.sin(2 * np.pi * pitch_hz * np.arange(length) / _RATE))
    return out


_BESIDE: dict[str, Callable[[np.random.Generator, int, Voices], NDArray[np.float64]]] = {
    "noise": _steady_noise,
    "hum": _hum,
    "tone": _tone,
    "music": _music,
    "tune": _tune,
    "ticking": _ticking,
    "beep": _beep,
}


_SPARSE = frozenset({"ticking", "beep"})


# ---- shared shapes


def _voiced(rng: np.random.Generator, pitch_hz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a tone along a pitch (samples,) with a few harmonics below the Nyquist frequency."""
    phase = 2 * np.pi * np.cumsum(pitch_hz) / _RATE + rng.uniform(0, 6)
    out = np.sin(phase)
    for harmonic in range(2, rng.integers(2, 6)):
        if harmonic * float(np.max(pitch_hz)) < 7000:
            out += rng.uniform(0, 0.6) * np.sin(harmonic * phase)
    return np.asarray(out)


def _faded(samples: NDArray[np.float64], fade_s: float = 0.01) -> NDArray[np.float64]:
    ramp = np.linspace(0, 1, min(len(samples) // 2, round(fade_s * _RATE)))
    if len(ramp):
        samples[: len(ramp)] *= ramp
        samples[-len(ramp) :] *= ramp[::-1]
    return samples


def _echo(rng: np.random.Generator, mix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sound in a room: convolved with decaying noise."""
    length = round(rng.uniform(0.15, 0.6) * _RATE)
    response = rng.normal(0, 1, length) * np.exp(-6.9 * np.arange(length) / length)
    response *= rng.uniform(0.15, 0.6) / (np.sqrt(np.sum(response**2)) + 1e-9)
    response[0] = 1.0
    return np.asarray(signal.fftconvolve(mix, response)[: len(mix)])


def _band_limited(rng: np.random.Generator, mix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sound as a telephone or a cheap microphone passes it."""
    low_hz, high_hz = rng.uniform(50, 300), rng.uniform(3200, 6500)
    return np.asarray(signal.sosfilt(signal.butter(2, (low_hz, high_hz), "band", fs=_RATE, output="sos"), mix))


def _cut_off(rng: np.random.Generator, mix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sound as low sample rates and lossy codecs leave it: nothing above some frequency."""
    steep = signal.butter(10, rng.choice((3600.0, 5200.0, 6500.0, 7400.0)), fs=_RATE, output="sos")
    return np.asarray(signal.sosfilt(steep, mix))


def _rms(samples: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(samples**2))) if len(samples) else 0.0


def _peaked(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(3.0 * samples / (np.max(np.abs(samples), initial=0.0) + 1e-9))


def _unit(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    return samples / (_rms(samples) + 1e-9)
