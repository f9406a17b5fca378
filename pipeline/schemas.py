"""`python -m pipeline.schemas`: writes schemas/*.schema.json from the models in the code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

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


def text_of(schema: JsonObject) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (FOLDER / name).write_text(text_of(schema), encoding="utf-8")
        print(f"schemas/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
