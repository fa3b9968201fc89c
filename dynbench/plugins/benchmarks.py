"""The micro-benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import Field

from dynbench.plugins.registry import Entry, NonNegativeInt, PositiveFloat, PositiveInt, Registry, Section

T = TypeVar("T")
Several = Annotated[tuple[T, ...], Field(min_length=1)]
"""One or more."""
MOST_RANKS = 64
"""Known sums of the all-reduce stay whole numbers that bfloat16 has (up to 256)."""

MOST_MIB = 2**43
"""Of which bytes are a whole number of 64 bits; more than any machine has."""
SizeMib = Annotated[float, Field(gt=0, le=MOST_MIB)]

Operation = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send_recv"]


@dataclass(frozen=True)
class BenchmarkEntry(Entry):
    """A subclass of `dynbench.bench.base.Benchmark`, called with its options; the launcher imports its module.

    Args:
        full: `key=value` of the options that `--full` sets: what a GPU measures in minutes.
    """

    full: tuple[str, ...] = ()


class TimedOptions(Section):
    """Of everything that is timed over and over."""

    iterations: PositiveInt = 20
    """Iterations that are timed, per case."""
    warmup: NonNegativeInt = 5
    """Iterations before them."""


class DeviceOptions(TimedOptions):
    """Of what one process computes."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What computes; `auto` is the GPU where there is one."""


class WaitingOptions(Section):
    """Of what several ranks do together."""

    timeout_s: PositiveInt = 600
    """Longest wait for another rank, seconds."""


class CollectivesOptions(TimedOptions, WaitingOptions):
    """Of the collectives: every operation with every size, number of processes, back end and type."""

    operations: Several[Operation] = get_args(Operation)
    """What the ranks do together; in send_recv each sends to the next."""
    sizes_mib: Several[SizeMib] = (0.1, 1.0, 10.0)
    """Sizes of the buffer, of the larger one where an operation has two, MiB."""
    processes: Several[Annotated[int, Field(ge=2, le=MOST_RANKS)]] = (2,)
    """Ranks, one process each; every number is launched by itself."""
    backend: Several[Literal["auto", "gloo", "nccl", "gloo-cuda"]] = ("auto",)
    """NCCL runs on GPUs, gloo on the CPU, and gloo-cuda is gloo with tensors on GPUs; `auto` is NCCL where there is a
    GPU for each process, else gloo."""
    dtype: Several[Literal["float32", "bfloat16", "float16"]] = ("float32",)
    """Types of the elements."""
    limit_s: PositiveFloat = 240.0
    """The first iteration that begins later than this is the last of its case; NCCL's queue has what fits in it."""


class PackedAttentionOptions(DeviceOptions):
    """Of attention over a packed row."""

    tokens: Several[PositiveInt] = (256, 512, 1024, 2048)
    """Tokens of a row."""
    heads: PositiveInt = 4
    """Heads of the layer."""
    channels: PositiveInt = 64
    """Of a head; the layer is as wide as all heads together."""
    mean: PositiveInt = 24
    """Mean length of the row's samples, about, tokens."""
    longest: PositiveInt = 256
    """No sample is longer, tokens."""

    @property
    def width(self) -> int:
        """Channels over all heads."""
        return self.heads * self.channels


Way = Literal[
    "plain",
    "compiled",
    "sdpa",
    "sdpa_flash",
    "sdpa_efficient",
    "sdpa_cudnn",
    "flex",
    "flash_torch",
    "flash_compiled",
    "flash_triton",
]


class AttentionOptions(DeviceOptions):
    """Of attention by length and width; null is what the benchmark is about."""

    lengths: Several[PositiveInt] | None = None
    """Queries, and as many keys."""
    widths: Several[PositiveInt] | None = None
    """Channels of a query."""
    dtypes: Several[Literal["float32", "bfloat16", "float16"]] = ("float32",)
    """Types of the elements."""
    ways: Several[Way] = ("plain", "sdpa", "flash_torch")
    """What computes it: plain PyTorch or that compiled; torch's own, by whichever back end or by a named one, or its
    FlexAttention; our FlashAttention-2 in PyTorch, with a compiled backward pass, or in Triton."""
    batch: PositiveInt | None = None
    """Rows of the batch; there are no heads."""
    causal: bool | None = None
    """Whether a query sees no later keys."""
    memory_limit_mb: PositiveFloat | None = None
    """Resident memory of the process on a CPU, in MB: the kernel refuses a case what would take more, which is then a
    row that ran out of memory; null reckons by hand what fits into the machine."""


class PrecisionOptions(DeviceOptions):
    """Of sums and types in half precision."""

    terms: PositiveInt = 1000
    """How often 0.01 is added up."""
    features: PositiveInt = 512
    """Channels of the network that is timed."""
    samples: PositiveInt = 64
    """Of its batch."""


ModelSize = Literal["tiny", "small", "medium", "large", "xl-2025", "xl-2026", "2.7B"]


class ModelOptions(DeviceOptions):
    """Of whole language models."""

    sizes: Several[ModelSize] = ("tiny",)
    """Models, as `workload.size` of causal_lm has them, with a vocabulary of 10,000; `tiny` is for a CPU."""
    local_batch: PositiveInt = 4
    """Rows that a rank runs at once."""
    precisions: Several[Literal["fp32", "bf16"]] = ("fp32", "bf16")
    """What matrix products are computed in; weights are float32."""


class ContextOptions(ModelOptions):
    """Of models by context length."""

    contexts: Several[PositiveInt] = (64, 128)
    """Tokens of a row."""


class NsysOptions(ContextOptions):
    """Of the kernels of a step."""

    kernels: PositiveInt = 3
    """Kernels of each phase that are told of, the longest first."""
    nsys: Literal["auto", "never"] = "auto"
    """Whether Nsight Systems is run too, where it is installed."""


class TransformerOptions(ContextOptions):
    """Of the time of a step."""

    execution: Several[Literal["eager", "compiled"]] = ("eager",)
    """Whether the model is compiled."""
    warmups: tuple[NonNegativeInt, ...] = (0, 1, 2)
    """Of the first case, how many iterations are left out in further rows beside `warmup`."""


class MemoryOptions(ContextOptions):
    """Of the memory of a step."""

    largest: PositiveInt = 3
    """Tensors that are told of each case."""


class OptimizerOptions(ModelOptions, WaitingOptions):
    """Of optimizer state that is divided."""

    context: PositiveInt = 64
    """Tokens of a row."""
    ranks: Annotated[int, Field(ge=1, le=MOST_RANKS)] = 2
    """Processes."""


class AccountingOptions(Section):
    """Of the accounting: a model of two matrices per layer, and what trains it. Null is the preset's."""

    preset: Literal["communication_accounting", "xl_h100"] = "communication_accounting"
    """Where what is null comes from: 126 layers of 16384 x 53248 on chips of 95 GB, or xl (48 layers of 1600 x 6400) on
    H100s."""
    width: PositiveInt | None = None
    """Channels between layers (D)."""
    inner: PositiveInt | None = None
    """Channels within a layer (F)."""
    layers: PositiveInt | None = None
    """Of them (L)."""
    accelerator_gb: PositiveFloat | None = None
    """Memory of one that holds whole copies, GB (1e9 bytes)."""
    chip_gb: PositiveFloat | None = None
    """Memory of one that holds shards, GB."""
    local_tokens: Several[NonNegativeInt] | None = None
    """Of a device's batch, for the memory of activations."""
    sharded_activations: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the activations that is sharded."""
    flops: PositiveFloat | None = None
    """Of a device, FLOP/s (C)."""
    bandwidth: PositiveFloat | None = None
    """Of its links in one mesh axis, B/s (W)."""
    fsdp: PositiveInt | None = None
    """Devices over which parameters are sharded (X)."""
    tensor: PositiveInt | None = None
    """Devices over which layers are divided (Y)."""
    fsdp_links: PositiveInt | None = None
    """Mesh axes of the first kind (M_X)."""
    tensor_links: PositiveInt | None = None
    """Mesh axes of the second (M_Y)."""
    gradient_bytes: PositiveFloat | None = None
    """Of the gradients that buckets carry, B (s)."""
    bucket_bandwidth: PositiveFloat | None = None
    """Of the link that carries them, B/s (w)."""
    call_s: PositiveFloat | None = None
    """Overhead of a call, s (o)."""


BENCHMARKS: Registry[BenchmarkEntry] = Registry(
    "benchmark",
    "",
    (
        BenchmarkEntry(
            "collectives",
            "collectives over gloo or NCCL: time and bandwidth by operation, size, type and number of processes",
            "dynbench.bench.collectives:Collectives",
            CollectivesOptions,
            full=(
                "sizes_mib=1,10,100,1000",
                "dtype=float32,bfloat16",
                "processes=2,4,6,8",
                "backend=gloo,nccl,gloo-cuda",
            ),
        ),
        BenchmarkEntry(
            "packed_attention",
            "attention over a packed row by length, re-padded and with a mask: time by tokens per row",
            "dynbench.bench.packed_attention:PackedAttention",
            PackedAttentionOptions,
        ),
        BenchmarkEntry(
            "attention",
            "attention by length and width, plain, torch's own and ours: time of each pass, memory, what runs out",
            "dynbench.bench.attention:Attention",
            AttentionOptions,
            full=(
                "lengths=256,1024,4096,8192,16384",
                "widths=16,32,64,128",
                "ways=" + ",".join(get_args(Way)),
                "iterations=100",
            ),
        ),
        BenchmarkEntry(
            "flash",
            "causal attention of one row: our FlashAttention-2 beside plain attention and torch's own, with its tiles",
            "dynbench.bench.attention:Flash",
            AttentionOptions,
            full=(
                "lengths=128,256,512,1024,2048,4096,8192,16384,32768,65536",
                "widths=16,32,64,128",
                "dtypes=bfloat16,float32",
                "ways=plain,sdpa,flash_torch,flash_compiled,flash_triton",
            ),
        ),
        BenchmarkEntry(
            "precision",
            "sums in half precision against float64, types under autocast, and what mixed precision takes",
            "dynbench.bench.precision:PrecisionStudy",
            PrecisionOptions,
            full=("features=4096", "samples=4096"),
        ),
        BenchmarkEntry(
            "nsys",
            "which kernels a language model's step spends its time in, by phase; softmax against matrix products",
            "dynbench.bench.nsys:Nsys",
            NsysOptions,
            full=("sizes=small,medium,large,xl-2025,xl-2026", "contexts=128,256,512,1024", "iterations=10"),
        ),
        BenchmarkEntry(
            "transformer",
            "a language model's step by phase, size, context, type and compilation: time, tokens/s, FLOP/s; warm-up",
            "dynbench.bench.transformer:Transformer",
            TransformerOptions,
            full=(
                "sizes=small,medium,large,xl-2025,xl-2026",
                "contexts=128,256,512,1024",
                "execution=eager,compiled",
                "iterations=10",
            ),
        ),
        BenchmarkEntry(
            "memory",
            "a language model's memory by phase: peaks, timelines, the residual stream by formula, the largest tensors",
            "dynbench.bench.memory:Memory",
            MemoryOptions,
            full=("sizes=2.7B", "contexts=128,256,512"),
        ),
        BenchmarkEntry(
            "optimizer",
            "AdamW whole, with ShardedOptimizer and with zero1: memory at three moments by its use, time, bytes sent",
            "dynbench.bench.optimizer:OptimizerState",
            OptimizerOptions,
            full=("sizes=xl-2025", "context=128", "iterations=10"),
        ),
        BenchmarkEntry(
            "accounting",
            "memory and communication of large models by formula: devices needed, buckets, compute-bound batches",
            "dynbench.bench.accounting:Accounting",
            AccountingOptions,
        ),
    ),
)
