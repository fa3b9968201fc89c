"""The programs of recipes/own_loop run as they stand, on two ranks, with the gradient of the global batch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked import ForkedPopen
from pages import READMES, read

pytestmark = pytest.mark.multiproc

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "recipes" / "own_loop"
EXCERPT = re.compile(r"```python\n(.*?)```", re.DOTALL)
JUDGE = Path(__file__).with_name("own_loop_rank.py")
EVALUATION = 1
"""What the judge adds for the Trainer's evaluation after the optimizer steps."""
LINE = r"rank [01], epoch 1: last batch \d+ samples, loss [\d.]+"
EXAMPLES = {
    "plain_ddp": (LINE, 2, None),
    "with_trainer": (r"trained 32 steps", 2, "accelerate"),
    "with_accelerate": (LINE, 2, "accelerate"),
    "packed_rows": (LINE, 2, None),
}
"""Name to what is printed, how often, and the package that it needs beside ours."""
TO_THE_END = """
import os, runpy, sys
names = runpy.run_path(sys.argv[1], run_name="__main__")
sys.stdout.flush()
os._exit(0)
"""
"""Runs a program, but not the end of its names and the interpreter's shutdown, in which a gloo thread of torch 2.13
that drops a finished collective aborts now and then, or waits for the main thread that waits for it: 5 of 48 runs of
the Trainer program on a busy machine, 3 of 20 of the plain DDP one."""


def test_every_program_is_known_here() -> None:
    assert {path.stem for path in PROGRAMS.iterdir()} == set(EXAMPLES)


def test_the_guide_points_to_all_programs() -> None:
    text = read("dynbench/guides/own_code.md")
    assert set(re.findall(r"\(\.\./\.\./recipes/own_loop/(\w+)\.py\)", text)) == set(EXAMPLES)


@pytest.mark.parametrize("page", [*READMES, "dynbench/guides/own_code.md"])
def test_a_page_quotes_the_first_program(page: str) -> None:
    (excerpt,) = EXCERPT.findall(read(page))
    lines = iter(program("plain_ddp").splitlines())
    assert all(line in lines for line in excerpt.splitlines()), "every line, in the program's order"


def program(name: str) -> str:
    return (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")


def launched(name: str, code: str, folder: Path, *wrapper: str) -> str:
    """What a program prints on two ranks, run by a wrapper that takes its path."""
    needs = EXAMPLES[name][2]
    if needs is not None and find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = ForkedPopen([*launch, *wrapper], forks=True, cwd=folder, text=True, **pipes)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr[-4000:]
    return stdout


def gradient_errors(name: str, code: str, accumulated: int, folder: Path) -> list[float]:
    """Per optimizer step, how far the gradient is from that of one process; then the loss of an evaluation."""
    output = launched(name, code, folder, str(JUDGE), f"{name}.py", str(accumulated))
    (judged,) = [line for line in output.splitlines() if line.startswith('{"errors"')]
    errors: list[float] = json.loads(judged)["errors"]
    return errors


def as_causal_model(code: str) -> str:
    """The Trainer's program with a language model, and without what the guide says to leave out then."""
    code, cut = re.subn(r"\n    def compute_loss.*?\n\n\n", "\n\n", code, flags=re.DOTALL)
    code, left_out = re.subn(r" +self\.model_accepts_loss_kwargs = .*\n", "", code)
    assert cut == left_out == 1
    for old, new in {
        "    DataCollatorWithPadding,\n    DistilBertConfig,\n    DistilBertForSequenceClassification,\n": (
            "    DataCollatorForTokenClassification,\n    LlamaConfig,\n    LlamaForCausalLM,\n"
        ),
        '.tolist(), "labels": n % 2}': '.tolist(), "labels": [-100] * (n // 2) + [n] * (n - n // 2)}',
        "DistilBertForSequenceClassification(": "LlamaForCausalLM(",
        "DistilBertConfig(vocab_size=99, dim=32, hidden_dim=64, n_layers=1, n_heads=2)": (
            "LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=1, "
            "num_attention_heads=2, num_key_value_heads=2)"
        ),
        "DataCollatorWithPadding(": "DataCollatorForTokenClassification(",
    }.items():
        assert old in code
        code = code.replace(old, new)
    return code


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_runs(name: str, tmp_path: Path) -> None:
    printed, times, _ = EXAMPLES[name]
    (tmp_path / "to_the_end.py").write_text(TO_THE_END, encoding="utf-8")
    output = launched(name, program(name), tmp_path, "to_the_end.py", f"{name}.py")
    assert len(re.findall(printed, output)) == times, output


@pytest.mark.parametrize(
    ("name", "accumulated", "steps"),
    [
        ("plain_ddp", 1, 32),
        ("with_trainer", 1, 32 + EVALUATION),
        pytest.param("with_trainer", 2, 16 + EVALUATION, marks=pytest.mark.matrix),
        ("with_trainer", 3, 12 + EVALUATION),
        pytest.param("with_trainer", 4, 8 + EVALUATION, marks=pytest.mark.matrix),
        pytest.param("with_accelerate", 1, 32, marks=pytest.mark.matrix),
        ("with_accelerate", 3, 10),
        ("packed_rows", 1, 32),
    ],
)
def test_its_gradients_are_those_of_the_global_batches_in_one_process(
    name: str, accumulated: int, steps: int, tmp_path: Path
) -> None:
    errors = gradient_errors(name, program(name), accumulated, tmp_path)
    assert len(errors) == steps
    assert max(errors) < 1e-9


def test_a_causal_model_of_the_trainer_weighs_by_its_targets_itself(tmp_path: Path) -> None:
    errors = gradient_errors("with_trainer", as_causal_model(program("with_trainer")), 3, tmp_path)
    assert len(errors) == 12 + EVALUATION
    assert max(errors[:12]) < 1e-9  # its evaluation is a mean of the batches' means
