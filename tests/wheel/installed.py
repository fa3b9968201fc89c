"""dynbench from its wheel, in an empty environment and outside the checkout: the commands, the quickstart, its reports.

make wheel-test                                          the newest packages that constraints.txt allows
python tests/wheel/installed.py --packages newest        the newest that pyproject.toml allows
python tests/wheel/installed.py --packages lowest --unit the oldest that it allows, and the unit tests with them
python3.13 tests/wheel/installed.py                      another Python
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT_UNDER = {"dynbench/": "dynbench/", "recipes/": "dynbench/_recipes/", "report/": "dynbench/_templates/"}
"""Folders of the checkout that a wheel holds, and where."""
COMMANDS = (
    "--help",
    "--version",
    "plugins --json",
    "recipes ls --json",
    "recipes cp quickstart mine.yaml",
    "guide verdicts",
    "doctor --json",
    "solve --steps 4 --json",
    "train --steps 2 --warmup-steps 1 --nproc 2 --device cpu --name trained --json",
    "report trained --lang zh --format html",
)
"""Each is to end with 0."""


def run(*argv: object, folder: Path) -> str:
    """What a command prints; it ends this program where it does not end well.

    The environment is this one's less what points into the checkout or at results.
    """
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "DYNBENCH_")
    env = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    words = [str(word) for word in argv]
    print("$", *words, flush=True)
    done = subprocess.run(words, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nended with {done.returncode}")
    return done.stdout


def missing(wheel: Path) -> list[str]:
    """Files of the checkout that are to be in the wheel and are not."""
    listed = subprocess.check_output(["git", "ls-files", *KEPT_UNDER], cwd=ROOT, text=True).split()
    held = set(zipfile.ZipFile(wheel).namelist())
    return [file for file in listed if re.sub(r"^\w+/", lambda top: KEPT_UNDER[top[0]], file) not in held]


def requirements(packages: str, given: Sequence[str]) -> list[str]:
    """What pip is told beside the wheel; the lowest are the bounds of all that is not given."""
    if packages == "lowest":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        named = {re.split(r"[=<>]", one)[0] for one in given}
        bounds = [re.split(r">=|,", one)[:2] for one in project["project"]["dependencies"]]
        return [*(f"{name}=={lowest}" for name, lowest in bounds if name not in named), *given]
    return [*(("--constraint", str(ROOT / "constraints.txt")) if packages == "constraints" else ()), *given]


def main() -> None:
    """Build, install, try."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", choices=("constraints", "newest", "lowest"), default="constraints")
    parser.add_argument("--with", dest="given", action="append", default=[], help="A requirement that comes first.")
    parser.add_argument("--unit", action="store_true", help="Run tests/unit in the environment too.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dynbench-wheel-") as folder:
        here = Path(folder)
        python, tried = here / "venv" / "bin" / "python", here / "an empty folder"
        tried.mkdir()
        run(sys.executable, "-m", "venv", here / "venv", folder=here)
        pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
        run(*pip, "wheel", "--no-deps", "--wheel-dir", here, ROOT, folder=here)
        (wheel,) = here.glob("dynbench-*.whl")
        if left_out := missing(wheel):
            sys.exit(f"{wheel.name} is without {', '.join(left_out)}")
        run(*pip, "install", "--no-compile", wheel, *requirements(given.packages, given.given), folder=here)
        print(run(*pip, "freeze", folder=here))
        where = Path(run(python, "-c", "import dynbench; print(dynbench.__file__)", folder=tried).strip())
        if not where.is_relative_to(here):
            sys.exit(f"{where} is not what was installed")
        for line in COMMANDS:
            run(python.with_name("dynbench"), *line.split(), folder=tried)
        found = json.loads(run(python.with_name("dynbench"), "compare", "mine.yaml", "--json", folder=tried))
        print({item["candidate"]: (item["verdict"], item["speedup"]) for item in found["comparisons"]})
        if not found["reports"] or not all((tried / report).is_file() for report in found["reports"]):
            sys.exit("the quickstart made no report")
        if given.unit:
            run(*pip, "install", "--no-compile", "pytest<9.2", "pytest-xdist", "hypothesis", "accelerate", folder=here)
            chosen = "not alone and not clock and not matrix and not gpu"
            tests = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "-m", chosen)
            print(run(*tests, ROOT / "tests" / "unit", folder=tried))


if __name__ == "__main__":
    main()
