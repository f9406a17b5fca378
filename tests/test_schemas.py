"""The published schemas say what the code does."""

from __future__ import annotations

import json

import jsonschema
import pyarrow as pa
import pytest
import yaml

from pipeline.row import ARROW_SCHEMA, VerdictRow
from pipeline.schemas import FOLDER, files, schemas


@pytest.mark.parametrize("name", sorted(files()))
def test_a_published_file_is_the_one_the_code_makes(name: str) -> None:
    published = (FOLDER / name).read_text(encoding="utf-8")
    assert published == files()[name], "run `make schemas`"


@pytest.mark.parametrize(("folder", "schema"), [("jobs", "job.schema.json"), ("jobs/policies", "policy.schema.json")])
def test_the_yaml_files_in_the_repository_match_their_schema(folder: str, schema: str) -> None:
    validator = jsonschema.Draft202012Validator(json.loads((FOLDER / schema).read_text(encoding="utf-8")))
    files = sorted((FOLDER.parent / folder).glob("*.yaml"))
    assert files
    for path in files:
        validator.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_every_column_and_key_says_what_it_means() -> None:
    for name, schema in schemas().items():
        for model in (schema, *schema.get("$defs", {}).values()):
            for key, about in model.get("properties", {}).items():
                described = "description" in about or "$ref" in about or "allOf" in about
                assert described, f"{name}: {key} has no description"


def test_parquet_and_schema_have_the_same_columns_in_the_same_order() -> None:
    assert ARROW_SCHEMA.names == list(VerdictRow.model_fields)


def test_a_column_is_nullable_in_parquet_exactly_where_the_schema_allows_null() -> None:
    properties = schemas()["verdict.schema.json"]["properties"]
    for field in ARROW_SCHEMA:
        allows_null = {"type": "null"} in properties[field.name].get("anyOf", [])
        assert field.nullable == allows_null, field.name


def test_times_are_utc_to_the_microsecond() -> None:
    for name in ("admitted_at", "committed_at"):
        assert ARROW_SCHEMA.field(name).type == pa.timestamp("us", tz="UTC")
