"""A plug-in of every kind as a file of the user's own registers them: a line each, and torch is not imported."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dynbench.plugins import (
    BenchmarkEntry,
    CompressorEntry,
    DatasetEntry,
    PolicyEntry,
    Section,
    StrategyEntry,
    WorkloadEntry,
    register,
)


class Turns(Section):
    turns: Annotated[int, Field(ge=1)] = 1
    """Ranks that every share is moved on by."""


class Sum(Section):
    divide_late: bool = False
    """Divide after the sum instead of before."""


class Digits(Section):
    digits: Annotated[int, Field(ge=1, le=9)] = 6
    """Digits that are kept."""


class Note(Section):
    note: str = "none"
    """Kept in env.json."""


class Words(Section):
    words: Annotated[int, Field(ge=40)] = 64
    """Training samples."""


class Rounds(Section):
    rounds: Annotated[int, Field(ge=1)] = 3
    """How often it is timed."""


register(PolicyEntry("turned", "static's shares, moved on", "toy_classes:Turned", Turns, costs=False, speeds="never"))
register(StrategyEntry("one_by_one", "every gradient by itself", "toy_classes:OneByOne", Sum))
register(CompressorEntry("rounded", "gradients rounded", "toy_classes:Rounded", Digits))
register(WorkloadEntry("noted", "text classification with a note", "toy_classes:Noted", Note))
register(DatasetEntry("few_words", "a few generated samples", "toy_classes:few_words", Words, generated=True))
register(BenchmarkEntry("nothing", "the time of doing nothing", "toy_classes:Nothing", Rounds))
