"""`dynbench report`: a comparison or run as a document."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynbench.cli.options import Settings, common_options

if TYPE_CHECKING:
    from dynbench.experiment.reporting import Format

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
@common_options
def command(
    settings: Settings, ref: str | None, lang: str, form: Format | None, output: Path | None, template: Path | None
) -> None:
    """Fill the report template from a comparison or run; without one, from the latest comparison."""
    from dynbench.cli.output import print_json, print_line
    from dynbench.errors import UsageError
    from dynbench.experiment.reporting import render_report, write_report
    from dynbench.experiment.subject import find_subject
    from dynbench.runs.store import results_option

    store = settings.store()
    subject = find_subject(store, ref)
    chosen: Format = form or ("html" if output is not None and output.suffix in (".html", ".htm") else "md")
    if output is not None and str(output) == "-":
        if settings.as_json:
            raise UsageError("-o -: the report and --json both want stdout", "Leave one of them out.")
        click.echo(render_report(subject, store, lang, chosen, Path(), template), nl=False)
        return
    try:
        path = write_report(subject, store, lang, chosen, output, template)
    except OSError as error:
        raise UsageError(
            f"{error.filename or output}: cannot be written: {error.strerror}",
            "Name a file in an existing folder with -o.",
        ) from error
    if settings.as_json:
        subject_facts = {"id": subject.run.id, "name": subject.run.name, "path": subject.run.path}
        print_json({"schema_version": 1, "command": "report", "subject": subject_facts, "path": path})
    else:
        print_line(str(path))
        if chosen == "md":
            again = f"dynbench report {shlex.quote(subject.run.label)}{results_option(store.root)}"
            print_line(f"next  {again} --format html")
