"""The Markdown tables of a report, in the template's language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dynbench.analysis.comparability import fact
from dynbench.analysis.finding import Finding
from dynbench.analysis.metrics import lookup, workers_of
from dynbench.analysis.ranking import ranking
from dynbench.analysis.record import ComparisonRecord
from dynbench.analysis.scaling_table import ranks_text, scaling_table
from dynbench.analysis.tables import format_value
from dynbench.experiment import report_texts as texts
from dynbench.experiment.formats import NBSP, interval, percent, ratio, saved_hours
from dynbench.experiment.offline_plans import Solved, static_over
from dynbench.experiment.report_settings import cost_of, distinct, dropout, shown
from dynbench.experiment.subject import Json, Member, Subject
from dynbench.report import Template, table
from dynbench.schedule.solve import cost_is_estimated
from dynbench.units import format_count, format_ms

SETTINGS: Mapping[str, str] = {
    "workload": "workload.name",
    "dataset": "workload.dataset",
    "subset": "workload.subset",
    "model": "workload.model",
    "max_length": "workload.max_length",
    "global_batch": "train.global_batch",
    "learning_rate": "train.learning_rate",
    "precision": "train.precision",
    "sync": "sync.name",
    "device": "launch.device",
    "threads": "launch.threads",
}
"""Label of the template to the configuration key that it shows."""


def settings_table(subject: Subject, template: Template) -> str:
    """What was run, on what; a key whose value differs between runs shows all its values."""
    members = subject.members
    configs = [member.config for member in members if member.config is not None]
    keys = {label: key for label, key in SETTINGS.items() if label != "max_length" or subject.has_lengths}
    state, planned = subject.state, subject.question.raised_by(["schedule.cost_type"])
    facts: dict[str, str | None] = {
        **({"recipe": state.recipe, "order": template.label(f"words.{state.mode}")} if state else {}),
        **{label: distinct(shown(config.get(key), template) for config in configs) for label, key in keys.items()},
        "dropout": dropout(subject, template),
        **({"cost_type": distinct(cost_of(member, subject) for member in members)} if planned else {}),
        "world_size": distinct(_ranks(member, template) for member in members),
        **({"workers": _counts(members, "workers")} if any(_serves(member.summary) for member in members) else {}),
        "launcher": ranks_kind(subject, template),
        "steps": _counts(members, "steps"),
        "warmup_steps": _counts(members, "warmup_steps"),
        "launches": distinct(len(arm) for arm in subject.arms.values()),
        **_machine(members, template),
    }
    missing = template.label("words.not_measured" if configs else "words.missing")
    rows = [[template.label(f"settings.{label}"), missing if text is None else text] for label, text in facts.items()]
    return table([template.label("headings.item"), template.label("headings.value")], rows, numeric_from=2)


def ranks_kind(subject: Subject, template: Template) -> str | None:
    """`real` or `virtual` in words; None when not recorded."""
    launcher = subject.arms[subject.baseline][0].summary.get("launcher")
    if launcher is None:
        return None
    return template.label("words.virtual" if launcher == "virtual" else "words.real")


COLUMNS: Mapping[str, Callable[[ComparisonRecord, Subject], str | None]] = {
    "recovered": lambda item, _: percent(item.recovered_share),
    "saved": lambda item, subject: saved_hours(item, subject) or "",
    "efficiency": lambda item, _: percent(item.efficiency),
}
"""Columns of the table of comparisons that a question chooses from."""


def comparisons_table(subject: Subject, template: Template) -> str:
    """One line per candidate arm: verdict, speed-up with its interval, and what the question wants to know of it."""
    chosen, told = subject.question.columns, subject.question.loss_drift is not None
    columns = ("comparison", "verdict", "level", "speedup", "interval", *chosen, "launches")
    missing = template.label("words.not_measured")
    return table(
        [template.label(f"headings.{column}") for column in (*columns, "loss_drift" if told else "loss_parity")],
        [
            [
                f"{item.candidate} / {item.baseline}",
                template.label(f"verdicts.{item.verdict}"),
                template.label(f"levels.{item.level}"),
                ratio(item.speedup) or missing,
                interval(item) or template.label("words.none"),
                *(missing if (text := COLUMNS[column](item, subject)) is None else text for column in chosen),
                str(item.launches),
                (loss_drift(item) if told else loss_difference(item)) or template.label("words.not_compared"),
            ]
            for item in subject.comparisons
        ],
        numeric_from=3,
    )


def loss_difference(item: ComparisonRecord) -> str | None:
    """Largest relative difference of the loss between paired steps; None where it was not compared."""
    return None if item.loss_max_rel_diff is None else f"{item.loss_max_rel_diff:.1e}"


def loss_drift(item: ComparisonRecord) -> str | None:
    """How far the mean training loss is above the baseline's; None where it is not finite."""
    return None if item.loss_drift is None else f"{100 * item.loss_drift:+.2f}{NBSP}%"


def pairs_table(subject: Subject, template: Template) -> str:
    """Who beats whom, the pairs that are told apart first; empty where there is but one pair."""
    rows = [
        [rank.arm, rank.other, template.label(f"words.{'yes' if rank.told_apart else 'no'}"), *rank.numbers]
        for rank in ranking(subject.pairs)
    ]
    columns = ("arm", "against", "told_apart", "times_as_fast", "interval", "p_holm")
    return table([template.label(f"headings.{column}") for column in columns], rows, numeric_from=3) if rows else ""


def scaled(subject: Subject, template: Template) -> str:
    """How the arms scale, strategy by strategy; empty where all have as many workers."""
    found = scaling_table(subject.scaling, template.label)
    return found.markdown(whole=True) if found else ""


def checks_table(checks: Sequence[Finding], template: Template) -> str:
    """What the checks found; empty when they found nothing."""
    if not checks:
        return ""
    columns = ("severity", "check", "seen", "limit", "hint")
    rows = [texts.finding_texts(template, check) for check in checks]
    return table([template.label(f"headings.{column}") for column in columns], rows, numeric_from=5)


ABOUT = ("", f"≈{NBSP}")
"""Before a number that is none, or is an estimate."""


def solve_table(solved: Solved | None, baseline: str, template: Template) -> str:
    """The lines that were planned offline for a comparison; empty when there are none."""
    if solved is None or not solved.results:
        return ""
    columns = (
        "arm",
        "cost",
        "policy",
        "exact",
        "world_size",
        "global_batch",
        "mean_max_cost",
        "gap_to_bound",
        "speedup_vs_static",
        "plan_ms",
    )
    rows = [_solve_row(result, static_over(solved, result, baseline), template) for result in solved.results]
    return table([template.label(f"headings.{column}") for column in columns], rows, numeric_from=4)


def greedy_table(results: Sequence[Json], template: Template) -> str:
    """Greedy and equal counts against the exact ones, for the lines of `prefix`; empty when there are none."""
    columns = ("arm", "world_size", "global_batch", "naive_max", "greedy_max", "greedy_variance")
    rows = [
        [
            _arm(result, template),
            str(result.get("world_size")),
            str(result.get("global_batch")),
            _gap(result, "naive_max_cost.equal_counts", template),
            _gap(result, "max_cost", template),
            _gap(result, "variance", template),
        ]
        for result in results
        if result.get("greedy_gap")
    ]
    return table([template.label(f"headings.{column}") for column in columns], rows) if rows else ""


def runs_table(subject: Subject, template: Template) -> str:
    """Every run that went into the report."""
    rows = []
    for name, members in subject.arms.items():
        for member in members:
            missing = template.label("words.missing")
            seed = missing if member.config is None else str(member.config.get("train.seed"))
            status = missing if member.status is None else texts.status(template, member.status)
            rows.append([name, f"`{member.id}`", seed, status])
    columns = ("arm", "run", "seed", "status")
    return table([template.label(f"headings.{column}") for column in columns], rows, numeric_from=4)


def _arm(result: Json, template: Template) -> str:
    """The arm that a line stands for; none for a policy planned beside the arms."""
    return str(result["arm"]) if result.get("arm") else template.label("words.none")


def _solve_row(result: Json, over: tuple[float | None, bool], template: Template) -> list[str]:
    exact, median_ms = str(result.get("exact") or "none"), lookup(result, "plan_ms.p50")
    gap, (speed, estimated) = lookup(result, "gap_to_bound"), over
    return [
        _arm(result, template),
        str(result.get("cost_type")),
        str(result.get("policy")),
        template.label(f"exactness.{exact}", exact),
        str(result.get("world_size")),
        str(result.get("global_batch")),
        ABOUT[cost_is_estimated(result)] + format_value(lookup(result, "mean_max_cost"), ""),
        percent(gap) or "",
        "" if speed is None else f"{ABOUT[estimated]}{speed:.2f}",
        "" if median_ms is None else format_ms(median_ms).replace(" ", NBSP),
    ]


def _gap(result: Json, objective: str, template: Template) -> str:
    mean, worst = (lookup(result, f"greedy_gap.{objective}.{key}") for key in ("mean", "max"))
    if mean is None or worst is None:
        return template.label("words.not_measured")
    return f"{100 * mean:.2f} / {100 * worst:.2f} %".replace(" ", NBSP)


def _machine(members: Sequence[Member], template: Template) -> dict[str, str | None]:
    """Facts of the first run's provenance; None where they were not recorded."""
    facts: dict[str, str | None] = dict.fromkeys(("samples", "cpu", "memory", "packages", "commit"))
    env = members[0].env
    cores, memory_mb, samples = (
        lookup(env, key) for key in ("cpu_cores.usable", "memory_mb.total", "data.train.samples")
    )
    packages, git = env.get("packages"), env.get("git")
    if model := fact(env, "data.model.source"):
        facts["model"] = texts.said(template, fact(env, "data.model.said"), model)
    if samples is not None:
        facts["samples"] = format_count(samples)
    if env.get("cpu_model"):
        named = f"{env['cpu_model']}"
        counted = named if cores is None else f"{named}, {cores:.0f} cores"
        facts["cpu"] = texts.say(template, "phrases.processor", {"name": named, "cores": cores}) or counted
    if memory_mb is not None:
        facts["memory"] = f"{memory_mb / 1000:.1f} GB"
    if isinstance(packages, Mapping):
        facts["packages"] = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    if isinstance(git, Mapping):
        changes = f", {template.label('words.local_changes')}" if git.get("dirty") else ""
        facts["commit"] = f"`{str(git.get('commit'))[:12]}`{changes}"
    return facts


def _counts(members: Sequence[Member], key: str) -> str | None:
    counts = (lookup(member.summary, key) for member in members)
    return distinct(format_count(count) for count in counts if count is not None)


def _ranks(member: Member, template: Template) -> str | None:
    """The number of ranks, marked where they share cores."""
    count, shared = lookup(member.summary, "world_size"), bool(member.summary.get("oversubscribed"))
    return None if count is None else ranks_text(int(count), int(count), shared, template.label)


def _serves(summary: Json) -> bool:
    """Whether some of the ranks train nothing."""
    return workers_of(summary) != lookup(summary, "world_size")
