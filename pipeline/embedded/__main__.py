"""Makes the embedded checkpoint anew: `python -m pipeline.embedded` (or `make train-embedded`).

recordings ─▶ architecture and tokenizer ─▶ training ─▶ calibration ─▶ canaries ─▶ checkpoint
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from pipeline.atomic import write_json_atomic
from pipeline.checkpoint import TRAINING_FILE
from pipeline.embedded.build import DEMO_JOB, NAME, build
from pipeline.embedded.calibrate import calibrate
from pipeline.embedded.canaries import write_canaries
from pipeline.embedded.exam import Examiner
from pipeline.embedded.recordings import RecordingsUnavailable, default_cache, load_recordings
from pipeline.embedded.sounds import Voices, voices_of
from pipeline.embedded.train import Course, train, weights_of
from pipeline.job import EMBEDDED_PATH, load_job
from pipeline.policy import load_policy, prompt_digest
from pipeline.records import JsonObject

WORK = Path(__file__).parents[2] / "out" / "training"


def make(out: Path, work: Path, course: Course, workers: int) -> None:
    """Train in `work` and put the finished checkpoint into `out`, whose model card stays.

    Raises NotACheckpoint before anything else if `out` holds other things.
    """
    _check_out(out)
    pools = load_recordings(default_cache())
    draft, state = work / "checkpoint", work / f"state-{course.digest()}.pt"
    work.mkdir(parents=True, exist_ok=True)
    build(draft, course.seed)
    facts = train(draft, state, course, default_cache(), workers)
    shutil.rmtree(draft / "canaries", ignore_errors=True)
    write_json_atomic(draft / TRAINING_FILE, _training(facts))
    weights_of(state, draft)
    examiner = Examiner(draft)
    try:
        calibrate(draft, examiner, voices_of(pools.train))
        # Committed clips hold synthetic voices only, so that they carry nobody's licence.
        synthetic = [one for one in pools.held_out if one.kind == "speech" and not one.real]
        write_canaries(draft, examiner, voices_of(synthetic) if synthetic else Voices())
    finally:
        examiner.close()
    _publish(draft, out)


def _training(facts: JsonObject) -> JsonObject:
    """Return what training.json says: the policy and the frames that the model knows, and how it was trained."""
    job = load_job(DEMO_JOB)
    policy = load_policy(job.policy)
    return {
        "name": NAME,
        "policy": f"{policy.id} {policy.version}",
        "policy_sha256": prompt_digest(policy),
        "media": {
            "max_pixels_per_frame": job.media.video.max_pixels_per_frame,
            "max_rate_hz": job.media.video.max_rate_hz,
            "max_image_pixels": job.media.image.max_pixels,
        },
        **facts,
    }


class NotACheckpoint(Exception):
    """The folder to write holds other things, which would be deleted."""


def _check_out(out: Path) -> None:
    if out.exists() and any(out.iterdir()) and not (out / TRAINING_FILE).is_file():
        raise NotACheckpoint(f"--out {out} holds files and no {TRAINING_FILE}; name an empty folder or a checkpoint's")


def _publish(draft: Path, out: Path) -> None:
    """Replace the checkpoint's files, keeping the model card."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        if old.suffix != ".md":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    shutil.copytree(draft, out, dirs_exist_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.embedded",
        description="Train the embedded model anew. A training that was stopped goes on where it was.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=EMBEDDED_PATH, help="checkpoint folder, REPLACED at the end")
    parser.add_argument("--work", type=Path, default=WORK, help="folder for what is kept between steps")
    parser.add_argument("--steps", type=int, default=Course().steps, help="another number is another training")
    parser.add_argument("--seed", type=int, default=Course().seed, help="another seed is another training")
    parser.add_argument("--workers", type=int, default=2, help="processes that train, one thread each")
    args = parser.parse_args()
    try:
        make(args.out, args.work, Course(steps=args.steps, seed=args.seed), args.workers)
    except (NotACheckpoint, RecordingsUnavailable) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"trained checkpoint written to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
