"""The clusters that the benchmark simulates, as scenarios; and passes recorded there."""

from copy import deepcopy
from dataclasses import dataclass

import moesim
from moesim.engine.instance import Instance
from moesim.errors import InputError
from moesim.policy.bundle import make_policy
from moesim.scenario.build import build

TEXT = """
model: {model}
cluster: {{gpu: {gpu}, nodes: {nodes}, gpus_per_node: 8}}
precision: {precision}
placement: {{name: contiguous, redundant_experts: {redundant}}}
routing: {routing}
workload:
  num_prompts: {requests}
  arrivals: batch
  max_concurrency: {concurrency}
  input_len: 1
  output_len: {outputs}
serving: {{max_num_batched_tokens: {batch}, max_in_flight: 2}}
"""
TOKENS = "{name: lognormal, sigma: 1.0}"
COUNTS = "{name: lognormal, sigma: 1.0, draw: counts}"


@dataclass(frozen=True)
class Cluster:
    """A model on GPUs that decode in two groups of `batch` requests a GPU.

    Parameters
    ----------
    passes : int
        How many are played by both engines in one round.
    turns : int
        Mean output tokens of a request in whole runs.
    share : float
        Part of the seats that is taken.
    """

    name: str
    model: str
    gpu: str
    nodes: int
    precision: str
    redundant: int
    batch: int
    passes: int
    turns: int
    share: float = 1.0

    @property
    def gpus(self):
        return self.nodes * 8

    @property
    def seats(self):
        """Requests that are served at once, in two groups of passes."""
        return int(2 * self.batch * self.gpus * self.share)

    def scenario(self, requests=0, outputs=None, routing=TOKENS, **changes):
        """Return the cluster kept full until its requests are used up."""
        turns = self.turns
        spread = f"{{type: uniform, min: {turns // 2}, max: {turns + turns // 2}}}"
        text = TEXT.format(
            model=self.model,
            gpu=self.gpu,
            nodes=self.nodes,
            precision=self.precision,
            redundant=self.redundant,
            batch=self.batch,
            requests=requests or self.seats + self.seats // 2,
            concurrency=self.seats,
            outputs=outputs or spread,
            routing=routing,
        )
        scenario = moesim.load_text(text, name=self.name)
        return scenario.with_(changes) if changes else scenario


V3 = ("deepseek-v3", "h800")
CLUSTERS = [
    Cluster("seed-8x32", "seed-8x32", "h100", 1, "bf16", 0, 16, 40, 32),
    Cluster("mixtral-8", "mixtral-8x7b", "h100", 1, "bf16", 0, 16, 20, 16),
    Cluster("dsv3-ep32", *V3, 4, "fp8", 32, 32, 8, 6),
    Cluster("dsv3-ep72", *V3, 9, "fp8", 32, 32, 6, 4),
    Cluster("dsv3-ep144", *V3, 18, "fp8", 32, 32, 4, 4),
    Cluster("dsv3-ep320", *V3, 40, "fp8", 64, 32, 2, 2),
]
THIN = Cluster("dsv3-ep144-thin", *V3, 18, "fp8", 32, 32, 4, 6, 1 / 128)
"""Most GPUs have no token of their own: how a cluster starts, ends, and idles."""
BY_NAME = {cluster.name: cluster for cluster in CLUSTERS}


def counts_allowed():
    """Tell whether a scenario may ask for counts of tokens instead of tokens."""
    try:
        BY_NAME["seed-8x32"].scenario(routing=COUNTS)
    except InputError:
        return False
    return True


def instance_of(scenario, policy="fifo"):
    parts = build(scenario, scenario.seed)
    made = make_policy(policy)
    return Instance(parts.system, parts.serving, parts.source, parts.requests, made)


class Tape:
    """Hands micro-batches on to an engine and keeps copies of them."""

    def __init__(self, engine):
        self.engine = engine
        self.batches = []

    def admit(self, batch, on_done):
        self.batches.append(deepcopy(batch))
        self.engine.admit(batch, on_done)


def recorded(scenario, count):
    """Return the system of a scenario and its first passes, routed and priced."""
    instance = instance_of(scenario)
    tape = instance.engine = Tape(instance.engine)
    while len(tape.batches) < count:
        instance.clock.step()
    return instance.recorder.system, tape.batches[:count]
