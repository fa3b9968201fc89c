"""The model of a run kept in its folder: after the best evaluation, and after the last step."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from dynbench.config.schema import Config
from dynbench.runs.atomic import settle_folder
from dynbench.sync.base import Strategy
from dynbench.workloads.base import Saves, Workload

_log = logging.getLogger(__name__)
BEST, LAST = "best", "last"
FOLDER = "model"


class Keeper:
    """Saves a strategy's model where `train.save_model` asks for it; every rank calls it alike.

    Args:
        config: resolved configuration.
        workload: writes the model; rules ask for one that can.
        folder: the run's folder; None on ranks that do not write.
    """

    def __init__(self, config: Config, workload: Workload, folder: Path | None) -> None:
        self._saves = workload if config.train.save_model and isinstance(workload, Saves) else None
        self._folder = None if folder is None else folder / FOLDER
        self._last_step = config.train.warmup_steps + config.train.steps - 1
        self._best = -math.inf

    def keeps_last(self, step: int) -> bool:
        """Whether the model is saved after `step`, whatever its loss."""
        return self._saves is not None and step == self._last_step

    def after(self, step: int, strategy: Strategy, found: Mapping[str, float | None] | None) -> None:
        """Save after a step that was evaluated, if it is the best so far, and after the last.

        The best has the highest accuracy where that is counted, else the lowest loss; of equals, the first is kept.

        Args:
            step: the step that ended.
            strategy: whose model; asked for its whole state, a collective.
            found: of the evaluation, the same on every rank; None where there was none.
        """
        names = [LAST] if step == self._last_step else []
        if found is not None and (worth := _worth(found)) > self._best:
            self._best = worth
            names.append(BEST)
        self._save(step, strategy, names)

    def interrupted(self, step: int, strategy: Strategy) -> None:
        """Save the last model that this rank has whole, of a run that was asked to stop after `step`.

        Ranks stop each after a step of its own, so that nothing may be asked of the others.
        """
        if self._saves is None or self._folder is None:
            return
        state = strategy.state_alone()
        if state is None:
            _log.warning("stopped after step %d: model/%s is not kept, as it takes all ranks to give it", step, LAST)
        else:
            self._write(step, state, [LAST])

    def _save(self, step: int, strategy: Strategy, names: Sequence[str]) -> None:
        if self._saves is None or not names:
            return
        state = strategy.full_state()
        if state is not None:
            self._write(step, state, names)

    def _write(self, step: int, state: Mapping[str, Tensor], names: Sequence[str]) -> None:
        if self._saves is None or self._folder is None:
            return
        self._folder.mkdir(exist_ok=True)
        for name in names:
            self._saves.save(self._folder / name, state)
        _log.info("step %d: the model is saved as %s", step, " and ".join(names))


def _worth(found: Mapping[str, float | None]) -> float:
    accuracy, loss = found.get("accuracy"), found.get("loss")
    if accuracy is not None:
        return accuracy
    return -math.inf if loss is None else -loss


def settle_kept(run_path: Path) -> None:
    """After the ranks of a run have ended: whole models or none, where one was killed while it saved."""
    for name in (BEST, LAST):
        settle_folder(run_path / FOLDER / name)
