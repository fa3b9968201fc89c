"""Why a rank ends, told to all others before they can notice: ranks of other nodes may not see its files."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict

from torch.distributed.distributed_c10d import Store, _get_default_store

from dynbench.engine.failure import RankFailure, keep_failure, record_failure
from dynbench.runs.run import Run

_log = logging.getLogger(__name__)
_KEY = "dynbench/failure"


def tell_failure(run: Run, rank: int, error: BaseException) -> None:
    """Record why this rank ends, and with it the cause where that is another rank's; within the process group.

    The first cause is kept where the ranks met; one that ended because another did finds it there.
    """
    failure = record_failure(run, rank, error)
    try:
        cause = exchange_cause(_get_default_store(), failure)
    except RuntimeError as gone:
        _log.debug("the place where the ranks met is gone: %s", gone)
        return
    if cause is not None:
        keep_failure(run, cause)


def exchange_cause(store: Store, failure: RankFailure) -> RankFailure | None:
    """The first cause that a rank told, by now also this one; None where nobody told any."""
    if failure.is_cause:
        text = store.compare_set(_KEY, "", json.dumps(asdict(failure)))
    elif store.check([_KEY]):
        text = store.get(_KEY)
    else:
        return None
    return RankFailure(**json.loads(text))
