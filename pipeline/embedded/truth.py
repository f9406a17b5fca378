"""What a right answer to a scene under the demo policy is: labels, verdict, and the rationale's words."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pipeline.embedded.scene import HEARD, SEEN, Label, Scene
from pipeline.records import Verdict

LABELS: tuple[Label, ...] = (*HEARD, *SEEN)


@dataclass(frozen=True, slots=True)
class Truth:
    """The labels that hold, each with the second it begins in; the verdict; the rationale."""

    starts_s: dict[Label, int]
    verdict: Verdict
    rationale: str

    @property
    def labels(self) -> dict[Label, bool]:
        return {label: label in self.starts_s for label in LABELS}

    def answer(self) -> str:
        """Return the JSON text that a model should generate."""
        answer = {"labels": self.labels, "verdict": self.verdict, "rationale": self.rationale}
        return json.dumps(answer, separators=(",", ":"), ensure_ascii=False)


def truth(scene: Scene) -> Truth:
    """Return the right answer to a scene."""
    found = {label: scene.first(label) for label in LABELS}
    starts_s = {label: int(event.start_s) for label, event in found.items() if event is not None}
    return Truth(starts_s, verdict(set(starts_s), scene), _rationale(starts_s, scene))


def verdict(labels: set[Label], scene: Scene) -> Verdict:
    """Return the verdict that the demo policy's rules give."""
    dangerous_sound = bool(labels & {"alarm", "bang"})
    dangerous_picture = bool(labels & {"flashing", "motion"})
    nothing = not scene.pictures and (scene.silent or not scene.sound)
    if dangerous_sound and dangerous_picture:
        return "reject"
    if dangerous_sound or dangerous_picture or "dark" in labels or nothing:
        return "review"
    return "pass"


def _rationale(starts_s: dict[Label, int], scene: Scene) -> str:
    heard = _named(starts_s, HEARD) or ("silence" if scene.silent else "nothing of note")
    seen = _named(starts_s, SEEN) or "nothing of note"
    if scene.still:
        return "A picture: dark." if "dark" in starts_s else "A picture: nothing of note."
    parts = [f"Heard: {heard}." if scene.sound else "No sound.", f"Seen: {seen}." if scene.pictures else "No picture."]
    return " ".join(parts)


def _named(starts_s: dict[Label, int], labels: tuple[Label, ...]) -> str:
    return ", ".join(f"{label} from {starts_s[label]} s" for label in labels if label in starts_s)


def named_seconds(rationale: str) -> dict[str, int]:
    """Return the second that a rationale names for each label."""
    return {label: int(second) for label, second in re.findall(r"(\w+) from (\d+) s", rationale)}
