"""What a run's data came to: samples trained on and held out, samples cut, and the classes, from its provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dynbench.analysis.comparability import fact
from dynbench.analysis.run_facts import section

SHOWN_LABELS = 10


@dataclass(frozen=True)
class DataFacts:
    """Numbers of samples and tokens; None where they were not recorded.

    Attributes:
        train, evaluation: samples; evaluation is 0 where there are none.
        held_out: whether the evaluation samples were taken from the training samples.
        why_none: why there are no evaluation samples; None where there are, or it was not recorded.
        limit: longest sample, tokens.
        train_cut, evaluation_cut: samples that were longer, and the tokens that cutting removed.
        train_tokens: left after cutting.
        labels: class by the name that the file gives it; empty where the file counts classes from 0.
    """

    train: int | None
    evaluation: int | None
    held_out: bool
    why_none: str | None
    limit: int | None
    train_cut: tuple[int, int] | None
    evaluation_cut: tuple[int, int] | None
    train_tokens: int | None
    labels: Mapping[str, object]

    @property
    def cut_share(self) -> float | None:
        """Tokens that cutting removed, as a part of all that the training samples had."""
        if self.train_cut is None or not self.train_tokens:
            return None
        return self.train_cut[1] / (self.train_cut[1] + self.train_tokens)

    @property
    def named_labels(self) -> str:
        """The first classes as `name=number`."""
        shown = [f"{name}={number}" for name, number in list(self.labels.items())[:SHOWN_LABELS]]
        return ", ".join(shown) + (f", … ({len(self.labels)} classes)" if len(self.labels) > len(shown) else "")

    def lines(self) -> Iterator[tuple[str, str]]:
        """A word and a sentence for each thing worth telling."""
        if self.train is not None:
            yield "data", f"{self.train:,} samples trained on; {self._evaluated()}"
        for cut, which in ((self.train_cut, "training"), (self.evaluation_cut, "evaluation")):
            if cut is not None and cut[0]:
                share = f" ({self.cut_share:.1%} of all)" if which == "training" and self.cut_share else ""
                yield (
                    "cut",
                    f"{cut[0]:,} {which} samples to {self.limit} tokens, which removed {cut[1]:,} tokens{share}",
                )
        if self.labels:
            yield "labels", self.named_labels

    def _evaluated(self) -> str:
        if self.held_out:
            return f"{self.evaluation:,} more held out of the training data, for evaluation"
        if self.evaluation:
            return f"{self.evaluation:,} others for evaluation"
        return "none for evaluation" + (f": {self.why_none}" if self.why_none else "")


def read_data(env: Mapping[str, object], max_length: object = None) -> DataFacts:
    """The facts in a run's env.json.

    Args:
        env: its contents; a user's own workload may have written anything there.
        max_length: as configured, for runs that do not say how it was decided.
    """
    data = section(env, "data")
    evaluation, decisions = data.get("eval"), section(data, "decisions")
    held, limit = section(decisions, "workload.eval"), section(decisions, "workload.max_length")
    decided = limit.get("value") if limit else max_length
    return DataFacts(
        train=_whole(env, "data.train.samples"),
        evaluation=_whole(env, "data.eval.samples") if evaluation is not None else 0 if "eval" in data else None,
        held_out=evaluation is not None and bool(held),
        why_none=str(held.get("reason")) if evaluation is None and held else None,
        limit=decided if isinstance(decided, int) else None,
        train_cut=_cut(env, "train"),
        evaluation_cut=_cut(env, "eval"),
        train_tokens=_whole(env, "data.train.tokens"),
        labels=section(data, "labels"),
    )


def _cut(env: Mapping[str, object], split: str) -> tuple[int, int] | None:
    samples, tokens = (_whole(env, f"data.{split}.cut_{what}") for what in ("samples", "tokens"))
    return None if samples is None or tokens is None else (samples, tokens)


def _whole(env: Mapping[str, object], key: str) -> int | None:
    value = fact(env, key)
    return value if isinstance(value, int) else None
