"""The loop of `dynbench train` against the same training in one process, written a second time without the package.

Strategies that train as one process does, and virtual ranks, under policies, layouts and architectures: a sample in
`make test`, all of them in `make test-matrix`. Both sides compute in float64, so that what differs is no rounding.
"""

from __future__ import annotations

from itertools import product
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import write_config
from packed import SLIDING
from reference.one_process import Course, class_loss, token_loss, train
from reference.rank_steps import FAULTY, Answer, Steps, built, steps
from torch import Tensor, nn
from warm import WarmRanks, gloo_ranks

from dynbench.config.layers import load_config
from dynbench.config.schema import Config
from dynbench.engine.launching.resolve import Machine, resolve
from dynbench.plugins import POLICIES, STRATEGIES, WORKLOADS
from dynbench.runs.store import RunStore
from dynbench.schedule.policy import policy_class

pytestmark = [pytest.mark.multiproc, pytest.mark.xdist_group("reference")]

RANKS, STEPS, BATCH = 3, 6, 12
VIRTUAL = "virtual"
COURSE = Course(steps=STEPS, rise=2, rate=3e-3, decay=0.1, most=0.25)
TRAINED = (
    f"train.global_batch={BATCH}",
    "train.warmup_steps=1",
    f"train.steps={STEPS - 1}",
    "train.schedule=cosine",
    f"train.lr_warmup_steps={COURSE.rise}",
    f"train.learning_rate={COURSE.rate}",
    f"train.weight_decay={COURSE.decay}",
    f"train.max_grad_norm={COURSE.most}",
    "train.eval_samples=0",
    "workload.dropout=0",
    "launch.device=cpu",
)
ARCHITECTURES: dict[str, tuple[str, dict[str, object]]] = {
    "distilbert": ("text_classification", {}),
    "modernbert": ("text_classification", {**SLIDING, "classifier_pooling": "mean"}),
    "gpt2": ("causal_lm", {}),
    "llama": ("causal_lm", {}),
    "mlp": ("mlp", {}),
}
"""With their workloads, and what is changed of their tiny configurations."""
ROUNDING = {"modernbert": 1e-6, "llama": 1e-6}
"""How far results may be apart, of what they are, where transformers computes in float32 whatever the weights are."""
EXACT = 1e-10
LENGTHS = [2 + 7 * i * i % 31 for i in range(60)]
Case = tuple[str, str, str, str]
"""Strategy, policy, layout and architecture."""
SAMPLE: tuple[Case, ...] = (
    ("ddp", "partition", "padded", "distilbert"),
    ("naive", "prefix", "padded", "gpt2"),
    ("flat", "token_budget", "padded", "llama"),
    ("overlap", "window", "padded", "modernbert"),
    ("bucketed", "partition", "packed", "gpt2"),
    ("zero1", "static", "packed", "llama"),
    ("zero1_torch", "lpt", "padded", "gpt2"),
    ("fsdp", "partition", "packed", "distilbert"),
    ("ps", "prefix", "padded", "mlp"),
    ("ps_flat", "partition", "packed", "modernbert"),
    (VIRTUAL, "group_by_length", "padded", "distilbert"),
)


def makes_sense(case: Case) -> bool:
    """Whether a policy is for the layout and for samples like the workload's."""
    _, policy, layout, architecture = case
    workload = WORKLOADS[ARCHITECTURES[architecture][0]]
    has_lengths = workload.lengths is not None or POLICIES[policy].without_lengths
    return layout in POLICIES[policy].layouts and layout in workload.layouts and has_lengths


CASES = [
    case
    for case in product(
        [VIRTUAL, *(name for name, entry in STRATEGIES.items() if entry.exact)],
        [name for name, entry in POLICIES.items() if entry.in_train and not entry.missing],
        ("padded", "packed"),
        ARCHITECTURES,
    )
    if makes_sense(case)
]


three = gloo_ranks(RANKS, "module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where configurations of models are, and the lengths of the samples."""
    made = tmp_path_factory.mktemp("models")
    (made / "lengths.txt").write_text("\n".join(map(str, LENGTHS)), encoding="utf-8")
    return made


def configured(folder: Path, case: Case, *more: str) -> Config:
    """Resolved settings; where the policy splits what a rank runs, in two micro-batches."""
    sync, policy, layout, architecture = case
    workload, changes = ARCHITECTURES[architecture]
    samples = ["workload.subset=60"]
    if workload != "mlp":
        model = write_config(folder / architecture, architecture, **changes)
        data = f"workload.data_path={folder / 'lengths.txt'}"
        samples = [f"workload.model={model}", "workload.size=model", "workload.dataset=lengths", data]
    real = (f"sync.name={sync}", f"launch.nproc={RANKS}")
    ranks = ("launch.launcher=virtual", f"launch.world_size={RANKS}") if sync == VIRTUAL else real
    settings = [
        *TRAINED,
        f"workload.name={workload}",
        *samples,
        *ranks,
        f"schedule.policy={policy}",
        f"workload.layout={layout}",
        *(["schedule.window=2"] if policy == "window" else []),
        *(["schedule.micro_batches=2"] if policy_class(policy).splits else []),
        *more,
    ]
    return resolve(load_config(None, settings), Machine(cores=2, gpus=0, bf16=False), RunStore(folder)).config


def trained_alone(config: Config, plans: Steps) -> tuple[nn.Module, dict[str, Tensor], list[tuple[float, ...]]]:
    """The reference's model, its first weights, and what it says of every step."""
    workload: Any = built(config)
    build = getattr(workload, "build_padded_model", workload.build_model)
    model = build(config.train.seed).double()
    first = {name: each.detach().clone() for name, each in model.named_parameters()}
    data, is_language = workload.train, config.workload.name == "causal_lm"

    def loss_of(model: nn.Module, sample: int) -> tuple[Tensor, float]:
        label = int(data.labels[sample])
        if config.workload.name == "mlp":
            pixels = workload.collate(data, np.array([sample]), 1)["pixels"]
            return class_loss(model((pixels.double() / 255 - 0.1307) / 0.3081)[0], label)
        tokens = torch.from_numpy(data.tokens[data.offsets[sample] : data.offsets[sample + 1]]).long()
        logits = model(input_ids=tokens[None]).logits[0]
        return token_loss(logits, tokens) if is_language else class_loss(logits, label)

    return model, first, train(model, plans, loss_of, COURSE)


def judge(config: Config, answers: list[Answer], rounding: float = EXACT) -> None:
    """Losses, norms and weights are those of one process on the samples that the ranks were given."""
    plans = [[sample for given, _, _ in answers for sample in given[step]] for step in range(STEPS)]
    rows = [rows for _, mine, _ in answers for rows in mine]
    model, first, said = trained_alone(config, plans)
    for (loss, norm), step in zip(said, zip(*rows, strict=True), strict=True):
        weight = sum(row["weight"] for row in step)
        assert sum(row["loss"] * row["weight"] for row in step) / weight == pytest.approx(loss, rel=rounding), "losses"
        norms = [row["grad_norm"] for row in step if not isnan(row["grad_norm"])]
        assert norms == pytest.approx([norm] * len(norms), rel=rounding) and norms, "norms"
    state = answers[0][2]
    assert state is not None
    wanted = dict(model.named_parameters())
    moved = torch.cat([(each - first[name]).detach().flatten() for name, each in wanted.items()])
    wrong = torch.cat([(each - state[name]).detach().flatten() for name, each in wanted.items()])
    assert moved.norm() > 0 and wrong.norm() <= rounding * moved.norm(), "weights"


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id="-".join(case), marks=[] if case in SAMPLE else pytest.mark.matrix) for case in CASES],
)
def test_it_trains_as_one_process_does(three: WarmRanks, folder: Path, tmp_path: Path, case: Case) -> None:
    config = configured(folder, case)
    (tmp_path / "ranks").mkdir()
    alone = case[0] == VIRTUAL
    answers = [steps(0, str(tmp_path), config)] if alone else three(steps, str(tmp_path), config)
    judge(config, answers, ROUNDING.get(case[3], EXACT))


FAULTS = {
    "weight": ((), "norms"),
    "sample": ((), "losses"),
    "the rate": (("train.learning_rate=0.00303",), "losses"),
    "its course": (("train.schedule=linear",), "losses"),
    "its rise": (("train.lr_warmup_steps=3",), "losses"),
    "decay": (("train.weight_decay=0.101",), "losses"),
    "clipping": ((f"train.max_grad_norm={1.01 * COURSE.most}",), "losses"),
    "the optimizer": (("train.optimizer=adam",), "losses"),
}
"""What is planted on one rank, or set otherwise on all, by as little as 1 %; and what is seen of it first."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(three: WarmRanks, folder: Path, tmp_path: Path, fault: str) -> None:
    settings, seen = FAULTS[fault]
    config = configured(folder, SAMPLE[0], *settings)
    (tmp_path / "ranks").mkdir()
    answers = three(steps, str(tmp_path), config, fault if fault in ("weight", "sample") else None)
    with pytest.raises(AssertionError, match=seen):
        judge(config, answers)


def test_the_sample_has_every_strategy_architecture_and_layout() -> None:
    assert set(SAMPLE) <= set(CASES) and FAULTY < RANKS
    for place in (0, 2, 3):
        assert {case[place] for case in SAMPLE} == {case[place] for case in CASES}
