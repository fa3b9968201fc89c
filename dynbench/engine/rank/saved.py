"""Saved models read back: evaluated as in training, and text that they go on with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dynbench.config.layers import Setting, command_line, load_config
from dynbench.config.paths import BPE_VOCABULARY, VOCABULARY, means_path
from dynbench.config.schema import Config, Workload
from dynbench.engine.rank.evaluation import BEST, MODEL_FOLDER, Evaluator
from dynbench.engine.rank.optimizer_step import Precision
from dynbench.errors import DataError, RecordError, UsageError
from dynbench.plugins import DATASETS, WORKLOADS, options_of
from dynbench.plugins.datasets import FileOptions
from dynbench.runs.atomic import load_json
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore
from dynbench.sync.base import Local
from dynbench.workloads.causal_lm import language_model
from dynbench.workloads.own_code import is_remembered
from dynbench.workloads.registry import build_workload
from dynbench.workloads.tokenizer import TextTokenizer, load_tokenizer

_log = logging.getLogger(__name__)
ALL = 2**31 - 1
"""Samples to evaluate, the most that the setting takes."""
DATASET_OF = {".json": "json", ".jsonl": "jsonl", ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv"}
"""Data set that reads a file, by its ending."""
LEAST_TEMPERATURE = 1e-4
"""Below it logits would overflow, and the likeliest token is all that is ever drawn."""
SAVE_FIRST = "Train with --save-model, or name a folder that transformers saved."


@dataclass(frozen=True)
class Saved:
    """A model in a folder.

    Args:
        folder: config.json, model.safetensors and, where it is of texts, a tokenizer.
        base: a run's configuration, which its data are read by; None for a folder of another source.
    """

    folder: Path
    base: Path | None = None

    def config(self, overrides: tuple[str, ...] = (), flags: Mapping[str, object] | None = None) -> Config:
        """The settings that read the model back: those of its run, and the command line's over them.

        Data that are named are evaluated whole, unless `train.eval_samples` is given too. That the run trained on
        them is warned of.

        Raises:
            ConfigError: settings that cannot work.
            UsageError: a run of code of its own that was not made here, and whose code is not named either.
        """
        known: dict[str, object] = {"workload.name": _workload_of(self.folder)}
        named, _ = command_line(overrides, flags or {})
        trained = None if self.base is None else load_config(self.base, trains=False).workload
        if self.base is not None and trained is not None:
            known_code = "workload.name" in named or is_remembered(self.base.parent.name, trained)
            if trained.is_own and not known_code:
                raise UsageError(
                    f"{self.base}: workload.name: {trained.name!r} is code, which is not run because a run names it: "
                    "the run was not made here",
                    "Look at it, and name it: --set workload.name=PLACE.",
                )
            known = {"workload.tokenizer": _tokenizer_of(trained), "workload.cache_dir": None}
        device = "cuda" if torch.cuda.is_available() else "cpu"
        read_back = {"workload.weights": "pretrained", "workload.model": str(self.folder), "train.save_model": False}
        least = {"workload.subset": 1}  # nothing is trained on, and no more of it has to be tokenised
        machine = {"launch.device": device, "train.precision": "fp32"}
        padding = {"workload.layout": "padded", "workload.use_cache": False, "workload.pad_to_multiple_of": 1}
        typed = {key: value for key, value in (flags or {}).items() if value is not None}
        other_data = _other_data(named, Workload() if trained is None else trained)
        laid = {key: value for key, value in {**known, **other_data}.items() if key not in named}
        settings = {**laid, **machine, **padding, **least, **read_back, **typed}
        nothing = [f"{key}=null" for key, value in settings.items() if value is None]  # which a flag cannot say
        config = load_config(self.base, (*nothing, *overrides), settings, trains=False)
        if self.base is not None and trained is not None:
            _tell_overlap(config.workload, trained, Run(self.base.parent))
        return config


def _tokenizer_of(workload: Workload) -> str | None:
    """What a run's texts were tokenised with; None takes the model's own.

    The run's finds what is tokenised already; where its file is gone, or it had no texts, there is the saved one.
    """
    name = workload.tokenizer_name
    gone = name.endswith((VOCABULARY, BPE_VOCABULARY)) or means_path(name)
    if not DATASETS[workload.dataset].of_texts or (gone and not Path(name).expanduser().exists()):
        return None
    return name


def _other_data(named: Mapping[str, Setting], trained: Workload) -> dict[str, object]:
    """What goes with data that are named: a data set that reads them, and that all of them are evaluated.

    Args:
        named: what the command line sets.
        trained: the run's settings, or the defaults.
    """
    path, eval_path, dataset = (
        named.get(f"workload.{key}", Setting(None)).value for key in ("data_path", "eval_path", "dataset")
    )
    whole: dict[str, object] = {"train.eval_samples": ALL}
    if path is None:
        return {} if eval_path is None else whole
    dataset = str(dataset or DATASET_OF.get(Path(str(path)).suffix, trained.dataset))
    of_one_file = dataset in DATASETS and DATASETS[dataset].reads("eval_path")
    return {"workload.dataset": dataset, "workload.eval_path": path if of_one_file else None, **whole}


def _tell_overlap(settings: Workload, trained: Workload, run: Run) -> None:
    """Warn where the samples that are to be evaluated are those of the run's training file."""
    evaluated, seen = options_of(settings, FileOptions).eval_path, options_of(trained, FileOptions).data_path
    if evaluated is None or seen is None or Path(evaluated).expanduser().resolve() != Path(seen).expanduser().resolve():
        return
    try:
        data = run.env().get("data")
        of_training = data.get("train") if isinstance(data, dict) else None
        samples = of_training.get("samples") if isinstance(of_training, dict) else None
    except RecordError:
        samples = None
    number = "samples" if samples is None else f"{samples:,} samples"
    said = "%s: run %s was trained on %s of it; where no data are named, those that it evaluated itself are taken"
    _log.warning(said, evaluated, run.id, number)


def find_saved(store: RunStore, source: str) -> Saved:
    """What a run, or a folder, holds.

    Args:
        store: the registry.
        source: a folder with a config.json, or whatever means a run, whose best model is taken.

    Raises:
        RunLookupError: neither a folder nor a run.
        UsageError: a run that saved no model.
    """
    folder = Path(source).expanduser()
    if (folder / "config.json").is_file():
        return Saved(folder.resolve())
    run = store.resolve(source)
    folder = run.path / MODEL_FOLDER
    found = next((folder / name for name in (BEST, "last") if (folder / name / "config.json").is_file()), None)
    if found is None:
        raise UsageError(f"{source}: run {run.label} has no saved model in {folder}", SAVE_FIRST)
    return Saved(found, run.config_file)


def evaluate_saved(config: Config, batch: int | None = None) -> dict[str, object]:
    """What `eval --json` prints but its source: on the samples that training evaluates.

    Raises:
        DataError: there is nothing to evaluate on; or as loading the data does.
        HubError, UsageError: as building the model does.
    """
    classes = _class_names(config)
    workload = build_workload(config, classes)
    if classes and workload.facts["num_labels"] != len(classes):
        raise DataError(
            f"{config.workload.model} tells {len(classes)} classes apart, the data have {workload.facts['num_labels']}",
            "Name the data that it was trained for (--dataset, --data-path).",
        )
    if not workload.eval or config.train.eval_samples == 0:
        raise DataError(
            "no samples to evaluate on: too few to hold some out, or train.eval_samples is 0",
            "Name an evaluation file (--eval-path FILE).",
        )
    device, strategy = torch.device(config.launch.device), Local()
    strategy.wrap(workload.build_model(config.train.seed), device)
    evaluator = Evaluator(config, workload, device, batch=batch)
    found = evaluator.measure(strategy, Precision("fp32", device))
    if found is None:
        raise DataError("the samples to evaluate on weigh nothing together: no text has a second token")
    facts, evaluated, longest = workload.facts, workload.eval.describe(), config.workload.max_length
    longest = min(longest, workload.positions or longest)
    there = {"available": evaluated["samples"], "cut_samples": evaluated["cut_samples"], "max_length": longest}
    data = facts.get("eval_source") or f"held out of {facts.get('train_source')}"
    unigram = {"unigram_perplexity": facts.get("unigram_perplexity")} if "perplexity" in found else {}
    counted = {"samples": found.pop("samples"), **there, "tokens": found.pop("tokens", None)}
    return {"data": data, **counted, **found, **unigram}


def _class_names(config: Config) -> tuple[str, ...]:
    """What a saved classifier of ours calls its classes, in order; empty where its configuration has none."""
    if config.workload.runs_own_code or not WORKLOADS[config.workload.name].classes:
        return ()
    known = _architecture(Path(config.workload.model)).get("id2label")
    return tuple(str(known[key]) for key in sorted(known, key=int)) if isinstance(known, Mapping) else ()


@dataclass(frozen=True)
class Writer:
    """Goes on with texts.

    Args:
        model: in evaluation mode, on its device.
        tokenizer: of its texts; adds no end.
        end_id: what ends a text; None where nothing does.
        positions: longest text that the model takes, tokens; None for any.
    """

    model: Any
    tokenizer: TextTokenizer
    end_id: int | None
    positions: int | None

    @classmethod
    def of(cls, config: Config) -> Writer:
        """The model of `workload.model`.

        Raises:
            DataError, HubError: as loading it does.
            UsageError: a model without a tokenizer, or that is no causal language model.
        """
        settings = config.workload
        if settings.name != "causal_lm":
            raise UsageError(f"{settings.model} is no causal language model", "Train one: --workload causal_lm.")
        tokenizer, ending = load_tokenizer(settings), load_tokenizer(settings, ends=True)
        source = language_model(settings)
        model = source.source(tokenizer.vocab_size).build(0).eval().to(config.launch.device)
        return cls(model, tokenizer, ending.end_id, source.positions)

    def go_on(self, prompt: str, *, length: int, temperature: float, top_p: float, seed: int) -> tuple[str, int]:
        """What comes after `prompt`, and of how many tokens it is.

        Args:
            prompt: given to the model as it is: a base model knows no template.
            length: most tokens to write.
            temperature: of the softmax; 0, or nearly so, always takes the likeliest token.
            top_p: the least probable tokens beyond this share of all are never drawn.
            seed: of the draws.

        Raises:
            UsageError: an empty prompt of a tokenizer that begins no text, or one as long as the model's positions; a
                temperature or share that is none.
        """
        if not (temperature >= 0 and 0 < top_p <= 1):
            raise UsageError(
                f"temperature {temperature}, top-p {top_p}: expected a temperature from 0 on, a share above 0 up to 1"
            )
        [(ids, _)] = self.tokenizer.encoder(None)([prompt])
        if not ids:
            raise UsageError("an empty prompt: this tokenizer has no token that begins a text", "Give a few words.")
        room = length if self.positions is None else min(length, self.positions - len(ids))
        if room < 1:
            raise UsageError(
                f"the prompt has {len(ids)} tokens, and the model {self.positions} positions", "Give a shorter prompt."
            )
        if room < length:
            said = "at most %d tokens are written, not %d: the model has %d positions"
            _log.warning(said, room, length, self.positions)
        device = next(self.model.parameters()).device
        given = torch.tensor([ids], device=device)
        draws = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            [written] = self.model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=room,
                eos_token_id=self.end_id,
                pad_token_id=self.end_id or 0,
                **(draws if temperature >= LEAST_TEMPERATURE else {"do_sample": False}),
            ).tolist()
        new = [token for token in written[len(ids) :] if token != self.end_id]
        return str(self.tokenizer.backend.decode(new)), len(written) - len(ids)


_ENDINGS = {
    "ForSequenceClassification": "text_classification",
    "ForImageClassification": "image_classification",
    "DigitsMlp": "mlp",
}
"""How the names of architectures end, and the workload that trains such models."""


def _workload_of(folder: Path) -> str:
    """What a folder's model does, by the name of its architecture."""
    named = _architecture(folder).get("architectures")
    names = [str(name) for name in named] if isinstance(named, list) else []
    found = (workload for name in names for ending, workload in _ENDINGS.items() if name.endswith(ending))
    return next(found, "causal_lm")


def _architecture(folder: Path) -> Mapping[str, object]:
    try:
        found = load_json(folder / "config.json")
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / 'config.json'}: cannot be read: {error}", SAVE_FIRST) from error
    return found if isinstance(found, Mapping) else {}
