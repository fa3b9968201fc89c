"""How far comparisons can be trusted: equal arms must not differ, and a tenth more work must be seen.

    make trust                                  all of it: about half an hour, on a machine with nothing else to do
    python tests/trust/trust.py FOLDER --most 4 the next four comparisons; what FOLDER holds is not done again

Ten comparisons of five arms, whose verdicts hold jointly: DDP, the same twice by other names, and two in which every
rank runs a tenth of its samples again. Quickstart settings, four interleaved launches each; in half of the comparisons
another process keeps one core busy. Seeds are fixed, every result is kept as it comes (`trust.jsonl`), and nothing is
left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.environ["DYNBENCH_PLUGINS"] = str(HERE / "plugins.py")

# plug-ins are read where dynbench is imported
from dynbench.analysis.arms import log_ratios, named_arms  # noqa: E402
from dynbench.analysis.comparison import Terms, compare_candidates  # noqa: E402
from dynbench.analysis.merge import merge_run  # noqa: E402
from dynbench.analysis.summary import summary_of  # noqa: E402
from dynbench.config.recipes import load_recipe  # noqa: E402
from dynbench.experiment.compare import start_comparison  # noqa: E402
from dynbench.experiment.launch_plan import read_state  # noqa: E402
from dynbench.experiment.launches import run_launches  # noqa: E402
from dynbench.runs.store import RunStore  # noqa: E402

COMPARISONS = 10
EQUAL, SLOWER = ("twin", "other_twin"), ("tenth_more", "other_tenth_more")
FIRST_SEED = 20261122
RECIPE = """\
description: DDP against itself by other names, and against a tenth more to compute
settings:
  workload: {{dataset: embedded, dropout: 0.0}}
  train: {{steps: 30, warmup_steps: 5, global_batch: 64, eval_samples: 0, seed: {seed}}}
  launch: {{launcher: torchrun}}
arms:
  - name: ddp
{candidates}
baseline: ddp
launches: {{count: 4, mode: interleaved}}
question: sync
"""
BUSY = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"


@dataclass(frozen=True)
class Result:
    """What a comparison found of one of its candidates; the interval is the joint one, which the verdict rests on.

    `busy`: whether a process kept one core busy; `seed`: of the first launch.
    """

    number: int
    other: str
    busy: bool
    seed: int
    verdict: str
    speedup: float
    low: float
    high: float
    level: str
    loss_max_rel_diff: float | None
    logs: list[float]
    seconds: float
    load_1min: float


def run(number: int, store: RunStore) -> list[Result]:
    """Launch and judge one comparison."""
    began, busy, seed = time.monotonic(), number % 2 == 1, FIRST_SEED + 10 * number
    file = store.root / f"trial_{number}.yaml"
    store.root.mkdir(parents=True, exist_ok=True)
    candidates = "\n".join(f"  - name: {name}\n    set: {{sync.name: {name}}}" for name in (*EQUAL, *SLOWER))
    file.write_text(RECIPE.format(candidates=candidates, seed=seed), encoding="utf-8")
    recipe = load_recipe(file)
    comparison = start_comparison(recipe, store)
    with _busy() if busy else contextlib.nullcontext():
        state = run_launches(comparison, read_state(comparison.path), recipe, store.within(comparison))
    runs = {name: [merge_run(store.resolve(run)) for run in state.arms[name]] for name in recipe.arms}
    took_s, load = time.monotonic() - began, os.getloadavg()[0]
    summaries = {run.run.id: summary_of(run) for launches in runs.values() for run in launches}
    results = []
    for found in compare_candidates(Terms(named_arms(runs), recipe.arms["ddp"].analysis, summaries, "sync")):
        record = found.record()
        assert record.ci_joint is not None and record.launches == 4, "four launches have an interval"
        logs = log_ratios(found.pairing.pairs, found.question.unit)
        told = (str(record.verdict), record.speedup, *record.ci_joint, record.level, record.loss_max_rel_diff)
        results.append(Result(number, record.candidate, busy, seed, *told, logs, took_s, load))
    return results


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def judge(results: list[Result]) -> list[str]:
    """What must hold of all, and does not; beside a busy process a tenth more may be AMBIGUOUS, never the reverse."""
    equal, slower = (Counter(one.verdict for one in results if one.other in names) for names in (EQUAL, SLOWER))
    idle = [one.verdict for one in results if one.other in SLOWER and not one.busy]
    wrong = []
    if equal["FASTER"] + equal["SLOWER"] > 1:
        wrong.append(f"equal arms differ: {dict(equal)}")
    if slower["FASTER"] or slower["SAME"]:
        wrong.append(f"a tenth more work is FASTER or SAME: {dict(slower)}")
    if idle.count("SLOWER") < 0.9 * len(idle):
        wrong.append(f"a tenth more work is SLOWER in {idle.count('SLOWER')} of {len(idle)} with nothing beside it")
    return wrong


def show(results: list[Result]) -> None:
    """A line per kind."""
    for (kind, names), busy in product((("equal", EQUAL), ("a tenth more", SLOWER)), (False, True)):
        if of_kind := [one for one in results if one.other in names and one.busy is busy]:
            verdicts = ", ".join(f"{count} {word}" for word, count in Counter(one.verdict for one in of_kind).items())
            speedups = [one.speedup for one in of_kind]
            spread = [(one.high / one.low) ** 0.5 - 1 for one in of_kind]
            print(
                f"{kind}, {'one core busy' if busy else 'nothing beside it'}: {verdicts}; speed-up "
                f"{min(speedups):.3f} to {max(speedups):.3f}, half-width {statistics.median_high(spread):.1%} (median)"
            )


def main() -> int:
    """Run what is missing, then judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=COMPARISONS, help="comparisons to run now")
    given = parser.parse_args()
    kept = given.folder / "trust.jsonl"
    results = [Result(**json.loads(line)) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {one.number for one in results}
    for number in [number for number in range(COMPARISONS) if number not in done][: given.most]:
        found = run(number, RunStore(given.folder))
        results += found
        with kept.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(result)) + "\n" for result in found)
        show(found)
        print(f"{number + 1}/{COMPARISONS}: {found[0].seconds:.0f} s", flush=True)
    show(results)
    done = {one.number for one in results}
    if len(done) < COMPARISONS:
        print(f"{len(done)} of {COMPARISONS}: no judgement yet")
        return 0
    wrong = judge(results)
    print("\n".join(wrong) or "trusted: equal arms do not differ, and a tenth more work is seen")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
