from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from dynbench.cli.common import FLAGS, Settings
from dynbench.cli.main import group
from dynbench.cli.options import command
from dynbench.config import values


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
    field, below = values.field_of(flag.key) or (None, None)
    assert field is not None and below == ()
    assert not flag.choices or set(flag.choices) == set(values.allowed_words(field))
    assert flag.default == (str(field.default) if isinstance(field.default, str | int | float) else "")
    assert flag.help.endswith(".") and "_" not in flag.names[0]


def test_everything_is_collected():
    given = "-c a.yaml --set a.b=1 --set c.d=2 --steps 5 --capacity 8,4 --results r --json -v --debug --name n"
    assert settings_of(*given.split()) == Settings(
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


def test_commands_options_and_values_complete():
    def completed(*words: str) -> list[str]:
        *before, begun = words
        return [item.value for item in ShellComplete(group, {}, "dynbench", "_").get_completions(before, begun)]

    assert completed("comp") == ["compare", "compress", "completion"]
    assert {"--mode", "--model"} <= {*completed("train", "--mo")}
    assert completed("train", "--mode", "dy") == ["dynamic"]
