"""Every question has its number, an answer only from rows, and a statement that the rows choose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from answered import unanswered

from dynbench.bench.accounting import Accounting
from dynbench.bench.base import Row
from dynbench.bench.precision import HALF, PARTS, SUMS
from dynbench.bench.rank import rows_of
from dynbench.config.recipes import find_recipe
from dynbench.engine.rank.rank_process import RankContext
from dynbench.engine.rank.toy_check import Checked
from dynbench.experiment.assignment.questions import CHECKED, QUESTIONS, State, answers, render
from dynbench.experiment.assignment.rows import CHECK, Statement, Table, check_table
from dynbench.plugins import BENCHMARKS
from dynbench.plugins.benchmarks import AccountingOptions
from dynbench.report import LANGUAGES, language_labels, load_template
from dynbench.runs.run import Run


def row(
    case: str, mean: float, *, dtype: str = "float32", sd: float = 0.01, reference_error: Any = None, **columns: Any
) -> Row:
    times = {"mean": mean, "sd": sd, "p50": mean, "reference_error": reference_error}
    return Row(case, [], dtype, "cpu", unit="ms", n=5, columns=columns, **times)


def precision(*, half_off: float = 1e-1, norm: str = "float32") -> list[Row]:
    offs = dict(zip(SUMS, (1e-4, half_off, 2e-3, 2e-3), strict=True))
    sums = [row(f"sum: {name}", 10.0, study="sum", shown="10", reference_error=off) for name, off in offs.items()]
    shown = {part: norm if part == "layer norm" else "float32" for part in PARTS}
    types = [
        row(f"type under {half}: {part}", 32, dtype=half, study="type", shown=shown[part])
        for half, part in product(HALF, PARTS)
    ]
    return [*sums, *types]


def model(*, cold: float = 9.0, half: float = 0.5, compiled: float = 0.8, sd: float = 0.01) -> list[Row]:
    sizes, types = {"small": 10.0, "large": 40.0}, {"float32": 1.0, "bfloat16": half}
    phases = {"forward": 1.0, "backward": 2.0, "optimizer": 0.5, "step": 3.5}
    found = []
    for size, dtype, way, phase in product(sizes, types, (0, 1), phases):
        for warmup in (0, 1, 5) if (size, dtype, way) == ("small", "float32", 0) else (5,):
            share = phases[phase] * (compiled if way else 1) * (cold if warmup == 0 else 1)
            mean = sizes[size] * types[dtype] * share
            about = {"size": size, "context": 64, "batch": 4, "compiled": way, "phase": phase, "warmup": warmup}
            found.append(row(f"{size} {dtype} {way}", mean, dtype=dtype, sd=sd * mean, **about))
    return found


def attention(
    *,
    power: float = 2.0,
    tiled: float = 0.5,
    flash_ms: float = 1.0,
    compiled_ms: float = 3.0,
    error: float | None = 1e-7,
    not_finite: int = 0,
) -> list[Row]:
    ways = {"plain": 4.0, "compiled": compiled_ms, "flash_torch": flash_ms, "flash_compiled": 1.5 * flash_ms}
    found = []
    for length, way, each in product((256, 1024), ways, ("forward", "backward", "both")):
        flash = way.startswith("flash")
        about = {
            "length": length, "channels": 64, "batch": 8, "way": way, "pass": each, "causal": 0, "hand_count_mb": 6.0,
            "saved_mb": tiled if flash else 2.0 * (length / 256) ** power, "peak_mb": 7.0,
            "tiles": "64 x 64" if flash else "", "not_finite": not_finite if length == 1024 else 0,
        }  # fmt: skip
        found.append(row(f"{way} {each} {length}", ways[way], reference_error=error, **about))
    return found


def memory(*, step: float = 40.0, saved: float = 20.0, half: float = 1.0, measured: float = 1.0) -> list[Row]:
    types, phases = {"float32": 1.0, "bfloat16": half}, {"forward": 10.0, "forward_saved": saved, "step": step}
    found = []
    for dtype, phase, context in product(types, phases, (64, 128)):
        about = {"dtype": dtype, "size": "tiny", "context": context, "batch": 4, "phase": phase}
        found.append(row(f"{context}", phases[phase] * types[dtype], quantity="peak", **about))
        found.append(row(f"{context}", 3.0, quantity="tensor", times=1, operator="mm", **about))
        found.append(row(f"{context}", measured, quantity="residual", formula_mb=1.0, **about))
    return found


HALF_AT_64 = [one for half, context in ((0.5, "64"), (1.02, "128")) for one in memory(half=half) if one.case == context]


def optimizer(
    *, shard: float = 4.0, step: float = 9.0, sent: float = 15.0, total: float = 8.0, peak: float = 8.0
) -> list[Row]:
    found = []
    for way in ("adamw", "sharded", "zero1"):
        about = {"size": "tiny", "way": way, "processes": 2}
        whole = way == "adamw"
        divided = {} if whole else {"optimizer": shard, "total": total, "peak": peak}
        parts = ("parameters", "gradients", "optimizer", "rest", "total", "peak")
        for moment, part in product(("init", "before", "after"), parts):
            found.append(row(way, divided.get(part, 8.0), quantity="memory", moment=moment, part=part, **about))
        found.append(row(way, 8.0 if whole else step, quantity="time", part="step", **about))
        found.append(row(way, 10.0 if whole else sent, quantity="traffic", **about))
    return found


def kernels(
    *, timer: float = 10.0, trained: str = "mm", norm: float = 0.2, step: float = 0.5, soft: float = 2.0
) -> list[Row]:
    about = {"size": "tiny", "context": 64}
    found = [row("a", ms, phase="forward", part=part, **about) for part, ms in (("total", 10.0), ("timer", timer))]
    for phase, name in (("forward", "mm"), ("forward and backward", trained)):
        found.append(row("a", 5.0, phase=phase, part="kernel", kernel=name, calls=8, share=0.5, **about))
    for phase, share in (("forward", 0.8), ("inference", 0.8), ("step", step)):
        for kind, part in (("matmul", share), ("norm", norm)):
            found.append(row("a", 5.0, phase=phase, part="kind", kernel=kind, share=part, **about))
    for name, ms, flops in (("scores", 2.0, 100), ("softmax", soft, 10), ("values", 2.0, 100)):
        found.append(row("a", ms, phase="forward", part="range", kernel=name, flops=flops, **about))
    return found


def collectives(*, wrong: int = 0, slope: float = 1.0) -> list[Row]:
    about = {"operation": "all_reduce", "backend": "gloo", "busbw": 1.0, "#wrong": wrong}
    return [
        row(f"all_reduce {mib} MiB", mib**slope * ranks, processes=ranks, size=mib * 2**20, **about)
        for ranks, mib in product((2, 4), (1, 10))
    ]


def arms(*, beyond: float = 1.0, **step: float) -> list[Row]:
    times = {"ddp": 8.0, "naive": 12.0, "flat": 9.0, "overlap": 7.0, "bucketed": 8.0, "zero1": 9.0} | step
    about = {"model": "toy", "ranks": 2, "calls": 5, "comm": 3.0, "exposed": 1.0, "beyond": beyond, "hidden": 0.7}
    return [row(name, ms, strategy=name, **about) for name, ms in times.items()]


def buckets(best: str = "mb10") -> list[Row]:
    about = {"strategy": "bucketed", "model": "toy", "ranks": 2, "comm": 1.0}
    calls = {"one": 1, "mb10": 10, "mb1": 100}
    return [row(name, 5.0 if name == best else 9.0, calls=count, **about) for name, count in calls.items()]


def checked(passed: bool = True) -> list[Checked]:
    return [
        Checked(name, optimizer, 2, 1e-16 if passed else 1e-2, "weight", True, passed)
        for name, optimizer in product(CHECKED, ("sgd", "adamw"))
    ]


def accounting() -> list[Row]:
    benchmark, here = Accounting(AccountingOptions()), RankContext(0, 0, 1, torch.device("cpu"))
    return [each for case in benchmark.cases() for each in rows_of(benchmark, case, here)]


def everything(**changes: Sequence[Row]) -> list[Table]:
    found: dict[str, Sequence[Row]] = {
        "precision": precision(), "nsys": kernels(), "memory": memory(), "optimizer": optimizer(),
        "transformer": model(), "attention": attention(), "flash": attention(),
        "collectives": collectives(), "accounting": accounting(), "sync": arms(), "buckets": buckets(),
    }  # fmt: skip
    tables = [Table(source, f"{source}-run", rows) for source, rows in (found | changes).items()]
    return [*tables, check_table(Run(Path("suite")), checked())]


def keys(number: str, tables: Sequence[Table]) -> list[str]:
    (answer,) = (each for each in answers(tables) if each.question.number == number)
    return [f"{each.block}.{each.case}" for each in answer.statements]


def sections(tables: Sequence[Table], language: str = "en") -> dict[str, str]:
    """What is said of every question, by its number."""
    found = re.split(r"^### ", render(tables, "x", language), flags=re.MULTILINE)[1:]
    return {text.split(maxsplit=1)[0]: text for text in found}


def section(number: str, **changes: Sequence[Row]) -> str:
    return sections(everything(**changes))[number]


def laid_over(rows: Sequence[Row], **columns: Any) -> list[Row]:
    """The rows with other values in their columns."""
    return [replace(each, columns={**each.columns, **columns}) for each in rows]


def states(tables: Sequence[Table]) -> dict[str, State]:
    return {each.question.number: each.state for each in answers(tables)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_question_is_answered_or_says_which_command_makes_its_rows(language: str) -> None:
    answered = sections(everything(), language)
    assert list(answered) == [question.number for question in QUESTIONS]
    assert not [text for text in answered.values() if "{" in text or "None" in text]
    without = sections([], language)
    asked = {question.number: question.gpu or question.command for question in QUESTIONS}
    assert {number: command for number, command in asked.items() if f"`{command}`" not in without[number]} == {}


def test_nothing_is_answered_without_a_row() -> None:
    assert {*states([]).values()} == {"needs_gpu", "not_measured"}
    for answer in answers(everything()):
        used = [row for rows in answer.runs.values() for row in rows]
        assert bool(answer.statements) == bool(used), answer.question.number
        assert all(row.status in ("ok", "oom") for row in used)
    with pytest.raises(ValueError, match="nothing is said without a row"):
        Statement("flat_step", [])


def test_commands_are_of_benchmarks_and_recipes_that_there_are() -> None:
    for question in QUESTIONS:
        for words in (command.split() for command in (question.command, question.gpu) if command):
            if words[:2] == ["dynbench", "bench"]:
                assert words[2] in (*BENCHMARKS, "assignment")
            elif words[:2] == ["dynbench", "compare"]:
                assert find_recipe(words[2]).is_file()


def test_rows_that_are_called_otherwise_answer_nothing() -> None:
    assert unanswered("accounting", accounting()) == []
    assert unanswered("memory", memory()) == []
    for column, asked in (("quantity", "abcde"), ("phase", "abce")):
        assert unanswered("memory", laid_over(memory(), **{column: "x"})) == [f"1.5{letter}" for letter in asked]


def test_only_rows_of_a_gpu_answer_what_is_asked_of_one() -> None:
    small = states(everything())
    assert small["2.1"] == small["1.1b"] == small["4.1"] == "answered_small" and small["1.3"] == "answered"
    on_gpu = everything(attention=[replace(each, device="NVIDIA H100") for each in attention()])
    assert states(on_gpu)["2.1"] == "answered"


Changed = dict[str, Sequence[Row]]
CASES: list[tuple[str, str, Changed, str]] = [
    ("1.1b", "model_phases.steady", {"transformer": model(sd=0.3)}, "model_phases.noisy"),
    ("1.1c", "warmup.matters", {"transformer": model(cold=1.02)}, "warmup.none"),
    ("1.2a", "kernels_timer.agree", {"nsys": kernels(timer=20.0)}, "kernels_timer.differ"),
    ("1.2b", "kernels_most.same", {"nsys": kernels(trained="bmm")}, "kernels_most.other"),
    ("1.2d", "kernels_matmul.falls", {"nsys": kernels(step=0.9)}, "kernels_matmul.rises"),
    ("1.2d", "kernels_matmul.falls", {"nsys": kernels(step=0.8)}, "kernels_matmul.stays"),
    ("1.2e", "softmax.slow", {"nsys": kernels(soft=0.1)}, "softmax.cheap"),
    ("1.3", "half_sums.expected", {"precision": precision(half_off=1e-6)}, "half_sums.other"),
    ("1.4a", "autocast_norm.full", {"precision": precision(norm="bfloat16")}, "autocast_norm.half"),
    ("1.4b", "norm_bf16.full", {"precision": precision(norm="bfloat16")}, "norm_bf16.half"),
    ("1.4c", "mixed_precision.faster", {"transformer": model(half=3.0)}, "mixed_precision.slower"),
    ("2.1", "attention_growth.quadratic", {"attention": attention(power=1)}, "attention_growth.below_quadratic"),
    ("2.1", "attention_tiled.less", {"attention": attention(tiled=99)}, "attention_tiled.not"),
    ("1.4c", "mixed_precision.faster", {"transformer": model(half=0.8, sd=0.2)}, "mixed_precision.both"),
    ("2.2b", "compiled_model.faster", {"transformer": model(compiled=1.5)}, "compiled_model.slower"),
    ("2.2b", "compiled_model.faster", {"transformer": model(compiled=0.9, sd=0.1)}, "compiled_model.both"),
    ("3.1", "flash_errors.right", {"flash": attention(error=1e-3)}, "flash_errors.wrong"),
    ("3.1", "flash_errors.right", {"flash": attention(not_finite=7)}, "flash_errors.wrong"),
    ("3.2", "flash_errors.right", {"flash": attention(error=None, not_finite=7)}, "flash_errors.wrong"),
    ("3.1", "flash_tiled.less", {"flash": attention(tiled=99)}, "flash_tiled.not"),
    ("3.3", "against_plain.faster", {"flash": attention(flash_ms=9)}, "against_plain.slower"),
    ("3.3", "against_plain.faster", {"flash": attention(flash_ms=3.99)}, "against_plain.both"),
    ("2.2a", "against_plain.faster", {"attention": attention(compiled_ms=9)}, "against_plain.slower"),
    ("4.1", "all_reduce.right", {"collectives": collectives(wrong=3)}, "all_reduce.wrong"),
    ("4.1", "all_reduce_sizes.bandwidth", {"collectives": collectives(slope=0.2)}, "all_reduce_sizes.latency"),
    ("4.1", "all_reduce_processes.slower", {"collectives": collectives()[:2]}, "all_reduce_processes.once"),
    ("4.4", "flat_step.faster", {"sync": arms(flat=20.0)}, "flat_step.slower"),
    ("4.6", "overlap_step.faster", {"sync": arms(overlap=20.0)}, "overlap_step.slower"),
    ("4.6", "overlap_hidden.pays", {"sync": arms(beyond=9.0)}, "overlap_hidden.competes"),
    ("4.6", "overlap_hidden.pays", {"sync": arms(beyond=-9.0)}, "overlap_hidden.noisy"),
    ("4.8a", "bucket_step.inner", {"buckets": buckets("one")}, "bucket_step.few"),
    ("4.8a", "bucket_step.inner", {"buckets": buckets("mb1")}, "bucket_step.many"),
    ("1.5a", "memory_phases.apart", {"memory": memory(step=20.1)}, "memory_phases.alike"),
    ("1.5c", "memory_mixed.little", {"memory": memory(half=0.5)}, "memory_mixed.less"),
    ("1.5c", "memory_mixed.little", {"memory": memory(half=1.5)}, "memory_mixed.more"),
    ("1.5c", "memory_mixed.little", {"memory": HALF_AT_64}, "memory_mixed.less"),
    ("1.5d", "residual.holds", {"memory": memory(measured=2.0)}, "residual.off"),
    ("5.2a", "sharded_state.share", {"optimizer": optimizer(shard=8.0)}, "sharded_state.other"),
    ("5.2a", "sharded_total.less", {"optimizer": optimizer(total=9.0)}, "sharded_total.some"),
    ("5.2a", "sharded_total.less", {"optimizer": optimizer(total=9.0, peak=9.0)}, "sharded_total.more"),
    ("5.2b", "sharded_step.slower", {"optimizer": optimizer(step=5.0)}, "sharded_step.faster"),
    ("5.2b", "sharded_step.slower", {"optimizer": optimizer(step=8.01)}, "sharded_step.alike"),
    ("5.2c", "sharded_traffic.more", {"optimizer": optimizer(sent=10.0)}, "sharded_traffic.same"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "says", "changed", "instead"), CASES)
def test_the_rows_choose_what_is_said(number: str, says: str, changed: Changed, instead: str) -> None:
    first, second = keys(number, everything()), keys(number, everything(**changed))
    assert says in first and instead not in first
    assert instead in second and says not in second


def test_a_share_below_what_counts_is_not_rounded_up_to_it() -> None:
    told = section("1.2c", nsys=kernels(norm=0.0188))
    assert "no kind of kernel takes 2 %" in told and "| 1.9\N{NO-BREAK SPACE}% |" in told


def test_the_largest_shape_is_spoken_of_and_where_others_differ() -> None:
    narrow = laid_over(attention(flash_ms=9.0), channels=16)
    wide = [replace(each, columns={**each.columns, "length": each.columns["length"] * 2}) for each in attention()]
    for rows in ([*narrow, *wide], [*wide, *narrow]):
        assert "up to length 2048, width 64" in section("2.1", attention=rows)
        told = section("3.3", flash=rows)
        assert "length 2048, width 64" in told and "in 6 of the 12 pairs" in told and "lengths up to 1024" in told
    assert "does not win everywhere" not in section("3.3")


def test_models_are_not_mixed_up() -> None:
    """Two sizes: growth is that of one over its contexts, and the largest tensors are the last one's."""
    small = [replace(each, p50=10 * (each.p50 or 0)) for each in laid_over(memory(), size="small")]
    longer = [replace(each, p50=1.5 * (each.p50 or 0)) if each.case == "128" else each for each in small]
    told = section("1.5b", memory=[*memory(), *longer])
    assert "of small" in told and "grows 1.500 times from 64 tokens to 128" in told
    assert "of small, 128 tokens, is 45" in section("1.5e", memory=[*memory(), *longer])


def test_buckets_that_hold_all_are_the_fewest_whichever_of_them_is_fastest() -> None:
    one, *others = buckets("one")
    alike = replace(one, case="mb1000", mean=4.0, p50=4.0)
    assert "bucket_step.few" in keys("4.8a", everything(buckets=[one, alike, *others]))


def test_times_that_fall_with_the_size_are_told() -> None:
    right = collectives()
    disturbed = [replace(right[0], p50=1e3), *right[1:]]
    shown = "(`all_reduce 1 MiB`)"
    assert shown in section("4.1", collectives=disturbed) and shown not in section("4.1")
    crowded = [replace(each, p50=(each.p50 or 0) ** 2) for each in laid_over(right, shared="4 on 2")]
    assert "all_reduce_processes.crowded" in keys("4.1", everything(collectives=crowded))


@pytest.mark.parametrize("language", LANGUAGES)
def test_figures_stand_with_their_questions(language: str) -> None:
    pictures = {("memory-run", "bench_memory"): "a/b.png", ("flash-run", "bench_memory"): "wrong.png"}
    pictures["sync-run", "comm_timeline"] = "naive_and_overlap.png"
    text = render(everything(), "x", language, pictures)
    assert text.count("a/b.png") == 1 and "wrong.png" not in text
    assert text.index("a/b.png") > text.index("### 1.5b")
    assert text.index("### 4.6") < text.index("naive_and_overlap.png") < text.index("### 4.7")


def test_a_strategy_that_trains_other_weights_is_told() -> None:
    tables = everything()
    tables[-1] = check_table(Run(Path("suite")), checked(passed=False))
    for number, many in (("4.2", 1), ("4.5", 1), ("4.7", 1), ("5.1", 2)):
        assert keys(number, everything()) == ["strategy_check.same"] * many
        assert keys(number, tables) == ["strategy_check.other"] * many


def test_what_ran_out_of_memory_is_an_answer_and_what_was_skipped_is_none() -> None:
    out = [replace(each, status="oom", mean=None, p50=None, sd=None, n=0, unit=None) for each in attention()]
    plain = [each for each in out if each.columns["way"] == "plain" and each.columns["length"] == 1024]
    rows = [each for each in attention() if each.columns["length"] == 256]
    assert "attention_exhausted.out" in keys("2.1", everything(attention=[*rows, *plain]))
    tiled = [each for each in attention() if each.columns["way"] == "flash_torch"]
    told = section("2.1", attention=[*rows, *laid_over(plain, memory_limit_mb=4000.0), *tiled])
    assert "length 1024, width 64" in told and "4,000 MB" in told and "FlashAttention-2 peaks at 7" in told
    why = "no compiler <b>here</b>"
    skipped = [replace(each, status="skipped", reason=why, mean=None, p50=None) for each in attention()]
    told = section("2.2a", attention=skipped)
    assert "Needs a GPU" in told and "no compiler" in told and "<b>" not in told


def test_the_name_of_a_folder_is_no_markup() -> None:
    assert "`a\\](b) &lt;c>`" in render([], "a](b) <c>", "en")


def nulls() -> Iterator[list[Row]]:
    """Rows as a stranger may have written them: without columns, or without numbers."""
    for source in (table.rows for table in everything() if table.source not in ("flash", CHECK)):
        yield [replace(each, columns={}) for each in source]
        yield [replace(each, mean=None, sd=None, p50=None) for each in source]
        yield [replace(each, mean=0.0, p50=0.0, reference_error=None) for each in source]
        yield [replace(each, columns=dict.fromkeys(each.columns, "x")) for each in source]


@pytest.mark.parametrize("rows", list(nulls()))
def test_rows_of_a_stranger_are_no_error(rows: Sequence[Row]) -> None:
    names = dict.fromkeys((*(table.source for table in everything()), CHECK))
    assert render([Table(name, "run", rows) for name in names], "x", "zh")


def test_both_languages_have_a_word_for_everything() -> None:
    """That they are in the language, and of every question and state, the accepted reports show."""
    english, chinese = (load_template(language, None, "assignment").labels.keys() for language in ("en", "zh"))
    assert english - language_labels("zh").keys() == chinese - language_labels("zh").keys()
