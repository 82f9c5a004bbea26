"""A second, slow and plain account of the event engine's rules, to check it against.

No heap, no SimPy, no callbacks: at each instant it looks at everything there is. The
rules: all that arrives at an instant is heard first; then idle servers choose by (key,
arrival, micro-batch, place), except that jobs which have waited out the budget go first,
by (arrival, micro-batch, place). Zero work makes no job.
"""

INFINITE = float("inf")


class Station:
    def __init__(self):
        self.queue = []
        self.current = None
        self.until = INFINITE

    def choose(self, now, budget):
        if self.current is not None or not self.queue:
            return None
        late = [j for j in self.queue if now - j["arrival"] >= budget]
        if late:
            job = min(late, key=lambda j: (j["arrival"], j["batch"], j["place"]))
        else:
            job = min(
                self.queue,
                key=lambda j: (j["key"], j["arrival"], j["batch"], j["place"]),
            )
        self.queue.remove(job)
        self.current, self.until = job, now + job["service"]
        return job


class Reference:
    """Plays micro-batches given as dicts of nested lists; returns their end times.

    `key(batch, segment)` is the policy's key, asked when the first GPU enters.
    """

    def __init__(self, gpus, budget=INFINITE, key=lambda batch, segment: 0.0):
        self.gpus, self.budget, self.key = gpus, budget, key
        self.stations = {}
        self.signals = []
        self.state = {}
        self.waits = []
        self.done = {}

    def station(self, *name):
        return self.stations.setdefault(name, Station())

    def play(self, batches):
        for batch in batches:
            self.signals.append((batch.admitted, "admit", (batch,)))
        while True:
            times = [s[0] for s in self.signals]
            times += [s.until for s in self.stations.values() if s.current]
            if not times:
                return [self.done[b.number] for b in batches]
            now = min(times)
            self.hear(now)
            for name in list(self.stations):
                job = self.stations[name].choose(now, self.budget_of(name))
                if job is not None:
                    job["start"] = now
                    self.started(now, name, job)

    def budget_of(self, name):
        return self.budget if name[0] == "gpu" else INFINITE

    def hear(self, now):
        due = [s for s in self.signals if s[0] == now]
        self.signals = [s for s in self.signals if s[0] != now]
        for name in list(self.stations):
            station = self.stations[name]
            if station.current and station.until == now:
                job, station.current, station.until = station.current, None, INFINITE
                due.append((now, "served", (name, job)))
        for _, kind, arguments in due:
            getattr(self, kind)(now, *arguments)

    def admit(self, now, batch):
        for gpu in range(self.gpus):
            self.enter(now, batch, 0, gpu)

    def exchange(self, batch, segment):
        return self.state.setdefault(
            (batch.number, segment),
            {"posts": {}, "sent": {0: {}, 1: {}}, "first": {}, "parts": {}},
        )

    def enter(self, now, batch, segment, gpu):
        layers = len(batch.cost.attention)
        layer = segment // 2
        if layer == layers:
            work = [(-2, int(batch.cost.tail[gpu]))]
        elif segment % 2 == 0:
            work = [(-1, int(batch.cost.ahead[layer, gpu]))]
        else:
            work = [
                (s, int(x)) for s, x in enumerate(batch.cost.experts[layer, :, gpu])
            ]
        work = [(place, service) for place, service in work if service]
        left = {"jobs": len(work)}
        if not work:
            self.post(now, batch, segment, gpu)
            return
        core = self.cut(batch.cost.core, batch, segment, gpu)
        if core:
            self.compute(
                now, -3, work[0][1] - core, ("first", batch, segment, gpu, left)
            )
            return
        for place, service in work:
            self.compute(now, place, service, ("compute", batch, segment, gpu, left))

    def cut(self, part, batch, segment, gpu):
        layer, second = divmod(segment, 2)
        whole = second or layer == len(batch.cost.attention) or not part.size
        return 0 if whole else int(part[layer, gpu])

    def compute(self, now, place, service, what):
        batch, segment, gpu = what[1:4]
        keys = self.state.setdefault(("keys", batch.number), {})
        if segment not in keys:
            keys[segment] = self.key(batch, segment)
        self.station("gpu", gpu).queue.append(
            {
                "key": keys[segment],
                "arrival": now,
                "batch": batch.number,
                "place": place,
                "service": service,
                "what": what,
            }
        )

    def started(self, now, name, job):
        kind, batch, segment = job["what"][:3]
        if kind == "tx":
            exchange, port = self.exchange(batch, segment), name[1]
            if port not in exchange["first"]:
                exchange["first"][port] = now
                late = now + int(batch.cost.latency[port])
                self.signals.append((late, "arrive", (batch, segment, port)))
        if kind == "compute" and job["place"] >= 0:
            self.waits.append(now - job["arrival"])

    def served(self, now, name, job):
        kind, batch, segment, gpu, left = job["what"]
        if kind == "first":
            core = self.cut(batch.cost.core, batch, segment, gpu)
            self.compute(now, -1, core, ("compute", batch, segment, gpu, left))
        elif kind == "shared":
            if self.state.pop(("shared", batch.number, gpu)) == "awaited":
                self.enter(now, batch, segment + 2, gpu)
        elif kind == "compute":
            left["jobs"] -= 1
            if not left["jobs"]:
                self.post(now, batch, segment, gpu)
        elif kind == "tx":
            self.sent(now, batch, segment, name[1], gpu)
        else:
            self.part(now, batch, segment, gpu, ("rx", name[1]))

    def post(self, now, batch, segment, gpu):
        layers = len(batch.cost.attention)
        exchange = self.exchange(batch, segment)
        exchange["posts"][gpu] = now
        shared = self.cut(batch.cost.shared, batch, segment, gpu)
        if shared:
            self.state["shared", batch.number, gpu] = "pending"
            self.compute(now, -4, shared, ("shared", batch, segment, gpu, None))
        if segment == 2 * layers:
            if len(exchange["posts"]) == self.gpus:
                self.done[batch.number] = now
            return
        tx = batch.cost.tx[segment // 2, segment % 2]
        active = [port for port in (0, 1) if tx[port].any()]
        for port in active:
            service = int(tx[port, gpu])
            if not service:
                self.sent(now, batch, segment, port, gpu)
                continue
            self.station("tx", port, gpu).queue.append(
                {
                    "key": 0,
                    "arrival": now,
                    "batch": batch.number,
                    "place": segment % 2,
                    "service": service,
                    "what": ("tx", batch, segment, gpu, None),
                }
            )
        if not active and len(exchange["posts"]) == self.gpus:
            for other in range(self.gpus):
                self.pass_on(now, batch, segment, other)

    def pass_on(self, now, batch, segment, gpu):
        pending = ("shared", batch.number, gpu)
        if segment % 2 and pending in self.state:
            self.state[pending] = "awaited"
        else:
            self.enter(now, batch, segment + 1, gpu)

    def sent(self, now, batch, segment, port, gpu):
        exchange = self.exchange(batch, segment)
        exchange["sent"][port][gpu] = now
        if len(exchange["sent"][port]) == self.gpus:
            late = now + int(batch.cost.latency[port])
            self.signals.append((late, "last", (batch, segment, port)))

    def last(self, now, batch, segment, port):
        for gpu in range(self.gpus):
            self.part(now, batch, segment, gpu, ("last", port))

    def arrive(self, now, batch, segment, port):
        for gpu in range(self.gpus):
            service = int(batch.cost.rx[segment // 2, segment % 2, port, gpu])
            if service:
                self.station("rx", port, gpu).queue.append(
                    {
                        "key": 0,
                        "arrival": now,
                        "batch": batch.number,
                        "place": segment % 2,
                        "service": service,
                        "what": ("rx", batch, segment, gpu, None),
                    }
                )

    def part(self, now, batch, segment, gpu, part):
        tx = batch.cost.tx[segment // 2, segment % 2]
        rx = batch.cost.rx[segment // 2, segment % 2]
        needed = set()
        for port in (0, 1):
            if tx[port].any():
                needed.add(("last", port))
                if rx[port, gpu]:
                    needed.add(("rx", port))
        parts = self.exchange(batch, segment)["parts"].setdefault(gpu, set())
        parts.add(part)
        if needed <= parts:
            self.pass_on(now, batch, segment, gpu)
