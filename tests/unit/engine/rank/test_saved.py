"""Saved models: the best and the last, read back with the training's own validation, and going on with texts."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from own import imports_forgotten, write_own
from probes import resolved

from dynbench.cli.main import main
from dynbench.config.layers import load_config
from dynbench.config.schema import Config, changed, dump_config
from dynbench.engine.rank.evaluation import EVAL_FILE, Evaluator
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.engine.rank.saved import Saved, Writer, evaluate_saved
from dynbench.errors import ConfigError, DataError, UsageError
from dynbench.runs.recorder import new_run
from dynbench.runs.store import RunStore
from dynbench.sync.base import Local
from dynbench.workloads.base import Workload
from dynbench.workloads.own_code import own_code_settings, remember_run
from dynbench.workloads.registry import build_workload

CPU = torch.device("cpu")
STEPS = 4
NAN = float("nan")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYNBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def written_lines(path: Path, lines: Sequence[tuple[str, object]]) -> Path:
    """Texts and their labels, as JSON."""
    rows = (json.dumps({"sentence": text, "label": label}) + "\n" for text, label in lines)
    path.write_text("".join(rows), encoding="utf-8")
    return path


def texts_in(folder: Path, end: str = "<|end|> ") -> Path:
    lines = [(f"{'so ' * (i % 5)}number {i} is {end}here", i % 2) for i in range(80)]
    return written_lines(folder / "texts.jsonl", lines)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return texts_in(tmp_path)


def configured(texts: Path | None, *settings: str) -> Config:
    workload = ("name=causal_lm", "size=tiny", "max_length=24", "dropout=0")
    of_texts = () if texts is None else ("dataset=jsonl", f"data_path={texts}")
    train = ("save_model=true", "global_batch=4", "warmup_steps=0", f"steps={STEPS}", "eval_samples=64")
    given = (*(f"workload.{each}" for each in (*workload, *of_texts)), *(f"train.{each}" for each in train))
    return resolved(*given, "launch.device=cpu", *settings).config


def saving(config: Config, workload: Workload, folder: Path | None, shard: tuple[int, int] | None = None) -> Evaluator:
    file = None if folder is None else folder / EVAL_FILE
    return Evaluator(config, workload, CPU, shard=shard, sum_over_ranks=list, file=file)


def kept(folder: Path, config: Config, worsens: bool = False) -> list[dict[str, object]]:
    """What every evaluation of a run gave, whose model changes at random; its folder is as training leaves it."""
    workload, strategy = build_workload(config), Local()
    torch.manual_seed(0)
    strategy.wrap(workload.build_model(0), CPU)
    evaluator, found = saving(config, workload, folder, shard=(0, 1)), []
    for step in range(STEPS):
        with torch.no_grad():
            for parameter in strategy.model.parameters():
                parameter += (0.05 if worsens else 0.01) * torch.randn_like(parameter)
        found.append(evaluator.after(step, strategy, Precision("fp32", CPU)))
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    return [each for each in found if each is not None]


def saved_in(folder: Path, name: str = "last") -> Saved:
    """A run's model with its configuration."""
    return Saved(folder / "model" / name, folder / "config.yaml")


def agrees(again: Mapping[str, object], found: Mapping[str, object]) -> bool:
    """Whether a model evaluated again gives what its training found."""
    return {name: again[name] for name in found} == pytest.approx(found, rel=1e-6)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run that has saved its model, and what its evaluation gave."""
    folder = tmp_path_factory.mktemp("trained")
    run = new_run(RunStore(folder), "train", "static", load_config(), decisions={}, data={}, warnings=())
    texts = texts_in(folder)
    [found] = kept(run.path, configured(texts))
    return SimpleNamespace(run=run, texts=texts, found=found)


@pytest.fixture(scope="module")
def writer(trained: SimpleNamespace) -> Writer:
    return Writer.of(saved_in(trained.run.path, "best").config())


@pytest.mark.slow
def test_a_saved_model_gives_the_trainings_own_validation(tmp_path, texts):
    config = configured(texts, "train.eval_every=1")
    found = kept(tmp_path, config, worsens=True)
    least = min(range(STEPS), key=lambda step: found[step]["loss"])
    for name, step in (("best", least), ("last", STEPS - 1)):
        for batch in (None, 3):
            assert agrees(evaluate_saved(saved_in(tmp_path, name).config(), batch), found[step])
    assert found[least]["loss"] < found[-1]["loss"], "or best and last are one"


@pytest.mark.slow
def test_a_folder_alone_brings_its_tokenizer(tmp_path, trained):
    saved = Saved(trained.run.path / "model" / "last")
    texts = texts_in(tmp_path, end="")
    overrides = ("workload.dataset=jsonl", f"workload.data_path={texts}", "workload.max_length=24")
    assert saved.config(overrides).workload.tokenizer_name == str(saved.folder)
    # A text that spells the end's name, which these do not, is read otherwise by transformers than bytes.
    [plain] = kept(tmp_path, configured(texts, f"workload.eval_path={texts}", "train.eval_samples=1000"))
    assert agrees(evaluate_saved(saved.config(overrides)), plain)


@pytest.mark.slow
def test_a_classifier_is_read_back_too(tmp_path):
    [found] = kept(tmp_path, configured(None, "workload.name=text_classification", "workload.size=small"))
    settings = Saved(tmp_path / "model" / "best").config(("workload.max_length=24", "train.eval_samples=64"))
    again = evaluate_saved(settings)
    assert agrees(again, found) and again["tokens"] is None and "unigram_perplexity" not in again
    names = {"id2label": {"0": "a", "1": "b", "2": "c"}, "architectures": ["BertForSequenceClassification"]}
    (tmp_path / "model" / "best" / "config.json").write_text(json.dumps({"model_type": "bert", **names}))
    with pytest.raises(DataError, match="tells 3 classes apart, the data have 2"):
        evaluate_saved(settings)


def test_without_evaluation_the_last_model_is_kept(tmp_path):
    assert kept(tmp_path, configured(None, "train.eval_samples=0")) == []
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["last"]


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize(
    ("losses", "accuracies", "asked", "best"),
    [
        ([2.0, 3.0, 1.0, 1.5], [None] * STEPS, [0, 2, 3], 2),
        ([0.5, 0.4, 0.9, NAN], [None] * STEPS, [0, 1, 3], 1),
        ([0.5, 0.4, 0.9, 0.1], [0.7, 0.6, 0.8, 0.8], [0, 2, 3], 2),
    ],
)
def test_all_ranks_give_the_last_model_and_the_best_and_one_writes_them(
    tmp_path, losses, accuracies, asked, best, writes
):
    given, written = [], {}
    workload = build_workload(configured(None))
    workload.save = lambda folder, state: written.update({folder.name: state["step"]})  # type: ignore[attr-defined]
    keeper = saving(configured(None), workload, tmp_path if writes else None)
    for step, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True)):
        strategy = SimpleNamespace(full_state=lambda step=step: given.append(step) or {"step": step})
        keeper.save_after(step, strategy, {"loss": loss, "accuracy": accuracy})
    assert given == asked
    assert written == ({"best": best, "last": STEPS - 1} if writes else {})


@pytest.mark.parametrize("sharded", [False, True])
def test_an_interrupted_run_keeps_the_last_model_that_a_rank_has_whole(tmp_path, caplog, sharded):
    config, strategy = configured(None), Local()
    workload = build_workload(config)
    strategy.wrap(workload.build_model(0), CPU)
    if sharded:
        strategy.state_alone = lambda: None  # type: ignore[method-assign]
    caplog.clear()
    for settings in (config, changed(config, {"train.save_model": False})):
        saving(settings, workload, tmp_path).interrupted(1, strategy)
    assert (tmp_path / "model" / "last" / "config.json").is_file() == (not sharded)
    assert len(caplog.records) == sharded


@pytest.mark.parametrize("settings", ["workload.name=mine:Model", "sync.communicate=false"])
def test_a_model_that_cannot_be_saved_is_refused(settings):
    with pytest.raises(ConfigError, match=r"train\.save_model"):
        load_config(None, ["train.save_model=true", settings])


@pytest.mark.slow
def test_a_text_goes_on_by_its_seed_and_at_the_ends_of_temperature_and_share(writer):
    def of(seed: int, temperature: float = 1.0, top_p: float = 1.0) -> str:
        return writer.go_on("number", length=20, temperature=temperature, top_p=top_p, seed=seed)[0]

    assert of(1) == of(1) != of(2)
    assert of(1, 0) == of(2, 0) == of(4, 1e-320) == of(4, 1e-6) == of(3, top_p=1e-9) == of(4, top_p=1e-12)
    assert of(4, float("inf")) == of(4, 1e30) != of(4, 0)


def test_the_likeliest_tokens_are_those_of_the_model(writer):
    text, tokens = writer.go_on("number", length=5, temperature=0, top_p=1, seed=0)
    ids = [256, *b"number"]
    for _ in range(tokens):
        with torch.no_grad():
            ids.append(int(writer.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert text == writer.tokenizer.backend.decode([token for token in ids[7:] if token != writer.end_id])


def test_no_more_is_written_than_the_model_has_positions(writer, caplog):
    with pytest.raises(UsageError, match="the prompt has 1025 tokens, and the model 1024 positions"):
        writer.go_on("x" * 1024, length=5, temperature=1, top_p=1, seed=0)
    for length in (3, 50):
        assert not caplog.records
        assert writer.go_on("x" * 1020, length=length, temperature=0, top_p=1, seed=0)[1] <= 3
    assert "at most 3 tokens are written, not 50: the model has 1024 positions" in caplog.text


@pytest.mark.parametrize(("temperature", "top_p"), [(-1.0, 1.0), (NAN, 1.0), (1.0, 0.0), (1.0, 1.1), (1.0, NAN)])
def test_a_temperature_or_share_that_is_none_is_refused(writer, temperature, top_p):
    with pytest.raises(UsageError, match="expected a temperature"):
        writer.go_on("number", length=3, temperature=temperature, top_p=top_p, seed=0)


@pytest.mark.slow
def test_other_texts_are_read_by_their_ending_and_evaluated_whole(tmp_path, texts):
    kept(tmp_path, configured(texts, f"workload.eval_path={texts}", "train.eval_samples=8"))
    other = tmp_path / "other.json"
    articles = [{"id": i, "title": f"so {i}", "text": "here" * (i % 20)} for i in range(40)]
    other.write_text(json.dumps(articles), encoding="utf-8")
    for saved in (saved_in(tmp_path), Saved(tmp_path / "model" / "last")):
        for overrides, flags in (((), {"workload.data_path": str(other)}), ((f"workload.data_path={other}",), {})):
            config = saved.config(("workload.max_length=24", *overrides), flags)
            again = evaluate_saved(config)
            assert (config.workload.dataset, again["data"], again["samples"]) == ("json", str(other), 40)
            assert (again["available"], again["max_length"], again["cut_samples"]) == (40, 24, 30)
            assert len(build_workload(config).train) == 1, "no more of the training texts is tokenised"
        fewer = evaluate_saved(saved.config((*overrides, "workload.max_length=24", "train.eval_samples=6")))
        assert (fewer["samples"], fewer["available"]) == (6, 40)


@pytest.mark.slow
def test_the_training_file_named_again_is_evaluated_whole_and_told(tmp_path, trained, caplog):
    saved, texts = saved_in(trained.run.path), trained.texts
    assert evaluate_saved(saved.config())["samples"] == trained.found["samples"] == 8
    assert not caplog.records
    config = configured(texts)
    (trained.run.path / "env.json").write_text(json.dumps({"data": build_workload(config).facts}))
    [whole] = kept(tmp_path, changed(config, {"workload.eval_path": str(texts), "train.eval_samples": 1000}))
    again = evaluate_saved(saved.config((), {"workload.data_path": str(texts.parent / "." / texts.name)}))
    assert agrees(again, whole) and whole["samples"] == 80
    assert "was trained on 72 samples of it" in caplog.text


def test_a_run_whose_vocabulary_is_gone_has_the_tokenizer_that_was_saved(tmp_path, texts):
    place = tmp_path / "vocab"
    place.mkdir()
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(["number 1 is here, so so"] * 4, vocab_size=280, special_tokens=["<|endoftext|>"])
    made.save_model(str(place))
    [found] = kept(tmp_path, configured(texts, f"workload.tokenizer={place / 'vocab.json'}"))
    saved = saved_in(tmp_path)
    assert saved.config().workload.tokenizer == str(place / "vocab.json")
    shutil.rmtree(place)
    assert saved.config().workload.tokenizer is None
    assert agrees(evaluate_saved(saved.config()), found)


@pytest.mark.slow
def test_the_commands_print_one_object(trained, capsys, monkeypatch):
    source = str(trained.run.path)

    def printed(command: str, *options: str) -> str:
        assert main([command, source, *options]) == 0
        return capsys.readouterr().out

    told = json.loads(printed("eval", "--eval-samples", "3", "--json"))
    assert told["samples"] == 3
    assert printed("eval", "--eval-samples", "3", "-q") == f"{told['loss']} {told['perplexity']}\n"
    asked = ("generate", "--prompt", "number", "--length", "4")
    assert printed(*asked, "-q") == f"{json.loads(printed(*asked, '--json'))['text']}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{'x' * 2000}\nnumber\n"))
    assert main(["generate", source, "--length", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("number") and "without a template" in err
    assert "the prompt has 2001 tokens" in err, "and the next one is asked for"


@pytest.mark.slow
@pytest.mark.parametrize("classes", [("a", "b", "c"), (0, 1, 2), (1, 2, 5)])
def test_classes_of_other_texts_are_those_of_the_model_by_name(tmp_path, classes):
    def labelled(name: str, *classes: str | int) -> Path:
        lines = [(f"number {i} of {i % 7}", classes[i % len(classes)]) for i in range(40)]
        return written_lines(tmp_path / name, lines)

    first, second, third = classes
    classifier = ("workload.name=text_classification", "workload.size=small", "workload.tokenizer=bytes")
    kept(tmp_path, configured(labelled("trained.jsonl", *classes), *classifier, "train.eval_samples=40"))
    saved = saved_in(tmp_path, "best")
    names = {str(number): str(name) for number, name in enumerate(classes)}
    assert json.loads((saved.folder / "config.json").read_text())["id2label"] == names

    def found(path: Path, *keys: str) -> dict[str, object]:
        return evaluate_saved(saved.config((), {f"workload.{key}": str(path) for key in keys}))

    other = labelled("other.jsonl", third, second)
    by_the_training_file = found(other, "eval_path")
    assert found(other, "data_path", "eval_path") == by_the_training_file
    unknown = labelled("unknown.jsonl", second, third, 9 if isinstance(first, int) else "d")
    with pytest.raises(DataError, match=r"unknown.jsonl: class '[9d]'; expected one of .*best: '\w', '\w', '\w'"):
        found(unknown, "data_path", "eval_path")


def test_a_workload_of_the_users_own_is_evaluated(tmp_path, monkeypatch, capsys):
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
