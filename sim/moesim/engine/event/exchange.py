"""An all-to-all under way."""


class Exchange:
    """One all-to-all of one micro-batch: who has posted, sent and received."""

    __slots__ = ("active", "index", "last_post", "need", "posts", "sending", "started")

    def __init__(self, index: int, tx: list[list[int]], rx: list[list[int]]) -> None:
        gpus = len(tx[0])
        self.index = index
        self.active = [c for c, port in enumerate(tx) if any(port)]
        self.started = [False] * len(tx)
        self.posts = gpus
        self.sending = [gpus] * len(tx)
        self.last_post = 0
        parts = len(self.active)
        self.need = [
            parts + sum(rx[c][g] > 0 for c in self.active) for g in range(gpus)
        ]
