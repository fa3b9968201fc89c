"""Saved models: the best and the last, read back with the training's own validation, and going on with texts."""

from __future__ import annotations

import io
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from own import imports_forgotten, write_own

from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.schema import Config, changed, dump_config
from dynbench.engine.rank.evaluation import EVAL_FILE, Evaluator
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.engine.rank.saved import Saved, Writer, evaluate_saved, find_saved
from dynbench.errors import ConfigError, DataError, UsageError
from dynbench.runs.store import RunStore
from dynbench.sync.base import Local
from dynbench.workloads.base import Saves, Workload
from dynbench.workloads.own_code import own_code_settings, remember_run
from dynbench.workloads.registry import build_workload

CPU = torch.device("cpu")
STEPS = 4


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNBENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    lines = ({"sentence": f"{'so ' * (i % 5)}number {i} is <|end|> here", "label": i % 2} for i in range(80))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def configured(texts: Path | None, *settings: str) -> Config:
    of_texts = () if texts is None else ("workload.dataset=jsonl", f"workload.data_path={texts}")
    return load_config(
        None,
        [
            *("workload.name=causal_lm", "workload.size=tiny", "workload.max_length=24", "workload.dropout=0"),
            *("workload.pad_to_multiple_of=1", "train.precision=fp32", "train.save_model=true", "launch.device=cpu"),
            *("train.global_batch=4", "train.warmup_steps=0", f"train.steps={STEPS}", "train.eval_samples=64"),
            *of_texts,
            *settings,
        ],
    )


def kept(folder: Path, config: Config, worsens: bool = False) -> list[dict[str, object]]:
    """What every evaluation of a run gave, whose model changes at random; its folder is as training leaves it."""
    workload, strategy, found = build_workload(config), Local(), []
    torch.manual_seed(0)
    strategy.wrap(workload.build_model(0), CPU)
    evaluator = Evaluator(config, workload, CPU, shard=(0, 1), sum_over_ranks=list, file=folder / EVAL_FILE)
    for step in range(STEPS):
        with torch.no_grad():
            for parameter in strategy.model.parameters():
                parameter += (0.05 if worsens else 0.01) * torch.randn_like(parameter)
        evaluator.after(step, strategy, Precision("fp32", CPU))
        if evaluator._evaluates(step):
            found.append(evaluator.measure(strategy, Precision("fp32", CPU)))
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("of_texts", [True, False])
def test_a_saved_model_gives_the_trainings_own_validation(tmp_path: Path, texts: Path, of_texts: bool) -> None:
    config = configured(texts if of_texts else None, "train.eval_every=1")
    found = kept(tmp_path, config, worsens=True)
    least = min(range(STEPS), key=lambda step: found[step]["loss"])
    for name, step in (("best", least), ("last", STEPS - 1)):
        saved = Saved(tmp_path / "model" / name, tmp_path / "config.yaml")
        assert evaluate_saved(saved.config())["loss"] == pytest.approx(found[step]["loss"], rel=1e-6)
        for batch in (3, 64):
            again = evaluate_saved(saved.config(), batch)
            assert again["perplexity"] == pytest.approx(found[step]["perplexity"], rel=1e-6)
            assert (again["samples"], again["tokens"]) == (found[step]["samples"], found[step]["tokens"])
    assert found[least]["loss"] < found[-1]["loss"], "or best and last are one"


@pytest.mark.slow
def test_a_folder_alone_brings_its_tokenizer(tmp_path: Path, texts: Path) -> None:
    [found] = kept(tmp_path, configured(texts))
    saved = Saved(tmp_path / "model" / "last")
    overrides = ("workload.dataset=jsonl", f"workload.data_path={texts}", "workload.max_length=24")
    assert saved.config(overrides).workload.tokenizer_name == str(saved.folder)
    # A text that spells the end's name is the one thing that transformers reads otherwise than bytes.
    texts.write_text(texts.read_text(encoding="utf-8").replace("<|end|> ", ""), encoding="utf-8")
    [plain] = kept(tmp_path, configured(texts, f"workload.eval_path={texts}", "train.eval_samples=1000"))
    assert evaluate_saved(saved.config(overrides))["loss"] == pytest.approx(plain["loss"], rel=1e-6) != found["loss"]


@pytest.mark.slow
def test_a_classifier_is_read_back_too(tmp_path: Path) -> None:
    config = changed(configured(None), {"workload.name": "text_classification", "workload.size": "small"})
    [found] = kept(tmp_path, config)
    settings = Saved(tmp_path / "model" / "best").config(("workload.max_length=24", "train.eval_samples=64"))
    again = evaluate_saved(settings)
    assert again["accuracy"] == found["accuracy"] and again["loss"] == pytest.approx(found["loss"], rel=1e-6)
    assert again["tokens"] is None and "unigram_perplexity" not in again
    names = {"id2label": {"0": "a", "1": "b", "2": "c"}, "architectures": ["BertForSequenceClassification"]}
    (tmp_path / "model" / "best" / "config.json").write_text(json.dumps({"model_type": "bert", **names}))
    with pytest.raises(DataError, match="tells 3 classes apart, the data have 2"):
        evaluate_saved(settings)


def saving(config: Config, workload: Workload, folder: Path | None) -> Evaluator:
    file = None if folder is None else folder / EVAL_FILE
    return Evaluator(config, workload, CPU, shard=None, sum_over_ranks=list, file=file)


def test_without_evaluation_the_last_model_is_kept(tmp_path: Path) -> None:
    assert kept(tmp_path, configured(None, "train.eval_samples=0")) == []
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["last"]


def test_what_is_kept_is_the_same_on_all_ranks_and_written_by_one(tmp_path: Path) -> None:
    asked = []

    class Counting(Local):
        def full_state(self):  # type: ignore[no-untyped-def]
            asked.append(None)

    config, workload = configured(None), build_workload(configured(None))
    assert isinstance(workload, Saves)
    for folder in (tmp_path, None):
        keeper = saving(config, workload, folder)
        saved = []
        for step, loss in enumerate([2.0, 3.0, 1.0, 1.5]):
            before = len(asked)
            keeper.save_after(step, Counting(), {"loss": loss})
            saved.append(len(asked) > before)
        assert saved == [True, False, True, True]
    assert len(asked) == 6 and not (tmp_path / "model").exists()


@pytest.mark.parametrize("sharded", [False, True])
def test_an_interrupted_run_keeps_the_last_model_that_a_rank_has_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sharded: bool
) -> None:
    class Asked(Local):
        def state_alone(self) -> dict[str, torch.Tensor] | None:
            return None if sharded else super().state_alone()

    config, strategy = configured(None), Asked()
    workload = build_workload(config)
    strategy.wrap(workload.build_model(0), CPU)
    for settings in (config, changed(config, {"train.save_model": False})):
        saving(settings, workload, tmp_path).interrupted(1, strategy)
    assert (tmp_path / "model" / "last" / "config.json").is_file() == (not sharded)
    assert ("model/last is not kept" in caplog.text) == sharded


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("workload.name=mine:Model",), "code of your own makes the model"),
        (("sync.communicate=false",), "no model is trained"),
    ],
)
def test_a_model_that_cannot_be_saved_is_refused(settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(None, ["train.save_model=true", *settings])


@pytest.fixture
def writer(tmp_path: Path, texts: Path) -> Writer:
    kept(tmp_path, configured(texts))
    return Writer.of(Saved(tmp_path / "model" / "best").config())


@pytest.mark.slow
def test_a_text_goes_on_by_its_seed(writer: Writer) -> None:
    def of(seed: int, temperature: float = 1.0, top_p: float = 1.0) -> str:
        return writer.go_on("number", length=30, temperature=temperature, top_p=top_p, seed=seed)[0]

    assert of(1) == of(1) != of(2)
    assert of(1, temperature=0) == of(2, temperature=0) == of(3, top_p=1e-9)


def test_the_likeliest_tokens_are_those_of_the_model(writer: Writer) -> None:
    text, tokens = writer.go_on("number", length=5, temperature=0, top_p=1, seed=0)
    ids = [256, *b"number"]
    for _ in range(tokens):
        with torch.no_grad():
            ids.append(int(writer.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert text == writer.tokenizer.backend.decode([token for token in ids[7:] if token != writer.end_id])


@pytest.mark.slow
def test_a_prompt_beyond_the_positions_is_refused(writer: Writer) -> None:
    with pytest.raises(UsageError, match="the prompt has 1025 tokens, and the model 1024 positions"):
        writer.go_on("x" * 1024, length=5, temperature=1, top_p=1, seed=0)
    assert writer.go_on("x" * 1020, length=5, temperature=1, top_p=1, seed=0)[1] <= 3


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(-1.0, 1.0), (float("nan"), 1.0), (1.0, 0.0), (1.0, 1.1), (1.0, float("nan"))]
)
def test_a_temperature_or_share_that_is_none_is_refused(writer: Writer, temperature: float, top_p: float) -> None:
    with pytest.raises(UsageError, match="expected a temperature from 0 on"):
        writer.go_on("number", length=3, temperature=temperature, top_p=top_p, seed=0)


@pytest.mark.slow
def test_the_ends_of_temperature_and_share(writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    def of(temperature: float, top_p: float = 1.0) -> str:
        return writer.go_on("number", length=20, temperature=temperature, top_p=top_p, seed=4)[0]

    assert of(0) == of(1e-320) == of(1e-6) == of(1, 1e-12)
    assert of(float("inf")) == of(1e30) != of(0)
    assert "at most" not in caplog.text
    writer.go_on("x" * 1020, length=50, temperature=0, top_p=1, seed=0)
    assert "at most 3 tokens are written, not 50: the model has 1024 positions" in caplog.text


@pytest.mark.slow
def test_other_texts_are_read_by_their_ending_and_evaluated_whole(tmp_path: Path, texts: Path) -> None:
    kept(tmp_path, configured(texts, f"workload.eval_path={texts}", "train.eval_samples=8"))
    other = tmp_path / "other.json"
    articles = [{"id": i, "title": f"so {i}", "text": "here" * (i % 20)} for i in range(40)]
    other.write_text(json.dumps(articles), encoding="utf-8")
    of_run = Saved(tmp_path / "model" / "last", tmp_path / "config.yaml")
    for saved in (of_run, Saved(tmp_path / "model" / "last")):
        for overrides, flags in (((), {"workload.data_path": str(other)}), ((f"workload.data_path={other}",), {})):
            config = saved.config(("workload.max_length=24", *overrides), flags)
            again = evaluate_saved(config)
            assert (config.workload.dataset, again["data"], again["samples"]) == ("json", str(other), 40)
            assert (again["available"], again["max_length"], again["cut_samples"]) == (40, 24, 30)
            assert len(build_workload(config).train) == 1, "no more of the training texts is tokenised"
        fewer = evaluate_saved(saved.config((*overrides, "workload.max_length=24", "train.eval_samples=6")))
        assert (fewer["samples"], fewer["available"]) == (6, 40)


@pytest.mark.slow
def test_the_training_file_named_again_is_evaluated_whole_and_told(
    tmp_path: Path, texts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(texts)
    [found] = kept(tmp_path, config)
    saved = Saved(tmp_path / "model" / "last", tmp_path / "config.yaml")
    assert evaluate_saved(saved.config())["samples"] == found["samples"] == 8
    assert not caplog.records
    facts = build_workload(config).facts
    (tmp_path / "env.json").write_text(json.dumps({"data": facts}))
    [whole] = kept(tmp_path, changed(config, {"workload.eval_path": str(texts), "train.eval_samples": 1000}))
    (tmp_path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    again = evaluate_saved(saved.config((), {"workload.data_path": str(texts.parent / "." / texts.name)}))
    assert again["samples"] == whole["samples"] == 80
    assert again["perplexity"] == pytest.approx(whole["perplexity"], rel=1e-6)
    assert "was trained on 72 samples of it" in caplog.text


def test_a_run_whose_vocabulary_is_gone_has_the_tokenizer_that_was_saved(tmp_path: Path, texts: Path) -> None:
    place = tmp_path / "vocab"
    place.mkdir()
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(["number 1 is here, so so"] * 4, vocab_size=280, special_tokens=["<|endoftext|>"])
    made.save_model(str(place))
    [found] = kept(tmp_path, configured(texts, f"workload.tokenizer={place / 'vocab.json'}"))
    saved = Saved(tmp_path / "model" / "last", tmp_path / "config.yaml")
    assert saved.config().workload.tokenizer == str(place / "vocab.json")
    shutil.rmtree(place)
    assert saved.config().workload.tokenizer is None
    assert evaluate_saved(saved.config())["loss"] == pytest.approx(found["loss"], rel=1e-6)


def test_a_run_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no saved model"):
        find_saved(RunStore(tmp_path), str(_run(tmp_path)))


def _run(root: Path) -> Path:
    from dynbench.runs.recorder import new_run

    return new_run(RunStore(root), "train", "static", load_config(), decisions={}, data={}, warnings=()).path


@pytest.fixture
def levels() -> Iterator[None]:
    """Commands set the levels of loggers; they come back."""
    loggers = {logging.getLogger(name): logging.getLogger(name).level for name in ("", "dynbench")}
    yield
    for logger, level in loggers.items():
        logger.setLevel(level)


@pytest.mark.slow
@pytest.mark.usefixtures("levels")
def test_the_commands_print_one_object(
    tmp_path: Path, texts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(tmp_path)
    [found] = kept(run, configured(texts))
    assert main(["eval", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["loss"] == pytest.approx(found["loss"], rel=1e-6) and told["command"] == "eval"
    assert {"source", "data", "samples", "tokens", "perplexity", "unigram_perplexity"} <= set(told)
    assert main(["eval", str(run), "--eval-samples", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 3
    assert main(["generate", str(run), "--prompt", "number", "--length", "4", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["prompt"], written["seed"]) == ("number", 0) and 1 <= written["tokens"] <= 4
    assert main(["eval", str(run), "-q"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{told['loss']} {told['perplexity']}"]
    assert main(["generate", str(run), "--prompt", "number", "--length", "4", "-q"]) == 0
    assert capsys.readouterr().out == f"{written['text']}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{'x' * 2000}\nnumber\n"))
    assert main(["generate", str(run), "--length", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("number") and "without a template" in err
    assert "the prompt has 2001 tokens" in err, "and the next one is asked for"


def labelled(path: Path, classes: Sequence[str | int]) -> Path:
    lines = ({"sentence": f"number {i} of {i % 7}", "label": classes[i % len(classes)]} for i in range(40))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("classes", [("a", "b", "c"), (0, 1, 2), (1, 2, 5)])
def test_classes_of_other_texts_are_those_of_the_model_by_name(tmp_path: Path, classes: tuple[str | int, ...]) -> None:
    first, second, third = classes
    trained = labelled(tmp_path / "trained.jsonl", classes)
    config = configured(trained, "workload.tokenizer=bytes", "train.eval_samples=40")
    kept(tmp_path, changed(config, {"workload.name": "text_classification", "workload.size": "small"}))
    saved = Saved(tmp_path / "model" / "best", tmp_path / "config.yaml")
    names = {str(number): str(name) for number, name in enumerate(classes)}
    assert json.loads((saved.folder / "config.json").read_text())["id2label"] == names

    def found(path: Path, *keys: str) -> dict[str, object]:
        return evaluate_saved(saved.config((), {f"workload.{key}": str(path) for key in keys}))

    other = labelled(tmp_path / "other.jsonl", (third, second))
    by_the_training_file = found(other, "eval_path")
    assert found(other, "data_path", "eval_path") == by_the_training_file
    unknown = labelled(tmp_path / "unknown.jsonl", (second, third, 9 if isinstance(first, int) else "d"))
    with pytest.raises(DataError, match=r"unknown.jsonl: class '[9d]'; expected one of .*best: '\w', '\w', '\w'"):
        found(unknown, "data_path", "eval_path")


@pytest.mark.parametrize(
    ("found", "best"),
    [
        ([(0.5, 0.7), (0.4, 0.6), (0.9, 0.8), (0.1, 0.8)], 2),
        ([(0.5, None), (0.4, None), (0.9, None), (float("nan"), None)], 1),
    ],
)
def test_the_best_model_is_that_of_the_best_accuracy_where_one_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[tuple[float, float | None]], best: int
) -> None:
    config, kept_at = configured(None), []
    keeper = saving(config, build_workload(config), tmp_path)
    monkeypatch.setattr(keeper, "_save", lambda step, state, names: kept_at.append(step) if "best" in names else None)
    for step, (loss, accuracy) in enumerate(found):
        keeper.save_after(step, SimpleNamespace(full_state=dict), {"loss": loss, "accuracy": accuracy})
    assert kept_at[-1] == best


def test_a_workload_of_the_users_own_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_own(tmp_path)
    run = RunStore(tmp_path / "results").create("train", "static", "mine")
    config = load_config(None, ["workload.name=mine.py:Mine", "workload.max_length=24", "train.eval_samples=8"])
    pinned = config.workload.model_copy(update=own_code_settings(config.workload))
    run.config_file.write_text(dump_config(config.model_copy(update={"workload": pinned})))
    (run.path / "model" / "last").mkdir(parents=True)
    (run.path / "model" / "last" / "config.json").write_text("{}")
    remember_run(run.id, pinned)
    with imports_forgotten(monkeypatch):
        assert main(["eval", "mine", "--results", str(tmp_path / "results"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 8 and found["loss"] > 0
