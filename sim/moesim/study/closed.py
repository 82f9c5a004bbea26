"""What a saturated instance should do by arithmetic alone, and which resource binds it.

Every rank serves as many equal requests at once as it may: a *cycle* of them takes one
pass a token, and in some of those passes prompts of the next are computed. Routing is
uniform and at its mean, so no GPU waits for another.
"""

from dataclasses import dataclass
from math import ceil

from moesim.cost.binding import RESOURCES, binding, even_seconds, pass_shares
from moesim.cost.even import EvenBatch, even_load
from moesim.cost.memory import blocks_for
from moesim.scenario.load import Scenario
from moesim.scenario.pieces import policy_of, serving_of
from moesim.scenario.system import system_of
from moesim.spec.serving import ServingSpec
from moesim.spec.system import System

FORESEEN = (
    *("output_tput_per_gpu", "mean_tpot_ms", "p50_itl_ms"),
    *("binding", "binding_decode"),
)
"""What a closed form tells, by keys of a record."""
FULL = "KV cache"
"""What binds when fewer requests than are wanted fit into memory."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """Equal requests that a rank serves over and over.

    Parameters
    ----------
    wanted, sequences : int
        Requests that a rank may serve at once, and that its memory holds.
    prompt, output : int
        Tokens of each.
    budget : int
        Tokens of a pass at most.
    """

    wanted: int
    sequences: int
    prompt: int
    output: int
    budget: int

    @property
    def decode(self) -> EvenBatch:
        """A pass in which all decode, in the middle of their outputs."""
        start = self.prompt + self.output // 2 - 1
        return EvenBatch(self.sequences, 1, start)

    @property
    def arrivals(self) -> float:
        """Prompts in each pass that has some: all at once, or what the budget holds."""
        room = max(self.budget - self.sequences, 1) / self.prompt
        return min(float(self.sequences), room)

    @property
    def mixed(self) -> list[EvenBatch]:
        """A pass in which some prompts, or a part of one, are computed beside decode."""
        new = self.arrivals
        rest = EvenBatch(max(self.sequences - new, 0.0), 1, self.decode.start)
        if new >= 1:
            return [EvenBatch(new, self.prompt, 0), rest]
        chunk = max(self.budget - self.sequences, 1)
        return [EvenBatch(1, chunk, (self.prompt - chunk) // 2), rest]


def refusal(scenario: Scenario) -> str:
    """Return why there is no closed form of a scenario, or nothing if there is one."""
    workload, serving = scenario.workload, scenario.serving
    policy = policy_of(scenario)
    lengths = (workload.input_len, workload.output_len)
    wrong = {
        "routing is not uniform": scenario.routing["name"] != "uniform",
        "requests do not all arrive at once": workload.arrivals["type"] != "batch"
        or workload.max_concurrency > 0,
        "lengths differ": any(table["type"] != "constant" for table in lengths),
        "nobody decodes": workload.output_len.get("value", 2) < 2,
        "serving is not continuous": serving.mode != "continuous",
        "prompts may not be cut": not serving.chunked_prefill,
        "several micro-batches are in flight": serving.max_in_flight > 1,
        "stages are in lockstep": "lockstep" in (serving.coupling, policy.coupling),
        "the policy changes choices of experts": policy.changes_outputs,
        "GPUs are unequal": any(
            speed != 1 for speed in scenario.cluster.speed.values()
        ),
        "experts move": scenario.placement.rebalance is not None,
        "experts are not all in device memory": scenario.residency is not None,
        "memory has rules of its own": scenario.memory is not None,
        "shared experts are dispatched": system_of(scenario).shared_experts
        not in ("before", "overlapped"),
    }
    return next((reason for reason, is_so in wrong.items() if is_so), "")


def closed_form(scenario: Scenario) -> dict[str, float | str]:
    """Return what a saturated run of a scenario should measure, by keys of its record.

    Returns
    -------
    dict
        ``output_tput_per_gpu``, ``mean_tpot_ms``, ``p50_itl_ms`` (a pass in which all
        decode), ``binding``: `FULL`, or what binds the cycle, all its passes together,
        and ``binding_decode``: what binds the pass in which all decode.
    """
    system = system_of(scenario)
    cycle = cycle_of(scenario, serving_of(scenario, system), system)
    decode = even_seconds([cycle.decode], system)
    mixed = even_seconds(cycle.mixed, system)
    own = max(1.0, 1.0 / cycle.arrivals)
    with_prompts = cycle.sequences / cycle.arrivals
    passes = max(cycle.output - 1 + own, with_prompts)
    period = with_prompts * mixed + (passes - with_prompts) * decode
    parts = [
        (with_prompts * mixed, pass_shares(even_load(cycle.mixed, system), system)),
        (
            (passes - with_prompts) * decode,
            pass_shares(even_load([cycle.decode], system), system),
        ),
    ]
    together = {
        name: sum(seconds * shares[name] for seconds, shares in parts)
        for name in RESOURCES
    }
    made = cycle.sequences * cycle.output / system.tensor_parallel
    return {
        "output_tput_per_gpu": made / period,
        "mean_tpot_ms": 1e3 * (period - own * mixed) / (cycle.output - 1),
        "p50_itl_ms": 1e3 * decode,
        "binding": FULL if cycle.sequences < cycle.wanted else binding(together),
        "binding_decode": binding(parts[1][1]),
    }


def cycle_of(scenario: Scenario, serving: ServingSpec, system: System) -> Cycle:
    """Return what each rank of a saturated run does over and over.

    A rank wants what it may serve at once, of no more requests than there are.
    """
    prompt = int(scenario.workload.input_len["value"])
    output = int(scenario.workload.output_len["value"])
    there = ceil(scenario.workload.num_prompts / system.ranks)
    wanted = min(serving.max_num_seqs, there)
    each = blocks_for(prompt + output - 1, serving.block_size)
    held = min(wanted, serving.kv_blocks // each)
    return Cycle(wanted, held, prompt, output, serving.max_num_batched_tokens)
