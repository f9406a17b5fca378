"""Reading YAML into frozen pydantic models with one clear message for whatever is wrong; used by jobs and policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import JobError, nearest
from pipeline.records import JsonObject


class Settings(BaseModel):
    """Base of everything a person writes in YAML: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


SettingsT = TypeVar("SettingsT", bound=Settings)


def read_yaml(path: Path, what: str) -> JsonObject:
    """Return the mapping in a YAML file. Raises JobError if it is missing, unreadable or no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise JobError(f"{what} {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{what} {path} cannot be read: {error}") from None
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise JobError(f"{what} {path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise JobError(f"{what} {path} must be a mapping of keys to values, not {type(data).__name__}")
    return data


def validate(model: type[SettingsT], data: JsonObject, where: str) -> SettingsT:
    """Return the model for `data`. Raises JobError naming each wrong key and, if unknown, the nearest valid one."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = [_sentence(model, problem) for problem in error.errors(include_url=False)]
        raise JobError(f"{where}: " + "; ".join(dict.fromkeys(lines))) from None


def _sentence(model: type[BaseModel], problem: Any) -> str:
    """Return one sentence for one pydantic error."""
    key = ".".join(str(part) for part in problem["loc"]) or "(the file)"
    if problem["type"] == "extra_forbidden":
        parent = _model_at(model, problem["loc"][:-1])
        hint = nearest(str(problem["loc"][-1]), parent.model_fields) if parent else ""
        return f'unknown key "{key}"{hint}'
    if problem["type"] == "missing":
        return f'missing key "{key}"'
    message = problem["msg"].removeprefix("Value error, ")
    value = problem.get("input")
    shown = f" (got {value!r})" if isinstance(value, (str, int, float, bool, type(None))) else ""
    return f'"{key}": {message[:1].lower()}{message[1:]}{shown}'


def _model_at(model: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    """Return the model class that holds the keys at `location`, None if the place is no model."""
    current: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        fields = getattr(current, "model_fields", None)
        if fields is None or part not in fields:
            return None
        current = _first_model(fields[part].annotation)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _first_model(annotation: Any) -> Any:
    """Return the first pydantic model inside an annotation such as `tuple[Label, ...]` or `Source | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _first_model(inner)
        if found is not None:
            return found
    return None
