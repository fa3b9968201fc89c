"""Every question by its number: whose rows answer it, what they say, what a GPU would add; and the document of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Literal, get_args

from dynbench import __version__
from dynbench.analysis.figures import caption_of
from dynbench.bench.base import Row
from dynbench.experiment.assignment import model_answers as model
from dynbench.experiment.assignment import parallel_answers as parallel
from dynbench.experiment.assignment.rows import CHECK, Rows, Statement, Table, matches
from dynbench.report import Template, fill, load_template, number

COMMANDS: Mapping[str, str] = {
    "sync": "dynbench compare recipes/sync.yaml",
    "buckets": "dynbench compare recipes/buckets.yaml",
    CHECK: "dynbench bench assignment",
}
"""What makes the rows of a source that is no benchmark."""
XL = "dynbench compare recipes/sync_xl.yaml"
MOST_CASES = 3
"""Rows of a source that are named; of more, their number."""
MOST_REASONS = 2
"""Reasons of rows that could not be measured, shown where nothing else is known."""
State = Literal["answered", "answered_small", "needs_gpu", "not_measured"]
Pictures = Mapping[tuple[str, str], str]
"""Run and name of a figure to its path."""


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        number: as it is known by.
        source: what its rows are of.
        answer: from the rows.
        full: whether it needs a GPU.
        only: values of columns of the rows that it is about.
        options: what the command is given beside its name.
        figures: of the benchmark's run, that belong to the answer.
    """

    number: str
    source: str
    answer: Callable[[Rows], Iterable[Statement]]
    full: bool = True
    only: Mapping[str, object] = field(default_factory=dict)
    options: str = ""
    figures: Sequence[str] = ()

    @property
    def command(self) -> str:
        """What makes the rows that it is answered from."""
        return COMMANDS.get(self.source, f"dynbench bench {self.source}") + self.options

    @property
    def gpu(self) -> str | None:
        """The command that answers it at its full sizes; None where a CPU is enough."""
        command = XL if self.source in COMMANDS else f"dynbench bench {self.source} --full"
        return command if self.full else None


def _formulas(number: str, block: str, *beginnings: str) -> Question:
    return Question(number, "accounting", partial(parallel.stated, block, beginnings), full=False)


def _checked(number: str, *strategies: str) -> Question:
    return Question(number, CHECK, partial(parallel.checked, strategies), full=False)


STATE = "weights, gradients and optimizer state, fp32"
BOUND = [
    f"compute-bound batch{each}, axes {way}" for way in ("not overlapped", "overlapped") for each in ("", " per device")
]
COMPILED = {"way": ("plain", "compiled")}
TILED = {"way": ("plain", "flash_torch")}
TRITON = {"way": ("plain", "flash_triton")}
FLASH = {"way": ("plain", *model.FLASH)}

QUESTIONS: Sequence[Question] = (
    Question("1.1a", "transformer", model.script),
    Question("1.1b", "transformer", model.by_size, figures=("bench_transformer",)),
    Question("1.1c", "transformer", model.warmup),
    Question("1.2a", "nsys", model.timer),
    Question("1.2b", "nsys", model.most),
    Question("1.2c", "nsys", model.others),
    Question("1.2d", "nsys", model.matmul, figures=("bench_kernels",)),
    Question("1.2e", "nsys", model.softmax),
    Question("1.3", "precision", model.sums, full=False, only={"study": "sum"}, figures=("bench_precision",)),
    Question("1.4a", "precision", model.types, only={"study": "type"}),
    Question("1.4b", "precision", model.layer_norm, only={"study": ("type", "sum")}),
    Question("1.4c", "transformer", model.mixed),
    Question("1.5a", "memory", model.phases, figures=("bench_memory_timeline",)),
    Question("1.5b", "memory", model.by_context, figures=("bench_memory",)),
    Question("1.5c", "memory", model.mixed_memory),
    Question("1.5d", "memory", model.residual),
    Question("1.5e", "memory", model.largest),
    Question("2.1", "attention", model.by_length, only=TILED, figures=("bench_attention", "bench_attention_memory")),
    Question("2.2a", "attention", model.compiled, only=COMPILED, options=" --set ways=plain,compiled"),
    Question("2.2b", "transformer", model.compiled_model, options=" --set execution=eager,compiled"),
    Question("3.1", "flash", model.forward, only=FLASH),
    Question("3.2", "flash", model.recomputation, only={"way": model.FLASH}),
    Question("3.3", "flash", model.against_plain, only=FLASH, figures=("bench_attention",)),
    Question("3.4", "flash", model.triton, only=TRITON, options=" --set ways=plain,flash_triton"),
    Question("4.1", "collectives", parallel.collectives, figures=("bench_collectives", "bench_bandwidth")),
    _checked("4.2", "naive"),
    Question("4.3", "sync", parallel.naive),
    Question("4.4", "sync", parallel.flat),
    _checked("4.5", "overlap"),
    Question("4.6", "sync", parallel.overlap, figures=("comm_timeline",)),
    _checked("4.7", "bucketed"),
    Question("4.8a", "buckets", parallel.buckets),
    _formulas("4.8b", "bucket_model", "overhead, buckets", "best number", "best size", "overhead of the best"),
    _formulas("4.9a", "one_device", STATE, "saved for backward", "accelerators of"),
    _formulas("4.9b", "fewest_devices", "least devices", "memory of each"),
    _formulas("4.9c", "compute_bound", *BOUND),
    Question("4.9d", "accounting", parallel.levers, full=False),
    _checked("5.1", "ShardedOptimizer", "zero1"),
    Question("5.2a", "optimizer", parallel.sharded_memory, figures=("bench_optimizer",)),
    Question("5.2b", "optimizer", parallel.sharded_time),
    Question("5.2c", "optimizer", parallel.sharded_traffic),
)


CHECKED = ("naive", "overlap", "bucketed", "ShardedOptimizer", "zero1")
"""What questions ask to be checked against one process."""


@dataclass(frozen=True)
class Answer:
    """What is known of a question.

    Attributes:
        question: which.
        statements: each with its rows.
        runs: ids of the runs that hold the rows, to those of their rows that were used.
        reasons: why rows of the question could not be measured.
    """

    question: Question
    statements: Sequence[Statement]
    runs: Mapping[str, Sequence[Row]]
    reasons: Sequence[str]

    @property
    def state(self) -> State:
        """Answered at its full sizes, or at smaller ones on a CPU; needs a GPU, or only to be measured."""
        if not self.statements:
            return "needs_gpu" if self.question.full else "not_measured"
        on_gpu = any(row.device != "cpu" for row in self.rows)
        return "answered" if on_gpu or not self.question.full else "answered_small"

    @property
    def rows(self) -> list[Row]:
        """What it is answered from."""
        return [row for each in self.statements for row in each.rows]

    def as_dict(self) -> dict[str, object]:
        """What `--json` prints of it."""
        return {
            "number": self.question.number,
            "state": self.state,
            "sources": [{"run": run, "cases": [row.case for row in rows]} for run, rows in self.runs.items()],
            "command": self.question.command,
            "gpu_command": self.question.gpu,
        }


def answers(tables: Iterable[Table]) -> list[Answer]:
    """Every question with what these rows say of it."""
    found = list(tables)
    return [_answer_of(question, found) for question in QUESTIONS]


def _answer_of(question: Question, tables: Sequence[Table]) -> Answer:
    chosen = (table for table in tables if table.source == question.source)
    found = [(table.run, row) for table in chosen for row in table.rows if matches(row, question.only)]
    statements = list(question.answer(Rows(row for _, row in found)))
    used = {id(row) for each in statements for row in each.rows}
    runs: dict[str, list[Row]] = {}
    for run, row in found:
        if id(row) in used:
            runs.setdefault(run, []).append(row)
    reasons = dict.fromkeys(str(row.reason) for _, row in found if row.status != "ok" and row.reason)
    return Answer(question, statements, runs, list(reasons))


def render(tables: Iterable[Table], run: str, language: str, pictures: Pictures | None = None) -> str:
    """The document as Markdown.

    Args:
        tables: what was measured.
        run: id of the run that it is of.
        language: `en` or `zh`.
        pictures: figures of the runs, as they are linked.

    Raises:
        TemplateError: the template lacks a text, or asks for what is not known.
    """
    template = load_template(language, None, "assignment")
    found = answers(tables)
    states = [each.state for each in found]
    sections = [_section(each, template, pictures or {}) for each in found]
    values = {
        "assignment.subject": f"`{run}`",
        "assignment.date": f"{datetime.now(UTC):%Y-%m-%d}",
        "assignment.version": __version__,
        "assignment.count": len(found),
        "assignment.devices": ", ".join(dict.fromkeys(_place(row) for each in found for row in each.rows)) or None,
        "assignment.overview": [[each[name] for name in ("number", "title", "state_text")] for each in sections],
        "assignment.answers": sections,
        **{f"assignment.{state}": states.count(state) for state in get_args(State)},
    }
    return fill(template, values)


def _place(row: Row) -> str:
    return "CPU" if row.device == "cpu" else row.device


def _section(answer: Answer, template: Template, pictures: Pictures) -> dict[str, object]:
    """What the template takes of an answer."""
    question = answer.question
    figures = [(path, name) for name in question.figures for run in answer.runs if (path := pictures.get((run, name)))]
    sources = [(run, len(rows), [*dict.fromkeys(row.case for row in rows)]) for run, rows in answer.runs.items()]
    return {
        "question": question,
        "number": question.number,
        "title": template.label(f"titles.{question.number}"),
        "state": answer.state,
        "state_text": template.label(f"states.{answer.state}"),
        "statements": [(each.block, _values(each, template)) for each in answer.statements],
        "figures": [(path, template.label(f"figures.{name}", caption_of(name))) for path, name in figures],
        "sources": [(run, rows, cases if len(cases) <= MOST_CASES else []) for run, rows, cases in sources],
        "reasons": [] if answer.statements else answer.reasons[:MOST_REASONS],
    }


def _values(statement: Statement, template: Template) -> dict[str, object]:
    """What a block takes of a statement: its `rows`, the first of them as `row`, its `case`, and values of its own."""
    rows = [defaultdict(lambda: None, row.as_dict() | {"device": _place(row)}) for row in statement.rows]
    values = {name: _worded(value, template) for name, value in statement.values.items()}
    return {"rows": rows, "row": rows[0], "case": statement.case, **values}


def _worded(value: object, template: Template) -> object:
    """Keys of `cells` as words of the language, lists with all in them as texts; numbers as they are."""
    if isinstance(value, str):
        return template.label(f"cells.{value}", value)
    return [_text(each, template) for each in value] if isinstance(value, list) else value


def _text(value: object, template: Template) -> object:
    """An item of a list as text: a row is its mean and standard deviation, a tuple its items side by side."""
    if isinstance(value, tuple):
        return " ".join(str(_text(each, template)) for each in value)
    if isinstance(value, Row):
        return number(value.mean) if value.sd is None else f"{number(value.mean)} ± {number(value.sd)}"
    if isinstance(value, int | float):
        return number(value) if isinstance(value, float) else str(value)
    return _worded(value or "", template)
