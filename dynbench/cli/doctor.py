"""`dynbench doctor`: the machine as a run would record it, and what would go wrong."""

from __future__ import annotations

import click

from dynbench.cli.options import Settings, common_options
from dynbench.cli.output import brief, print_json, print_line, print_pairs, print_table
from dynbench.errors import ChecksFailed


@click.command(epilog="Example: dynbench doctor --json")
@click.option("--strict", is_flag=True, help="Exit with 6 when a check warns.")
@common_options
def command(settings: Settings, strict: bool) -> None:
    """What this machine has, and what would go wrong."""
    from dynbench.cli.health import CHECKS
    from dynbench.runs.provenance import machine_facts

    facts, unknown = machine_facts()
    findings = {name: check(settings) for name, check in CHECKS.items()}
    warned = [name for name, finding in findings.items() if not finding.ok]
    checks = [
        {"id": name, "ok": finding.ok, "seen": finding.seen, "hint": finding.hint or None}
        for name, finding in findings.items()
    ]
    result = {"schema_version": 1, "command": "doctor", "environment": facts, "unknown": unknown, "checks": checks}
    if settings.quiet and not settings.as_json:
        if warned:
            print_line("\n".join(warned))
    elif not settings.as_json:
        print_pairs("environment", {key: brief(value) for key, value in facts.items() if value is not None})
        print_line("")
        rows = [("ok" if it.ok else "warn", name, it.seen, it.hint) for name, it in findings.items()]
        print_table(("", "check", "seen", "next step"), rows)
    if strict and warned:
        raise ChecksFailed(f"checks that warn: {', '.join(warned)}", "The next steps are in the checks.", result=result)
    if settings.as_json:
        print_json(result)
