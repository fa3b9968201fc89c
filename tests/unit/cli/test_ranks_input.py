"""What cannot be asked of ranks: one line, exit code 2, and nothing made."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynbench.cli.main import main

OTHER_SCHEMA = '{"schema_version": 9, "world_size": 2, "allreduce": [{"megabytes": 1, "ms": 1}]}'


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--launcher=virtual", "--nnodes=2", "--rdzv-endpoint=h:1"], "2 nodes cannot share virtual ranks"),
        (["--launcher=virtual", "--set", "launch.slowdown={4: 2.0}"], "there is no rank 4 among 4; greatest: 3"),
        (["--nproc=2", "--set", "launch.slowdown={2: 2.0}"], "there is no rank 2 among 2; greatest: 1"),
        (["--set", "launch.slowdown={0: 0.5}"], "Allowed: "),
        (["--launcher=virtual", "--set", "launch.comm_model=comm.json"], "schema version 9, this version reads 1"),
        (["--launcher=virtual", "--set", "launch.comm_model=-1,2"], "'-1,2' is negative"),
        (["--launcher=virtual", "--set", "launch.comm_model=nothing"], "'nothing': not found"),
        (["--launcher=virtual", "--speeds=1,1"], "[1.0, 1.0] has 2 values for 4 ranks"),
        (["--nproc=2", "--speeds=1,0"], "Allowed: a list of numbers > 0"),
        (["--nproc=2", "--speeds=fast"], "'fast' is not allowed"),
    ],
)
def test_one_line_and_exit_code_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "comm.json").write_text(OTHER_SCHEMA, encoding="utf-8")
    assert main(["train", *arguments]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert says in errors[0]
    assert not (tmp_path / "results").exists()
