"""What a pass still waits for in one layer on one GPU, some of whose experts are absent."""

from typing import TYPE_CHECKING

from moesim.measure.columns import NEVER

if TYPE_CHECKING:
    from moesim.engine.event.flow import Flow


class Stay:
    """One pass at the experts of one layer on one GPU.

    Attributes
    ----------
    running : int
        Jobs of it that are queued or running on the GPU.
    left : int
        Absent experts that are not there yet.
    since : int
        Since when nothing of it has been queued or running; `NEVER`: something is.
    stalled : int
        Picoseconds for which that was so.
    """

    __slots__ = ("flow", "gpu", "left", "running", "segment", "since", "stalled")

    def __init__(self, flow: "Flow", segment: int, gpu: int, left: int) -> None:
        self.flow = flow
        self.segment = segment
        self.gpu = gpu
        self.left = left
        self.running = 0
        self.since = NEVER
        self.stalled = 0

    def start(self, jobs: int, now: int) -> None:
        """Note how many jobs are there at once."""
        self.running = jobs
        if not jobs:
            self.since = now

    def end_job(self, now: int) -> None:
        """Note that a job has been served."""
        self.running -= 1
        if not self.running and self.left:
            self.since = now

    def take(self, now: int, *, job: bool) -> None:
        """Note that an expert has come, or that the processor has computed it."""
        self.left -= 1
        self.running += job
        if self.since != NEVER and (job or not self.left):
            self.stalled += now - self.since
            self.since = NEVER
