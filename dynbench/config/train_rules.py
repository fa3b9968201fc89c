"""Rules over the settings of the optimisation loop."""

from __future__ import annotations

from collections.abc import Iterator

from dynbench.config.schema import Config
from dynbench.plugins import STRATEGIES


def _learning_rate_gets_up(config: Config) -> Iterator[str]:
    train = config.train
    if train.epochs is not None and train.steps == type(train).model_fields["steps"].default:
        return  # how many steps there are is decided later
    most = train.warmup_steps + train.steps
    if train.lr_warmup_steps > most:
        yield (
            f"train.lr_warmup_steps: {train.lr_warmup_steps} steps, but there are {most} (train.warmup_steps + "
            f"train.steps), so that the learning rate never gets to its full value; greatest that works: {most}"
        )


def _steps_can_be_profiled(config: Config) -> Iterator[str]:
    train = config.train
    if train.profile_steps and config.launch.launcher == "virtual":
        yield (
            f"train.profile_steps: {train.profile_steps}, but one process plays all virtual ranks in turn; "
            "set it to 0, or launch.launcher to torchrun"
        )
    if train.profile_steps and train.profile_steps >= train.warmup_steps:
        yield (
            f"train.profile_steps: {train.profile_steps} of {train.warmup_steps} steps of the warm-up, and its first "
            f"is never profiled; set train.warmup_steps to {train.profile_steps + 1} or more"
        )


def _a_model_can_be_saved(config: Config) -> Iterator[str]:
    if not config.train.save_model:
        return
    if config.workload.runs_own_code:
        yield f"train.save_model: true, but code of your own makes the model of {config.workload.name}; save it there"
    if not config.sync.trains:
        yield f"train.save_model: true, but with {config.sync.silent} no model is trained; change either"


def _there_is_communication_to_leave_out(config: Config) -> Iterator[str]:
    if not config.train.exposed:
        return
    strategy = STRATEGIES.get(config.sync.name)
    if config.launch.launcher == "virtual":
        yield "train.exposed: true, but virtual ranks send nothing to each other; set launch.launcher to torchrun"
    if not config.sync.trains:
        yield f"train.exposed: true, but {config.sync.silent} sends nothing already; change either"
    if strategy is not None and strategy.servers:
        yield (
            f"train.exposed: true, but under sync.name {config.sync.name!r} a server steps by what workers send; set "
            "it to false, or choose another strategy"
        )
    if config.train.profile_steps:
        yield (
            f"train.exposed: true, but a profiler (train.profile_steps: {config.train.profile_steps}) is of the whole "
            "process, in which two trainings take turns; set one of them to its default"
        )


def _memory_is_counted_out_of_what_is_measured(config: Config) -> Iterator[str]:
    if config.train.memory_parts and config.launch.launcher == "virtual":
        yield "train.memory_parts: true, but one process plays all virtual ranks; set launch.launcher to torchrun"
    if config.train.memory_parts and not config.train.warmup_steps:
        yield "train.memory_parts: true, but there is no warm-up to count in; set train.warmup_steps to 1 or more"


TRAIN_RULES = (
    _learning_rate_gets_up,
    _steps_can_be_profiled,
    _a_model_can_be_saved,
    _there_is_communication_to_leave_out,
    _memory_is_counted_out_of_what_is_measured,
)
