"""The bounds as the report states them, written down once more, are those that the code computes."""

import math

import numpy as np
import pytest

from dynbench.report import LANGUAGES, load_template
from dynbench.schedule.bounds import batch_bound
from dynbench.schedule.cost import CostModel

TOKENS = "max( Σ_i l_i / Σ_g v_g ,  max_i l_i / max_g v_g )"
MEASURED = "max( ( G·α + (m − G)·φ + Σ_i (β·l_i + γ·l_i^2) ) / Σ_g v_g ,  ( α + β·l_max + γ·l_max^2 ) / max_g v_g )"
SQUARED = "*max( (Σ_i l_i)^2 / (M·(Σ_g √v_g)^2), Σ_i l_i^2 / Σ_g v_g, l_max^2 / max_g v_g )*"


def measured(lengths, v, m, alpha, beta, gamma, further):
    longest = lengths.max()
    return max(
        (len(v) * alpha + (m - len(v)) * further + (beta * lengths + gamma * lengths**2).sum()) / v.sum(),
        (alpha + beta * longest + gamma * longest**2) / v.max(),
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_both_languages_state_these_formulas(language):
    section = load_template(language).body

    assert [formula in " ".join(section.split()) for formula in map(" ".join, map(str.split, (TOKENS, MEASURED)))] == [
        True,
        True,
    ]
    assert " ".join(SQUARED.split()) in " ".join(section.split())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("speeds", [(1.0, 1.0, 1.0), (1.0, 2.0, 0.5)])
@pytest.mark.parametrize("parts", [1, 3])
def test_the_formulas_are_the_code(seed, speeds, parts):
    rng = np.random.default_rng(seed)
    lengths, v = rng.integers(1, 200, 12), np.array(speeds)
    limits = rng.integers(1, 4, 12)
    equal = len(set(speeds)) == 1

    mean = lengths.sum() / v.sum()
    tokens = max(math.ceil(mean) if equal else mean, lengths.max() / v.max())
    assert batch_bound(lengths, CostModel(), 3, speeds=v) == pytest.approx(tokens)

    m = 3 if parts == 1 else max(3, math.ceil((1 / limits).sum()))
    for further in (None, 7.0):
        found = batch_bound(
            lengths,
            CostModel("measured", alpha=40.0, beta=0.5, gamma=0.01, further=further),
            3,
            speeds=v,
            micro_batches=parts,
            limits=None if parts == 1 else limits,
        )
        assert found == pytest.approx(measured(lengths, v, m, 40.0, 0.5, 0.01, 40.0 if further is None else further))
    attention = batch_bound(lengths, CostModel("attention", attention_a=0.2), 3, speeds=v)
    assert attention == pytest.approx(measured(lengths, v, 3, 0.0, 1.0, 0.2, 0.0))

    squares = max(
        lengths.sum() ** 2 / (parts * np.sqrt(v).sum() ** 2), (lengths**2).sum() / v.sum(), lengths.max() ** 2 / v.max()
    )
    expected = tokens**2 if parts == 1 and equal else squares
    found = batch_bound(lengths, CostModel("tokens_sq"), 3, speeds=v, micro_batches=parts)
    assert found == pytest.approx(expected)
