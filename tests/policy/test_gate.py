"""Gates: what they do to routers, how loads answer, and where they are refused."""

import numpy as np
import pytest

import moesim
from moesim.errors import InputError
from moesim.policy.bundle import Policy, make_policy
from moesim.policy.catalogue import POLICIES, keeps_outputs
from moesim.policy.gate import GateTemperature, ProportionalBias, SignBias
from moesim.policy.order import Oldest
from moesim.policy.steer import Steered, steered
from moesim.routing.bend import Bend
from moesim.routing.catalogue import SOURCES
from moesim.routing.source import TokenKeys, count
from moesim.scenario.load import load_text

SYNTHETIC = ["uniform", "zipf", "lognormal", "by_class", "latent"]


def source_of(name="zipf", layers=3, experts=16, top_k=2, **more):
    return SOURCES[name](layers=layers, experts=experts, top_k=top_k, seed=5, **more)


def keys_of(tokens, request=0):
    number = np.arange(tokens)
    return TokenKeys(np.full(tokens, request), number % 3, number)


def test_the_sign_rule_by_hand():
    """Up below the mean of 4, down above it, and nothing at it."""
    bias = np.array([[0.5, 0.0, 0.0, 0.0]])
    seen = np.array([[9, 4, 3, 0]])

    found = SignBias(0.01).steer(bias, seen)

    np.testing.assert_allclose(found, [[0.49, 0.0, 0.01, 0.01]])


def test_the_proportional_rule_by_hand():
    """Excess over the mean of 4 as a share of it, times 0.1; an even layer stays."""
    bias = np.zeros((3, 4))
    # Standard deviations over the mean: 0.79, 0.18 and, exactly at the threshold, 0.3.
    seen = np.array([[9, 4, 3, 0], [5, 4, 4, 3], [13, 7, 13, 7]])

    found = ProportionalBias().steer(bias, seen)

    np.testing.assert_allclose(found[0], [-0.125, 0.0, 0.025, 0.1])
    assert not found[1].any()
    np.testing.assert_allclose(found[2], [-0.03, 0.03, -0.03, 0.03])


def test_a_layer_without_tokens_teaches_nothing():
    seen = np.zeros((1, 4), int)

    for gate in (SignBias(), ProportionalBias()):
        assert not gate.steer(np.zeros((1, 4)), seen).any()


def test_a_bend_by_hand():
    """Weights 1, 4, 16 at temperature 2 are as 1, 2, 4; a bias of log 2 doubles one."""
    bias = np.array([[0.0, np.log(2), 0.0]])

    found = Bend(bias, 2.0).weights(np.array([[1.0, 4.0, 16.0]]))

    np.testing.assert_allclose(found[0] / found[0, 0], [1, 4, 4])


def test_every_expert_can_still_be_drawn():
    """However far a bend goes, no weight is 0."""
    found = Bend(np.array([[0.0, -1e9]]), 1e-3).weights(np.array([[1.0, 2.0]]))

    assert (found > 0).all()


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_bias_moves_tokens_to_its_expert_in_its_layer_alone(name):
    """Expert 3 of layer 1 becomes the favourite; other layers route as before."""
    source = source_of(name)
    policy = Policy("push", gate=Push(1, 3, 8.0))
    gated = steered(source, policy)
    keys = keys_of(400)
    before = source.route(keys)
    np.testing.assert_array_equal(gated.route(keys), before)

    gated.learn(np.zeros((3, 16), int))
    after = gated.route(keys)

    np.testing.assert_array_equal(after[:, [0, 2]], before[:, [0, 2]])
    assert count(after, 16)[1, 3] > 0.95 * 400
    assert gated.taste(keys)[1].shape == (400, 3)


class Push:
    def __init__(self, layer, expert, amount):
        self.at, self.amount = (layer, expert), amount

    def steer(self, bias, seen):
        bias = bias.copy()
        bias[self.at] += self.amount
        return bias


def fill(bias, seen):
    return np.ones(3)


@pytest.mark.parametrize("temperature", [0.5, 2.0, 100.0])
def test_temperature_evens_or_sharpens(temperature):
    """Above 1 the busiest expert gets less, below 1 more; at 100 all are alike."""
    source, keys = source_of(exponent=1.0), keys_of(4000)
    gated = steered(source, Policy("t", gate=GateTemperature(temperature)))

    plain, bent = (count(s.route(keys), 16).max() / 500 for s in (source, gated))

    assert (bent < plain) == (temperature > 1)
    if temperature == 100:
        assert bent < 1.25


def test_temperature_is_that_of_the_exponent():
    """Zipf 1 at temperature 2 is Zipf 1/2, to the last choice."""
    keys = keys_of(500)
    gated = steered(source_of(exponent=1.0), Policy("t", gate=GateTemperature(2.0)))

    same = gated.route(keys) == source_of(exponent=0.5).route(keys)

    assert same.mean() > 0.999  # tables are rounded at 2**-32


@pytest.mark.parametrize(
    ("gate", "bound"), [(SignBias(0.02), 1.10), (ProportionalBias(), 1.55)]
)
def test_bias_drives_the_loads_of_a_skewed_source_together(gate, bound):
    """Max over mean of what is to be expected falls towards 1, or to the threshold.

    Passes of 2000 tokens; expectation measured with 20000 tokens that nobody learns
    from. The proportional rule stops at a coefficient of variation of 0.3.
    """
    gated = steered(source_of(layers=1, exponent=1.0), Policy("b", gate=gate))
    probe = keys_of(20_000, request=10**6)
    curve = []
    for number in range(201):
        if number % 50 == 0:
            seen = count(gated.route(probe), 16)[0]
            curve.append(seen.max() / seen.mean())
        gated.learn(count(gated.route(keys_of(2000, number)), 16))

    assert curve[0] > 3
    assert curve == sorted(curve, reverse=True) or max(np.diff(curve)) < 0.05
    assert curve[-1] < bound


TEXT = """
model: deepseek-v2-lite
cluster: {gpu: h100, nodes: 1, gpus_per_node: 8}
routing: {name: zipf, exponent: 0.8}
workload: {num_prompts: 24, input_len: 100, output_len: 6}
serving: {max_num_batched_tokens: 256, max_in_flight: 2}
"""


@pytest.fixture(scope="module")
def scenario():
    return load_text(TEXT)


@pytest.mark.parametrize(
    "policy",
    [
        {"name": "sign_bias", "rate": 0},
        {"name": "proportional_bias", "rate": 0},
        {"name": "gate_temperature", "temperature": 1},
    ],
    ids=lambda policy: policy["name"],
)
def test_a_gate_that_does_nothing_is_fifo(scenario, policy):
    """The same events, to the last tick."""
    gated, plain = moesim.run(scenario, policy=policy), moesim.run(scenario)

    assert gated.manifest["event_digests"] == plain.manifest["event_digests"]


@pytest.mark.parametrize("name", ["sign_bias", "proportional_bias"])
def test_both_engines_learn_alike(scenario, name):
    """What passes teach does not depend on how they are played."""
    policy = {"name": name, "rate": 0.1}
    runs = [
        moesim.run(scenario.with_({"serving.engine": engine}), policy=policy)
        for engine in ("event", "array")
    ]
    plain = moesim.run(scenario)

    assert runs[0].manifest["event_digests"] == runs[1].manifest["event_digests"]
    gain = runs[0].summary["balancedness_vllm"] - plain.summary["balancedness_vllm"]
    assert gain > 0.003


def test_replications_do_not_learn_from_each_other(scenario):
    """Each starts with routers as they are."""
    policy = {"name": "sign_bias", "rate": 0.1}
    both = moesim.run(scenario, policy=policy, replications=2)
    second = moesim.run(scenario.with_(seed=1), policy=policy)

    assert both.manifest["event_digests"][1:] == second.manifest["event_digests"]


def test_an_oracle_knows_the_bent_router(scenario):
    """Knowledge of the path is of the one that will be taken."""
    policy = Policy("both", order=Oldest(), gate=GateTemperature(3.0))

    assert isinstance(steered(source_of(), policy), Steered)
    run = moesim.run(scenario, policy=policy)
    assert run.summary["model_outputs"] == "changed"


def test_who_changes_outputs_says_so():
    """In the list of policies, and in every record."""
    changing = {name for name in POLICIES if not keeps_outputs(name)}

    assert changing == {
        "capacity",
        "sign_bias",
        "proportional_bias",
        "gate_temperature",
    }
    for name in POLICIES:
        assert make_policy(name).changes_outputs == (name in changing)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.npz"
    rng = np.random.default_rng(0)
    ids = rng.random((240, 26, 64)).argsort(axis=2)[:, :, :6].astype(np.uint16)
    np.savez(path, expert_ids=ids, seq_lens=np.full(24, 10))
    return path


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("sign_bias", "choices that were made"),
        ("proportional_bias", "choices that were made"),
        ("gate_temperature", "choices that were made"),
        ({"name": "capacity", "overflow": "reroute"}, "use overflow: drop"),
    ],
)
def test_a_replayed_log_is_not_bent(scenario, log, policy, said):
    """Its tokens made their choices; only dropping takes nothing that is not there."""
    replayed = scenario.with_(
        routing={"name": "log", "path": str(log)}, num_prompts=24, input_len=8
    )
    with pytest.raises(InputError, match=said):
        replayed.with_(policy=policy)

    dropped = moesim.run(replayed, policy="capacity").summary["dropped_frac"]
    assert dropped > 0


@pytest.mark.parametrize("name", ["sign_bias", "proportional_bias", "gate_temperature"])
def test_counts_do_not_suffice_for_a_gate(scenario, name):
    with pytest.raises(InputError, match="choices of single tokens"):
        scenario.with_({"policy": name, "routing.draw": "counts"})


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"name": "gate_temperature", "temperature": 0}, "a number from 0.001"),
        ({"name": "sign_bias", "rate": -1}, "rate is a number from 0"),
        ({"name": "proportional_bias", "threshold": "x"}, "threshold is a number"),
    ],
)
def test_bad_parameters_are_refused(policy, said):
    with pytest.raises(InputError, match=said):
        make_policy(policy)


class Broken:
    def steer(self, bias, seen):
        return bias[:1] * np.nan


def test_a_gate_of_one_s_own_must_give_a_bias(scenario):
    with pytest.raises(InputError, match="finite numbers of shape"):
        moesim.run(scenario, policy=Broken())
