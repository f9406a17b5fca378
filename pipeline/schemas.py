"""`python -m pipeline.schemas`: writes what schemas/ holds from the models and the register of reasons in the code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pipeline.errors import REASONS
from pipeline.job import Job
from pipeline.policy import Policy
from pipeline.records import JsonObject
from pipeline.row import json_schema

FOLDER = Path(__file__).parents[1] / "schemas"


def schemas() -> dict[str, JsonObject]:
    """Return each schema file's name and content."""
    return {
        "job.schema.json": Job.model_json_schema(),
        "policy.schema.json": Policy.model_json_schema(),
        "verdict.schema.json": json_schema(),
    }


def reasons() -> str:
    """Return the page of all reason codes, in Markdown."""
    answered = [reason for reason in REASONS.values() if not reason.failure]
    failed = [reason for reason in REASONS.values() if reason.failure]
    return "\n".join(
        [
            "# Reasons",
            "",
            "A row's `reason` is one of these codes, and `message` says in words what happened to this recording.",
            "Codes never change their meaning. An answered row that has several is named for the first here; its",
            "message tells all. A policy's `routing.review_reasons` sends answered rows with such a code to a person.",
            "",
            "## Rows that have an answer",
            "",
            "| code | meaning | `degraded` | what to do |",
            "|---|---|---|---|",
            *(f"| `{r.code}` | {r.meaning} | {_yes(r.degrades)} | {r.action} |" for r in answered),
            "",
            "## Rows that have none",
            "",
            "Their `status` is `error`, or `deadline` for the code of that name; their verdict is the policy's",
            "`fail_safe`. What is tried again is tried by the next run of the job; the rest only by `--retry all`, or",
            "when the file has changed.",
            "",
            "| code | meaning | tried again | what to do |",
            "|---|---|---|---|",
            *(f"| `{r.code}` | {r.meaning} | {_yes(r.retryable)} | {r.action} |" for r in failed),
            "",
        ]
    )


def files() -> dict[str, str]:
    """Return the name and text of each file in schemas/."""
    return {**{name: _text(schema) for name, schema in schemas().items()}, "reasons.md": reasons()}


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"schemas/{name}")
    return 0


def _text(schema: JsonObject) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    sys.exit(main())
