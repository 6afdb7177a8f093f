"""A host that queues work, and a GPU that runs it in order, on one simulated clock."""

from dataclasses import dataclass, field


@dataclass
class Gpu:
    """Work starts once it is queued and everything queued before it is done."""

    host_ms: float = 0.0
    done_ms: float = 0.0
    most_queued_ms: float = 0.0
    log: list = field(default_factory=list)

    def perf_counter(self):
        return self.host_ms / 1e3

    @property
    def begins_ms(self):
        return max(self.done_ms, self.host_ms)

    def queue(self, what, duration_ms):
        self.log.append((what, duration_ms))
        self.done_ms = self.begins_ms + duration_ms
        self.most_queued_ms = max(self.most_queued_ms, self.done_ms - self.host_ms)

    def flush_l2(self):
        self.queue("flush", 0.02)

    def keep_busy(self, duration_ms):
        self.queue("busy", duration_ms)

    def mark(self):
        self.queue("mark", 0.0)
        return Moment(self, self.done_ms)

    def synchronize(self):
        self.host_ms = self.begins_ms


@dataclass
class Moment:
    gpu: Gpu
    at_ms: float

    def query(self):
        return self.at_ms <= self.gpu.host_ms

    def synchronize(self):
        self.gpu.host_ms = max(self.gpu.host_ms, self.at_ms)

    def elapsed_time(self, end):
        assert end.query(), "a CUDA event gives no time before it is reached"
        return end.at_ms - self.at_ms
