"""Every question by its number: whose rows answer it, which of them, what they say, and what a GPU would add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dynbench.bench.base import Row
from dynbench.experiment.assignment import attention_answers as attention
from dynbench.experiment.assignment import memory_answers as memory
from dynbench.experiment.assignment import model_answers, sharing_answers
from dynbench.experiment.assignment.evidence import CHECK, Table, matches

COMMANDS: Mapping[str, str] = {
    "sync": "dynbench compare recipes/sync.yaml",
    "buckets": "dynbench compare recipes/buckets.yaml",
    CHECK: "dynbench bench assignment",
}
"""What makes the rows of a source that is no benchmark."""
BOTH = " --set execution=eager,compiled"
COMPILED = " --set ways=plain,compiled"
TRITON = " --set ways=plain,flash_triton"
FIGURES: Mapping[str, Sequence[str]] = {
    "1.1b": ("bench_transformer",),
    "1.2d": ("bench_kernels",),
    "1.3": ("bench_precision",),
    "1.5a": ("bench_memory_timeline",),
    "1.5b": ("bench_memory",),
    "2.1": ("bench_attention", "bench_attention_memory"),
    "3.3": ("bench_attention",),
    "4.1": ("bench_collectives", "bench_bandwidth"),
    "5.2a": ("bench_optimizer",),
}
"""Figures of the benchmark that a question is answered from, by its number."""
XL = "dynbench compare recipes/sync_xl.yaml"


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        number: as it is known by.
        sources: what its rows are of; rows of any will do.
        answer: from the rows.
        gpu: command that answers it at the sizes asked for; None where a CPU is enough.
        only: values of columns of the rows that it is about.
        options: what the command is given beside its name.
        figures: of the benchmark's run, that belong to the answer.
    """

    number: str
    sources: Sequence[str]
    answer: sharing_answers.Answer
    gpu: str | None = None
    only: Mapping[str, object] = field(default_factory=dict)
    options: str = ""
    figures: Sequence[str] = ()

    @property
    def command(self) -> str:
        """What makes the rows that it is answered from."""
        source = self.sources[0]
        return COMMANDS.get(source, f"dynbench bench {source}") + self.options

    def rows(self, tables: Sequence[Table]) -> list[tuple[Table, Row]]:
        """The rows that it is about, with the tables that they are in."""
        chosen = [table for source in self.sources for table in tables if table.source == source]
        return [(table, row) for table in chosen for row in table.rows if matches(row, self.only)]


def _bench(
    number: str, name: str, answer: sharing_answers.Answer, *further: str, full: bool = True, **only: object
) -> Question:
    gpu = f"dynbench bench {name} --full" if full else None
    return Question(number, (name, *further), answer, gpu, only, figures=FIGURES.get(number, ()))


def _formulas(number: str, key: str, *beginnings: str) -> Question:
    return _bench(number, "accounting", sharing_answers.stated(key, *beginnings), full=False)


STATE = "weights, gradients and optimizer state, fp32"
BUCKETS = ("overhead, buckets", "best number", "best size", "overhead of the best")
ONE_DEVICE = (STATE, "saved for backward", "accelerators of")
BOUND = tuple(
    f"compute-bound batch{each}, axes {way}" for way in ("not overlapped", "overlapped") for each in ("", " per device")
)
"""How the quantities are called that an answer is made of, in the order in which its sentence has them."""

QUESTIONS: Sequence[Question] = (
    _bench("1.1a", "transformer", model_answers.script),
    _bench("1.1b", "transformer", model_answers.by_size),
    _bench("1.1c", "transformer", model_answers.warmup),
    _bench("1.2a", "nsys", model_answers.timer),
    _bench("1.2b", "nsys", model_answers.most),
    _bench("1.2c", "nsys", model_answers.others),
    _bench("1.2d", "nsys", model_answers.matmul),
    _bench("1.2e", "nsys", model_answers.softmax),
    _bench("1.3", "precision", model_answers.sums, full=False, study="sum"),
    _bench("1.4a", "precision", model_answers.types, study="type"),
    _bench("1.4b", "precision", model_answers.layer_norm, study=("type", "sum")),
    _bench("1.4c", "transformer", model_answers.mixed, "precision"),
    _bench("1.5a", "memory", memory.phases),
    _bench("1.5b", "memory", memory.by_context),
    _bench("1.5c", "memory", memory.mixed),
    _bench("1.5d", "memory", memory.residual),
    _bench("1.5e", "memory", memory.largest),
    _bench("2.1", "attention", attention.by_length, way=("plain", "flash_torch")),
    replace(_bench("2.2a", "attention", attention.compiled, way=("plain", "compiled")), options=COMPILED),
    replace(_bench("2.2b", "transformer", model_answers.compiled_model), options=BOTH),
    _bench("3.1", "flash", attention.forward, way=("plain", "flash_torch", "flash_triton")),
    _bench("3.2", "flash", attention.backward, way=("flash_torch", "flash_triton")),
    _bench("3.3", "flash", attention.against_plain, way=("plain", "flash_torch", "flash_triton")),
    replace(_bench("3.4", "flash", attention.triton, way=("plain", "flash_triton")), options=TRITON),
    _bench("4.1", "collectives", sharing_answers.collectives),
    Question("4.2", (CHECK,), sharing_answers.checked("naive")),
    Question("4.3", ("sync",), sharing_answers.naive, XL),
    Question("4.4", ("sync",), sharing_answers.flat, XL),
    Question("4.5", (CHECK,), sharing_answers.checked("overlap")),
    Question("4.6", ("sync",), sharing_answers.overlap, XL),
    Question("4.7", (CHECK,), sharing_answers.checked("bucketed")),
    Question("4.8a", ("buckets",), sharing_answers.buckets, XL),
    _formulas("4.8b", "bucket_model", *BUCKETS),
    _formulas("4.9a", "one_device", *ONE_DEVICE),
    _formulas("4.9b", "fewest", "least devices", "memory of each"),
    _formulas("4.9c", "bound", *BOUND),
    _bench("4.9d", "accounting", sharing_answers.levers, full=False),
    Question("5.1", (CHECK,), sharing_answers.checked("zero1")),
    _bench("5.2a", "optimizer", memory.sharded_memory, "sync"),
    _bench("5.2b", "optimizer", memory.sharded_time, "sync"),
    _bench("5.2c", "optimizer", memory.sharded_traffic, "sync"),
)
CHECKED = ("naive", "overlap", "bucketed", "zero1")
"""Strategies that questions ask to be checked against one process."""
