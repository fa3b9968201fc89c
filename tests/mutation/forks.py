"""mutmut's mutants, each in a fork of one pytest that has collected its tests already.

mutmut starts pytest anew for each mutant, which takes longer than most tests do. Here the tests are collected once and
run once, each in a fork, to learn which functions each of them calls; a mutant is then a fork, in which the tests of
its function run, the quickest first, until one fails. Verdicts are kept where `mutmut results` and `mutmut show` look
for them.

python tests/mutation/forks.py 'dynbench.schedule.partition*' --tests tests/unit/schedule/test_partition.py
python tests/mutation/forks.py 'dynbench.schedule.*' --left --slow
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from fnmatch import fnmatch
from functools import partial
from math import ceil
from pathlib import Path
from time import process_time
from typing import IO

import pytest
from hypothesis import Phase, settings
from mutmut import __main__ as mutmut
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import mangled_name_from_mutant_name

SURVIVED, KILLED, NO_TESTS = 0, 1, 33
"""Verdicts as mutmut keeps them."""
TIMES = 4
"""A mutant under which a test takes so many times as long as without it, and `MORE_S`, never ends."""
MORE_S = 1
MOST_BYTES = 12 * 2**30
"""Of memory for a mutant, or it has failed."""


class Mutants:
    """A plug-in of pytest that runs mutants in place of the collected tests.

    Args:
        patterns: mutants, or their functions' or modules' names, with * for what varies.
        left: only those that were not killed before.
        most_s: the quickest tests of a function, up to so many seconds of them, are what its mutants are tried with.
    """

    def __init__(self, patterns: Sequence[str], left: bool, most_s: float) -> None:
        self._patterns, self._left, self._most_s = patterns, left, most_s
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A mutant is killed by the first test that fails."""
        self._failed = self._failed or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's own loop."""
        if session.testsfailed:
            raise session.Interrupted("what cannot be collected kills no mutant")
        called, took_s = self._learn(session.items)
        for data, names in self._chosen():
            for name in names:
                tests = self._tests(called.get(mangled_name_from_mutant_name(name), []), took_s)
                data.exit_code_by_key[name] = self._try(name, [(session.items[test], took_s[test]) for test in tests])
                data.save()
            _tell(data, names)
        return True

    def _chosen(self) -> Iterator[tuple[SourceFileMutationData, list[str]]]:
        """Modules that have some of the mutants asked for, in the order in which they are, and these."""
        for pattern in self._patterns:
            for path in walk_mutatable_files():
                data = SourceFileMutationData(path=path)
                data.load()
                verdicts = data.exit_code_by_key.items()
                names = [name for name, verdict in verdicts if fnmatch(name, pattern) and self._is_open(verdict)]
                if names:
                    yield data, names

    def _is_open(self, verdict: int | None) -> bool:
        return not self._left or verdict in (None, SURVIVED, NO_TESTS)

    def _learn(self, items: Sequence[pytest.Item]) -> tuple[Mapping[str, list[int]], list[float]]:
        """Tests that call each function, and what each test takes, seconds.

        Each is tried in a fork of its own, as with a mutant: what an earlier one has imported or kept would be missing
        there, and a test that takes longer for it would pass for one that never ends.
        """
        called: dict[str, list[int]] = {}
        took_s: list[float] = []
        for index, item in enumerate(items):
            with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
                if _forked(partial(self._learn_one, item, file)):
                    raise pytest.UsageError(f"{item.nodeid} fails without any mutant: run it with pytest")
                file.seek(0)
                functions, seconds = json.load(file)
            took_s.append(seconds)
            for function in functions:
                called.setdefault(function, []).append(index)
        return called, took_s

    def _learn_one(self, item: pytest.Item, file: IO[str]) -> None:
        set_mutant_under_test("stats")
        begin = process_time()
        self._run(item)
        json.dump((sorted(mutmut.state()._stats), process_time() - begin), file)
        file.flush()

    def _tests(self, called_by: Sequence[int], took_s: Sequence[float]) -> list[int]:
        """Of the tests of a function the quickest, up to the limit, and at least one."""
        chosen: list[int] = []
        for test in sorted(called_by, key=took_s.__getitem__):
            if chosen and sum(took_s[other] for other in chosen) + took_s[test] > self._most_s:
                break
            chosen.append(test)
        return chosen

    def _try(self, name: str, tests: Sequence[tuple[pytest.Item, float]]) -> int:
        """What becomes of a mutant under these tests, of which it is known how long they take without it, seconds."""

        def run() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
            set_mutant_under_test(name)
            for item, took_s in tests:
                limit_s = ceil(process_time() + TIMES * took_s + MORE_S)
                resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))
                self._run(item)

        return _forked(run) if tests else NO_TESTS

    def _run(self, item: pytest.Item) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        if self._failed:
            raise AssertionError("killed")


def _forked(run: Callable[[], None]) -> int:
    """What becomes of `run` in a fork: 0, 1 where it raises, minus the signal that ends it."""
    child = os.fork()
    if not child:
        code = KILLED
        try:
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            run()
            code = SURVIVED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _tell(data: SourceFileMutationData, names: Sequence[str]) -> None:
    """What was found of a module, and the names of those that no test kills."""
    verdicts = {name: status_by_exit_code[data.exit_code_by_key[name]] for name in names}
    found = ", ".join(f"{count} {verdict}" for verdict, count in sorted(Counter(verdicts.values()).items()))
    print(f"{data.path}: {len(names)} mutants, {found}", flush=True)
    for name, verdict in verdicts.items():
        if verdict not in ("killed", "timeout"):
            print(f"    {verdict}: {name}", flush=True)


def _made(folder: Path) -> None:
    """The mutants of modules that have changed, which are imported in place of ours."""
    folder.mkdir(exist_ok=True)
    with redirect_stdout(None):
        mutmut.copy_src_dir()
        mutmut.copy_also_copy_files()
        mutmut.create_mutants(1)
    mutmut.setup_source_paths()


def main() -> int:
    """Makes the mutants, where their module has changed, and runs those that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mutants", nargs="+", help="names, with * for what varies")
    parser.add_argument("--tests", nargs="+", default=mutmut.config().pytest_add_cli_args_test_selection)
    parser.add_argument("--slow", action="store_true", help="with the tests that are marked slow")
    parser.add_argument("--left", action="store_true", help="only those that were not killed before")
    parser.add_argument("--most-s", type=float, default=20.0, help="seconds of tests for a mutant, the quickest first")
    asked = parser.parse_args()
    settings.register_profile("mutants", derandomize=True, deadline=None, phases=(Phase.explicit, Phase.generate))
    settings.load_profile("mutants")
    set_mutant_under_test("")
    plugin = Mutants(asked.mutants, asked.left, asked.most_s)
    options = ["--noconftest", "-q", "-s", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist"]
    chosen = ["-m", f"not clock and not matrix and not multiproc{'' if asked.slow else ' and not slow'}"]
    _made(folder := Path("mutants"))
    place = [f"--rootdir={folder}", "-c", str(folder / "pyproject.toml")]
    return int(
        pytest.main([*place, *options, *chosen, *(str(folder / test) for test in asked.tests)], plugins=[plugin])
    )


if __name__ == "__main__":
    sys.exit(main())
