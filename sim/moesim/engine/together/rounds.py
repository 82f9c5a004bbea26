"""First come, first served in several instances at once, one barrier of each a round.

What `engine.array.engine` does for one instance this does for all lanes in the same NumPy
calls: up to the end of the first sender that is the last of its micro-batch, nothing
new can arrive anywhere, so all jobs known then are served in order of arrival. A round
lets one micro-batch of each lane that takes part enter a segment, and serves all jobs
anew that came at that instant or later; where nothing has changed, the same comes out.

Axes: ``B`` lanes, last, since NumPy is fastest along them; ``W`` places of micro-batches
in flight, in order of number; ``G`` GPUs; ``N`` segments as in `engine.event.flow`; ``n``
lanes that take part.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesim.engine.clock import FAR
from moesim.engine.together.costs import Costs, Shape
from moesim.engine.together.ports import Port, Turn
from moesim.types import Bools, Ints


class Rounds:
    """The queues of all GPUs and ports of all lanes.

    Attributes
    ----------
    row, segment, end : (W, B) arrays of int
        Which row of `costs` holds now for the micro-batch, the segment it stands in,
        and when its last sender there is done: `FAR` at empty places.
    arrival, work, post : (W, G, B) arrays of int
        When each GPU entered, its work, and when it has computed.
    now : (B,) array of int
        When each lane last took part.
    next, due, leaving : lists of B
        At which place of each lane the next barrier is, when, and whether it is the end
        of the micro-batch.
    """

    def __init__(self, shape: Shape, latency: Ints) -> None:
        size = (shape.places, shape.lanes)
        rows = (shape.places, shape.gpus, shape.lanes)
        self.shape = shape
        self.costs = Costs(shape)
        self.ports = [Port(shape, each) for each in latency[: shape.ports].tolist()]
        self.count = [0] * shape.lanes
        self.now: Ints = np.zeros(shape.lanes, np.int64)
        self.row: Ints = np.zeros(size, np.int64)
        self.segment: Ints = np.zeros(size, np.int64)
        self.end: Ints = np.full(size, FAR)
        self.arrival: Ints = np.full(rows, -1)
        self.work: Ints = np.zeros(rows, np.int64)
        self.post: Ints = np.full(rows, -1)
        self.gpu: Ints = np.arange(shape.gpus)[:, None]
        self.corner: Ints = np.arange(shape.gpus * shape.lanes).reshape(rows[1:])
        self._look()

    def step(self, barriers: list[int], joining: list[tuple[int, int, int]]) -> None:
        """Let micro-batches enter their next segments, one of each lane.

        Parameters
        ----------
        barriers : list of int
            Lanes whose next micro-batch has reached its barrier; or else
        joining : list of (lane, home, now)
            micro-batches that are admitted now, and lie loaded in `costs`.
        """
        if barriers:
            lane = np.array(barriers)
            turn = Turn(
                lane, np.array([self.next[each] for each in barriers]), self.shape
            )
            ready = self._receive(turn)
            self.row[turn.place, lane] += 1
            self.segment[turn.place, lane] += 1
        else:
            turn, ready = self._join(*np.array(joining).T)
        self._enter(turn, ready)
        self._serve()
        self._time()

    def leave(self, lane: int) -> tuple[Ints, Ints]:
        """Let the micro-batch go whose last GPU is done.

        Returns
        -------
        came, post : (N, G) arrays of int
            When each GPU entered each segment, and had computed.
        """
        place, costs = self.next[lane], self.costs
        self.now[lane] = self.due[lane]
        last = int(self.row[place, lane]) + 1
        mine = slice(last - self.shape.segments, last)
        flat = (-1, self.shape.gpus)
        came, post = costs.came.reshape(flat)[mine], costs.post.reshape(flat)[mine]
        came[-1], post[-1] = self.arrival[place, :, lane], self.post[place, :, lane]
        for rows, empty in self._rows():
            rows[place:-1, ..., lane] = rows[place + 1 :, ..., lane]
            rows[-1, ..., lane] = empty
        self.count[lane] -= 1
        place = self.next[lane] = int(self.end[:, lane].argmin())
        self.due[lane] = int(self.end[place, lane])
        self.leaving[lane] = bool(self.segment[place, lane] == self.shape.segments - 1)
        return came.copy(), post.copy()

    def _rows(self) -> Iterator[tuple[NDArray[Any], int]]:
        """Yield all arrays by place, with what stands at an empty one."""
        yield from ((self.row, 0), (self.segment, 0), (self.end, FAR))
        yield from ((self.arrival, -1), (self.work, 0), (self.post, -1))
        for port in self.ports:
            yield from port.rows()

    def _join(self, lane: Ints, home: Ints, now: Ints) -> tuple[Turn, Ints]:
        """Return where micro-batches stand that are admitted now, and since when."""
        lanes = lane.tolist()
        place = np.array([self.count[each] for each in lanes])
        for each in lanes:
            self.count[each] += 1
        self.row[place, lane] = (lane * self.shape.places + home) * self.shape.segments
        self.segment[place, lane] = 0
        self.now[lane] = now
        return Turn(lane, place, self.shape), now + np.zeros_like(self.gpu)

    def _receive(self, turn: Turn) -> Ints:
        """Return ``(G, n)``: when the GPUs have received, and may enter what is next."""
        now = self.end.take(turn.spot)
        self.now[turn.lane] = now
        history = self.row.take(turn.spot) * self.shape.gpus + self.gpu
        self.costs.came.reshape(-1)[history] = self.arrival.take(turn.cell)
        self.costs.post.reshape(-1)[history] = self.post.take(turn.cell)
        ready = np.zeros_like(history)
        earliest = now
        for port in self.ports:
            used = port.used.take(turn.spot)
            last = (port.last.take(turn.spot) + port.latency) * used
            earliest = np.maximum(earliest, last)
            feeds = port.rx.take(turn.cell) > 0
            np.maximum(ready, port.receive(turn) * feeds, out=ready)
        return np.maximum(ready, earliest, out=ready)

    def _enter(self, turn: Turn, ready: Ints) -> None:
        """Let micro-batches stand in their segment, from `ready` on."""
        costs, cell = self.costs, turn.cell
        row = self.row.take(turn.spot)
        self.arrival.reshape(-1)[cell] = ready
        self.work.reshape(-1)[cell] = costs.work.take(row * self.shape.gpus + self.gpu)
        for number, port in enumerate(self.ports):
            own = row * len(self.ports) + number
            bytes_ = own * self.shape.gpus + self.gpu
            port.tx.reshape(-1)[cell] = costs.tx.take(bytes_)
            port.rx.reshape(-1)[cell] = costs.rx.take(bytes_)
            port.used.reshape(-1)[turn.spot] = costs.used.take(own)
            port.settled.reshape(-1)[turn.spot] = False

    def _serve(self) -> None:
        """Serve all jobs anew, those excepted that came before now."""
        open_ = self.arrival >= self.now
        busy = self.work > 0
        free = (self.post * ~open_).max(axis=0)
        done = self._in_order(self.arrival, self.work, open_ & busy, free)
        np.copyto(done, self.arrival, where=~busy)
        np.copyto(self.post, done, where=open_)
        for port in self.ports:
            open_ = self.post >= self.now
            busy = port.tx > 0
            free = (port.sent * (busy & ~open_)).max(axis=0)
            done = self._in_order(self.post, port.tx, open_ & busy, free)
            np.copyto(done, self.post, where=~busy)
            done -= port.tx
            np.copyto(port.begin, done, where=open_)
            np.add(port.begin, port.tx, out=port.sent)

    def _in_order(self, came: Ints, work: Ints, queued: Bools, free: Ints) -> Ints:
        """Return ``(W, G, B)``: when the queued jobs end, served first come first.

        Of equals the earlier place goes first; `free` is when the server takes the
        first. Where no job is queued, what is returned means nothing.
        """
        order = came.argsort(axis=0, kind="stable")
        order *= self.corner.size
        order += self.corner
        amounts, comes = (work * queued).take(order), (came * queued).take(order)
        for amount, end in zip(amounts, comes, strict=True):
            np.maximum(end, free, out=end)
            np.add(end, amount, out=end)
            free = end
        done = np.empty_like(came)
        done.reshape(-1)[order] = comes
        return done

    def _time(self) -> None:
        """Find when everybody's last sender is done, and who is next in each lane."""
        end = self.end
        np.max(self.post, axis=1, out=end)
        empty = end < 0
        for port in self.ports:
            port.time()
            # It ends no earlier than the last post, where anybody sends.
            np.maximum(end, port.last, out=end, where=port.used)
        np.copyto(end, FAR, where=empty)
        self._look()

    def _look(self) -> None:
        place = self.end.argmin(axis=0)
        lane = np.arange(self.shape.lanes)
        self.next: list[int] = place.tolist()
        self.due: list[int] = self.end[place, lane].tolist()
        last = self.segment[place, lane] == self.shape.segments - 1
        self.leaving: list[bool] = last.tolist()
