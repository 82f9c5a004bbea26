"""Continuous batching: which requests, and how many tokens of each, run next.

A request has *known* tokens (its prompt and what it has generated) and *computed*
ones (whose keys and values are cached). A pass computes some of the difference; when
it computes all of it, the request gains a token. Prefill, chunked prefill, decode and
recomputing after a preemption are all this one rule.

What runs is drafted for all ranks at once; Python looks at single requests only as they
come in, and on ranks whose KV pool runs out.

Axes: ``N`` requests, ``R`` data-parallel ranks, ``M`` requests of a pass.
"""

import numpy as np
from numpy.typing import NDArray

from moesim.engine.batch.fair import fair_share, within_budget
from moesim.engine.batch.pool import KvPool
from moesim.engine.batch.seats import GONE, GROUND, Seated, Seats
from moesim.engine.batch.waiting import Room, Waiting
from moesim.engine.clock import PS_PER_S
from moesim.engine.draft import Draft
from moesim.engine.memory.places import Places
from moesim.engine.memory.reservations import Reservations
from moesim.measure.columns import NEVER, RequestColumns
from moesim.policy.view import Compose, RankView
from moesim.spec.serving import ServingSpec
from moesim.types import Ints

MOST_PREEMPTIONS = 2**16 - 1
"""A request's preemptions are counted up to here."""


class Batcher:
    """The requests of one instance, waiting and running, and their KV blocks.

    Parameters
    ----------
    rows : RequestColumns
        State of every request; ranks, tokens made and preemptions are kept there.
    serving : ServingSpec
        The limits.
    ranks : int
        ``R``.
    """

    def __init__(self, rows: RequestColumns, serving: ServingSpec, ranks: int) -> None:
        self.rows = rows
        self.requests = rows.requests
        self.serving = serving
        self.ranks = ranks
        self.outputs: NDArray[np.integer] = self.requests.output_tokens
        if serving.mode == "prefill_only":
            self.outputs = np.broadcast_to(np.int32(1), len(self.requests))
        self.seats = Seats()
        self.running: Ints = np.zeros(ranks, np.int64)
        cohort = serving.max_num_seqs if serving.mode == "static" else 0
        self.put_back: Ints = np.full(ranks, NEVER)
        self.ghosts: Ints = np.zeros(ranks, np.int64)
        self.outstanding: Ints = np.zeros(ranks, np.int64)
        self.pool = KvPool(ranks, serving.kv_blocks, serving.block_size)
        self.places = Places()
        self.waiting = Waiting(rows, ranks, cohort, self.places)
        if serving.memory and serving.memory.contiguous:
            tokens = serving.kv_blocks * serving.block_size
            self.pool = KvPool(ranks, tokens, 1)
            self.places.stretches = Reservations(serving.memory, ranks, tokens)

    def refusal(self, request: int) -> str:
        """Return why a request can never be served, or nothing."""
        prompt, output = self._lengths(request)
        blocks = self.pool.blocks_for(prompt + output - 1)
        if blocks > self.pool.blocks:
            unit = "tokens" if self.places.stretches else "blocks"
            return f"needs {blocks} KV {unit}, a rank holds {self.pool.blocks}"
        limit = self.serving.max_num_batched_tokens
        if prompt > limit and not self.serving.chunked_prefill:
            return f"prompt of {prompt} tokens exceeds {limit} and may not be cut"
        return self.places.refusal(prompt, output)

    def _lengths(self, request: int) -> tuple[int, int]:
        """Return the tokens of a request's prompt, and those of its answer."""
        return int(self.requests.input_tokens[request]), int(self.outputs[request])

    def enqueue(self, request: int, rank: int, now: int) -> None:
        """Let a request wait at a rank from now on."""
        self.rows.rank[request] = rank
        self.rows.arrival[request] = now
        self.outstanding[rank] += sum(self._lengths(request)) - 1
        self.waiting.append(rank, request)

    def view(self) -> RankView:
        """Return what the assign role sees."""
        used = self.pool.used_in(self.serving.block_size)
        return RankView(self.outstanding.copy(), used)

    def draft(self, number: int, now: int, compose: Compose) -> Draft | None:
        """Return the next pass, or None when nothing can run.

        Parameters
        ----------
        number, now : int
            Number of the micro-batch, different from all in flight, and the time.
        compose : Compose
            Decides in what order waiting requests are tried.
        """
        if self.serving.mode == "static":
            self._open_cohort()
        self.seats.tidy(int(self.running.sum()))
        budget = np.full(self.ranks, self.serving.max_num_batched_tokens)
        self._go_on(number, now, budget)
        self._admit(number, now, budget, compose)
        chosen = self.seats.of_pass(number)
        return self._drafted(number, now, chosen) if len(chosen) else None

    def land(self, number: int) -> tuple[Ints, Ints]:
        """Take a pass back; return the requests that gained a token, and that ended."""
        seats = self.seats
        landed = seats.of_pass(number)
        chunk = seats.chunk[landed]
        seats.flight[landed] = GROUND
        computed = seats.computed[landed] + chunk
        seats.computed[landed] = computed
        self.outstanding -= self._by_rank(landed, chunk)
        landed = landed[computed == seats.known[landed]]
        seats.known[landed] += 1
        gained = seats.request[landed].astype(np.int64)
        made = self.rows.generated[gained] + 1
        self.rows.generated[gained] = made
        done = made == self.outputs[gained]
        if done.any():
            self._leave(landed[done])
        return gained, gained[done]

    def _leave(self, left: Ints) -> None:
        """Free the seats and blocks of requests that have ended."""
        gone = np.bincount(self.seats.rank[left], minlength=self.ranks)
        self.running -= gone
        self.ghosts += gone
        self.pool.release_all(self._by_rank(left, self.seats.held[left]))
        self.places.leave(self.seats.rank[left], self.seats.request[left])
        self.seats.flight[left] = GONE

    def _by_rank(self, seats: Ints, amount: NDArray[np.integer]) -> Ints:
        """Return ``(R,)`` sums of amounts of seats; exact, as they stay below 2^53."""
        rank = self.seats.rank[seats]
        return np.bincount(rank, amount, self.ranks).astype(np.int64)

    def _open_cohort(self) -> None:
        """Take the next static batch when the last one has ended."""
        if not self.running.any() and not self.waiting.count.any():
            self.ghosts[:] = 0
            self.waiting.open_cohort()

    def _drafted(self, number: int, now: int, chosen: Ints) -> Draft:
        columns = self.seats.table[:, chosen].astype(np.int64)
        request, rank, known, start, _, chunk, _ = columns
        return Draft(
            number=number,
            now=now,
            oldest_arrival_s=int(self.rows.arrival[request].min()) / PS_PER_S,
            requests=request,
            rank=rank,
            klass=self.requests.klass[request].astype(np.int64),
            start=start,
            chunk=chunk,
            samples=(start + chunk == known).astype(np.int64),
            padding=self._padding(self._by_rank(chosen, chunk)),
            ready=self.places.settle(now, self.pool.free),
        )

    def _padding(self, rows: Ints) -> Ints:
        if self.serving.padding == "none":
            return np.zeros_like(rows)
        ghosts = self.ghosts if self.serving.mode == "static" else 0
        return int((rows + ghosts).max()) - rows

    def _go_on(self, number: int, now: int, budget: Ints) -> None:
        """Put what runs already into the pass, and take it off the ranks' budgets."""
        seats, pool = self.seats, self.pool
        ready, flights = seats.ready(), self.serving.max_in_flight
        chosen = fair_share(ready, seats.rank[ready], self.running, flights)
        if not len(chosen):
            return
        left = seats.known[chosen] - seats.computed[chosen]
        want = within_budget(left, seats.rank[chosen], budget)
        whole = pool.blocks_for(seats.computed[chosen] + want)
        more = np.maximum(whole - seats.held[chosen], 0)
        blocks = self._by_rank(chosen, more)
        tight = blocks > pool.free
        if tight.any():
            rank = seats.rank[chosen]
            for crowded in np.flatnonzero(tight).tolist():
                begin, end = np.searchsorted(rank, (crowded, crowded + 1)).tolist()
                budget[crowded] = self._squeeze(chosen[begin:end], number, now)
            smooth = ~tight[rank]
            chosen, want, more = chosen[smooth], want[smooth], more[smooth]
            blocks[tight] = 0
        seats.held[chosen] += more
        seats.chunk[chosen] = want
        seats.flight[chosen[want > 0]] = number
        pool.take_all(blocks)
        budget -= self._by_rank(chosen, want)

    def _squeeze(self, chosen: Ints, number: int, now: int) -> int:
        """Run what a rank has blocks for, putting back the youngest; return the budget.

        The youngest is at worst who asks: all that have been picked are older.
        """
        seats, budget = self.seats, self.serving.max_num_batched_tokens
        rank = int(seats.rank[chosen[0]])
        youngest = seats.span(rank)[1]
        for seat in chosen.tolist():
            _, _, known, computed, held, _, flight = seats.table[:, seat].tolist()
            want = self._chunk(known - computed, budget)
            more = max(0, self.pool.blocks_for(computed + want) - held)
            while want and flight == GROUND and more > self.pool.free[rank]:
                youngest -= 1
                if seats.flight[youngest] == GROUND:
                    self._put_back(youngest, now)
                    flight = int(seats.flight[seat])
            if want and flight == GROUND:
                self.pool.take(rank, more)
                seats.table[4:, seat] = held + more, want, number
                budget -= want
        return budget

    def _put_back(self, seat: int, now: int) -> None:
        """Put a running request back to wait: its tokens leave for the host, or go."""
        request, rank, _, computed, held, _, _ = self.seats.table[:, seat].tolist()
        self.seats.flight[seat] = GONE
        self.running[rank] -= 1
        self.pool.release(rank, held)
        if not self.places.put(request, rank, computed, now):
            self.outstanding[rank] += computed
        count = int(self.rows.preemptions[request])
        self.rows.preemptions[request] = min(count + 1, MOST_PREEMPTIONS)
        self.put_back[rank] = now
        self.waiting.prepend(rank, request)

    def _chunk(self, left: int, budget: int) -> int:
        """Return how many of the tokens left run within what is left of a budget."""
        whole_budget = budget == self.serving.max_num_batched_tokens
        if left <= budget or (whole_budget and not self.serving.chunked_prefill):
            return left
        return budget if self.serving.chunked_prefill else 0

    def _admit(self, number: int, now: int, budget: Ints, compose: Compose) -> None:
        """Seat waiting requests on all ranks that have room.

        Nobody comes in at an instant at which somebody was put back.
        """
        room = (self.waiting.count > 0) & (self.running < self.serving.max_num_seqs)
        room &= (budget > 0) & (self.put_back != now)
        fresh: list[Seated] = []
        if room.any():
            self.waiting.look(self.seats, number)
        for rank in np.flatnonzero(room).tolist():
            free = self.serving.max_num_seqs - int(self.running[rank])
            left = int(budget[rank])
            order = self.waiting.tried(Room(rank, free, left, now), compose)
            seated = self._seated(rank, order, left, number)
            self.waiting.take(rank, seated)
            fresh += seated
        if fresh:
            self.seats.add(np.array(fresh, np.int32).T)

    def _seated(
        self, rank: int, order: list[int], budget: int, number: int
    ) -> list[Seated]:
        """Return those that come in of the requests tried, until one has no room.

        A request takes the blocks of all its known tokens as it comes in, even where
        its prompt is cut: else many half-computed ones crowd each other out.
        """
        free, used = int(self.pool.free[rank]), 0
        seated: list[Seated] = []
        for request in order:
            known = self.waiting.tokens(request)
            done, blocks = self.places.kept(request), self._size(request, known)
            chunk = self._chunk(known - done, budget)
            fits = chunk and used + blocks <= free
            if not fits or not self.places.give(rank, request, blocks):
                break
            used += blocks
            budget -= chunk
            seated.append((request, rank, known, done, blocks, chunk, number))
        if seated:
            self.pool.take(rank, used)
            self.running[rank] += len(seated)
        return seated

    def _size(self, request: int, known: int) -> int:
        """Return the blocks that a request takes as it comes in."""
        stretches = self.places.stretches
        if stretches is None:
            return self.pool.blocks_for(known)
        return stretches.length(*self._lengths(request))
