"""The one typed configuration of every command: frozen, no extra keys, each field described with its unit.

`auto` means that the program decides when it starts; the decision and its reason are stored in `env.json`
(`decisions`), and the resolved value in `config.yaml`. Rules over several fields are in `rules.py`.

Below the fields: configurations changed, compared by digest, and written; and what of them moves no number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from dynbench.config.yaml_strict import dump_yaml
from dynbench.plugins import COMPRESSORS, DATASETS, KINDS, POLICIES, STRATEGIES, WORKLOADS
from dynbench.plugins.policies import ROWS, Layout, WindowOptions, plan_name, plan_names
from dynbench.plugins.registry import (
    MOST,
    Auto,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    RankCount,
    Section,
    Seed,
    options_of,
    with_options,
)
from dynbench.plugins.workloads import OF_MODEL

if TYPE_CHECKING:
    WorkloadName: TypeAlias = str
    DatasetName: TypeAlias = str
    PolicyName: TypeAlias = str
    StrategyName: TypeAlias = str
    CompressorName: TypeAlias = str
else:
    WorkloadName = Literal[tuple(WORKLOADS)]
    DatasetName = Literal[tuple(DATASETS)]
    # Names that say a layout too are put as both before they are validated (`layers`).
    PolicyName = Literal[plan_names("padded", *ROWS, in_train=True)]
    StrategyName = Literal[tuple(STRATEGIES)]
    CompressorName = Literal[tuple(COMPRESSORS)]

OwnClass = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|.+\.py):[A-Za-z_]\w*$",
        description="MODULE:CLASS or FILE.py:CLASS of your own",
    ),
]
"""A workload that no registry knows."""


@with_options(name=WORKLOADS, dataset=DATASETS)
class Workload(Section):
    """What is trained, on which data."""

    name: WorkloadName | OwnClass = "text_classification"
    """Workload of the registry, or a class of your own that follows the protocol of `dynbench/workloads/base.py`:
    `module:Class` or `path/to/file.py:Class`."""
    import_from: str | None = None
    """Folder in which the module or file of a workload of your own is looked for; null is the current folder, then
    that of the shipped recipes, then the installed packages."""
    code_digest: str | None = None
    """Digest of that file; null takes it as it is and records it, and one that differs is refused."""
    dataset: DatasetName = "embedded"
    """Data set of the registry (`dynbench plugins datasets`)."""
    tokenizer: str | None = None
    """Hub name, local folder, a `vocab.txt` (WordPiece, lower case), a `vocab.json` with its merges beside it
    (byte-level BPE), or `bytes` (UTF-8). null: the model's own; of a language model of a size of its own, `bytes`."""
    model: str = "distilbert-base-uncased"
    """Hub name or local folder of the model; with `weights: random` its tokenizer is used, and its configuration where
    `size` says so."""
    weights: Literal["pretrained", "random"] = "random"
    """`pretrained` loads them from `model`; `random` initialises from `train.seed`."""
    size: str = "auto"
    """Shape with random weights, one of the workload's own: `small` or `base` (distilbert-base-uncased's) of
    text_classification, `tiny` to `xl-2026` of causal_lm, `small` or `resnet50` of image_classification; `model` is
    that of the configuration of `model`; auto is `model` where that is a folder with a config.json, else `small`, of
    causal_lm `gpt2-62m`, of image_classification `resnet50`."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Dropout probability everywhere in the model; null keeps the model's own (0.1)."""
    max_length: Annotated[int, Field(ge=2, le=MOST)] = 256
    """Longest sample in tokens; longer ones are truncated, and so are those beyond the positions of the model."""
    blocks: bool = False
    """Texts without labels are joined, an end of text between them, and cut into blocks of `max_length` tokens; the
    last tokens, which fill none, are left out. false: each text is a sample, truncated."""
    subset: PositiveInt | None = None
    """Random subset of this many training samples, drawn with `train.seed`; null takes all."""
    pad_to_multiple_of: PositiveInt | Auto = "auto"
    """Padded lengths are rounded up to a multiple of this many tokens; auto is 8 on GPUs, 1 on CPU."""
    layout: Layout = "padded"
    """`padded`: a micro-batch is as wide as its longest sample; `packed`: one row of real tokens, its samples kept
    apart by attention; `flattened`: the row of transformers' flattening collator, whose attention may not keep them
    apart. `schedule.policy: packed` or `flattened` is partition under it; policies that need padding are refused."""
    cache_dir: str | None = None
    """Folder of tokenised data and lengths; null is `$DYNBENCH_CACHE`, else the user's cache folder."""

    @property
    def shape(self) -> str:
        """What `size` means; auto looks whether there is such a folder."""
        entry = WORKLOADS.get(self.name)
        if self.size != "auto":
            return self.size if entry is None else entry.aliases.get(self.size, self.size)
        if (Path(self.model).expanduser() / "config.json").is_file():
            return OF_MODEL
        return "small" if entry is None else entry.auto_size

    @property
    def reads_model(self) -> bool:
        """Whether the model is made from the weights or the configuration of `model`."""
        return self.weights == "pretrained" or self.shape == OF_MODEL

    @property
    def tokenizer_name(self) -> str:
        """What tokenises texts: `tokenizer`, the workload's, or the model's own."""
        entry = WORKLOADS.get(self.name)
        own = None if entry is None or self.reads_model else entry.tokenizer
        return self.tokenizer or own or self.model

    @property
    def is_own(self) -> bool:
        """Whether `name` says the place of a class of the user's own."""
        return ":" in self.name

    @property
    def runs_own_code(self) -> bool:
        """Whether `name` is code of the user's own, by its place or registered, that may read any of these settings."""
        return self.is_own or self.name not in WORKLOADS.ours


@with_options(policy=POLICIES)
class Schedule(Section):
    """Who computes which samples."""

    mode: Literal["static", "dynamic"] = "static"
    """`static`: equal sample counts, as a distributed sampler deals them; `dynamic`: `policy` decides."""
    policy: PolicyName | None = None
    """Policy of the registry (`dynbench solve --list`); null is `static` or, when dynamic, `partition`, and `window`
    where several global batches are planned together."""
    cost_type: Literal["auto", "tokens", "tokens_sq", "attention", "measured"] = "auto"
    """Predicted cost of a micro-batch of n samples padded to L: n*L, (n*L)^2, n*L + a*n*L^2, or the probe's fit; auto
    is `measured` where `probe.run` or `cost_coefficients` are given, else `tokens`."""
    attention_a: NonNegativeFloat = 0.001
    """a of the `attention` cost, per token."""
    cost_coefficients: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] | None = None
    """alpha (ms), beta (ms per padded token), gamma (ms per padded token and token of length) of the `measured`
    cost; null takes them from `probe.run`."""
    further_ms: NonNegativeFloat | None = None
    """With the `measured` cost, what every micro-batch of a rank after its first pays in place of alpha (ms): its
    launch, and adding up gradients; null takes it from `probe.run`, else alpha."""
    micro_batches: PositiveInt | Auto = 1
    """Micro-batches per rank and step; auto lets the plan decide (one, more where a capacity or the measured cost
    asks for it)."""
    objective: Literal["auto", "sum", "slots"] = "auto"
    """What plans of several micro-batches per rank make least: `sum`, the slowest rank's sum of them, where ranks
    synchronise once a step; `slots`, the sum over them of the slowest rank's, where they do so in every one; auto
    follows from `sync.name`."""
    capacity: PositiveInt | tuple[PositiveInt, ...] | str | None = None
    """Largest micro-batch in samples, of packed rows in tokens: one number, one per worker, or a probe run (id, prefix,
    name, `@latest`); null takes it from `probe.run`, else there is none."""
    second_weight: NonNegativeFloat = 1.0
    """Tokens that cost as much as one unit of the samples' second number (`workload.second_column`): it is added to the
    cost of a micro-batch, without padding or attention; 0 plans without it."""
    speeds: tuple[PositiveFloat, ...] | Auto | None = None
    """Relative speed of each worker; null takes them from `probe.run`, else as equal; auto estimates them from the
    steps of the run."""
    replan_steps: PositiveInt = 10
    """With `speeds: auto`, steps between two estimates; the first ones are planned as if speeds were equal."""

    @model_validator(mode="before")
    @classmethod
    def _policy_implies_mode(cls, values: object) -> object:
        """A policy given without a mode means dynamic scheduling, unless it is `static`."""
        if not isinstance(values, dict) or values.get("policy") in (None, "static"):
            return values
        return {"mode": "dynamic", **values}

    @property
    def policy_name(self) -> str:
        """The policy that runs: as given, or what the mode means alone."""
        if self.policy is not None:
            return self.policy
        if self.mode == "static":
            return "static"
        return "partition" if self.window_size == 1 else "window"

    @property
    def window_size(self) -> int:
        """Global batches planned together (W)."""
        return options_of(self, WindowOptions).window


@with_options(name=STRATEGIES)
class Sync(Section):
    """How gradients are synchronised."""

    name: StrategyName = "ddp"
    """Strategy of the registry (`dynbench plugins strategies`)."""
    communicate: bool = True
    """false sends nothing, to time a step without its communication: ranks go on from their own gradients, so that no
    model is trained, none is evaluated, and no loss is compared."""

    @property
    def trains(self) -> bool:
        """Whether gradients are synchronised, so that a model is trained; as of a strategy that is not known here."""
        entry = STRATEGIES.get(self.name)
        return self.communicate and (entry is None or entry.trains)

    @property
    def exact(self) -> bool:
        """Whether training is that of one process on the whole batch; a strategy that is not known here counts so."""
        entry = STRATEGIES.get(self.name)
        return entry is None or entry.exact

    @property
    def disabled_by(self) -> str:
        """The setting because of which ranks send nothing, where they do not."""
        return f"sync.name {self.name}" if self.communicate else "sync.communicate false"


@with_options(name=COMPRESSORS)
class Compress(Section):
    """What travels."""

    name: CompressorName = "none"
    """Compressor of the registry (`dynbench compress ls`)."""
    gather: Literal["none", "int8", "fp8"] = "none"
    """In what the strategy fsdp gathers parameters, which it keeps in full precision: int8, with a scale for every 256
    elements, or fp8; ranks compute with the rounded ones. none gathers them as they are."""


class Train(Section):
    """The optimisation loop."""

    steps: PositiveInt = 100
    """Measured optimizer steps, after the warm-up."""
    epochs: PositiveInt | None = None
    """Passes over the training samples, the warm-up's steps among them, in place of `steps`; each is evaluated."""
    warmup_steps: NonNegativeInt = 10
    """Optimizer steps before measuring; recorded, marked, and left out of every statistic."""
    profile_steps: NonNegativeInt = 0
    """Steps under torch.profiler, the last ones of `warmup_steps`, so that they are never measured; 0 for none. The
    ranks' traces, for TensorBoard and Perfetto, are in `profiler/`."""
    exposed: bool = False
    """Train the same without communication in turns with it, as a run beside it: what a step takes more than that one's
    is what communication costs."""
    memory_parts: bool = False
    """Count in the first step of the warm-up what every rank holds: parameters, gradients, what the optimizer keeps and
    activations, after they are made, before the optimizer's step and after it."""
    global_batch: PositiveInt = 64
    """Samples per optimizer step over all ranks (B)."""
    batch_per_worker: PositiveInt | None = None
    """Samples per optimizer step of each worker, in place of `global_batch`, which then grows with their number."""
    seed: Seed = 0
    """Seed of data order, initialisation, subset and dropout (each a stream of its own)."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16, else fp16 with a loss scaler, on GPUs; fp32 on CPU."""
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """AdamW, Adam, or stochastic gradient descent with `momentum`."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of `optimizer: sgd`."""
    learning_rate: PositiveFloat | Auto = "auto"
    """The optimizer's step size, at its highest; auto is 5e-4 for random weights and 2e-5 for pretrained ones."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What becomes of the learning rate after `lr_warmup_steps`: it stays, or falls to 0 behind the last step, in a
    line or as half a cosine."""
    lr_warmup_steps: NonNegativeInt = 0
    """Optimizer steps, those of `warmup_steps` among them, over which the learning rate rises to its full value."""
    max_grad_norm: PositiveFloat | None = None
    """Largest norm of the whole gradient, over all its parameters and shards; a greater one is scaled down to it. null
    leaves gradients as they are."""
    weight_decay: NonNegativeFloat = 0.01
    """Weight decay: decoupled under `adamw`, a part of the gradient under the others."""
    eval_every: NonNegativeInt = 0
    """Evaluate every this many steps, outside the measured time; 0 evaluates once, at the end."""
    eval_samples: NonNegativeInt = 512
    """Samples of one evaluation over all ranks; 0 switches evaluation off."""
    save_model: bool = False
    """Keep the model in the run's folder as transformers saves it, with its tokenizer: `model/best` of the evaluations,
    by accuracy where that is counted, else by loss, and `model/last`."""
    tensorboard: bool = False
    """Write the steps of the first rank that trains, and the evaluations, as scalars for TensorBoard too, which takes
    that rank some time between steps; needs the package tensorboard."""

    @property
    def epoch_steps(self) -> int | None:
        """Steps of an epoch, once it is decided how many there are; None without `epochs`."""
        return None if self.epochs is None else (self.warmup_steps + self.steps) // self.epochs


class Launch(Section):
    """The processes."""

    launcher: Literal["auto", "torchrun", "virtual"] = "auto"
    """`torchrun`: real ranks; `virtual`: one process plays every rank in turn; auto: virtual with one GPU."""
    nproc: RankCount | Auto = "auto"
    """Ranks on this node; auto is the number of GPUs, or min(4, cores) and at least 2 on CPU."""
    world_size: RankCount | None = None
    """Virtual ranks (G); null is 4. With torchrun it follows from nodes and `nproc`."""
    threads: PositiveInt | Auto = "auto"
    """Computing threads per rank; auto is cores over ranks, at least 1."""
    slowdown: dict[NonNegativeInt, Annotated[float, Field(ge=1)]] = Field(default_factory=dict)
    """Rank to factor: stretches that rank's compute, to study unequal devices."""
    comm_model: str | None = None
    """Virtual ranks: `none`, `ALPHA_MS,BETA_MS_PER_MB`, or a file or probe run with a measured all-reduce."""
    link_gbps: PositiveFloat | None = None
    """Real ranks on CPUs of one machine: Gb/s of the link that each seems to have, over which what it sends goes one
    after the other; null is as fast as it goes. Numbers of such a run are of an emulated link."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto is cuda where torch sees a GPU."""
    nnodes: RankCount = 1
    """Nodes, as given to torchrun."""
    node_rank: NonNegativeInt = 0
    """This node, as given to torchrun."""
    rdzv_endpoint: str | None = None
    """host:port of the rendezvous of the nodes, as given to torchrun; null on one node."""
    rdzv_id: str | None = None
    """Rendezvous id; null leaves the choice to torchrun."""
    timeout_s: PositiveInt = 600
    """Longest wait in a collective before a rank gives up, seconds."""


class Probe(Section):
    """The search for capacities and the cost model."""

    run: str | None = None
    """Probe run to use (id, prefix, name, `@latest`), `auto` to make one first, `off`; null is auto for dynamic
    scheduling on GPUs, else off."""
    lengths: tuple[PositiveInt, ...] | None = None
    """Length grid in tokens; null is 32, 64, … up to `workload.max_length`."""
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the GPU's memory that a trial may use."""
    memory_limit: str | None = None
    """Resident memory that a trial process may have on CPU, libraries included, like 2GiB; null is an equal share of
    what is available, less a reserve."""
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Part of what passed that is left unused."""
    gap: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The search ends when the failure is within this part of the success."""
    trials: PositiveInt = 3
    """Tries of a trial whose process ended without a record."""
    repeats: PositiveInt = 5
    """Timed repeats per grid point."""
    soak_steps: NonNegativeInt = 50
    """Steps of the real plan replayed at the capacities found; 0 leaves the soak out."""


class Analysis(Section):
    """Statistics and verdicts."""

    noise_threshold: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Differences below this part count as none."""
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Level of the intervals."""
    loss_tolerance: PositiveFloat | Auto = "auto"
    """Largest relative difference of the global loss that still counts as parity, at level `step`; auto follows from
    the precision and the steps: 0.001, or half the precision's unit roundoff times the root of the steps compared."""
    target_perplexity: PositiveFloat | None = None
    """Evaluation perplexity to which time, steps and bytes are told; evaluate often enough (train.eval_every)."""
    time_budget_s: PositiveFloat | None = None
    """Training time, seconds, at which the perplexity is told; evaluation is off this clock."""


class Config(Section):
    """A whole configuration."""

    workload: Workload = Field(default_factory=Workload)
    schedule: Schedule = Field(default_factory=Schedule)
    sync: Sync = Field(default_factory=Sync)
    compress: Compress = Field(default_factory=Compress)
    train: Train = Field(default_factory=Train)
    launch: Launch = Field(default_factory=Launch)
    probe: Probe = Field(default_factory=Probe)
    analysis: Analysis = Field(default_factory=Analysis)

    @property
    def plan_name(self) -> str:
        """What its plans are called: the policy, and the layout where that is not padded; `packed` is partition's."""
        return plan_name(self.schedule.policy_name, self.workload.layout)


def decided(number: int | str) -> int:
    """A number of a resolved configuration that may have been `auto` in the one given."""
    assert isinstance(number, int), "resolved before the launch"
    return number


# Changed, compared, written -------------------------------------------------------------------------------------------

NOT_IDENTITY = (
    *("train.seed", "launch.node_rank", "launch.rdzv_endpoint", "launch.rdzv_id"),
    *("workload.cache_dir", "workload.import_from"),
)
"""Keys in which launches of one arm may differ."""
WITHOUT_COMMUNICATION: Mapping[str, object] = {
    "sync.communicate": False,
    "compress.name": "none",
    "compress.gather": "none",
    "train.exposed": False,
    "train.memory_parts": False,
    "train.save_model": False,
    "train.tensorboard": False,
}
"""Settings of the same training without communication: the first, and those that it leaves without a use."""
SUFFIX = "-null"
"""Behind the name of its run, and of its arm."""


def changed(config: Config, changes: Mapping[str, object]) -> Config:
    """The configuration with other values, which are not validated.

    Args:
        config: what to change.
        changes: dotted key to a value of the field's type.
    """
    sections: dict[str, dict[str, object]] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return config.model_copy(
        update={section: getattr(config, section).model_copy(update=fields) for section, fields in sections.items()}
    )


def value_of(config: Config, key: str) -> object:
    """The value of a dotted key."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def recorded(config: Config, *, json: bool = False) -> dict[str, dict[str, object]]:
    """The sections as plain values; an option of plug-ins from outside only where it was set or the chosen one has it.

    So a run that uses none of the plug-ins that were loaded is recorded, and named, as one without them.

    Args:
        config: the configuration.
        json: with lists for tuples, and text keys.
    """
    sections: dict[str, dict[str, object]] = config.model_dump(mode="json" if json else "python")
    for _, registry in KINDS.values():
        section, _, field = registry.key.partition(".")
        for option, options in registry.options_from_outside().items() if section else ():
            chosen = registry.get(str(sections[section][field]))
            default = options.model_fields[option].get_default(call_default_factory=True)
            if value_of(config, f"{section}.{option}") == default and not (chosen and chosen.reads(option)):
                del sections[section][option]
    return sections


def flatten(config: Config) -> dict[str, object]:
    """Dotted key to plain value, in the schema's order; lists as lists, mappings with text keys."""
    return _flat(config.model_dump(mode="json"))


def differences(a: Config, b: Config) -> dict[str, tuple[object, object]]:
    """Dotted keys whose values differ, each with the value in `a` and in `b`."""
    left, right = flatten(a), flatten(b)
    return {key: (left[key], right[key]) for key in left if left[key] != right[key]}


def config_digest(config: Config, exclude: Sequence[str] = NOT_IDENTITY) -> str:
    """First 16 hex digits of the SHA-256 of the configuration; equal for configurations equal in what counts.

    Args:
        config: what to digest.
        exclude: dotted keys, or whole sections, that do not count.
    """
    counted = {
        key: value
        for key, value in _flat(recorded(config, json=True)).items()
        if key not in exclude and key.partition(".")[0] not in exclude
    }
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:16]


def _flat(sections: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    return {f"{section}.{key}": value for section, fields in sections.items() for key, value in fields.items()}


def without_communication(config: Config) -> Config:
    """The same training over a wire that sends nothing."""
    return changed(config, WITHOUT_COMMUNICATION)


def is_like(null: Config, config: Config) -> bool:
    """Whether one configuration is the other without communication."""
    apart = differences(config, null).keys()
    return "sync.communicate" in apart and config.sync.communicate and apart <= WITHOUT_COMMUNICATION.keys()


def dump_config(config: Config) -> str:
    """Every field with its value, defaults included, in the schema's order; of plug-ins' options, as `recorded`."""
    return dump_yaml(recorded(config))
