"""One run from several launchers: each node's makes a folder, and they settle on that of rank 0.

Where the results folder is shared, all ranks write into rank 0's folder and the others' are removed. Where it is not,
each node keeps its own ranks' files under the same run id.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass

from dynbench.engine.rank.exchange import gather_objects
from dynbench.engine.rank.rank_process import RankContext
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

_MET_FILE = "met.json"


def meet(run: Run, context: RankContext) -> Run:
    """The run that this rank writes into: rank 0's where this node can see it; a collective.

    The name was given to the first node's run, and rank 0 need not be there: torchrun numbers the nodes by itself. A
    node that cannot see that run notes its name; another finds it in its record at the end, where it may be gone by
    then.

    Args:
        run: the folder that this node's launcher made.
        context: this rank.
    """
    ids, names = zip(*gather_objects((run.id, run.name)), strict=True)
    joined = Run(run.path.parent / ids[0])
    shared = joined.record_file.exists()
    if context.local_rank == 0:
        named = next(((run_id, name) for run_id, name in zip(ids, names, strict=True) if name is not None), None)
        beyond = named is not None and not Run(run.path.parent / named[0]).record_file.exists()
        met = {"id": joined.id, "name": named[1] if named and beyond else None, "shared": shared}
        write_json(run.path / _MET_FILE, met)
    return joined if shared else run


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a launcher's folder."""

    run: Run
    ours: bool
    """Whether this launcher finishes it; False where another node's does."""


def settle(run: Run) -> Settled:
    """After the ranks have ended: the run that this launcher's folder is or became part of.

    That is rank 0's run where the results folder is shared, else this node's part of it, under its id and name.
    """
    met_file = run.path / _MET_FILE
    if not met_file.exists():
        return Settled(run, ours=True)
    met = json.loads(met_file.read_text(encoding="utf-8"))
    met_file.unlink()
    store, joined = RunStore(run.path.parent), Run(run.path.parent / met["id"])
    if joined.path != run.path and met["shared"]:
        for log in run.logs_dir.glob("*.log"):
            log.replace(joined.logs_dir / log.name)
        store.pass_name(run, joined)
        shutil.rmtree(run.path)
        return Settled(joined, ours=False)
    if met["name"] is not None:
        store.give_name(run, met["name"])
    if joined.path != run.path:
        run.update(id=met["id"])
        run.path.rename(joined.path)
    return Settled(joined, ours=True)
