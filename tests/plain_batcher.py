"""Continuous batching request by request: slow and plain, to check the batcher against.

A request has *known* tokens (its prompt and what it has generated) and *computed*
ones (whose keys and values are cached). A pass computes some of the difference; when
it computes all of it, the request gains a token. Prefill, chunked prefill, decode and
recomputing after a preemption are all this one rule.

Axes: ``N`` requests, ``R`` data-parallel ranks, ``M`` requests of a pass.
"""

from dataclasses import dataclass

import numpy as np

from moesim.engine.clock import PS_PER_S
from moesim.engine.draft import Draft
from moesim.policy.view import Compose, RankView, View, WaitingView
from moesim.spec.serving import ServingSpec
from moesim.types import Floats, Ints
from moesim.workload.requests import Requests

WINDOW = 256


class PlainPool:
    """Blocks of every rank; a request's blocks all lie on its rank."""

    def __init__(self, ranks: int, requests: int, blocks: int, block_size: int) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.free: Ints = np.full(ranks, blocks)
        self.held: Ints = np.zeros(requests, np.int64)
        self.peak: Ints = np.zeros(ranks, np.int64)

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-tokens // self.block_size)

    def missing(self, request: int, tokens: int) -> int:
        """Return how many more blocks a request needs to hold this many tokens."""
        return max(0, self.blocks_for(tokens) - int(self.held[request]))

    def fits(self, rank: int, request: int, tokens: int) -> bool:
        """Return whether the rank's free blocks let a request hold so many tokens."""
        return self.missing(request, tokens) <= self.free[rank]

    def take(self, rank: int, request: int, tokens: int) -> None:
        """Give a request the blocks it needs to hold this many tokens."""
        more = self.missing(request, tokens)
        if more > self.free[rank]:
            message = f"rank {rank} has {self.free[rank]} free KV blocks, not {more}"
            raise AssertionError(message)
        self.free[rank] -= more
        self.held[request] += more
        self.peak[rank] = max(self.peak[rank], self.blocks - self.free[rank])

    def release(self, rank: int, request: int) -> None:
        """Take back all blocks of a request."""
        self.free[rank] += self.held[request]
        self.held[request] = 0


@dataclass(frozen=True, slots=True)
class Pick:
    """A request of the next pass, and how many of its tokens run."""

    request: int
    chunk: int


class PlainBatcher:
    """The requests of one instance, waiting and running, and their KV blocks."""

    def __init__(self, requests: Requests, serving: ServingSpec, ranks: int) -> None:
        count = len(requests)
        self.requests = requests
        self.serving = serving
        self.ranks = ranks
        self.outputs = requests.output_tokens.copy()
        if serving.mode == "prefill_only":
            self.outputs[:] = 1
        self.known: Ints = requests.input_tokens.copy()
        self.computed: Ints = np.zeros(count, np.int64)
        self.rank: Ints = np.zeros(count, np.int64)
        self.arrived_s: Floats = np.zeros(count)
        self.flying = np.zeros(count, bool)
        self.preemptions: Ints = np.zeros(count, np.int64)
        self.put_back_s: Floats = np.full(ranks, -1.0)
        self.waiting: list[list[int]] = [[] for _ in range(ranks)]
        self.running: list[list[int]] = [[] for _ in range(ranks)]
        self.cohort: list[list[int]] = [[] for _ in range(ranks)]
        self.ghosts: Ints = np.zeros(ranks, np.int64)
        self.outstanding: Ints = np.zeros(ranks, np.int64)
        self.pool = PlainPool(ranks, count, serving.kv_blocks, serving.block_size)

    def refusal(self, request: int) -> str:
        """Return why a request can never be served, or nothing."""
        prompt = int(self.requests.input_tokens[request])
        whole = prompt + int(self.outputs[request]) - 1
        blocks = self.pool.blocks_for(whole)
        if blocks > self.pool.blocks:
            return f"needs {blocks} KV blocks, a rank holds {self.pool.blocks}"
        limit = self.serving.max_num_batched_tokens
        if prompt > limit and not self.serving.chunked_prefill:
            return f"prompt of {prompt} tokens exceeds {limit} and may not be cut"
        return ""

    def enqueue(self, request: int, rank: int, now: int) -> None:
        """Let a request wait at a rank from now on."""
        self.rank[request] = rank
        self.arrived_s[request] = now / PS_PER_S
        self.outstanding[rank] += self._left(request)
        self.waiting[rank].append(request)

    def view(self) -> RankView:
        """Return what the assign role sees."""
        return RankView(self.outstanding.copy(), self.pool.blocks - self.pool.free)

    def draft(self, number: int, now: int, compose: Compose) -> Draft | None:
        """Return the next pass, or None when nothing can run.

        Parameters
        ----------
        number, now : int
            Number of the micro-batch and the time.
        compose : Compose
            Decides in what order waiting requests are tried.
        """
        if self.serving.mode == "static":
            self._open_cohort()
        view = View(now / PS_PER_S, np.zeros(0))
        picks = [self._fill(rank, compose, view) for rank in range(self.ranks)]
        chosen = [pick for of_rank in picks for pick in of_rank]
        if not chosen:
            return None
        requests = np.array([pick.request for pick in chosen])
        chunk = np.array([pick.chunk for pick in chosen])
        self.flying[requests] = True
        start = self.computed[requests]
        return Draft(
            number=number,
            now=now,
            oldest_arrival_s=float(self.arrived_s[requests].min()),
            requests=requests,
            rank=self.rank[requests],
            klass=self.requests.klass[requests],
            start=start,
            chunk=chunk,
            samples=(start + chunk == self.known[requests]).astype(np.int64),
            padding=self._padding(requests, chunk),
        )

    def land(self, requests: Ints, chunk: Ints) -> tuple[Ints, Ints]:
        """Take a pass back; return the requests that gained a token, and that ended."""
        self.flying[requests] = False
        self.computed[requests] += chunk
        np.subtract.at(self.outstanding, self.rank[requests], chunk)
        gained = requests[self.computed[requests] == self.known[requests]]
        self.known[gained] += 1
        made = self.known[gained] - self.requests.input_tokens[gained]
        ended = gained[made == self.outputs[gained]]
        for request in ended.tolist():
            self._leave(request)
        return gained, ended

    def _leave(self, request: int) -> None:
        rank = int(self.rank[request])
        self.running[rank].remove(request)
        self.pool.release(rank, request)
        self.ghosts[rank] += 1

    def _left(self, request: int) -> int:
        """Return the tokens still to be computed until the request has ended."""
        whole = self.requests.input_tokens[request] + self.outputs[request] - 1
        return int(whole - self.computed[request])

    def _open_cohort(self) -> None:
        """Take the next static batch when the last one has ended."""
        if any(self.running) or any(self.cohort):
            return
        self.ghosts[:] = 0
        for rank, waiting in enumerate(self.waiting):
            self.cohort[rank] = waiting[: self.serving.max_num_seqs]
            del waiting[: self.serving.max_num_seqs]

    def _padding(self, requests: Ints, chunk: Ints) -> Ints:
        rows = np.bincount(self.rank[requests], chunk, self.ranks).astype(np.int64)
        if self.serving.padding == "none":
            return np.zeros_like(rows)
        ghosts = self.ghosts if self.serving.mode == "static" else 0
        return int((rows + ghosts).max()) - rows

    def _fill(self, rank: int, compose: Compose, view: View) -> list[Pick]:
        """Return what a rank runs next: first what runs already, then who waits."""
        budget = self.serving.max_num_batched_tokens
        picks: list[Pick] = []
        ready = [q for q in self.running[rank] if not self.flying[q]]
        share = -(-len(self.running[rank]) // self.serving.max_in_flight)
        for request in ready[:share]:
            chunk = self._continue(rank, request, budget, view.now_s)
            if chunk:
                picks.append(Pick(request, chunk))
                budget -= chunk
        return picks + self._admit(rank, budget, compose, view)

    def _continue(self, rank: int, request: int, budget: int, now_s: float) -> int:
        """Return how many tokens of a running request run, making room if need be."""
        if request not in self.running[rank]:
            return 0
        want = self._chunk(request, budget)
        target = int(self.computed[request]) + want
        while want and not self.pool.fits(rank, request, target):
            victim = self._victim(rank)
            self._preempt(rank, victim)
            self.put_back_s[rank] = now_s
            if victim == request:
                return 0
        self.pool.take(rank, request, target)
        return want

    def _chunk(self, request: int, budget: int) -> int:
        left = int(self.known[request] - self.computed[request])
        whole_budget = budget == self.serving.max_num_batched_tokens
        if left <= budget or (whole_budget and not self.serving.chunked_prefill):
            return left
        return budget if self.serving.chunked_prefill else 0

    def _victim(self, rank: int) -> int:
        """Return the youngest running request not in flight: at worst who asks.

        Who asks is older than all that have been picked already.
        """
        return next(q for q in reversed(self.running[rank]) if not self.flying[q])

    def _preempt(self, rank: int, request: int) -> None:
        """Put a running request back to wait, to compute its tokens anew."""
        self.running[rank].remove(request)
        self.pool.release(rank, request)
        self.outstanding[rank] += int(self.computed[request])
        self.computed[request] = 0
        self.preemptions[request] += 1
        self._queue(rank).insert(0, request)

    def _queue(self, rank: int) -> list[int]:
        static = self.serving.mode == "static"
        return self.cohort[rank] if static else self.waiting[rank]

    def _admit(
        self, rank: int, budget: int, compose: Compose, view: View
    ) -> list[Pick]:
        """Return picks of waiting requests, which start to run.

        A request takes the blocks of all its known tokens as it comes in, even where
        its prompt is cut: else many half-computed ones crowd each other out. Nobody
        comes in at an instant at which somebody was put back.
        """
        queue = self._queue(rank)
        seats = self.serving.max_num_seqs - len(self.running[rank])
        crowded = self.put_back_s[rank] == view.now_s
        if not queue or seats <= 0 or budget <= 0 or crowded:
            return []
        seen = queue[:WINDOW]
        picks: list[Pick] = []
        given = compose.sequence(self._waiting_view(seen), view)
        rows = list(dict.fromkeys(np.asarray(given).tolist()))
        for row in rows[:seats]:
            request = seen[row]
            chunk, known = self._chunk(request, budget), int(self.known[request])
            if not chunk or not self.pool.fits(rank, request, known):
                break
            self.pool.take(rank, request, known)
            self.running[rank].append(request)
            picks.append(Pick(request, chunk))
            budget -= chunk
        taken = {pick.request for pick in picks}
        queue[:WINDOW] = [request for request in seen if request not in taken]
        return picks

    def _waiting_view(self, seen: list[int]) -> WaitingView:
        rows = np.array(seen)
        return WaitingView(
            request=rows,
            klass=self.requests.klass[rows],
            arrival_s=self.arrived_s[rows],
            tokens=self.known[rows] - self.computed[rows],
        )
