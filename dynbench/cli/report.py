"""`dynbench report`: a comparison or run as a document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynbench.cli.next_command import next_command
from dynbench.cli.options import Settings, common_options
from dynbench.cli.output import answered, print_line, writing
from dynbench.errors import UsageError

if TYPE_CHECKING:
    from dynbench.experiment.reporting import Format
    from dynbench.runs.run import Run

SUFFIXES: Mapping[str, Format] = {".md": "md", ".markdown": "md", ".txt": "md", ".html": "html", ".htm": "html"}

EPILOG = """\b
Examples:
  dynbench report                                the latest comparison, Markdown
  dynbench report --format html -o report.html   one self-contained page
  dynbench report @latest:compare --lang zh      in Chinese
"""


@click.command(epilog=EPILOG)
@click.argument("ref", required=False, metavar="[RUN|COMPARISON]")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", help="Language.  [default: en]")
@click.option("--format", "form", type=click.Choice(["md", "html"]), help="Else by the file's suffix, else md.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File, - for stdout; else in the run's folder.")
@click.option("--template", type=click.Path(path_type=Path, dir_okay=False), help="A template of your own.")
@click.option("--solve", is_flag=True, help="First plan its own data offline: exact against greedy, costs, bounds.")
@common_options
def command(
    settings: Settings,
    ref: str | None,
    lang: str,
    form: Format | None,
    output: Path | None,
    template: Path | None,
    solve: bool,
) -> None:
    """Fill the report template from a comparison or run; without one, from the latest comparison."""
    from dynbench.experiment.assignment.suite import holds_assignment
    from dynbench.experiment.report_input import find_report_input, read_report_input
    from dynbench.experiment.reporting import render_report, write_report

    store = settings.store()
    chosen = _format(form, output)
    if ref is not None and holds_assignment(run := store.resolve(ref)):
        _of_assignment(settings, run, lang, chosen, output, template is not None or solve)
        return
    subject = find_report_input(store, ref)
    if solve:
        from dynbench.experiment.offline_plans import plan_subject

        plan_subject(subject, store)
        subject = read_report_input(store, subject.run)
    if output is not None and str(output) == "-":
        if settings.as_json:
            raise UsageError("-o -: the report and --json both want stdout", "Leave one of them out.")
        click.echo(render_report(subject, lang, chosen, Path(), template), nl=False)
        return
    with writing(output, "Name a file in an existing folder with -o."):
        path = write_report(subject, lang, chosen, output, template)
    facts = {"id": subject.run.id, "name": subject.run.name, "path": subject.run.path}
    if not answered(settings, "report", {"subject": facts, "path": path}, str(path)):
        print_line(str(path))
        if chosen == "md":
            words = [ref or subject.run.label, "--format", "html"]
            words += [] if lang == "en" else ["--lang", lang]
            words += [] if template is None else ["--template", str(template)]
            words += [] if output is None else ["-o", str(output.with_suffix(".html"))]
            print_line(f"next  {next_command('report', *words, root=store.root)}")


def _of_assignment(settings: Settings, run: Run, lang: str, form: Format, output: Path | None, more: bool) -> None:
    """The questions of an assignment with their answers, anew from its stages.

    Raises:
        UsageError: options of other reports were given.
    """
    from dynbench.experiment.assignment.suite import chapter_text
    from dynbench.runs.atomic import write_text
    from dynbench.runs.store import RunStore

    if more:
        raise UsageError("--template and --solve are not for an assignment", "Leave them out.")
    text = chapter_text(run, RunStore.of(run), lang, form, None if output is None else output.parent)
    if output is not None and str(output) == "-":
        if settings.as_json:
            raise UsageError("-o -: the report and --json both want stdout", "Leave one of them out.")
        click.echo(text, nl=False)
        return
    path = output or run.path / f"report.{lang}.{form}"
    with writing(output, "Name a file in an existing folder with -o."):
        write_text(path, text)
    facts = {"id": run.id, "name": run.name, "path": run.path}
    if not answered(settings, "report", {"subject": facts, "path": path}, str(path)):
        print_line(str(path))


def _format(form: Format | None, output: Path | None) -> Format:
    """The format asked for, or that of the file's suffix; Markdown where neither says.

    Raises:
        UsageError: a suffix of another format.
    """
    suffix = "" if output is None or str(output) == "-" else output.suffix.lower()
    known = SUFFIXES.get(suffix)
    if suffix and (known is None or form not in (None, known)):
        wanted = "a report is Markdown or HTML" if form is None else f"--format {form} writes another format"
        raise UsageError(
            f"-o {output}: {suffix} does not fit, {wanted}",
            f"End the name in {', '.join(SUFFIXES)}; a browser prints the HTML page as PDF.",
        )
    return form or known or "md"
