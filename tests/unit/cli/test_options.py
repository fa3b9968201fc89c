from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dynbench.cli import options
from dynbench.cli.options import FLAGS, Settings, common_options, config_options, name_options
from dynbench.config import describe
from dynbench.errors import ConfigError


def settings_of(*arguments: str, sections: tuple[str, ...] = ()) -> Settings:
    seen: list[Settings] = []

    @click.command()
    @name_options
    @config_options(*sections)
    @common_options
    def command(settings: Settings, name: str | None, replace: bool) -> None:
        seen.append(settings)

    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen[0]


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.option)
def test_every_flag_sets_a_field_and_lists_its_choices(flag: options.Flag) -> None:
    found = describe.field_of(flag.key)
    assert found is not None
    assert found[1] == ()
    if flag.choices:
        words = set(describe.allowed_words(found[0]))
        assert set(flag.choices) == words
    assert flag.help.endswith(".")
    assert "_" not in flag.option


def test_everything_is_collected() -> None:
    settings = settings_of(
        "-c", "a.yaml", "--set", "a.b=1", "--set", "c.d=2", "--steps", "5", "--capacity", "8,4", "--results", "r",
        "--json", "-v", "--debug",
    )  # fmt: skip
    assert settings == Settings(
        config_path=Path("a.yaml"),
        overrides=("a.b=1", "c.d=2"),
        flags={"train.steps": "5", "schedule.capacity": "8,4"},
        results=Path("r"),
        as_json=True,
        verbosity=1,
        debug=True,
    )
    assert not settings_of("-q").shows_progress


def test_choices_complete() -> None:
    @click.command()
    @config_options("schedule.mode")
    @common_options
    def command(settings: Settings) -> None: ...

    mode = next(parameter for parameter in command.params if "--mode" in parameter.opts)
    found = mode.shell_complete(click.Context(command), "dy")
    assert [item.value for item in found] == ["dynamic"]


@pytest.mark.parametrize("option", ["--compress-config", "--comm-config-json"])
@pytest.mark.parametrize("name", ["--compress", "--comm-compress"])
def test_compression_is_set_by_one_object_too(option: str, name: str) -> None:
    settings = settings_of(name, "topk", option, '{"ratio": 0.3, "error_feedback": false, "name": "randomk"}')
    found = settings.config().compress
    assert (found.name, found.ratio, found.error_feedback) == ("topk", 0.3, False)  # type: ignore[attr-defined]
    assert settings.sets["compress.ratio"] == "--compress-config compress.ratio"


@pytest.mark.parametrize(
    ("text", "said"),
    [("{ratio: 1}", "no JSON"), ("[1]", "expected a JSON object"), ('{"ratio": 2}', "compress.ratio: 2")],
)
def test_a_wrong_object_is_refused(text: str, said: str) -> None:
    with pytest.raises((AssertionError, ConfigError), match=said):
        settings_of("--compress-config", text).config()
