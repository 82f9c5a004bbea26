"""The cut between what is known of routing and what is guessed is honest."""

import numpy as np
import pytest

from moesim.policy.predict import guess_for, known_experts


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
    """By knowledge: oracle, predicted or counts, present; without a predictor, nothing."""
    truth, predicted = np.ones((2, 2)), np.full((2, 2), 3.0)

    assert (guess_for("oracle", truth, predicted) == truth).all()
    assert (guess_for("predicted", truth, predicted) == predicted).all()
    assert (guess_for("counts", truth, predicted) == predicted).all()
    assert np.isnan(guess_for("predicted", truth, None)).all()
    assert np.isnan(guess_for("present", truth, predicted)).all()
