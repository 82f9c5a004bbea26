"""How even ranks were: three ratios of the same sums, told apart by hand."""

import numpy as np
import pytest

from moesim.measure.balance import Balance

PASSES = ([[4, 0, 2, 2], [1, 1, 1, 1]], [[30, 10, 10, 10], [0, 0, 0, 0]])


def balance_of(passes):
    balance = Balance()
    for tokens in passes:
        balance.add(np.array(tokens))
    return balance


def test_each_ratio_is_of_its_own_sums():
    """Means 2, 1 and 15 under maxima 4, 1 and 30; a layer without tokens is none."""
    balance = balance_of(PASSES)

    assert balance.vllm == pytest.approx(18 / 35)
    assert balance.sglang == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    assert balance.imbalance == pytest.approx(17 / 18)


def test_of_passes_alike_imbalance_is_the_mean_of_the_ratios():
    """(max - mean) / mean over layers and passes, as TensorRT-LLM's table has it."""
    rng = np.random.default_rng(5)
    passes = rng.multinomial(96, np.array([4, 2, 1, 1]) / 8, size=(20, 3))

    ratios = passes.max(axis=2) / passes.mean(axis=2) - 1

    assert balance_of(passes).imbalance == pytest.approx(ratios.mean())


def test_nothing_has_no_ratio():
    balance = balance_of([])

    assert (balance.vllm, balance.sglang, balance.imbalance) == (None, None, None)
