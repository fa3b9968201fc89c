"""Batches and windows of steps in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dynbench.config.digest import changed
from dynbench.config.schema import Config, Train
from dynbench.windows import whole_windows


def with_global_batch(config: Config, workers: int) -> Config:
    """The configuration with the global batch of so many workers."""
    each = config.train.batch_per_worker
    return config if each is None or workers < 1 else changed(config, {"train.global_batch": each * workers})


def batch_is_open(train: Train) -> bool:
    """Whether the global batch depends on the number of workers, which is not known yet."""
    return train.batch_per_worker is not None and train.global_batch == Train.model_fields["global_batch"].default


def batch_problem(train: Train, workers: int) -> str | None:
    """What is wrong with a global batch that is given too."""
    each = train.batch_per_worker
    if each is None or workers < 1 or batch_is_open(train) or train.global_batch == each * workers:
        return None
    return (
        f"train.global_batch: {train.global_batch}, but train.batch_per_worker {each} on {workers} workers are "
        f"{each * workers}; leave one of them out"
    )


def whole_window_steps(config: Config) -> Mapping[str, int]:
    """The settings that have to be larger for no window to be split, as they should be; none where none is.

    Where epochs are asked for, the last step ends one, and a window with it. Else the data may end an epoch, with which
    windows begin anew, but that is not known here.
    """
    if config.schedule.policy_name != "window":
        return {}
    train, windows = config.train, (config.schedule.window_size,)
    warmup = whole_windows(train.warmup_steps, windows, train.epoch_steps)
    wanted = {"train.warmup_steps": warmup}
    if train.epochs is None:
        wanted["train.steps"] = whole_windows(warmup + train.steps, windows) - warmup
    given = {"train.warmup_steps": train.warmup_steps, "train.steps": train.steps}
    return {key: steps for key, steps in wanted.items() if steps != given[key]}


def split_window_warnings(config: Config) -> Iterator[str]:
    """That the warm-up or the last step ends within a window, in a line."""
    wanted, train = whole_window_steps(config), config.train
    if wanted:
        yield (
            f"schedule.window: {train.warmup_steps} steps of warm-up and {train.steps} measured ones split a window of "
            f"{config.schedule.window_size}, so that the samples measured are not those of other policies; set "
            f"{' and '.join(f'{key} to {steps}' for key, steps in wanted.items())}, unless an epoch ends there"
        )
