"""The registry of questions that a comparison can answer, one file each, and which of them is asked.

A comparison answers one question, over all its arms. Where it is not named, it is found from what differs: the one
question that is raised by a key that differs and permits all that differ of those that questions ask about. Arms that
differ in keys of two questions are refused, as nobody could say which of them made the difference, unless `levers` is
named, which asks what they give together. Strategies over more and fewer ranks are no such case: each is scaled against
itself.

Adding one: a file with a `QUESTION`, and one line in `QUESTIONS`; its texts are in the front matter of its template.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dynbench.analysis.questions import compress, levers, precision, scaling, schedule, steps, sync, topology
from dynbench.analysis.questions.base import Differences, Question, with_ranks, with_samples
from dynbench.config.digest import differences
from dynbench.config.ranks import ranks_of
from dynbench.config.rules import known_world_size
from dynbench.config.schema import Config
from dynbench.errors import NotComparable, UsageError, did_you_mean

DEFAULT = schedule.QUESTION
"""What is asked of arms that differ in nothing that a question asks about, and what a single run is reported for."""

QUESTIONS: Mapping[str, Question] = {
    part.QUESTION.name: part.QUESTION
    for part in (schedule, sync, compress, precision, scaling, levers, steps, topology)
}


def question_named(name: str) -> Question:
    """The question of a name.

    Raises:
        UsageError: there is none; names the nearest.
    """
    if name not in QUESTIONS:
        near = did_you_mean(name, QUESTIONS)
        raise UsageError(f"question {name!r}: no such question. {near}".rstrip(), f"There are: {', '.join(QUESTIONS)}.")
    return QUESTIONS[name]


def find_question(found: Collection[Differences], named: str | None = None) -> Question:
    """The question that arms answer which differ so: as named, else as raised by what differs.

    Args:
        found: of every candidate, how it differs from the baseline.
        named: the question that is meant; None finds it.

    Raises:
        UsageError: none has that name.
    """
    if named is not None:
        return question_named(named)
    known = [question for question in QUESTIONS.values() if not question.named_only]
    raised = [question for question in known if any(question.raised_by(each) for each in found)]
    fitting = [
        question
        for question in raised
        if not any(other.raised_by(question.forbidden(each)) for each in found for other in known)
    ]
    return next(iter(fitting or raised), DEFAULT)


def settings_differences(a: Config, b: Config) -> Differences:
    """How two resolved configurations differ, their numbers of ranks included."""
    found = with_samples(differences(a, b), a, b)
    one, other = known_world_size(a), known_world_size(b)
    if one is None or other is None:
        return found if one == other else {**found, "world_size": (one, other)}
    return with_ranks(found, ranks_of(a, one), ranks_of(b, other))


def not_comparable(who: str, said: str, question: Question, found: Collection[Differences], hint: str) -> NotComparable:
    """The error for arms that cannot answer a question; it names one that they could answer.

    Args:
        who: the arms, and where they are from.
        said: what forbids it, in words.
        question: as named or found.
        found: of every candidate, all in which it differs.
        hint: the next step where no question asks about all of that.
    """
    others = [other.name for other in QUESTIONS.values() if not any(other.forbidden(each) for each in found)]
    hint = f"--question {others[0]} compares arms that differ in all of that." if others else hint
    return NotComparable(f"{who} cannot be compared, they differ in {said}; the question is {question.name}", hint)
