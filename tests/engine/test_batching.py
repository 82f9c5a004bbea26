"""Batching loses no request, no token and no block, whatever it is asked."""

from itertools import count as counting
from itertools import repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from moesim.engine.batch.batcher import MOST_PREEMPTIONS, Batcher
from moesim.engine.batch.seats import FLIGHT, GONE, Seats
from moesim.engine.batch.waiting import WINDOW, checked_row
from moesim.errors import InputError
from moesim.measure.columns import RequestColumns
from moesim.policy.compose import ArrivalOrder
from moesim.spec.memory import MemorySpec
from moesim.spec.serving import ServingSpec
from plain_batcher import PlainBatcher
from worlds import requests_of


class Shuffled:
    """A compose role that tries waiting requests in a new order each time."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def sequence(self, waiting, view):
        return self.rng.permutation(len(waiting.request))


def running_of(batcher):
    """Return the running requests of each rank, in the order in which they came in."""
    seats = batcher.seats.table[:, batcher.seats.flight != GONE]
    return [seats[0, seats[1] == rank].tolist() for rank in range(batcher.ranks)]


def held_of(batcher):
    """Return the KV blocks of each running request."""
    seats = batcher.seats.table[:, batcher.seats.flight != GONE]
    return dict(zip(seats[0].tolist(), seats[4].tolist(), strict=True))


def waiting_of(batcher):
    """Return the requests that wait at each rank, outside a cohort."""
    return [line.tolist() for line in batcher.waiting.lines]


def cohort_of(batcher):
    """Return the requests of each rank's open static batch that wait."""
    waiting = batcher.waiting
    return [line.tolist() for line in waiting.open] if waiting.size else []


class Ledger:
    """A batcher, and a plain account of all that it may have done."""

    def __init__(self, inputs, outputs, ranks, compose, **limits):
        requests = requests_of(np.zeros(len(inputs)), inputs, outputs)
        self.batcher = Batcher(RequestColumns(requests), ServingSpec(**limits), ranks)
        self.serving, self.compose, self.ranks = self.batcher.serving, compose, ranks
        self.inputs, self.now = list(inputs), 0
        only_first = self.serving.mode == "prefill_only"
        self.outputs = [1] * len(inputs) if only_first else list(outputs)
        self.refused = [bool(self.batcher.refusal(q)) for q in range(len(inputs))]
        self.rank, self.ended, self.flights, self.passes = {}, [], [], 0
        self.done = [0] * len(inputs)
        self.made = [0] * len(inputs)
        self.seen = [0] * len(inputs)
        self.arrived = []
        self.whole = [0] * len(inputs)  # what it knew as it came in: all gets blocks

    def enqueue(self, rank):
        """Let the next request come; return whether there was one."""
        request = len(self.arrived)
        if request == len(self.inputs):
            return False
        self.arrived.append(request)
        if not self.refused[request]:
            self.batcher.enqueue(request, rank, self.now)
            self.rank[request] = rank
        return True

    def draft(self):
        """Draft a pass and check what it holds; return it, or None."""
        self.now += 10**6
        running = [set(row) for row in running_of(self.batcher)]
        draft = self.batcher.draft(self.passes, self.now, self.compose)
        self.note_preemptions()
        if draft is None:
            return None
        rows = list(zip(draft.requests.tolist(), draft.chunk.tolist(), strict=True))
        for request, _ in rows:
            if request not in running[self.rank[request]] or not self.done[request]:
                self.whole[request] = self.inputs[request] + self.made[request]
        self.check_rows(draft, rows)
        self.check_limits(rows, running)
        self.check_padding(draft)
        self.passes += 1
        self.flights.append((draft, dict(rows)))
        return draft

    def note_preemptions(self):
        """Take back what was computed of requests that were put back to wait."""
        flying = {q for _, rows in self.flights for q in rows}
        for request, count in enumerate(self.batcher.rows.preemptions.tolist()):
            if count > self.seen[request]:
                assert request not in flying
                self.done[request] = 0
                self.seen[request] = count

    def check_rows(self, draft, rows):
        """Chunks begin where the last one ended, and never pass what is known."""
        flying = {q for _, old in self.flights for q in old}
        assert len(dict(rows)) == len(rows)
        for (request, chunk), start, rank, samples in zip(
            rows,
            draft.start.tolist(),
            draft.rank.tolist(),
            draft.samples.tolist(),
            strict=True,
        ):
            known = self.inputs[request] + self.made[request]

            assert request not in flying
            assert start == self.done[request]
            assert 1 <= chunk <= known - start
            assert samples == (start + chunk == known)
            assert rank == self.rank[request]
            if not self.serving.chunked_prefill:
                assert samples
        assert draft.number == self.passes
        assert draft.now == self.now

    def check_limits(self, rows, running):
        limit = self.serving.max_num_batched_tokens
        for rank in range(self.ranks):
            mine = [(q, c) for q, c in rows if self.rank[q] == rank]
            alone_anew = len(mine) == 1 and self.seen[mine[0][0]]
            if self.serving.chunked_prefill or not alone_anew:
                assert sum(chunk for _, chunk in mine) <= limit
            old = [q for q, _ in mine if q in running[rank]]
            assert len(old) <= -(-len(running[rank]) // self.serving.max_in_flight)
            assert self.batcher.running[rank] <= self.serving.max_num_seqs

    def check_padding(self, draft):
        rows = np.bincount(draft.rank, draft.chunk, self.ranks).astype(int)
        if self.serving.padding == "none":
            assert not draft.padding.any()
        elif self.serving.mode != "static":
            assert (rows + draft.padding == rows.max()).all()
        else:
            assert (draft.padding >= 0).all()

    def land(self, index):
        """Land a flight, in any order, and check what it says of its requests."""
        draft, rows = self.flights.pop(index)
        gained, ended = self.batcher.land(draft.number)
        expected_gained, expected_ended = [], []
        for request, chunk in rows.items():
            self.done[request] += chunk
            if self.done[request] == self.inputs[request] + self.made[request]:
                self.made[request] += 1
                expected_gained.append(request)
                if self.made[request] == self.outputs[request]:
                    expected_ended.append(request)

        assert gained.tolist() == expected_gained
        assert ended.tolist() == expected_ended
        self.ended += expected_ended

    def check(self):
        """Assert that requests, blocks and counters add up."""
        batcher = self.batcher
        held = held_of(batcher)
        queues = (waiting_of(batcher), cohort_of(batcher), running_of(batcher))
        places = [q for queue in queues for row in queue for q in row]
        alive = [q for q in self.rank if q not in self.ended]
        assert sorted(places) == sorted(alive)
        flying = {q: c for _, rows in self.flights for q, c in rows.items()}
        for rank in range(self.ranks):
            running = running_of(batcher)[rank]
            size = self.serving.block_size
            tokens = {q: self.done[q] + flying.get(q, 0) for q in running}
            blocks = {q: -(-max(n, self.whole[q]) // size) for q, n in tokens.items()}
            left = [
                self.inputs[q] + self.outputs[q] - 1 - self.done[q]
                for q in alive
                if self.rank[q] == rank
            ]

            assert {q: held[q] for q in running} == blocks
            assert batcher.running[rank] == len(running)
            assert batcher.pool.free[rank] == batcher.pool.blocks - sum(blocks.values())
            assert batcher.pool.free[rank] >= 0
            assert batcher.view().tokens[rank] == sum(left)
            assert batcher.view().kv_blocks[rank] == sum(blocks.values())
        assert sum(held.values()) == (batcher.pool.blocks - batcher.pool.free).sum()
        assert len(batcher.waiting) + batcher.running.sum() == len(alive)

    def drain(self, rng):
        """Let everything come and end; fail if nothing can happen before that."""
        while self.enqueue(int(rng.integers(self.ranks))):
            pass
        budget = 200 + 4 * sum(self.inputs) * sum(self.outputs)
        while len(self.ended) + sum(self.refused) < len(self.inputs):
            budget -= 1
            assert budget, "no progress"
            if self.draft() is None:
                assert self.flights, "nothing can run, and nothing is in flight"
            if self.flights and rng.random() < 0.6:
                self.land(int(rng.integers(len(self.flights))))
            self.check()
        self.check()
        assert not self.flights
        assert not held_of(self.batcher)
        assert not self.batcher.outstanding.any()
        assert self.made == [
            0 if refused else count
            for count, refused in zip(self.outputs, self.refused, strict=True)
        ]


@st.composite
def ledgers(draw):
    """Tiny pools and budgets, so that everything runs out all the time."""
    count = draw(st.integers(1, 8))
    sizes = st.lists(st.integers(1, 9), min_size=count, max_size=count)
    inputs, outputs = draw(sizes), draw(sizes)
    shuffled = draw(st.booleans())
    return Ledger(
        inputs,
        outputs,
        ranks=draw(st.integers(1, 3)),
        compose=Shuffled(draw(st.integers(0, 99))) if shuffled else ArrivalOrder(),
        mode=draw(st.sampled_from(["continuous", "prefill_only", "static"])),
        max_num_batched_tokens=draw(st.integers(1, 12)),
        max_num_seqs=draw(st.integers(1, 5)),
        chunked_prefill=draw(st.booleans()),
        block_size=draw(st.integers(1, 4)),
        kv_blocks=draw(st.integers(1, 10)),
        padding=draw(st.sampled_from(["none", "masked", "routed"])),
        max_in_flight=draw(st.integers(1, 4)),
    )


@settings(max_examples=1000, deadline=None)
@given(ledgers(), st.integers(0, 2**32 - 1))
def test_every_request_ends_and_nothing_is_lost(ledger, seed):
    """Drafts and landings in any order end every request, in any mode."""
    ledger.drain(np.random.default_rng(seed))


class Batching(RuleBasedStateMachine):
    """Arrivals, drafts and landings as an adversary likes them; then all must end."""

    @initialize(ledger=ledgers())
    def begin(self, ledger):
        self.ledger = ledger

    @rule(rank=st.integers(0, 2))
    def arrive(self, rank):
        self.ledger.enqueue(rank % self.ledger.ranks)

    @rule()
    def draft(self):
        self.ledger.draft()

    @precondition(lambda self: self.ledger.flights)
    @rule(data=st.data())
    def land(self, data):
        last = len(self.ledger.flights) - 1
        self.ledger.land(data.draw(st.integers(0, last)))

    @invariant()
    def everything_adds_up(self):
        if hasattr(self, "ledger"):
            self.ledger.check()

    def teardown(self):
        if hasattr(self, "ledger"):
            self.ledger.drain(np.random.default_rng(0))


TestBatching = Batching.TestCase
TestBatching.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None
)


def batcher_of(inputs, outputs, ranks=1, **limits):
    """Return a batcher with all requests waiting at rank 0, or dealt to the ranks."""
    count = len(inputs)
    rows = RequestColumns(requests_of(np.zeros(count), inputs, outputs))
    batcher = Batcher(rows, ServingSpec(**limits), ranks)
    for request in range(count):
        batcher.enqueue(request, request % ranks, 0)
    return batcher


INSTANTS = counting(1)
NUMBERS = counting()
FLYING = {}
"""Numbers of the passes in the air, by their requests."""


def drafted(batcher, compose=None, instants=INSTANTS):
    """Return ``{request: chunk}`` of the next pass, which takes off an instant later."""
    number = next(NUMBERS)
    draft = batcher.draft(number, next(instants), compose or ArrivalOrder())
    if draft is None:
        return {}
    FLYING[tuple(draft.requests.tolist())] = number
    return dict(zip(draft.requests.tolist(), draft.chunk.tolist(), strict=True))


def landed(batcher, rows):
    gained, ended = batcher.land(FLYING.pop(tuple(rows)))
    return gained.tolist(), ended.tolist()


def test_a_prompt_is_cut_to_fill_the_budget():
    batcher = batcher_of([5, 9], [2, 2], max_num_batched_tokens=8)

    assert drafted(batcher) == {0: 5, 1: 3}


def test_decodes_come_before_prompts():
    """What runs goes first; a waiting prompt gets what is left of the budget."""
    batcher = batcher_of([2, 3], [5, 5], max_num_batched_tokens=4, max_num_seqs=2)
    first = drafted(batcher)
    landed(batcher, first)

    assert first == {0: 2, 1: 2}
    assert drafted(batcher) == {0: 1, 1: 1}


def test_a_prompt_that_may_not_be_cut_waits_for_a_pass_with_room():
    batcher = batcher_of(
        [5, 9], [2, 2], max_num_batched_tokens=10, chunked_prefill=False
    )
    first = drafted(batcher)
    landed(batcher, first)
    second = drafted(batcher)

    assert first == {0: 5}
    assert second == {0: 1, 1: 9}


def test_nobody_overtakes_a_request_that_does_not_fit():
    """Small ones behind it wait too: the order is the compose role's."""
    batcher = batcher_of([4, 40, 4], [1, 1, 1], block_size=4, kv_blocks=11)

    assert drafted(batcher) == {0: 4, 1: 40}
    batcher = batcher_of([4, 40, 4], [1, 1, 1], block_size=4, kv_blocks=10)
    assert drafted(batcher) == {0: 4}


def test_seats_are_limited():
    """Requests being served, in flight or not, count against max_num_seqs."""
    batcher = batcher_of([1] * 5, [3] * 5, max_num_seqs=3)
    first = drafted(batcher)

    assert first == {0: 1, 1: 1, 2: 1}
    assert drafted(batcher) == {}


def test_running_requests_are_shared_among_the_micro_batches():
    """With two in flight each takes half, rounded up; the second takes the rest."""
    batcher = batcher_of([1] * 5, [9] * 5, max_in_flight=2)
    landed(batcher, drafted(batcher))

    halves = [list(drafted(batcher)) for _ in range(2)]

    assert halves == [[0, 1, 2], [3, 4]]


def test_a_micro_batch_that_lands_large_leaves_some_to_the_next():
    """Two micro-batches of unequal size are of equal size a round later."""
    batcher = batcher_of([1] * 7, [9] * 7, max_in_flight=2, max_num_batched_tokens=6)
    first = drafted(batcher)
    second = drafted(batcher)
    assert (len(first), len(second)) == (6, 1)

    landed(batcher, first)
    third = drafted(batcher)
    landed(batcher, second)
    fourth = drafted(batcher)

    assert (list(third), list(fourth)) == ([0, 1, 2, 3], [4, 5, 6])


def test_a_request_is_in_one_micro_batch_at_a_time():
    batcher = batcher_of([3, 3], [4, 4])
    drafted(batcher)

    assert drafted(batcher) == {}


def test_the_youngest_gives_way_and_starts_again_first():
    """A preempted request waits at the head, and computes all it knows anew."""
    batcher = batcher_of(
        [4, 4, 1], [5, 5, 1], block_size=2, kv_blocks=5, max_num_seqs=2
    )
    landed(batcher, drafted(batcher))

    assert drafted(batcher) == {0: 1}
    assert batcher.rows.preemptions.tolist() == [0, 1, 0]
    assert waiting_of(batcher) == [[1, 2]]
    assert held_of(batcher) == {0: 3}
    for _ in range(3):
        landed(batcher, {0: 1})
        drafted(batcher)
    assert landed(batcher, {0: 1}) == ([0], [0])
    assert drafted(batcher) == {1: 5, 2: 1}


def test_nobody_is_admitted_in_a_pass_that_preempts():
    """Else a cut prompt would take the blocks that were just made free."""
    limits = {"block_size": 2, "kv_blocks": 4, "max_num_batched_tokens": 3}
    batcher = batcher_of([2, 4], [5, 4], **limits)
    passes = []
    for _ in range(5):
        passes.append(drafted(batcher))
        landed(batcher, passes[-1])

    assert passes == [{0: 2, 1: 1}, {0: 1, 1: 2}, {0: 1, 1: 1}, {0: 1}, {0: 1}]
    assert batcher.rows.preemptions.tolist() == [0, 1]


def test_nobody_comes_in_at_the_instant_at_which_somebody_was_put_back():
    """However many micro-batches are formed at that instant."""
    batcher = batcher_of([4, 4, 1], [5, 5, 1], block_size=2, kv_blocks=5)
    landed(batcher, drafted(batcher, instants=repeat(1)))
    first = drafted(batcher, instants=repeat(2))
    again = drafted(batcher, instants=repeat(2))

    assert (first, again) == ({0: 1}, {})
    assert drafted(batcher, instants=repeat(3)) == {}


def test_a_request_in_flight_is_never_preempted():
    """The one that lacks room gives way itself."""
    limits = {"block_size": 2, "kv_blocks": 5, "max_in_flight": 2}
    batcher = batcher_of([4, 4], [5, 5], **limits)
    landed(batcher, drafted(batcher))
    # Request 1 is at the tail; fly request 0 first: it takes the last block.
    assert drafted(batcher) == {0: 1}

    assert drafted(batcher) == {}
    assert batcher.rows.preemptions.tolist() == [0, 1]


def test_a_recomputed_request_may_exceed_the_budget_alone():
    """What may not be cut must run whole, or it would never run again."""
    batcher = batcher_of(
        [4, 4],
        [5, 5],
        block_size=2,
        kv_blocks=5,
        chunked_prefill=False,
        max_num_batched_tokens=4,
    )
    for _ in range(40):
        rows = drafted(batcher)
        if not rows:
            break
        landed(batcher, rows)
        if sum(rows.values()) > 4:
            assert len(rows) == 1
            assert batcher.rows.preemptions[next(iter(rows))]
    assert batcher.outstanding.tolist() == [0]


def test_static_batches_do_not_mix():
    """The next batch starts when the last member of this one has ended."""
    batcher = batcher_of([2, 2, 2], [1, 3, 1], mode="static", max_num_seqs=2)
    passes = []
    while rows := drafted(batcher):
        passes.append(rows)
        landed(batcher, rows)

    assert passes == [{0: 2, 1: 2}, {1: 1}, {1: 1}, {2: 2}]


def test_members_of_a_static_batch_that_ended_are_padded():
    """They keep their rows until the batch ends; the next batch starts without them."""
    limits = {"mode": "static", "max_num_seqs": 2, "padding": "masked"}
    batcher = batcher_of([1, 1, 1, 1, 1], [1, 1, 3, 2, 2], ranks=2, **limits)
    padding = []
    while (draft := batcher.draft(0, 0, ArrivalOrder())) is not None:
        padding.append(draft.padding.tolist())
        batcher.land(0)

    # Requests 0 and 1 end first, then 3, then 2; then 4 runs alone on rank 0.
    assert padding == [[0, 0], [1, 1], [1, 2], [0, 1], [0, 1]]


def test_what_the_assign_role_sees_does_not_change_under_it():
    """A view is a picture of the moment."""
    batcher = batcher_of([3], [2])
    seen = batcher.view()

    landed(batcher, drafted(batcher))

    assert (seen.tokens.tolist(), seen.kv_blocks.tolist()) == ([4], [0])


def test_contiguous_memory_is_seen_in_blocks_and_refused_in_tokens():
    """The pool counts tokens: 21 of them are 6 blocks of 4; 41 do not fit into 40."""
    memory = MemorySpec("contiguous", reserve="exact")
    limits = {"block_size": 4, "kv_blocks": 10, "memory": memory}
    batcher = batcher_of([12, 12], [10, 30], **limits)

    landed(batcher, drafted(batcher))

    assert batcher.view().kv_blocks.tolist() == [6]
    assert batcher.refusal(1) == "needs 41 KV tokens, a rank holds 40"


@pytest.mark.parametrize("padding", ["none", "masked", "routed"])
def test_ranks_are_padded_to_the_largest(padding):
    """None is none; else every rank has as many rows as the largest."""
    batcher = batcher_of([3, 5], [1, 1], ranks=2, padding=padding)

    draft = batcher.draft(0, 0, ArrivalOrder())

    assert draft.padding.tolist() == ([0, 0] if padding == "none" else [2, 0])


def test_prefill_only_ends_with_the_first_token():
    batcher = batcher_of([3], [50], mode="prefill_only")

    assert batcher.outstanding.tolist() == [3]
    assert landed(batcher, drafted(batcher)) == ([0], [0])


class Recorded:
    """A compose role that keeps what it was shown, and reverses it."""

    def __init__(self):
        self.seen = []

    def sequence(self, waiting, view):
        self.seen.append((waiting, view))
        return np.arange(len(waiting.request))[::-1]


def test_waiting_requests_are_tried_in_the_order_of_the_compose_role():
    compose = Recorded()
    batcher = batcher_of([3, 4, 5], [1, 1, 1], max_num_seqs=2)

    assert list(drafted(batcher, compose=compose)) == [2, 1]
    assert waiting_of(batcher) == [[0]]


def test_the_compose_role_sees_who_waits():
    """Requests, classes, arrivals and tokens, longest wait first."""
    compose = Recorded()
    batcher = batcher_of([3, 4], [1, 1])
    batcher.rows.arrival[:] = [25 * 10**10, 5 * 10**11]
    batcher.requests.klass[:] = [1, 0]

    batcher.draft(0, 2 * 10**12, compose)
    ((waiting, view),) = compose.seen

    assert waiting.request.tolist() == [0, 1]
    assert waiting.klass.tolist() == [1, 0]
    assert waiting.arrival_s.tolist() == [0.25, 0.5]
    assert waiting.tokens.tolist() == [3, 4]
    assert view.now_s == 2.0


def test_the_compose_role_sees_a_window_of_those_that_wait_longest():
    """And those beyond it keep their place."""
    compose = Recorded()
    count = WINDOW + 3
    batcher = batcher_of([1] * count, [1] * count, max_num_seqs=2)

    rows = drafted(batcher, compose=compose)

    assert len(compose.seen[0][0].request) == WINDOW
    assert list(rows) == [WINDOW - 1, WINDOW - 2]
    assert waiting_of(batcher) == [[*range(WINDOW - 2), *range(WINDOW, count)]]


def test_the_pass_knows_its_oldest_request():
    batcher = batcher_of([1, 1], [1, 1])
    batcher.rows.arrival[:] = [7 * 10**12, 3 * 10**12]

    assert batcher.draft(0, 0, ArrivalOrder()).oldest_arrival_s == 3.0


def test_an_arrival_is_noted_with_its_rank():
    batcher = batcher_of([1, 1], [1, 1], ranks=2)
    batcher.enqueue(1, 0, 25 * 10**11)

    assert batcher.rows.arrival.tolist() == [0, 25 * 10**11]
    assert batcher.rows.rank.tolist() == [0, 0]


def test_a_request_larger_than_the_pool_is_refused_and_says_why():
    """Prompt and output, in whole blocks; the last token's keys are never computed."""
    limits = {"block_size": 4, "kv_blocks": 3}
    batcher = batcher_of([8, 8, 8], [4, 5, 9], **limits)

    assert batcher.refusal(0) == ""
    assert batcher.refusal(1) == ""
    assert batcher.refusal(2) == "needs 4 KV blocks, a rank holds 3"


def test_a_prompt_that_may_not_be_cut_and_exceeds_the_budget_is_refused():
    limits = {"max_num_batched_tokens": 8}
    whole = batcher_of([8, 9], [1, 1], chunked_prefill=False, **limits)
    cut = batcher_of([8, 9], [1, 1], **limits)

    assert whole.refusal(0) == ""
    assert whole.refusal(1) == "prompt of 9 tokens exceeds 8 and may not be cut"
    assert cut.refusal(1) == ""


def test_prefill_only_needs_room_for_one_token():
    batcher = batcher_of([8], [99], mode="prefill_only", block_size=3, kv_blocks=3)

    assert batcher.refusal(0) == ""


class Twins:
    """The batcher and its plain account under the same traffic, step by step."""

    def __init__(self, rng, inputs, outputs, ranks, compose, limits):
        requests = requests_of(np.zeros(len(inputs)), inputs, outputs)
        serving = ServingSpec(**limits)
        self.rng, self.ranks, self.compose = rng, ranks, compose
        self.rows = RequestColumns(requests)
        self.batcher = Batcher(self.rows, serving, ranks)
        self.plain = PlainBatcher(requests, serving, ranks)
        self.arriving = [q for q in range(len(inputs)) if not self.batcher.refusal(q)]
        self.left = len(self.arriving)
        self.now = self.number = 0
        self.flights = []

    def play(self):
        """Let all come and end, in any order; fail where the two differ."""
        while self.left:
            for _ in range(int(self.rng.integers(1 + len(self.arriving)))):
                self.arrive(self.arriving.pop(0))
            self.now += int(self.rng.integers(2)) * 10**12
            while self.draft() and self.rng.random() < 0.5:
                pass
            while self.flights and self.rng.random() < 0.7:
                self.land(int(self.rng.integers(len(self.flights))))
            self.compare()

    def arrive(self, request):
        rank = int(self.rng.integers(self.ranks))
        for one in (self.batcher, self.plain):
            one.enqueue(request, rank, self.now)

    def draft(self):
        given = (self.number, self.now)
        draft = self.batcher.draft(*given, self.compose())
        plain = self.plain.draft(*given, self.compose())
        assert (draft is None) == (plain is None)
        if draft is None:
            return False
        for name in draft.__slots__:
            mine, theirs = getattr(draft, name), getattr(plain, name)
            assert np.array_equal(mine, theirs), name
            assert getattr(mine, "dtype", 0) == getattr(theirs, "dtype", 0), name
        self.number += 1
        self.flights.append(draft)
        return True

    def land(self, index):
        draft = self.flights.pop(index)
        mine = self.batcher.land(draft.number)
        theirs = self.plain.land(draft.requests, draft.chunk)
        for one, other in zip(mine, theirs, strict=True):
            assert one.tolist() == other.tolist()
        self.left -= len(mine[1])

    def compare(self):
        """Assert that all that others may see is the same."""
        batcher, plain = self.batcher, self.plain
        assert batcher.view().tokens.tolist() == plain.outstanding.tolist()
        assert batcher.pool.free.tolist() == plain.pool.free.tolist()
        assert batcher.pool.peak.tolist() == plain.pool.peak.tolist()
        assert self.rows.preemptions.tolist() == plain.preemptions.tolist()
        assert waiting_of(batcher) == plain.waiting
        assert running_of(batcher) == plain.running
        if batcher.serving.mode == "static":
            assert cohort_of(batcher) == plain.cohort


@st.composite
def twins(draw):
    """Pools and budgets that are tight or not, in every mode."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, longest = draw(st.integers(1, 30)), draw(st.sampled_from([1, 4, 20]))
    order = draw(st.sampled_from([ArrivalOrder, lambda: Shuffled(3)]))
    limits = {
        "mode": draw(st.sampled_from(["continuous", "prefill_only", "static"])),
        "max_num_batched_tokens": draw(st.integers(1, 25)),
        "max_num_seqs": draw(st.integers(1, 8)),
        "chunked_prefill": draw(st.booleans()),
        "block_size": draw(st.integers(1, 5)),
        "kv_blocks": draw(st.sampled_from([3, 8, 30, 10**6])),
        "padding": draw(st.sampled_from(["none", "masked"])),
        "max_in_flight": draw(st.integers(1, 4)),
    }
    inputs, outputs = rng.integers(1, longest + 1, (2, count))
    return Twins(rng, inputs, outputs, draw(st.integers(1, 4)), order, limits)


@settings(max_examples=600, deadline=None)
@given(twins())
def test_drafts_are_those_of_the_plain_batcher(twins):
    """All ranks at once gives what one request after another gives, to the last row."""
    twins.play()


def test_seats_that_were_left_are_forgotten():
    """Memory follows those that run, not those that ever ran."""
    seats = Seats()
    seats.add(np.tile([[0], [0], [1], [0], [1], [1], [5]], 500).astype(np.int32))
    seats.table[FLIGHT, 3:] = GONE

    seats.tidy(3)

    assert len(seats) == 3


def test_preemptions_are_counted_up_to_what_fits():
    """The count stays where it is instead of starting again at 0."""
    batcher = batcher_of([4, 4], [5, 5], block_size=2, kv_blocks=5)
    batcher.rows.preemptions[:] = MOST_PREEMPTIONS
    landed(batcher, drafted(batcher))

    assert drafted(batcher) == {0: 1}
    assert batcher.rows.preemptions.tolist() == [MOST_PREEMPTIONS, MOST_PREEMPTIONS]


@pytest.mark.parametrize("given", [2, -1, 0.5, None, [0], True])
def test_a_rank_that_is_none_is_refused(given):
    """And what is one is taken, whatever its type."""
    with pytest.raises(InputError, match="chose the rows"):
        checked_row(given, 2)
    assert checked_row(np.int64(1), 2) == 1
