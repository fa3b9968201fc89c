"""The global batch where it was given for each worker."""

from __future__ import annotations

from dynbench.config.change import changed
from dynbench.config.schema import Config, Train


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
