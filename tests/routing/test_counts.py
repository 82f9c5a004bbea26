"""Counts of stretches are the counts of their tokens, however they are cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.routing import counts
from moesim.routing.catalogue import SOURCES
from moesim.routing.counts import Stretches, count_stretches
from moesim.routing.source import TokenKeys, count

SOURCE = SOURCES["latent"](3, 16, 4, seed=2)
runs = st.lists(
    st.tuples(*(st.integers(0, top) for top in (20, 3, 90, 30))), max_size=8
)


def stretches_of(rows):
    request, klass, start, length = np.array(rows, np.int64).reshape(-1, 4).T
    return Stretches(request, klass, start, start + length)


@settings(max_examples=40)
@given(rows=runs, pace=st.integers(1, 40))
def test_counts_are_those_of_the_tokens(rows, pace):
    """Stretch by stretch, in pieces of any size, empty stretches included."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "TOKENS", pace)
        found = count_stretches(SOURCE, stretches_of(rows))

    assert found.shape == (len(rows), 3, 16)
    for row, own in zip(rows, found, strict=True):
        position = np.arange(row[2], row[2] + row[3])
        keys = TokenKeys(position * 0 + row[0], position * 0 + row[1], position)
        assert (own == count(SOURCE.route(keys), 16)).all()


def test_counts_add_up_over_chunks_of_a_prompt():
    """0 to 100 is 0 to 37 and 37 to 100."""
    whole = count_stretches(SOURCE, stretches_of([(5, 1, 0, 100)]))
    parts = count_stretches(SOURCE, stretches_of([(5, 1, 0, 37), (5, 1, 37, 63)]))

    assert (whole[0] == parts.sum(axis=0)).all()
    assert (whole.sum(axis=2) == 400).all()


@pytest.mark.parametrize(("start", "stop"), [(5, 4), (-1, 3)])
def test_a_stretch_runs_forward_from_a_position(start, stop):
    """Anything else is told of, with its place."""
    one = np.array([1, 1])
    with pytest.raises(InputError, match="expected 0 <= start <= stop") as caught:
        Stretches(one, one, np.array([0, start]), np.array([0, stop]))

    assert caught.value.problems[0].key == "stretches.1"
