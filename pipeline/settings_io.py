"""Reading YAML and JSON into frozen pydantic models with one clear message for whatever is wrong."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import JobError, nearest
from pipeline.records import JsonObject


class Settings(BaseModel):
    """Base of everything a person writes in YAML: frozen, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, str_strip_whitespace=True
    )


SettingsT = TypeVar("SettingsT", bound=Settings)


def read_yaml(path: Path, what: str) -> JsonObject:
    """Return the mapping in a YAML file. Raises JobError if it is missing, unreadable or no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise JobError(f"{what} {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{what} {path} cannot be read: {error}") from None
    data = parse_yaml(text, f"{what} {path}")
    if data is None:
        raise JobError(f"{what} {path} is empty")
    if not isinstance(data, dict):
        raise JobError(f"{what} {path} must be {_MAPPING}, not {_shape(data)}")
    return data


def read_json(path: Path, what: str) -> JsonObject | None:
    """Return the object in a JSON file, None if there is no such file. Raises JobError if it cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise JobError(f"{what} {path} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise JobError(f"{what} {path} must be a JSON object, not {type(data).__name__}")
    return data


class _Loader(yaml.SafeLoader):
    """YAML without keys that are given twice: the first would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f'key "{twice[0]}" is given twice', node.start_mark)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, where: str) -> Any:
    """Return the value of a YAML text. Raises JobError, also for text that no file name or label can hold."""
    try:
        data = yaml.load(text, _Loader)
        _check_values(data, where, {})
    except (yaml.YAMLError, ValueError) as error:
        # PyYAML's name for a text that comes from no file; `where` has the right one.
        problem = " ".join(str(error).split()).replace('in "<unicode string>", line', "in line")
        raise JobError(f"{where} is not valid YAML: {problem}") from None
    except RecursionError:
        raise JobError(f"{where} is nested too deeply") from None
    return data


def _check_values(data: Any, where: str, looked_at: dict[int, bool]) -> None:
    """Raise JobError for a value that holds itself, and for a string with a null character or a lone surrogate.

    `looked_at` tells by id of each mapping and list whether all in it was looked at, so that none is twice.
    """
    if isinstance(data, (dict, list)):
        if (whole := looked_at.get(id(data))) is not None:
            if not whole:
                raise JobError(f"{where} holds a value that refers to itself")
            return
        looked_at[id(data)] = False
        for value in (*data, *data.values()) if isinstance(data, dict) else data:
            _check_values(value, where, looked_at)
        looked_at[id(data)] = True
    elif isinstance(data, str) and any(char == "\0" or "\ud800" <= char <= "\udfff" for char in data):
        raise JobError(f"{where} holds a text with a character that no name can have: {data!r}")


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
        names = [field.alias or name for name, field in parent.model_fields.items()] if parent else []
        hint = nearest(str(problem["loc"][-1]), names) if names else ""
        return f'unknown key "{key}"{hint}'
    if problem["type"] == "missing":
        return f'missing key "{key}"'
    value = problem.get("input")
    if problem["type"] in _SHAPES:
        return f'"{key}" must be {_SHAPES[problem["type"]]}, not {_shape(value)}'
    message = problem["msg"].removeprefix("Value error, ")
    shown = f" (got {value!r})" if isinstance(value, (str, int, float, bool, type(None))) else ""
    return f'"{key}": {message[:1].lower()}{message[1:]}{shown}'


_MAPPING, _LIST = "a mapping of keys to values", "a list"
_SHAPES = {"model_type": _MAPPING, "dict_type": _MAPPING, "tuple_type": _LIST, "list_type": _LIST}
"""What pydantic calls a value of the wrong shape -> what YAML should have there."""


def _shape(value: Any) -> str:
    """Return in YAML's words what a value is."""
    if value is None:
        return "empty"
    return _MAPPING if isinstance(value, dict) else _LIST if isinstance(value, list) else f"the value {value!r}"


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
