from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from dynbench.cli.common import FLAGS, Settings
from dynbench.cli.main import group, load_command
from dynbench.cli.options import command
from dynbench.config import values
from dynbench.errors import ConfigError


def settings_of(*arguments: str) -> Settings:
    seen: list[Settings] = []

    @command(named=True, config={flag.key for flag in FLAGS})
    def anything(settings: Settings) -> None:
        seen.append(settings)

    result = CliRunner().invoke(anything, arguments, prog_name="dynbench any thing", catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen[0]


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.names[0])
def test_every_flag_sets_a_field_and_lists_its_choices(flag):
    found = values.field_of(flag.key)
    assert found is not None
    assert found[1] == ()
    if flag.choices:
        words = set(values.allowed_words(found[0]))
        assert set(flag.choices) == words
    default = found[0].default
    assert flag.default == (str(default) if isinstance(default, str | int | float) else "")
    assert flag.help.endswith(".")
    assert "_" not in flag.names[0]


def test_everything_is_collected():
    settings = settings_of(
        "-c", "a.yaml", "--set", "a.b=1", "--set", "c.d=2", "--steps", "5", "--capacity", "8,4", "--results", "r",
        "--json", "-v", "--debug", "--name", "n",
    )  # fmt: skip
    assert settings == Settings(
        command="any thing",
        config_path=Path("a.yaml"),
        overrides=("a.b=1", "c.d=2"),
        flags={"train.steps": "5", "schedule.capacity": "8,4"},
        results=Path("r"),
        as_json=True,
        verbosity=1,
        naming={"name": "n", "replace": False},
    )
    assert not settings_of("-q").shows_progress


@pytest.mark.parametrize("option", ["--compress-config", "--comm-config-json"])
@pytest.mark.parametrize("name", ["--compress", "--comm-compress"])
def test_compression_is_set_by_one_object_too(option, name):
    settings = settings_of(name, "topk", option, '{"ratio": 0.3, "error_feedback": false, "name": "randomk"}')
    found = settings.config().compress
    assert (found.name, found.ratio, found.error_feedback) == ("topk", 0.3, False)  # type: ignore[attr-defined]
    assert settings.sets["compress.ratio"] == "--compress-config compress.ratio"


@pytest.mark.parametrize(
    ("text", "said"),
    [("{ratio: 1}", "no JSON"), ("[1]", "expected a JSON object"), ('{"ratio": 2}', "compress.ratio: 2")],
)
def test_a_wrong_object_is_refused(text, said):
    with pytest.raises((AssertionError, ConfigError), match=said):
        settings_of("--compress-config", text).config()


@pytest.mark.parametrize("name", ["train", "compare", "solve", "probe", "analyze"])
def test_help_all_lists_every_option(name):
    command = load_command(name)
    shown = CliRunner().invoke(command, ["--help"]).output
    whole = CliRunner().invoke(command, ["--help-all"]).output if "--help-all" in shown else shown
    options = {spelling for parameter in command.params for spelling in parameter.opts if spelling.startswith("--")}
    assert [spelling for spelling in sorted(options) if not re.search(rf"{spelling}\b", whole)] == []


def test_commands_options_and_values_complete():
    def completed(*words: str) -> list[str]:
        *before, begun = words
        return [item.value for item in ShellComplete(group, {}, "dynbench", "_").get_completions(before, begun)]

    assert completed("comp") == ["compare", "compress", "completion"]
    assert {"--mode", "--model"} <= {*completed("train", "--mo")}
    assert completed("train", "--mode", "dy") == ["dynamic"]
