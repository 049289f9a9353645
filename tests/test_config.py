"""Settings: sources and their precedence, types, errors that name the nearest key."""

from __future__ import annotations

import contextvars
import os
from pathlib import Path

import pytest

import graphopt
from graphopt import config
from graphopt.errors import UsageError


def load(folder: Path, environ: dict[str, str] | None = None, **arguments: object) -> config.Settings:
    return config.load(environ or {}, folder, **arguments)  # type: ignore[arg-type]


def test_each_source_wins_over_those_before(tmp_path: Path) -> None:
    assert load(tmp_path).fold_limit == 64 * 1024
    (tmp_path / "graphopt.toml").write_text('fold-limit = "1KiB"\nseed = 3\n')
    assert load(tmp_path).fold_limit == 1024
    environ = {"GRAPHOPT_FOLD_LIMIT": "2KiB"}
    assert load(tmp_path, environ).fold_limit == 2048
    assert load(tmp_path, environ, assignments=["fold_limit=3KiB"]).fold_limit == 3072
    given = {"fold_limit": 7, "seed": None}
    settings = load(tmp_path, environ, assignments=["fold-limit=3KiB"], overrides=given)
    assert (settings.fold_limit, settings.seed) == (7, 3)


def test_the_nearest_folder_upward_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.graphopt]\nseed = 1\n[tool.other]\nx = 1\n")
    assert load(inner).seed == 1
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert load(inner).seed == 1
    (tmp_path / "a" / "graphopt.toml").write_text("seed = 2\n")
    assert load(inner).seed == 2


def test_values_are_typed(tmp_path: Path) -> None:
    (tmp_path / "graphopt.toml").write_text(
        'skip = ["cse", "dce"]\nverify = false\nexternal-data = true\nallow_external = ["weights"]\n'
    )
    settings = load(tmp_path, {"GRAPHOPT_EXACT": "on", "GRAPHOPT_DEVICE": "cuda:1"})
    assert settings.skip == ("cse", "dce")
    assert settings.verify is False and settings.weights == "beside" and settings.exact is True
    assert settings.allow_external == (tmp_path / "weights",)
    assert settings.device == "cuda:1"
    assert load(tmp_path, assignments=["time-limit=1m"]).time_limit == 60.0
    assert load(tmp_path, {"GRAPHOPT_VERIFY_SECONDS": "2.5"}).verify_seconds == 2.5
    (tmp_path / "graphopt.toml").write_text('time-limit = "90s"\nverify-seconds = 5\n')
    assert (load(tmp_path).time_limit, load(tmp_path).verify_seconds) == (90.0, 5.0)
    (tmp_path / "graphopt.toml").unlink()
    assert load(tmp_path, {"GRAPHOPT_SKIP": "a, b"}).skip == ("a", "b")
    assert load(tmp_path, {"GRAPHOPT_EXTERNAL_DATA": "none"}).weights == "auto"


@pytest.mark.parametrize(
    ("toml", "environ", "assignments", "message"),
    [
        ("fold_limt = 1", {}, [], "nearest: fold-limit"),
        ("seed = 1.5", {}, [], "1.5 is not a value for 'seed'"),
        ("verify = 1", {}, [], "1 is not a value for 'verify'"),
        ("seed = ", {}, [], "can't read the settings"),
        ("exact = 1", {}, [], "graphopt.toml: 1 is not a value for 'exact'; write true or false"),
        ("skip = 1", {}, [], '1 is not a value for \'skip\'; write a list, such as ["cse", "dce"]'),
        ("device = true", {}, [], "true is not a value for 'device'; write text in quotes"),
        ("[optimize]\nexact = true", {}, [], "graphopt.toml: 'optimize' is a table, which no setting is"),
        ("cpu-level = 7", {}, [], "graphopt.toml: cpu-level can't be 7: give 2, 3 or 4"),
        ("", {"GRAPHOPT_FOLD": "1"}, [], "nearest: fold-limit"),
        ("", {"GRAPHOPT_VERIFY": "perhaps"}, [], "is not a value for 'verify'; write true or false"),
        ("", {"GRAPHOPT_FOLD_LIMIT": "64 parsec"}, [], "GRAPHOPT_FOLD_LIMIT: '64 parsec' is not a value"),
        ("", {}, ["seed"], "not of the form key=value"),
        ("", {}, ["seed=abc"], "--set: 'abc' is not a value for 'seed'; write a whole number"),
        ("", {}, ["seed=-1"], "seed can't be -1"),
        ("", {}, ["verify-seconds=long"], "write a time such as 60s"),
        ("verify-seconds = -2", {}, [], "verify-seconds can't be -2"),
        ("", {}, ["sed=1"], "--set: no setting is called 'sed'; nearest: seed"),
        ("", {}, ["foo=1"], "--set: no setting is called 'foo'; graphopt config show lists all"),
    ],
)
def test_mistakes_are_reported(
    tmp_path: Path, toml: str, environ: dict[str, str], assignments: list[str], message: str
) -> None:
    (tmp_path / "graphopt.toml").write_text(toml)
    with pytest.raises(UsageError) as caught:
        load(tmp_path, environ, assignments=assignments)
    assert message in caught.value.message


def test_a_path_is_not_an_environment(tmp_path: Path) -> None:
    (tmp_path / "graphopt.toml").write_text("seed = 5")
    for function in (config.load, config.sources):
        with pytest.raises(TypeError, match=f"is a mapping: for a path, write folder='{tmp_path}'"):
            function(str(tmp_path))  # type: ignore[arg-type]
    assert config.load(folder=str(tmp_path)).seed == 5
    assert str(tmp_path / "graphopt.toml") in config.sources(folder=str(tmp_path))


def test_changes_of_settings_are_typed() -> None:
    with config.patch(fold_limit="1KiB", skip=["cse"], cache_dir="x", cpu_level=None) as settings:
        assert (settings.fold_limit, settings.skip, settings.cache_dir) == (1024, ("cse",), Path("x"))
    with pytest.raises(UsageError, match=r"config\.patch: 1 is not a value for 'exact'; write true or false"):
        config.patch(exact=1)
    with pytest.raises(TypeError, match="settings must be Settings"), config.using({"seed": 1}):  # type: ignore[arg-type]
        pass


def test_other_environment_variables(tmp_path: Path) -> None:
    assert load(tmp_path, {"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/graphopt")
    assert load(tmp_path, {"XDG_CACHE_HOME": "/x", "GRAPHOPT_CACHE_DIR": "/y"}).cache_dir == Path("/y")
    assert load(tmp_path).color is None
    assert load(tmp_path, {"NO_COLOR": "1"}).color is False
    assert load(tmp_path, {"NO_COLOR": ""}).color is None


def test_patch_is_undone_after_the_block_and_after_exceptions() -> None:
    before = config.current()
    with config.patch(fold_limit=5) as settings:
        assert config.current() is settings and settings.fold_limit == 5
        with config.patch(seed=9):
            assert (config.current().fold_limit, config.current().seed) == (5, 9)
        assert config.current() is settings
    with pytest.raises(ZeroDivisionError), config.patch(seed=1):
        raise ZeroDivisionError
    assert config.current() == before
    with pytest.raises(UsageError, match="nearest: seed"):
        config.patch(sed=1)


def test_library_calls_read_no_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "graphopt.toml").write_text("seed = 7\n")
    monkeypatch.chdir(tmp_path)
    assert config.current().seed == 0 and graphopt.Compiler().settings.seed == 0
    with config.using(config.load()):
        assert config.current().seed == 7 and graphopt.Compiler().settings.seed == 7
    monkeypatch.setenv("GRAPHOPT_SEED", "8")
    assert config.current().seed == 8 and config.load().seed == 8


def test_every_setting_is_documented() -> None:
    page = (Path(__file__).parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
    described = config.describe()
    assert {"pipeline", "skip", "seed"} <= {key for key, _, _ in described}
    for key, default, about in described:
        assert f"| `{key}` | {about} | `{config.shown(default)}` |" in page


@pytest.mark.parametrize(("given", "inside", "for_callers"), [(None, "1", None), ("3", "3", "3")])
def test_commands_of_callers_have_their_own_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, given: str | None, inside: str, for_callers: str | None
) -> None:
    name = "OPENBLAS_NUM_THREADS"
    monkeypatch.setenv(name, given or "")
    if given is None:
        del os.environ[name]

    def prepare() -> str | None:
        config.prepare_libraries()
        return config.environment_of_caller().get(name)

    assert contextvars.copy_context().run(prepare) == for_callers
    assert os.environ[name] == inside
