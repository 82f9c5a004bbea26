"""The predictor learns what has been routed, and the cut to the future is honest."""

import numpy as np
import pytest

from moesim.cost.experts import expected_expert_time
from moesim.policy.predict import GlobalPopularity, guess_for, known_experts
from worlds import tiny_system

SYSTEM = tiny_system(2, 8, 4, top_k=2, experts="per_expert")
SHAPE = (2, 2, 4)
"""Two layers, two slots on each of four GPUs."""


def expected(mean):
    return expected_expert_time(np.asarray(mean, float), SYSTEM).sum(axis=1)


def test_before_anything_is_seen_routing_is_uniform():
    """Every slot of a layer expects tokens x top_k / slots."""
    found = GlobalPopularity(SYSTEM).expect(64)

    assert found.shape == (2, 4)
    np.testing.assert_allclose(found, expected(np.full(SHAPE, 64 * 2 / 8)))


def test_after_a_pass_the_shares_are_its_own():
    """Layer by layer: a slot with half of the tokens expects half of the next."""
    popularity = GlobalPopularity(SYSTEM)
    seen = np.zeros(SHAPE, int)
    seen[0, 0, 0], seen[0, 1, 3] = 30, 10
    seen[1] = 5
    popularity.observe(seen)

    mean = np.zeros(SHAPE)
    mean[0, 0, 0], mean[0, 1, 3] = 100 * 2 * 0.75, 100 * 2 * 0.25
    mean[1] = 100 * 2 / 8
    np.testing.assert_allclose(popularity.expect(100), expected(mean))


def test_passes_add_up():
    """Two passes count as one with the tokens of both."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 9, (2, *SHAPE))
    apart, together = GlobalPopularity(SYSTEM), GlobalPopularity(SYSTEM)
    apart.observe(first)
    apart.observe(second)
    together.observe(first + second)

    assert (apart.expect(10) == together.expect(10)).all()


def test_a_layer_without_tokens_stays_uniform():
    popularity = GlobalPopularity(SYSTEM)
    seen = np.zeros(SHAPE, int)
    seen[0, 0, 0] = 4
    popularity.observe(seen)

    uniform = expected(np.full(SHAPE, 50 * 2 / 8))
    np.testing.assert_allclose(popularity.expect(50)[1], uniform[1])
    assert popularity.expect(50)[0, 0] > 0
    assert (popularity.expect(50)[0, 1:] == 0).all()


@pytest.mark.parametrize(
    ("layer", "stage", "known"),
    [
        (0, "attention", 0),
        (0, "experts", 1),
        (1, "attention", 1),
        (2, "experts", 3),
        (2, "lm_head", 3),
    ],
)
def test_routing_is_known_up_to_the_gate_it_has_passed(layer, stage, known):
    """A layer's routing happens after its attention."""
    truth, guess = np.ones((3, 2)), np.zeros((3, 2))

    found = known_experts(truth, guess, layer, stage)

    assert found[:, 0].tolist() == [1.0] * known + [0.0] * (3 - known)


def test_a_guess_is_the_truth_a_prediction_or_nothing():
    """By knowledge: oracle, predicted, present; without a predictor, nothing."""
    truth, predicted = np.ones((2, 2)), np.full((2, 2), 3.0)

    assert (guess_for("oracle", truth, predicted) == truth).all()
    assert (guess_for("predicted", truth, predicted) == predicted).all()
    assert np.isnan(guess_for("predicted", truth, None)).all()
    assert np.isnan(guess_for("present", truth, predicted)).all()
