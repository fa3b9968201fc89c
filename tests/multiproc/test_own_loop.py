"""Loops of the user's own: the programs of recipes/own_loop as they stand, and weights by targets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from forked import ForkedPopen
from multiproc.faults import TORCHRUN
from pages import READMES, read
from warm import WarmRanks

from dynbench.sampler import PlannedBatchSampler

pytestmark = pytest.mark.multiproc

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "recipes" / "own_loop"
EXCERPT = re.compile(r"```python\n(.*?)```", re.DOTALL)
JUDGE = Path(__file__).with_name("own_loop_rank.py")
EVALUATION = 1
"""What the judge adds for the Trainer's evaluation after the optimizer steps."""
LINE = r"rank [01], epoch 1: last batch \d+ samples, loss [\d.]+"
EXAMPLES = {
    "plain_ddp": (LINE, 2),
    "with_trainer": (r"trained 32 steps", 2),
    "with_accelerate": (LINE, 2),
    "packed_rows": (LINE, 2),
}
"""Name to what is printed, and how often."""


def test_every_program_is_tried_and_the_guide_points_to_it() -> None:
    links = re.findall(r"\(\.\./\.\./recipes/own_loop/(\w+)\.py\)", read("dynbench/guides/own_code.md"))
    assert {path.stem for path in PROGRAMS.iterdir()} == set(links) == set(EXAMPLES)


@pytest.mark.parametrize("page", [*READMES, "dynbench/guides/own_code.md"])
def test_a_page_quotes_the_first_program(page: str) -> None:
    excerpt = EXCERPT.findall(read(page))[0]
    lines = iter(program("plain_ddp").splitlines())
    assert all(line in lines for line in excerpt.splitlines()), "every line, in the program's order"


def program(name: str) -> str:
    return (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")


def judged(name: str, code: str, accumulated: int, folder: Path) -> tuple[str, list[float]]:
    """What a program prints on two ranks, and its errors.

    They are, per optimizer step, how far the gradient is from that of one process; then the loss of an evaluation.
    """
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    launch = [sys.executable, *TORCHRUN, str(JUDGE), f"{name}.py", str(accumulated)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = ForkedPopen(launch, forks=True, cwd=folder, text=True, **pipes)
    output, wrong = process.communicate(timeout=300)
    assert process.returncode == 0, wrong[-4000:]
    (line,) = [line for line in output.splitlines() if line.startswith('{"errors"')]
    errors: list[float] = json.loads(line)["errors"]
    return output, errors


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


@pytest.mark.parametrize(
    ("name", "accumulated", "steps"),
    [
        ("plain_ddp", 1, 32),
        pytest.param("with_trainer", 1, 32 + EVALUATION, marks=pytest.mark.matrix),
        pytest.param("with_trainer", 2, 16 + EVALUATION, marks=pytest.mark.matrix),
        ("with_trainer", 3, 12 + EVALUATION),
        pytest.param("with_trainer", 4, 8 + EVALUATION, marks=pytest.mark.matrix),
        pytest.param("with_accelerate", 1, 32, marks=pytest.mark.matrix),
        ("with_accelerate", 3, 10),
        ("packed_rows", 1, 32),
    ],
)
def test_it_runs_with_the_gradients_of_the_global_batches_in_one_process(
    name: str, accumulated: int, steps: int, tmp_path: Path
) -> None:
    output, errors = judged(name, program(name), accumulated, tmp_path)
    printed, times = EXAMPLES[name]
    if name != "with_trainer" or accumulated == 1:
        assert len(re.findall(printed, output)) == times, output
    assert len(errors) == steps
    assert max(errors) < 1e-9


def test_a_causal_model_of_the_trainer_weighs_by_its_targets_itself(tmp_path: Path) -> None:
    _, errors = judged("with_trainer", as_causal_model(program("with_trainer")), 3, tmp_path)
    assert len(errors) == 12 + EVALUATION
    assert max(errors[:12]) < 1e-9  # its evaluation is a mean of the batches' means


TARGETS = ((5, 2, 0), (1, 4, 9))
"""By rank, the target tokens of the batches of an optimizer step."""


def target_weights(rank: int) -> tuple[float, list[float]]:
    """What a rank's batch weighs by its targets, and each of the batches that are accumulated."""
    sampler = PlannedBatchSampler([4] * 12, dist.get_world_size(), rank, 12)
    first, *_ = TARGETS[rank]
    return sampler.weight(6, targets=first), sampler.target_weights(TARGETS[rank], group=dist.group.WORLD)


def test_batches_weigh_by_their_part_of_all_ranks_targets(ranks: WarmRanks) -> None:
    """So that means of the batches, averaged over ranks and batches, are the mean over all targets."""
    total, firsts = sum(map(sum, TARGETS)), sum(mine[0] for mine in TARGETS)
    for (one, accumulated), mine in zip(ranks(target_weights), TARGETS, strict=True):
        assert one == pytest.approx(2 * mine[0] / firsts)
        assert accumulated == pytest.approx([2 * 3 * targets / total for targets in mine])
