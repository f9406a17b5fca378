"""The job file: defaults, refusals in one clear message, overrides, paths relative to the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline.errors import JobError
from pipeline.job import Job, load_job

MINIMAL = {"name": "x", "source": {"paths": ["clips"]}, "policy": "p.yaml", "output": {"path": "out"}}


def write(folder: Path, data: object) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def refusal(folder: Path, data: object, *overrides: str) -> str:
    with pytest.raises(JobError) as caught:
        load_job(write(folder, data), overrides)
    return str(caught.value)


def test_paths_are_relative_to_the_job_file_and_not_to_the_working_directory(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, MINIMAL))
    assert job.source.paths == (str(tmp_path / "clips"),)
    assert job.policy == tmp_path / "p.yaml"
    assert job.output.path == tmp_path / "out"


def test_absolute_paths_and_the_embedded_model_stay_as_they_are(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, MINIMAL | {"policy": "/etc/p.yaml", "model": {"path": "embedded"}}))
    assert job.policy == Path("/etc/p.yaml")
    assert job.model.path == "embedded"


def test_a_single_path_may_be_written_without_a_list(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, MINIMAL | {"source": {"paths": "clips"}}))
    assert job.source.paths == (str(tmp_path / "clips"),)


def test_an_unknown_key_is_refused_with_the_nearest_valid_one(tmp_path: Path) -> None:
    message = refusal(tmp_path, MINIMAL | {"polcy": "q.yaml"})
    assert 'unknown key "polcy"' in message
    assert '"policy"' in message


def test_an_unknown_nested_key_is_refused_with_the_nearest_one_of_its_own_section(tmp_path: Path) -> None:
    message = refusal(tmp_path, MINIMAL | {"media": {"video": {"max_rate": 2}}})
    assert 'unknown key "media.video.max_rate"; did you mean "max_rate_hz"?' in message


def test_every_wrong_key_is_named_in_one_message(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"name": "x", "source": {"paths": ["a"]}, "output": {"path": "o", "colour": 1}})
    assert 'missing key "policy"' in message
    assert 'unknown key "output.colour"' in message


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("sla.per_item_s=0", "sla.per_item_s"),
        ("engine.max_num_seqs=many", "engine.max_num_seqs"),
        ("output.on_change=maybe", "output.on_change"),
        ("media.audio.max_duration_s=3600", "media.audio.max_duration_s"),
        ("media.video.min_rate_hz=9", "media.video"),
        ("source.paths=[]", "source"),
        ("name='a b'", "name"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_key(tmp_path: Path, override: str, key: str) -> None:
    assert f'"{key}"' in refusal(tmp_path, MINIMAL, override)


def test_set_overrides_one_nested_key_and_parses_yaml_values(tmp_path: Path) -> None:
    job = load_job(
        write(tmp_path, MINIMAL),
        ["media.video.max_rate_hz=1.5", "source.exclude=['*.txt', '*.json']", "engine.extra.block_size=32"],
    )
    assert job.media.video.max_rate_hz == 1.5
    assert job.source.exclude == ("*.txt", "*.json")
    assert job.engine.extra == {"block_size": 32}


def test_a_path_given_with_set_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    job = load_job(write(tmp_path, MINIMAL), ["output.path=here", "source.paths=[clips]"])
    assert job.output.path == tmp_path / "elsewhere" / "here"
    assert job.source.paths == (str(tmp_path / "elsewhere" / "clips"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nname: b\n", 'key "name" is given twice'),
        ("name: a\noutput: {path: x, path: y}\n", 'key "path" is given twice'),
        ('policy: "a\\0b"\n', "no name can have"),
        ('name: "\\ud800"\n', "no name can have"),
        ("name: " + "[" * 5000, "nested too deeply"),
        ("name: " + "9" * 5000, "not valid YAML"),
    ],
)
def test_yaml_that_hides_something_or_cannot_be_read_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "override", ["sla.per_item_s=.inf", "media.max_duration_s=.nan", "policy=''", "source.paths=['']", "output.path=''"]
)
def test_infinite_numbers_and_empty_paths_are_refused(tmp_path: Path, override: str) -> None:
    assert override.partition("=")[0].rpartition(".")[0] in refusal(tmp_path, MINIMAL, override)


def test_a_step_up_behind_a_link_means_what_the_file_system_means(tmp_path: Path) -> None:
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    job = load_job(write(tmp_path, MINIMAL | {"source": {"paths": ["link/../clips"]}}))
    assert job.source.paths == (str(tmp_path / "far" / "clips"),)


def test_one_pattern_may_be_written_without_a_list(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, MINIMAL | {"source": {"paths": "clips", "include": "*.wav"}}))
    assert job.source.include == ("*.wav",)


@pytest.mark.parametrize("override", ["name", "=x", "a..b=1", "name.first=x", "sla={"])
def test_a_malformed_override_is_refused(tmp_path: Path, override: str) -> None:
    assert "--set" in refusal(tmp_path, MINIMAL, override)


@pytest.mark.parametrize("content", ["", "- a\n- b\n", "name: [", "just text"])
def test_a_file_that_is_no_mapping_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(JobError, match=r"job\.yaml"):
        load_job(path)


def test_a_missing_and_an_unreadable_job_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="does not exist"):
        load_job(tmp_path / "none.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobError, match="cannot be read"):
        load_job(binary)


def test_a_job_cannot_be_changed_after_reading(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, MINIMAL))
    with pytest.raises(ValueError, match="frozen"):
        job.name = "y"


def test_every_job_in_the_repository_is_valid() -> None:
    jobs = sorted((Path(__file__).parents[1] / "jobs").glob("*.yaml"))
    assert jobs
    for path in jobs:
        assert isinstance(load_job(path), Job)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("canary: [a]", '"canary" must be a mapping of keys to values, not a list'),
        ("canary: {clips: a.wav}", "\"canary.clips\" must be a list, not the value 'a.wav'"),
        ("canary: {clips: }", '"canary.clips" must be a list, not empty'),
        ("engine: 3", '"engine" must be a mapping of keys to values, not the value 3'),
    ],
)
def test_a_value_of_the_wrong_shape_is_told_in_the_words_of_yaml(tmp_path: Path, text: str, message: str) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"{yaml.safe_dump(MINIMAL)}{text}\n", encoding="utf-8")
    with pytest.raises(JobError) as caught:
        load_job(job)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " is empty"),
        ("# nothing\n", " is empty"),
        ("- a", " must be a mapping of keys to values, not a list"),
        ("a: &a [*a]", " holds a value that refers to itself"),
        ("a: &a {b: [*a]}", " holds a value that refers to itself"),
        ("a: [1", " is not valid YAML: while parsing a flow sequence in line 1, column 4"),
    ],
)
def test_a_file_that_is_no_job_is_named_with_what_is_wrong_with_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert str(caught.value).startswith(f"job file {path}{message}") and "unicode string" not in str(caught.value)


def test_aliases_of_aliases_are_looked_at_once(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    lines = ["b0: &a0 [x]", *(f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30))]
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(JobError, match="unknown key"):
        load_job(path)
