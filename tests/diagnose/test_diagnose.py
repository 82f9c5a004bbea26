"""What a diagnosis says of logs: known figures, laws, and traffic made to be told."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.cost.partial import partial_load
from moesim.diagnose import across, bounds, timing
from moesim.diagnose.classes import classes
from moesim.diagnose.exchange import exchange, slots_of, system_of
from moesim.diagnose.folder import page
from moesim.diagnose.ranks import draw_batches, ranks
from moesim.diagnose.report import diagnose
from moesim.diagnose.traffic import RUN, WINDOWS, pooled, sampled, traffic_of
from moesim.diagnose.weights import first_slots
from moesim.errors import InputError
from moesim.routing.logs import Hints, Limits, read_log
from moesim.spec.catalogue import load_model
from moesim.spec.hardware import load_gpu
from routing.logs import samples

GPU = load_gpu("h100")
LIMITS = Limits(memory_bytes=128 << 20)


def write(path, ids, **more):
    np.savez(path, expert_ids=ids, **more)
    return path


def read(path, hints=None, limits=LIMITS):
    log = read_log(path, limits=limits, hints=hints or Hints())
    return traffic_of(log, 0, first_slots(Path(path), log, sampled(log), limits))


def uniform(tokens=3000, layers=4, experts=32, k=4, seed=0):
    noise = np.random.default_rng(seed).random((tokens, layers, experts))
    return np.argsort(noise, axis=2)[:, :, :k].astype(np.uint8)


def skewed(tokens=3000, layers=4, experts=32, k=4, seed=0, hot=None):
    """Ids by popularity: Gumbel-top-k; `hot` experts are 9 times as popular."""
    rng = np.random.default_rng(seed)
    weights = np.ones((layers, experts))
    chosen = range(k) if hot is None else hot
    weights[:, list(chosen)] *= 9
    noise = -np.log(-np.log(rng.random((tokens, layers, experts))))
    return np.argsort(-(noise + np.log(weights)), axis=2)[:, :, :k].astype(np.uint8)


@pytest.fixture
def traffic(tmp_path):
    def make(ids, name="log.npz", **more):
        return read(write(tmp_path / name, ids, **more), Hints(experts=32))

    return make


@pytest.fixture(scope="module")
def real():
    """Return the traffics of the two recorded logs."""
    if "MOESIM_DATA" not in os.environ:
        pytest.skip("needs MOESIM_DATA")
    folder = Path(os.environ["MOESIM_DATA"]) / "routing"
    names = ("intent", "summary")
    return [read(folder / f"deepseek-v2-lite_{name}.npz") for name in names]


@pytest.fixture(scope="module")
def intent(real):
    return diagnose(real[:1], GPU)


def test_a_recorded_log_has_its_known_table(intent):
    """DeepSeek-V2-Lite on intent prompts; the share 0.268 is that of 6 of 64 experts."""
    over, time = intent["imbalance"]["overall"], intent["time"]
    by_batch = intent["ranks"]["8"]["by_batch"]

    assert over["max_over_mean_median"] == pytest.approx(3.96, abs=0.005)
    assert over["cv_median"] == pytest.approx(0.80, abs=0.005)
    assert over["entropy_median"] == pytest.approx(0.932, abs=5e-4)
    assert over["top10_share_down_median"] == pytest.approx(0.268, abs=5e-4)
    assert over["top10_share_median"] == pytest.approx(0.298, abs=5e-4)
    assert time["next_token_overlap"] == pytest.approx(0.262, abs=5e-4)
    assert time["independent_overlap"] == pytest.approx(0.154, abs=5e-4)
    assert [by_batch[n] for n in ("64", "256", "1024")] == pytest.approx(
        [1.48, 1.45, 1.45], abs=0.01
    )
    assert over["cv_floor_median"] == pytest.approx(0.0343, abs=1e-4)


def test_recorded_logs_pooled_tell_what_layers_know_of_each_other(real):
    """2.42, 2.39, 2.35, 2.23 bits; first choices are by weight, not by slot."""
    record = diagnose(real, GPU, [8])
    found = record["across_layers"]
    bits = [item["bits"] for item in found["information"]]

    assert found["first_choice"] == "weight"
    assert [item["gap"] for item in found["information"]] == [1, 2, 4, 8]
    assert bits == pytest.approx([2.42, 2.39, 2.35, 2.23], abs=0.01)
    assert all(0 < item["shuffled"] < 0.2 for item in found["information"])
    assert record["classes"]["cosine"] < 0.75 < record["classes"]["halves"]
    assert record["time"]["drift"] is None


def test_recorded_layers_are_independent_not_complementary(intent):
    found = intent["across_layers"]["complementarity"]

    assert {item["verdict"] for item in found.values()} == {"independent"}
    assert found["8"]["summed"] < 1.1
    assert found["8"]["by_layer_median"] > 1.4


FIVE = [
    samples.vllm_base64,
    samples.vllm_nested,
    samples.vllm_patch,
    samples.npz,
    samples.csv_wide,
    samples.sglang_routed,
    samples.sglang_openai,
]


def test_the_same_traffic_in_many_formats_has_the_same_diagnosis(tmp_path):
    """Formats differ in names of layers and in notes; nothing else may."""
    told = []
    for at, make in enumerate(FIVE):
        folder = tmp_path / str(at)
        folder.mkdir()
        sample = make(folder)
        found = read(sample.path, sample.hints)
        plain = replace(
            found, name="log", format="any", layers=("a", "b", "c"), notes=()
        )
        told.append(json.dumps(diagnose([plain], GPU, [2, 4]), sort_keys=True))

    assert len(FIVE) >= 5
    assert set(told) == {told[0]}


@pytest.mark.parametrize(
    "make", [samples.eplb_load, samples.trtllm_counts, samples.csv_counts]
)
def test_counts_alone_are_diagnosed_too(tmp_path, make):
    """No token: nothing about tokens, and everything about loads as from tokens."""
    sample = make(tmp_path)
    found = read(sample.path, sample.hints)
    record = diagnose([found], GPU, [2])

    assert record["traffic"] is None
    assert "information" not in record["across_layers"]
    assert record["imbalance"]["overall"]["cv_median"] > 0
    assert record["bounds"]["2"]["prediction"] is None


def test_a_placement_is_no_traffic(tmp_path):
    sample = samples.eplb_placement(tmp_path)

    with pytest.raises(InputError, match="a placement is no traffic"):
        read(sample.path, sample.hints)


def test_a_long_log_is_counted_whole_and_sampled_all_over(tmp_path):
    """Beyond its memory it lies on disk; counts are exact, runs are neighbours."""
    ids = uniform(tokens=200_000, layers=2, experts=8, k=2)
    limits = Limits(memory_bytes=1 << 16)
    log = read_log(write(tmp_path / "log.npz", ids), limits=limits)
    found = traffic_of(log)
    first = sampled(log)

    assert log.tokens.on_disk
    assert np.array_equal(found.totals, log.totals)
    assert found.windows.shape == (WINDOWS, 2, 8)
    assert np.ptp(found.windows.sum(axis=(1, 2))) <= 4
    assert len(found.ids) == len(first) * RUN == 1 << 16
    assert first[-1].stop == 200_000
    expected = np.concatenate([ids[part.start : part.stop] for part in first])
    assert np.array_equal(found.ids, expected)
    assert found.runs.tolist() == [RUN] * len(first)


def test_sequences_that_end_within_the_sample_end_its_runs(traffic):
    found = traffic(uniform(tokens=10), seq_lens=np.array([3, 1, 6]))

    assert found.runs.tolist() == [3, 1, 6]


def test_uniform_routing_is_called_chance(traffic):
    """Its coefficient of variation lies at the floor, and so the finding says."""
    record = diagnose([traffic(uniform())], GPU, [8])
    over = record["imbalance"]["overall"]
    titles = [item["title"] for item in record["findings"]]

    assert 0.5 < over["cv_median"] / over["cv_floor_median"] < 1.5
    assert "Experts are as even as chance lets them be" in titles
    assert record["imbalance"]["overall"]["layers_mild"] == 0
    assert (
        not record["time"]["drift"]["distance"]
        > 1.5 * record["time"]["drift"]["by_chance_p95"]
    )


def test_hot_experts_on_one_gpu_are_found_and_cured(traffic):
    """Four experts of 9 times the popularity on GPU 0: ranks first, placement cures."""
    record = diagnose([traffic(skewed())], GPU, [8])
    first, gains = record["findings"][0], record["bounds"]["8"]

    assert first["title"] == "GPUs wait for the slowest rank (EP8)"
    assert record["ranks"]["8"]["hot_rank"] == 0
    assert gains["now"] > 2.5
    limit = gains["placement"]["limit"]["ratio"]
    assert limit < gains["placement"]["held_out"]["ratio"] < 1.1 * limit < 1.7
    assert record["across_layers"]["complementarity"]["8"]["verdict"] == "aligned"


def load(pattern):
    """Return (L, R) loads whose hot rank is as the pattern says, layer by layer."""
    found = np.full((len(pattern), 4), 10.0)
    found[np.arange(len(pattern)), pattern] = 30.0
    return found


@pytest.mark.parametrize(
    ("pattern", "verdict"),
    [
        ([0, 1, 2, 3] * 6, "complementary"),
        ([1] * 24, "aligned"),
        (np.random.default_rng(5).integers(0, 4, 24), "independent"),
    ],
)
def test_complementarity_is_told_from_independence(pattern, verdict):
    assert across.complementarity(load(pattern))["verdict"] == verdict


def test_independent_layers_know_nothing_once_chance_is_taken_off():
    """The plug-in estimate alone would claim a quarter of a bit."""
    first = np.random.default_rng(1).integers(0, 32, (3000, 6)).astype(np.uint16)
    found = across.information(first, 32)

    assert [item["gap"] for item in found] == [1, 2, 4]
    assert all(item["bits"] > 0.2 for item in found)
    assert all(abs(item["corrected"]) < 0.02 for item in found)


def test_a_layer_that_decides_the_next_is_foreseen(traffic):
    """Every choice one number up in each layer: known for certain."""
    one = uniform(layers=1)
    ids = (one + np.arange(4)[None, :, None]) % 32
    seen = across.prediction(traffic(ids.astype(np.uint8)))

    assert seen["top1"] == 1.0
    assert seen["blind"] < 0.1
    assert seen["recall"] >= 0.25


def test_what_is_learnt_is_not_tested_on_itself(traffic):
    """Independent tokens, too few for the table: by heart it would know many of them."""
    seen = across.prediction(traffic(uniform(tokens=256)))

    assert seen["top1"] < 0.12


def test_first_choices_go_by_weight_not_by_slot(traffic):
    ids = uniform(tokens=50)
    weights = np.random.default_rng(2).random(ids.shape).astype(np.float16)
    found = traffic(ids, expert_weights=weights)
    best = weights.argmax(axis=2)

    assert found.known_first
    assert np.array_equal(
        found.first, np.take_along_axis(ids, best[:, :, None], 2)[:, :, 0]
    )
    assert not any("not read" in note for note in found.notes)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.5])
def test_weights_that_are_none_are_not_used(traffic, bad):
    """One is enough: which choice was the first is then told by the slots, and said."""
    ids = np.tile(np.arange(4, dtype=np.uint8), (50, 4, 1))
    weights = np.random.default_rng(2).random(ids.shape).astype(np.float16)
    weights[49, 3, 1] = bad
    found = traffic(ids, expert_weights=weights)

    assert not found.known_first
    assert found.notes[-1] == (
        "not used: expert_weights (some are negative or no number)"
    )
    assert not any("not read" in note for note in found.notes)
    plain = traffic(ids)
    assert (found.first == plain.first).all()


def test_weights_that_do_not_fit_are_not_used(traffic):
    ids = uniform(tokens=50)
    found = traffic(ids, expert_weights=np.ones((49, 4, 4), np.float16))

    assert not found.known_first
    assert np.array_equal(found.first, ids[:, :, 0])


def test_drift_is_told_from_chance(traffic):
    """Other experts hot in the second half: most of the excess goes elsewhere."""
    still = timing.drift(traffic(skewed()).windows)
    both = np.concatenate([skewed(1500), skewed(1500, hot=range(8, 12), seed=1)])
    moved = timing.drift(traffic(both, "other.npz").windows)

    assert still["distance"] < 1.5 * still["by_chance_p95"]
    assert moved["distance"] > 2 * moved["by_chance_p95"]
    assert moved["hot_overlap"] == 0 < still["hot_overlap"]


def test_bursts_are_told_from_independent_tokens(traffic):
    """Each token eight times over has eight times the variance."""
    steady = timing.burst(traffic(uniform()))
    bursts = timing.burst(traffic(np.repeat(uniform(400), 8, axis=0), "b.npz"))

    assert steady["dispersion"] == pytest.approx(1, abs=0.1)
    assert bursts["dispersion"] == pytest.approx(8, abs=1)


def test_dispatch_sends_a_copy_to_each_other_gpu_that_needs_one(traffic):
    """One node: as many copies as there are distinct GPUs besides the token's own."""
    found = traffic(uniform(tokens=400))
    record = exchange(found, GPU, [8], 8, None)["8"]
    gpu = found.ids // 4
    needs = (gpu[:, :, :, None] == np.arange(8)).any(axis=2)
    needs[np.arange(400), :, np.arange(400) % 8] = False
    pairs = np.zeros((8, 8))
    np.add.at(pairs, np.arange(400) % 8, needs.sum(axis=1))

    assert np.array_equal(record["gpu_to_gpu"], pairs)
    assert record["copies_per_token"] == pytest.approx(needs.sum() / 1600)
    assert record["node_to_node"] == [[0]]


def test_traffic_between_nodes_is_the_models_own(traffic):
    """Two ways of the cost model agree; nothing stays on its node in the node matrix."""
    found = traffic(skewed(tokens=320))
    record = exchange(found, GPU, [16], 8, load_model("deepseek-v2-lite"))["16"]
    system = system_of(found, None, GPU, (2, 8))
    slots = slots_of(found.ids)
    other = partial_load(slots, np.ones(slots.shape, bool), np.arange(320) % 16, system)

    assert np.array_equal(record["gpu_to_gpu"], other.traffic.sum(axis=0))
    assert np.trace(record["node_to_node"]) == 0
    assert record["nic_bytes_per_token"] == record["nic_copies_per_token"] * 2048 * 2


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 4, 8]))
def test_bounds_keep_their_order(seed, gpus):
    """Perfect is below every limit, and no placement without copies beats its limit."""
    rng = np.random.default_rng(seed)
    counts = rng.lognormal(3, rng.uniform(0, 2), (8, 3, 16)).round() + 1
    found = bounds.bounds(Loads(counts), {}, [gpus], None)[str(gpus)]
    limit = found["placement"]["limit"]["ratio"]

    assert 1 - 1e-12 <= limit <= found["placement"]["fitted"]["ratio"] + 1e-12
    assert limit <= found["now"] + 1e-12
    assert 1 - 1e-12 <= found["off_peak"]["ratio"] <= found["now"] + 1e-12
    assert found["replication"]["fitted"]["ratio"] >= 1 - 1e-12
    assert all(0 <= item["saves"] < 1 for item in (found["perfect"], found["off_peak"]))


class Loads:
    """Only what bounds ask of traffic that counts."""

    ids = None

    def __init__(self, windows):
        self.windows = windows
        self.totals = windows.sum(axis=0)
        self.experts = windows.shape[2]


def test_placed_loads_are_shared_by_copies():
    from moesim.spec.placement import Placement

    placement = Placement(np.array([[0, 1, 2, 0]]), 2)
    found = bounds.placed(np.array([[[6.0, 1.0, 2.0]]]), placement)

    assert found.tolist() == [[[4.0, 5.0]]]


def test_batches_are_the_same_every_time_and_hold_their_tokens(traffic):
    found = traffic(uniform())
    one, two = draw_batches(found), draw_batches(found)

    assert list(one) == [64, 256, 1024]
    for size, counts in one.items():
        assert np.array_equal(counts, two[size])
        assert (counts.sum(axis=2) == size * 4).all()
    assert ranks(found, one, [8])["8"]["passes"]["count"] == 60


def test_a_batch_as_large_as_the_log_is_the_log(traffic):
    """No token is drawn twice."""
    found = traffic(uniform(tokens=1024))

    assert (draw_batches(found)[1024] == found.totals).all()


def test_two_logs_are_compared_with_how_each_agrees_with_itself(traffic):
    """The less steady of the two sets the measure."""
    steady = traffic(skewed(2000))
    both = np.concatenate([skewed(1000), skewed(1000, hot=range(8, 12), seed=1)])
    found = classes([steady, traffic(both, "other.npz")])

    assert found["halves"] < 0.7 < found["cosine"] < 0.95
    assert classes([steady]) is None


def test_two_models_are_not_pooled(traffic):
    one = traffic(uniform())
    with pytest.raises(InputError, match="one model"):
        pooled([one, traffic(uniform(layers=3), "other.npz")])


def test_what_does_not_fit_is_refused_together(traffic):
    found = traffic(uniform())
    with pytest.raises(InputError) as caught:
        diagnose([found], GPU, [8], 8, load_model("mixtral-8x7b"))
    assert len(caught.value.problems) == 2
    with pytest.raises(InputError, match="2 to 32 GPUs"):
        diagnose([found], GPU, [64])


def test_the_page_needs_nothing_else_and_trusts_no_name(traffic):
    """No script, no link; a hostile name is text."""
    found = replace(traffic(uniform()), name="<script>alert(1)</script>")
    text = page(diagnose([found], GPU, [8]), {"heat_map": b"\x89PNG"})

    assert "<script" not in text
    assert "http" not in text
    assert 'src="data:image/png;base64,' in text
    assert text.count("<h2>") == text.count("</h2>")


def test_every_finding_has_evidence_and_a_next_command(intent):
    ranked = [item["stake"] or 0.0 for item in intent["findings"]]

    assert ranked == sorted(ranked, reverse=True)
    assert [item["rank"] for item in intent["findings"]] == list(
        range(1, len(ranked) + 1)
    )
    for item in intent["findings"]:
        assert item["evidence"]
        assert item["next"].startswith("moesim ")


def test_one_expert_is_nothing_to_balance(tmp_path):
    """Refused in words: a log may well count a single one."""
    path = tmp_path / "one.csv"
    path.write_text("layer,expert,count\n0,0,5\n")
    with pytest.raises(InputError, match="two are needed"):
        diagnose([traffic_of(read_log(path))], load_gpu("h100"))
