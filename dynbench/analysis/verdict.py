"""How far two runs did the same work, and from intervals to a word, jointly.

Several pairs are judged so that a single false difference is as rare as of one. The candidates of a comparison are one
family against the baseline. Every one is a t test of its mean log ratio, the p values are held jointly (S. Holm, A
simple sequentially rejective multiple test procedure, Scand. J. Stat. 6, 1979), and the interval of each is made at the
level at which Holm's method tested it: it leaves 1 out just where that tells the arms apart.

The pair's own log ratios give a spread with L-1 degrees of freedom of L launches, too few of 4 launches to hold several
candidates. Arms that ran together say more: of a table of launches by arms, what launch and arm leave is each arm's own
residual, and its variance one per arm. Two arms differ with the sum of theirs, and Welch's degrees of freedom (B. L.
Welch, Biometrika 34, 1947), up to twice L-1. One spread pooled over the arms would have more, and tells arms apart that
are equal in 10 to 27 % of comparisons where one arm spreads four times as much as the others.

A wide arm disturbs the launch's mean, so that its residuals look narrower than it is, and those of the others wider.
With k arms and the mean R of the scaled variances R_a, an unbiased one is R_a + (R_a - R)/(k-2) (F. E. Grubbs, J. Am.
Stat. Assoc. 43, 1948; G. K. Shukla, Heredity 29, 1972). It is used where it is the larger one: it may be negative, and
what comes out too wide costs power, what comes out too narrow the level. Three arms have too few others for that, and
each pair has its own spread; so it has where no two launches have all arms, or an arm is stored and met the others in
another session. With two stages spreads are the first stage's (`stats`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dynbench.analysis.arms import Arm, Pair, pair_launches
from dynbench.analysis.merge import MergedRun
from dynbench.analysis.questions import TOKENS, Unit
from dynbench.analysis.stats import Ratio, launches_needed, student_t_quantile
from dynbench.config.part_rules import known_entry
from dynbench.runs.phrase import Phrase

FloatArray = NDArray[np.float64]

Basis = Literal["arms", "own"]
"""Whose spread a test rests on: one of each arm, or that of the pair's own log ratios."""

FEWEST_ARMS = 4
"""Arms below which residuals do not tell one arm's spread from another's."""


class Spread(NamedTuple):
    """How much the log ratio of a launch varies.

    Attributes:
        sd: its standard deviation.
        df: degrees of freedom of that.
        basis: what it was estimated from.
    """

    sd: float
    df: float
    basis: Basis


class Joint(NamedTuple):
    """A pair as one of its family.

    Attributes:
        ratio: the pair's estimate with the interval that its verdict rests on.
        family: pairs that are judged together.
        p: of a difference, held jointly over the family.
        level: confidence of that interval by itself, at least that of the family.
        spread: what both rest on.
    """

    ratio: Ratio
    family: int
    p: float
    level: float
    spread: Spread


def hold_jointly(ratios: Sequence[Ratio], spreads: Sequence[Spread], confidence: float) -> list[Joint]:
    """The pairs of one family, each tested at the level that Holm's method gives it.

    Args:
        ratios: what each pair's launches show.
        spreads: of the same pairs.
        confidence: of the whole family.
    """
    errors = [spread.sd / math.sqrt(ratio.pairs) for ratio, spread in zip(ratios, spreads, strict=True)]
    estimates = [math.log(ratio.estimate) for ratio in ratios]
    found = [p_value(one, error, spread.df) for one, error, spread in zip(estimates, errors, spreads, strict=True)]
    adjusted, family = holm(found), len(ratios)
    rejected = sum(p < 1 - confidence for p in adjusted)
    places = np.argsort(np.argsort(found, kind="stable"), kind="stable")
    joint = []
    for ratio, spread, error, estimate, p, place in zip(
        ratios, spreads, errors, estimates, adjusted, places, strict=True
    ):
        level = 1 - (1 - confidence) / (family - min(int(place), rejected, family - 1))
        half = student_t_quantile(0.5 + level / 2, spread.df) * error
        ends = math.exp(estimate - half), math.exp(estimate + half)
        joint.append(Joint(Ratio(ratio.estimate, *ends, ratio.pairs, ratio.first), family, p, level, spread))
    return joint


def arm_variances(tables: FloatArray) -> FloatArray:
    """Variance of every arm, of what launch and arm leave, no smaller than the unbiased one; [..., arms].

    Args:
        tables: logarithms, [..., launches, arms], of 2 launches or more and 3 arms or more.
    """
    launches, arms = tables.shape[-2:]
    residuals = tables - tables.mean(axis=-1, keepdims=True)
    residuals = residuals - residuals.mean(axis=-2, keepdims=True)
    scaled: FloatArray = (residuals**2).sum(axis=-2) / (launches - 1) * arms / (arms - 1)
    beyond = scaled - scaled.mean(axis=-1, keepdims=True)
    unbiased: FloatArray = scaled + np.maximum(beyond, 0) / (arms - 2)
    return unbiased


def of_two(one: FloatArray | np.float64, other: FloatArray | np.float64, df: int) -> tuple[FloatArray, FloatArray]:
    """Standard deviation of the difference of two arms, and Welch's degrees of freedom of it.

    Args:
        one: variances of the first arm.
        other: those of the second.
        df: degrees of freedom of each.
    """
    total, squares = np.asarray(one + other), np.asarray(one**2 + other**2)
    return np.sqrt(total), df * np.divide(total**2, squares, out=np.ones_like(total), where=squares > 0)


def launch_table(arms: Sequence[Arm], of: Callable[[MergedRun], float]) -> FloatArray:
    """Logarithm of a launch's number, [launches, arms], of the launches of the first arm that all others pair with.

    Arms that took turns make a row only where all of them shared the launch: what disturbs it is then common to them.
    In order of seeds, as ratios have them; without a row for a single arm, and where an arm is stored.
    """
    if len(arms) < 2 or any(arm.stored for arm in arms):
        return np.empty((0, len(arms)))
    partners = [{base.run.id: other for base, other in pair_launches(arms[0], arm).pairs} for arm in arms[1:]]
    rows = [
        [base, *(found[base.run.id] for found in partners)]
        for base in sorted(arms[0].runs, key=lambda run: run.facts.seed)
        if all(base.run.id in found for found in partners)
    ]
    rows = [row for row in rows if len({run.facts.launch_id for run in row}) == 1]
    table = [[math.log(of(run)) for run in row] for row in rows]
    return np.array(table, dtype=np.float64).reshape(len(rows), len(arms))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values in the order given: the k-th smallest of m times m - k + 1, never falling, at most 1."""
    order = np.argsort(p_values, kind="stable")
    factors = len(order) - np.arange(len(order))
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * np.asarray(p_values, dtype=np.float64)[order]), 1)
    return [float(value) for value in adjusted]


def p_value(difference: float, standard_error: float, df: float) -> float:
    """Chance that Student's t with `df` degrees of freedom is as far from 0, on either side."""
    from scipy.special import stdtr

    if standard_error == 0:
        return 1.0 if difference == 0 else 0.0
    return 2 * float(stdtr(df, -abs(difference) / standard_error))


def aim_of(ratio: Ratio, noise: float, *, alike: bool = False) -> float:
    """The difference that launches are to show, on the log scale: the estimated one, or the threshold if larger."""
    return max(0.0 if alike else abs(math.log(ratio.estimate)), math.log1p(noise))


def launches_to_decide(ratio: Ratio, spread: Spread, level: float, aim: float) -> int | None:
    """Launches per arm that show a difference of `aim`, by the spread of those there are; None above `MOST_LAUNCHES`.

    Twice as many as there are where these were enough by that count and are undecided: a close call, or chance.
    """
    needed = launches_needed(aim, spread.sd, level, spread.df / ratio.df)
    return needed if needed is None or needed > ratio.pairs else 2 * ratio.pairs


class Verdict(StrEnum):
    """What a comparison says about the candidate."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    AMBIGUOUS = "AMBIGUOUS"
    INCOMPARABLE = "INCOMPARABLE"
    ESTIMATE = "ESTIMATE"


def decide(speedup: Ratio, noise: float, aa_noise: float | None = None, *, alike: bool = False) -> Verdict:
    """The verdict on a speed-up.

    SAME when the whole interval lies within the noise threshold, [1/(1+noise), 1+noise]. FASTER or SLOWER when the
    interval leaves 1 out and the estimate is beyond the threshold, and beyond what equal arms came out different by.
    ESTIMATE without an interval. AMBIGUOUS otherwise.

    Args:
        speedup: baseline's time over the candidate's.
        noise: differences below this part count as none.
        aa_noise: part by which equal arms came out different, where there were any. It never makes anything SAME:
            less is known of a noisy machine, not more.
        alike: the arms are of one configuration: what differs between them is noise, so neither is the faster.
    """
    if speedup.low is None or speedup.high is None:
        return Verdict.ESTIMATE
    upper, lower = 1 + noise, 1 / (1 + noise)
    if lower <= speedup.low and speedup.high <= upper:
        return Verdict.SAME
    threshold = math.inf if alike else 1 + max(noise, aa_noise or 0.0)
    if speedup.low > 1 and speedup.estimate > threshold:
        return Verdict.FASTER
    if speedup.high < 1 and speedup.estimate < 1 / threshold:
        return Verdict.SLOWER
    return Verdict.AMBIGUOUS


def sentence(
    verdict: Verdict,
    baseline: str,
    candidate: str,
    speedup: Ratio,
    noise: float,
    confidence: float,
    unit: Unit = TOKENS,
    aa_noise: float | None = None,
    *,
    alike: bool = False,
) -> Phrase:
    """Why, in one sentence with the numbers; of arms of one configuration, what they showed."""
    values: dict[str, object] = {"baseline": baseline, "candidate": candidate, "rate": unit.rate}
    values["ratio" if alike else "speedup"] = speedup.estimate
    if speedup.low is not None:
        values |= {"low": speedup.low, "high": speedup.high, "pairs": speedup.pairs}
        values["confidence_percent"] = 100 * confidence
    if alike:
        return Phrase.of(f"reason.alike.{'ESTIMATE' if speedup.low is None else 'interval'}", **values)
    if verdict != Verdict.ESTIMATE:
        values["noise"] = noise
    if aa_noise is not None and decide(speedup, noise) is not verdict:
        return Phrase.of("reason.beside_aa", **values, aa_noise=aa_noise)
    return Phrase.of(f"reason.{verdict}", **values)


log = logging.getLogger(__name__)

Level = Literal["step", "window", "stream", "tokens"]
LEVELS: tuple[Level, ...] = ("step", "window", "stream", "tokens")
"""Strongest first."""

PARITY_STEPS = 50
"""Steps from the first on, warm-up included, in which the losses of equal gradients have to agree."""

_AGREED_STEPS = 10
"""Losses that differ by rounding alone in so many first steps are of equal gradients; a wrong one shows at once."""

_JUMP = 100.0
"""A later difference this many times larger than any before it is no amplified rounding."""

ROUNDING = 1e-6
"""Relative differences of a loss below it are those of its arithmetic."""

LEAST_TOLERANCE = 1e-3
"""Relative difference of a loss that wrong gradients exceed, and that of fp32 stays far below."""

_UNIT_ROUNDOFF = {"fp32": 2**-24, "fp16": 2**-11, "bf16": 2**-8}
"""By precision, the largest relative error of rounding a number to it; the mean one is half of it."""
LAST = "model/last/model.safetensors"
"""Within a run's folder: the model after the last step."""
_LARGEST_MB = 256
"""Larger models are not read."""


def comparison_level(pairs: Sequence[Pair]) -> Level:
    """The weakest level among the pairs, measured from the work hashes of all steps, warm-up included."""
    return max((work_level(a, b) for a, b in pairs), key=LEVELS.index)


def work_level(a: MergedRun, b: MergedRun) -> Level:
    """How far two launches of the same data and seed computed the same samples.

    `tokens` with different batches, also of single steps, and where a strategy trains otherwise than one process, or
    samples of a row see each other, unless both are equal in that and deal every rank the same samples in every step.

    `window` asks that the measured steps are whole windows: where the warm-up, the end of the run, or a step that does
    not count splits one, the measured samples differ.
    """
    one, other = a.facts.config, b.facts.config
    inexact = not (one.sync.exact and other.sync.exact and a.facts.apart and b.facts.apart)
    alike = one.sync == other.sync and a.facts.apart == b.facts.apart
    both = a.steps.join(b.steps, on="step")
    batches_differ = one.train.global_batch != other.train.global_batch
    # as under a budget of tokens
    batches_differ = batches_differ or bool((both["global_batch"] != both["global_batch_right"]).any())
    if batches_differ or (inexact and not (alike and _dealt_alike(a, b))):
        return "tokens"
    done = agreements(a, b)
    if done is not None and len(done) > a.steps.height:
        return "step"
    if done is None or not windows_agree(a, b):
        return "stream"
    for run in (a, b):
        unmeasured = run.steps["warmup"].to_numpy()  # steps begin or cease to count after these steps, and after all
        ends = np.append(np.flatnonzero(np.diff(unmeasured)) + 1, len(unmeasured))
        if not np.isin(ends, done).all():
            return "stream"
    return "window"


def _dealt_alike(a: MergedRun, b: MergedRun) -> bool:
    """Whether every rank of both launches computed the same samples in every step."""
    one, other = (run.worker_rows().select("step", "worker", "work_hash").sort("step", "worker") for run in (a, b))
    return one.collect().equals(other.collect())


def windows_agree(a: MergedRun, b: MergedRun) -> bool:
    """Whether both launches computed the same samples in every window that they finished."""
    done = agreements(a, b)
    if done is None:
        return False
    steps = np.array([*done, a.steps.height])
    return int(np.diff(steps).max()) <= max(a.facts.window, b.facts.window)


def agreements(a: MergedRun, b: MergedRun) -> NDArray[np.int64] | None:
    """Numbers of steps, from 0 on, after which both launches have computed the same samples; warm-up included.

    There the sums of all work hashes so far are equal. Windows begin anew with every epoch, so these points need not
    lie at multiples of W, but never further apart. None when the launches do not have the same steps, or have a hole in
    them.
    """
    steps, others = (run.steps["step"].to_numpy() for run in (a, b))
    if len(steps) == 0 or not np.array_equal(steps, np.arange(len(steps))) or not np.array_equal(steps, others):
        return None
    ahead = np.cumsum(a.steps["work_hash"].to_numpy() - b.steps["work_hash"].to_numpy(), dtype=np.uint64)
    return np.concatenate(([0], np.flatnonzero(ahead == 0) + 1))


def loss_difference(pairs: Sequence[Pair]) -> float | None:
    """Largest relative difference of the global loss of a step between the launches of a pair.

    Sums in another order round differently, and training amplifies that without end: over hundreds of steps the losses
    of equal gradients come apart smoothly, or under AdamW within ten. So the first `PARITY_STEPS` steps count, in which
    wrong gradients show, or `_AGREED_STEPS` of them where these differ by rounding alone; and of the later ones those
    that rise to `_JUMP` times all before them at once. A step without weight has a loss of 0.

    Returns:
        None where there is nothing to compare: a loss is not finite, or the model normalises over the samples that a
        rank runs together, so that its losses depend on the plan.
    """
    worst = 0.0
    for pair in pairs:
        left, right = (run.steps["loss_global"].fill_null(0.0).to_numpy() for run in pair)
        entries = [known_entry(run.facts.config) for run in pair]
        normalises = any(entry is not None and entry.batch_norm for entry in entries)
        if normalises or not (np.isfinite(left).all() and np.isfinite(right).all()):
            return None
        scale = np.maximum(np.maximum(np.abs(left), np.abs(right)), np.finfo(np.float64).tiny)
        differences = np.abs(left - right) / scale
        before = np.maximum.accumulate(np.concatenate(([ROUNDING], differences)))[:-1]
        counted = _AGREED_STEPS if differences[:_AGREED_STEPS].max(initial=0.0) <= ROUNDING else PARITY_STEPS
        counts = (np.arange(len(differences)) < counted) | (differences > _JUMP * before)
        worst = max(worst, float(differences[counts].max(initial=0.0)))
    return worst


def loss_tolerance(pairs: Sequence[Pair]) -> tuple[float, str, int]:
    """The tolerance of `loss_difference` where none was given, the coarsest precision of the launches, steps compared.

    Every step rounds the weights' gradients anew, by half a unit roundoff in the mean, and errors without a common sign
    add up to a random walk. Two layers of DistilBERT came apart by 1.4e-3 within 27 steps of bf16, of 1.0e-2 allowed.
    """
    runs = [run for pair in pairs for run in pair]
    precision = max((run.facts.config.train.precision for run in runs), key=lambda name: _UNIT_ROUNDOFF.get(name, 0.0))
    steps = min(PARITY_STEPS, max(run.steps.height for run in runs))
    walk = _UNIT_ROUNDOFF.get(precision, 0.0) / 2 * math.sqrt(steps)
    return max(LEAST_TOLERANCE, walk), precision, steps


def loss_drift(pairs: Sequence[Pair]) -> float | None:
    """By which part the candidate's training loss is above the baseline's: means over measured steps, then over pairs.

    Returns:
        None where a loss is not finite, or the baseline's are zero.
    """
    means = np.array([[run.measured["loss_global"].mean() for run in pair] for pair in pairs], dtype=np.float64)
    baseline, candidate = means.mean(axis=0)
    return float(candidate / baseline - 1) if baseline and np.isfinite(means).all() else None


def weights_difference(pairs: Sequence[Pair]) -> float | None:
    """Largest absolute difference of a weight between the launches of a pair.

    Returns:
        None where a launch kept no model, or a large one, or their models are not of one shape, or some difference of
        their weights is no number.
    """
    files = [run.run.path / LAST for pair in pairs for run in pair]
    if not all(file.is_file() and 0 < file.stat().st_size <= 1e6 * _LARGEST_MB for file in files):
        return None
    worst = None
    for one, other in pairs:
        weights, others = _weights(one.run.path / LAST), _weights(other.run.path / LAST)
        if weights is None or others is None:
            return None
        one_shape, other_shape = ({name: array.shape for name, array in each.items()} for each in (weights, others))
        if one_shape != other_shape:
            return None
        # Counts, as of batches that were seen, are no weights.
        floats = [name for name, each in weights.items() if np.issubdtype(each.dtype, np.floating)]
        arrays = [[each[name].astype(np.float64) for name in floats] for each in (weights, others)]
        with np.errstate(invalid="ignore"):
            apart = [float(np.abs(a - b).max(initial=0)) for a, b in zip(*arrays, strict=True)]
        if not np.isfinite(apart).all():
            return None
        worst = max([worst or 0.0, *apart])
    return worst


def _weights(file: Path) -> Mapping[str, NDArray[np.generic]] | None:
    """By name; None, and a warning, of a file that cannot be read."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(file))
    except (OSError, SafetensorError) as error:
        log.warning("%s cannot be read (%s); its weights are not compared", file, error)
        return None
