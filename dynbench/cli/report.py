"""`dynbench report`: a comparison or run as a document."""

from __future__ import annotations

import re
import webbrowser
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynbench.cli.common import Settings, next_command, print_lines, show_markdown, writing
from dynbench.cli.options import ANY_PATH, FILE_PATH, command
from dynbench.errors import UsageError

if TYPE_CHECKING:
    from dynbench.experiment.reporting import Format

SUFFIXES: Mapping[str, Format] = {".md": "md", ".markdown": "md", ".txt": "md", ".html": "html", ".htm": "html"}

_IMAGE_LINE = re.compile(r"^!\[.*\n", re.MULTILINE)

EPILOG = """\b
Examples:
  dynbench report                                the latest comparison, Markdown
  dynbench report --short                        its first page, in the terminal
  dynbench report --open                         one self-contained HTML page, in the browser
  dynbench report @latest:compare --lang zh      in Chinese
"""


@command(epilog=EPILOG)
@click.argument("ref", required=False, metavar="[RUN|COMPARISON]")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", help="Language.  [default: en]")
@click.option("--format", "kind", type=click.Choice(["md", "html"]), help="Else by the file's suffix, else md.")
@click.option("-o", "--output", type=ANY_PATH, help="File, - for stdout; else in the run's folder.")
@click.option("--template", type=FILE_PATH, help="A template of your own.")
@click.option("--short", is_flag=True, help="The first page alone; printed, unless -o or --format is given.")
@click.option("--open", "browse", is_flag=True, help="Write HTML and open it in the browser.")
@click.option("--solve", is_flag=True, help="First plan its own data offline: exact against greedy, costs, bounds.")
def report(
    settings: Settings,
    ref: str | None,
    lang: str,
    kind: Format | None,
    output: Path | None,
    template: Path | None,
    short: bool,
    browse: bool,
    solve: bool,
) -> None:
    """Fill the report template from a comparison or run; without one, from the latest comparison."""
    from dynbench.experiment.assignment.suite import chapter_text, holds_assignment
    from dynbench.experiment.report_input import find_report_input, read_report_input
    from dynbench.experiment.reporting import render_report
    from dynbench.runs.atomic import write_text
    from dynbench.runs.store import RunStore

    store, to_stdout = settings.store(), str(output) == "-"
    if browse and (kind == "md" or to_stdout):
        raise UsageError("--open shows an HTML page", "Leave out --format md and -o -.")
    if to_stdout and settings.as_json:
        raise UsageError("-o -: the report and --json both want stdout", "Leave one of them out.")
    page_only = short and not browse and kind is None and output is None and not settings.as_json
    chosen = _format("html" if browse else kind, output)
    render: Callable[[Path], str]
    of_assignment = ref is not None and holds_assignment(store.resolve(ref))
    if of_assignment:
        if template is not None or solve or short:
            raise UsageError("--template, --solve and --short are not for an assignment", "Leave them out.")
        run = store.resolve(str(ref))
        render = partial(chapter_text, run, RunStore.of(run), lang, chosen)
    else:
        found = find_report_input(store, ref)
        if solve:
            from dynbench.experiment.offline_plans import plan_report

            plan_report(found, store)
            found = read_report_input(store, found.run)
        run = found.run
        render = partial(render_report, found, lang, chosen, template=template, short=short)
    if to_stdout:
        click.echo(render(Path()), nl=False)
        return
    if page_only:
        page = render(Path())
        show_markdown(page, _IMAGE_LINE.sub("", page))
        return
    path = output or run.path / f"report.{'short.' * short}{lang}.{chosen}"
    with writing(output, "Name a file in an existing folder with -o."):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, render(path.parent))
    if browse and not webbrowser.open(path.resolve().as_uri()):
        click.echo(f"no browser was found: open {path}", err=True)
    about = {"id": run.id, "name": run.name, "path": run.path}
    if settings.printed({"subject": about, "path": path}, str(path)):
        return
    print_lines(str(path))
    if chosen == "md" and not of_assignment:
        page_file = None if output is None else output.with_suffix(".html")
        given = {"--format": "html", "--lang": None if lang == "en" else lang, "--template": template, "-o": page_file}
        words = [str(word) for option, value in given.items() if value is not None for word in (option, value)]
        print_lines(f"next  {next_command('report', ref or run.label, *words, root=store.root)}")


def _format(kind: Format | None, output: Path | None) -> Format:
    """The format of `--format`, or that of the file's suffix; Markdown where neither says.

    Raises:
        UsageError: a suffix of another format.
    """
    suffix = "" if output is None or str(output) == "-" else output.suffix.lower()
    known = SUFFIXES.get(suffix)
    if suffix and (known is None or kind not in (None, known)):
        wanted = "a report is Markdown or HTML" if kind is None else f"--format {kind} writes another format"
        raise UsageError(
            f"-o {output}: {suffix} does not fit, {wanted}",
            f"End the name in {', '.join(SUFFIXES)}; a browser prints the HTML page as PDF.",
        )
    return kind or known or "md"
