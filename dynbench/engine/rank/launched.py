"""One launched rank from its start to its end: `python -m MODULE RUN_FOLDER…`.

A module that `launch_ranks` runs ends with `if __name__ == "__main__": run_as_rank(work)`.

With several nodes, each node's launcher makes a run folder, and they settle on that of rank 0. Where the results folder
is shared, all ranks write into rank 0's folder and the others' are removed. Where it is not, each node keeps its own
ranks' files under the same run id.
"""

from __future__ import annotations

import faulthandler
import json
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from dynbench.config.ranks import shared_ranks
from dynbench.config.schema import Config
from dynbench.engine.failure import CONNECTING, log_file, record_failure
from dynbench.engine.rank import rank_process
from dynbench.engine.rank.exchange import gather_objects
from dynbench.engine.rank.rank_facts import keep_warnings, tell_failure
from dynbench.runs.atomic import write_json
from dynbench.runs.run import Run
from dynbench.runs.store import RunStore

_MET_FILE = "met.json"
Work = Callable[[Sequence[Run], Sequence[Config], rank_process.RankContext, rank_process.StopFlag], None]
"""What all ranks do, within their process group, for the runs of the launch, each with its configuration;
where the flag says that a signal came, it ends with `SystemExit`, 128 plus the signal's number."""


def meet(run: Run, context: rank_process.RankContext) -> Run:
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


def settle(run: Run) -> tuple[Run, bool]:
    """After the ranks have ended: the run that this launcher's folder is or became part of, and whether it finishes it.

    That is rank 0's run where the results folder is shared, else this node's part of it, under its id and name.
    """
    met_file = run.path / _MET_FILE
    if not met_file.exists():
        return run, True
    met = json.loads(met_file.read_text(encoding="utf-8"))
    met_file.unlink()
    store, joined = RunStore(run.path.parent), Run(run.path.parent / met["id"])
    if joined.path != run.path and met["shared"]:
        for log in run.logs_dir.glob("*.log"):
            log.replace(joined.logs_dir / log.name)
        store.pass_name(run, joined)
        shutil.rmtree(run.path)
        return joined, False
    if met["name"] is not None:
        store.give_name(run, met["name"])
    if joined.path != run.path:
        run.update(id=met["id"])
        run.path.rename(joined.path)
    return joined, True


def run_as_rank(work: Work) -> NoReturn:
    """Do the work as the rank that the environment names, and end this process with its exit code."""
    code = 1
    try:
        _main(work, [Run(Path(folder)) for folder in sys.argv[1:]])
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 1
    except BaseException:
        with suppress(OSError):  # a full disk, also for the log
            traceback.print_exc()
    rank_process.exit_now(code)


def _main(work: Work, runs: Sequence[Run]) -> None:
    """Do the work in the process group, recording in the first run why it ended if it did before its time.

    Not with torch's `record`: a rank that is killed while it writes its error file leaves one that torchrun fails on.
    """
    first = runs[0]
    rank_process.die_with_parent(first.record().pid)
    stop = rank_process.StopFlag()
    context = rank_process.RankContext.from_environment(first.config().launch.device)
    rank_process.redirect_output(log_file(first, context.rank))
    faulthandler.enable()
    try:
        configs = [run.config() for run in runs]
        launch = configs[0].launch
        ranks = shared_ranks(configs, context.world_size)
        rank_process.set_up_logging(context, ranks)
        keep_warnings(runs[0], context, ranks)
        rank_process.set_threads(launch)
        context.position.open(runs[0], context.rank)
        context.position.at(CONNECTING)
        with rank_process.process_group(context, launch):
            try:
                if launch.nnodes > 1:
                    runs = [meet(run, context) for run in runs]
                    context.position.open(runs[0], context.rank)
                work(runs, configs, context, stop)
                context.position.remove()
            except BaseException as error:
                tell_failure(runs[0], context.rank, error)
                raise
    except BaseException as error:
        record_failure(runs[0], context.rank, error)
        raise
