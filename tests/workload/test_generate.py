"""A workload means the same requests whatever else happens."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.workload import lengths as lengths_module
from moesim.workload.arrivals import BatchArrivals, ConstantArrivals, PoissonArrivals
from moesim.workload.generate import Phases, WorkloadSpec, generate
from moesim.workload.lengths import (
    GeometricLength,
    LogLength,
    LognormalLength,
    NormalLength,
    UniformLength,
)

COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "klass")
CLASSES = (("chat", 6.0), ("code", 3.0), ("math", 1.0))
SPEC = WorkloadSpec(
    num_prompts=200,
    arrivals=PoissonArrivals(5.0),
    input_len=LognormalLength(mean=300.0, cv=1.0),
    output_len=GeometricLength(20.0),
    classes=CLASSES,
    phases=Phases(0.5, 10.0),
)
MANY = 40_000


def columns(requests):
    return {name: getattr(requests, name).tolist() for name in COLUMNS}


@given(n=st.integers(1, 200), seed=st.integers(0, 2**40))
@settings(max_examples=30, deadline=None)
def test_a_longer_run_begins_with_the_shorter_one(n, seed):
    """Adding requests changes no earlier one, in any column."""
    long, short = (generate(replace(SPEC, num_prompts=k), seed) for k in (200, n))

    assert len(short) == n
    for name, values in columns(short).items():
        assert columns(long)[name][:n] == values


def test_the_same_seed_is_the_same_workload():
    assert columns(generate(SPEC, 7)) == columns(generate(SPEC, 7))


def test_another_seed_changes_every_column():
    first, second = columns(generate(SPEC, 7)), columns(generate(SPEC, 8))

    assert all(first[name] != second[name] for name in COLUMNS)


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"arrivals": ConstantArrivals(5.0)}, "arrival_s"),
        ({"input_len": GeometricLength(3.0)}, "input_tokens"),
        ({"output_len": 9}, "output_tokens"),
        ({"classes": CLASSES[:2]}, "klass"),
        ({"phases": None}, "klass"),
    ],
)
def test_a_change_of_one_law_changes_one_column(change, column):
    """Every column has a stream of its own."""
    before, after = (
        columns(generate(SPEC, 7)),
        columns(generate(replace(SPEC, **change), 7)),
    )

    assert [name for name in COLUMNS if before[name] != after[name]] == [column]


def test_input_and_output_of_one_law_differ():
    """They do not share a stream either."""
    same = replace(SPEC, output_len=SPEC.input_len)
    requests = generate(same, 7)

    assert np.corrcoef(requests.input_tokens, requests.output_tokens)[0, 1] < 0.3


@pytest.mark.parametrize("phases", [None, Phases(0.8, 20.0), Phases(1.0, 1.0)])
def test_classes_follow_their_weights(phases):
    """Phases move requests together but leave the shares as they are.

    Phases of 20 leave at least n/30 independent draws: four standard errors.
    """
    spec = replace(SPEC, num_prompts=MANY, phases=phases)
    share = np.bincount(generate(spec, 3).klass, minlength=3) / MANY

    assert share == pytest.approx([0.6, 0.3, 0.1], abs=4 * (0.24 * 30 / MANY) ** 0.5)


def test_a_class_of_weight_zero_never_comes():
    spec = replace(SPEC, num_prompts=MANY, classes=(("a", 0.0), ("b", 1.0), ("c", 0.0)))

    assert set(generate(spec, 0).klass.tolist()) == {1}


def neighbours_alike(phases):
    klass = generate(replace(SPEC, num_prompts=MANY, phases=phases), 5).klass
    return (klass[1:] == klass[:-1]).mean()


def test_without_phases_neighbours_are_independent():
    """Equal by chance alone: the sum of squared weights."""
    assert neighbours_alike(None) == pytest.approx(0.46, abs=0.012)


@pytest.mark.parametrize(("share", "length"), [(0.5, 10.0), (0.9, 40.0), (1.0, 5.0)])
def test_phases_make_neighbours_alike(share, length):
    """Both follow one phase with probability ``share^2 (1 - 1/length)``, and are equal
    then; otherwise by chance, 0.46."""
    together = share**2 * (1 - 1 / length)
    expected = together + (1 - together) * 0.46

    assert neighbours_alike(Phases(share, length)) == pytest.approx(expected, abs=0.012)


@pytest.mark.parametrize("classes", [(), (("only", 1.0),)])
def test_waves_of_one_class_are_refused(classes):
    """They would be no waves."""
    with pytest.raises(InputError, match="two classes or more"):
        replace(SPEC, classes=classes)


def test_without_classes_all_are_default():
    requests = generate(replace(SPEC, classes=(), phases=None), 0)

    assert requests.class_names == ("default",)
    assert not requests.klass.any()


def test_names_and_concurrency_are_carried():
    spec = replace(SPEC, arrivals=BatchArrivals(), max_concurrency=16)
    requests = generate(spec, 0)

    assert requests.class_names == ("chat", "code", "math")
    assert requests.max_concurrency == 16
    assert not requests.arrival_s.any()


def test_lengths_of_a_log_are_its_sequences_in_order():
    spec = replace(SPEC, num_prompts=3, input_len=LogLength(), output_len=1)
    requests = generate(spec, 0, sequence_lengths=np.array([9, 4, 7, 5]))

    assert requests.input_tokens.tolist() == [9, 4, 7]
    assert requests.output_tokens.tolist() == [1, 1, 1]


def test_a_log_with_too_few_sequences_is_refused():
    spec = replace(SPEC, num_prompts=5, input_len=LogLength())
    with pytest.raises(InputError, match="5 requests asked, but only 4"):
        generate(spec, 0, sequence_lengths=[9, 4, 7, 5])


def test_lengths_of_a_log_without_one_are_refused():
    with pytest.raises(InputError, match="need a routing log"):
        generate(replace(SPEC, input_len=LogLength()), 0)


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"num_prompts": 0}, ["num_prompts"]),
        (
            {"num_prompts": 2.0, "max_concurrency": -1},
            ["num_prompts", "max_concurrency"],
        ),
        ({"classes": (("a", -1.0), ("a", 1.0))}, ["classes.a", "classes"]),
        ({"classes": (("a b", 1.0), ("\x1b[2J", 1.0))}, ["classes", "classes"]),
        ({"classes": (("a", 0.0),)}, ["classes"]),
        ({"classes": (("a", float("nan")),)}, ["classes.a"]),
    ],
)
def test_bad_workloads_are_refused_by_key(change, keys):
    with pytest.raises(InputError) as caught:
        replace(SPEC, **change)

    assert [problem.key for problem in caught.value.problems] == keys


@pytest.mark.parametrize(("share", "length"), [(1.5, 9.0), (0.5, 0.0), (None, 9.0)])
def test_bad_phases_are_refused(share, length):
    with pytest.raises(InputError):
        Phases(share, length)


LAWS = {
    "normal": NormalLength(500, 300, 1, 900),
    "lognormal": LognormalLength(mean=500, cv=2.0, max=4000),
    "geometric": GeometricLength(20, 2, 60),
    "uniform": UniformLength(3, 1000),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_drawing_in_blocks_changes_no_draw(law, monkeypatch):
    """A million requests need little memory, and are the same requests."""
    count = 3 * lengths_module.BLOCK + 77
    few = law.draw(count, np.random.default_rng(5))
    monkeypatch.setattr(lengths_module, "BLOCK", 10**9)
    once = law.draw(count, np.random.default_rng(5))

    assert (few == once).all()


def test_a_million_requests_are_drawn_in_little_memory():
    """17 MB are the requests themselves."""
    spec = WorkloadSpec(10**6, PoissonArrivals(9.0), LAWS["lognormal"], LAWS["normal"])
    tracemalloc.start()
    requests = generate(spec, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(requests) == 10**6
    assert peak < 40e6
