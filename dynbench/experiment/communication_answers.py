"""What communication cost each arm: by operation, and exposed as two ways tell it."""

from __future__ import annotations

from statistics import fmean

from dynbench.analysis.metrics import lookup, workers_of
from dynbench.analysis.tables import Launches
from dynbench.experiment.answers import Speaker
from dynbench.experiment.formats import number
from dynbench.experiment.subject import Subject, whole

OWN = tuple(f"exposed.{what}" for what in ("name", "sync", "null", "more", "compute", "optimizer", "other"))
"""Placeholders that only the sentences of this module use."""

_KEYS = {
    "null": "against_null.exposed_ms",
    "more": "against_null.sync_ms",
    "compute": "against_null.compute_ms",
    "optimizer": "against_null.optimizer_ms",
    "other": "against_null.other_ms",
    "sync": "exposed_comm_ms.mean",
}
"""Placeholder to its key in a summary."""


def launches_of(subject: Subject) -> Launches:
    """Name of the arm to the summaries of the launches that tables show."""
    return {name: [member.summary for member in whole(members)] for name, members in subject.arms.items()}


def exposures(speaker: Speaker) -> str:
    """A line per arm that took turns with a step without communication; else how to learn it."""
    lines = []
    for name, members in speaker.subject.arms.items():
        summaries = [member.summary for member in whole(members)]
        told = [[lookup(summary, key) for key in _KEYS.values()] for summary in summaries]
        known = [launch for launch in told if None not in launch]
        if known:
            own = {
                f"exposed_{what}": number(fmean(value for launch in known if (value := launch[place]) is not None))
                for place, what in enumerate(_KEYS)
            }
            lines.append(speaker.say("answers.exposed.line", exposed_name=f"`{name}`", **own))
    return speaker.bullets(lines) if lines else speaker.say(f"answers.exposed.{_why_unknown(speaker.subject)}")


def _why_unknown(subject: Subject) -> str:
    """Which text says why no step without communication was measured: nobody asked, or none of the arms can."""
    summaries = [member.summary for member in subject.members]
    if all(summary.get("launcher") == "virtual" for summary in summaries):
        return "virtual"
    return "served" if all(workers_of(one) != lookup(one, "world_size") for one in summaries) else "unknown"
