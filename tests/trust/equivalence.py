"""Whether arms in turns show what arms apart show, and turns of one step what turns of eight show.

    python tests/trust/equivalence.py FOLDER --launches 16    so many launches of each, in fours that alternate
                                      --ways apart "turns of 1"    no more than there are of the others

Static against partition, quickstart settings. Two one-sided tests on the difference of mean log ratios: equivalent
where the 90 % interval lies within ±2 %. What FOLDER holds is not launched again (`equivalence.jsonl`).
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import stats

from dynbench.analysis.arms import log_ratios, named_arms, pair_launches
from dynbench.analysis.merge import merge_run
from dynbench.analysis.questions import TOKENS
from dynbench.config.recipes import load_recipe
from dynbench.experiment.compare import start_comparison
from dynbench.experiment.launch_plan import read_state
from dynbench.experiment.launches import run_launches
from dynbench.runs.store import RunStore

MARGIN = math.log(1.02)
FIRST_SEED = 4711
AT_ONCE = 4
WAYS = {"apart": "mode: apart", "turns of 1": "mode: interleaved", "turns of 8": "mode: interleaved, block: 8"}
RECIPE = """\
description: static against partition, {way}
settings:
  workload: {{dataset: embedded, dropout: 0.0}}
  train: {{steps: 30, warmup_steps: 5, global_batch: 64, eval_samples: 0, seed: {seed}}}
  launch: {{launcher: torchrun}}
arms:
  - name: static
  - name: partition
    set: {{schedule.mode: dynamic, schedule.policy: partition}}
baseline: static
launches: {{count: 4, {launches}}}
"""


def launch(way: str, seed: int, store: RunStore) -> list[float]:
    """Log ratios of four launches."""
    file = store.root / f"{way.replace(' ', '_')}_{seed}.yaml"
    file.write_text(RECIPE.format(way=way, seed=seed, launches=WAYS[way]), encoding="utf-8")
    recipe = load_recipe(file)
    comparison = start_comparison(recipe, store)
    state = run_launches(comparison, read_state(comparison.path), recipe, store.within(comparison))
    runs = {name: [merge_run(store.resolve(run)) for run in state.arms[name]] for name in recipe.arms}
    return log_ratios(pair_launches(*named_arms(runs)).pairs, TOKENS)


def compare(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Difference of the means with its 90 % interval, Welch's, as parts of the speed-up."""
    found = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.90)
    difference = float(one.mean() - other.mean())
    return math.expm1(difference), math.expm1(found.low), math.expm1(found.high)


def main() -> int:
    """Launch what is missing, then test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--launches", type=int, default=16)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    kept, store = given.folder / "equivalence.jsonl", RunStore(given.folder)
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    logs: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        logs[line["way"]] += line["logs"]
    for number in range(given.launches // AT_ONCE):
        for way in given.ways:
            if len(logs[way]) > AT_ONCE * number:
                continue
            found = launch(way, FIRST_SEED + AT_ONCE * number, store)
            logs[way] += found
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"way": way, "seed": FIRST_SEED + AT_ONCE * number, "logs": found}) + "\n")
            print(way, number, [round(math.exp(log), 3) for log in found], flush=True)
    values = {way: np.array(found) for way, found in logs.items()}
    for way, found in values.items():
        print(
            f"{way}: {math.exp(found.mean()):.3f}, sd of a launch {math.expm1(found.std(ddof=1)):.1%}, n = {len(found)}"
        )
    undecided = 0
    for one, other in (("turns of 1", "apart"), ("turns of 8", "turns of 1")):
        difference, low, high = compare(values[one], values[other])
        equivalent = math.log1p(low) > -MARGIN and math.log1p(high) < MARGIN
        undecided += not equivalent
        print(f"{one} against {other}: {difference:+.1%} [{low:+.1%}, {high:+.1%}], equivalent: {equivalent}")
    return undecided


if __name__ == "__main__":
    raise SystemExit(main())
