"""How arms scale with the ranks that train: each strategy against its own arm with the fewest, strongly and weakly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from dynbench.analysis.arms import Arm, Pair, pair_launches, seconds_per_unit
from dynbench.analysis.measures import means
from dynbench.analysis.questions import Unit
from dynbench.analysis.record import Kind, ScalingRecord
from dynbench.analysis.run_facts import oversubscribed
from dynbench.analysis.stats import Ratio
from dynbench.units import mb

_ITSELF = Ratio(1.0, None, None, 0)


AnyArm = TypeVar("AnyArm", bound=Arm)
Speedup = Callable[[Sequence[Pair]], Ratio]


def reference_of(arm: AnyArm, arms: Sequence[AnyArm]) -> tuple[AnyArm, Kind] | None:
    """The arm of the same strategy with the fewest workers that an arm is held against, and how its batch grew.

    Args:
        arm: one of them.
        arms: all.

    Returns:
        The arm itself where it has the fewest; None where the batch neither stayed nor grew with the workers.
    """
    same = [other for other in arms if _way(other) == _way(arm)]
    fewest = min(_workers(other) for other in same)
    if _workers(arm) == fewest:
        return arm, "reference"
    for other in (other for other in same if _workers(other) == fewest):
        if _batch(arm) == _batch(other):
            return other, "strong"
        if _batch(arm) * fewest == _batch(other) * _workers(arm):
            return other, "weak"
    return None


def efficiency_of(arm: Arm, arms: Sequence[Arm], speedup: Speedup) -> float | None:
    """What each of an arm's workers gives, as a part of what each of its reference's does; None where nothing pairs."""
    found = _against(arm, arms, speedup)
    if found is None:
        return None
    other, _, ratio = found
    return ratio.estimate * _workers(other) / _workers(arm)


def scaling_of(
    arms: Sequence[Arm],
    summaries: Mapping[str, Mapping[str, object]],
    unit: Unit,
    speedup: Speedup,
) -> list[ScalingRecord]:
    """A record per arm, strategy by strategy; none where all arms have as many workers.

    Args:
        arms: with their launches.
        summaries: by id of the run.
        unit: of work.
        speedup: what pairs of launches show.
    """
    if len({_workers(arm) for arm in arms}) < 2:
        return []
    found = [
        _record(arm, *against, means([summaries[run.run.id] for run in arm.whole]), unit)
        for arm in arms
        if (against := _against(arm, arms, speedup)) is not None
    ]
    return sorted(found, key=lambda one: [item.strategy for item in found].index(one.strategy))


def _record(arm: Arm, other: Arm, kind: Kind, ratio: Ratio, mean: Mapping[str, float], unit: Unit) -> ScalingRecord:
    run, rate = arm.runs[0], [1 / seconds_per_unit(run, unit) for run in arm.whole if run.measured.height]
    step, comm, sent = (mean.get(key) for key in ("step_time_ms.mean", "comm_ms.mean", "bytes_wire.mean"))
    fewer = _workers(other) / _workers(arm)
    return ScalingRecord(
        arm=arm.label,
        strategy=run.facts.config.sync.name,
        kind=kind,
        against=other.label,
        workers=_workers(arm),
        world_size=run.world_size,
        oversubscribed=oversubscribed(run.facts),
        global_batch=_batch(arm),
        units_per_s=sum(rate) / len(rate),
        speedup=ratio.estimate,
        ci95=ratio.ends,
        efficiency=ratio.estimate * fewer,
        efficiency_of_ranks=ratio.estimate * other.runs[0].world_size / run.world_size,
        step_ms=step,
        comm_ms=comm,
        comm_share=comm / step if comm is not None and step else None,
        exposed_comm_ms=mean.get("exposed_comm_ms.mean"),
        gb_per_s=mb(sent) / comm if sent and comm else None,
    )


def _against(arm: Arm, arms: Sequence[Arm], speedup: Speedup) -> tuple[Arm, Kind, Ratio] | None:
    found = reference_of(arm, arms)
    if found is None:
        return None
    other, kind = found
    if other is arm:
        return arm, kind, _ITSELF
    pairs = pair_launches(other, arm).pairs
    return (other, kind, speedup(pairs)) if pairs else None


def _way(arm: Arm) -> tuple[object, ...]:
    """What brings an arm's gradients together: strategy, compressor, and their settings."""
    config = arm.runs[0].facts.config
    return repr(config.sync), repr(config.compress)


def _workers(arm: Arm) -> int:
    return arm.runs[0].workers


def _batch(arm: Arm) -> int:
    return arm.runs[0].facts.config.train.global_batch
