"""What the allocator counts, under the names that PyTorch gave these numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

_GAUGES = ("allocated", "active", "requested", "reserved", "allocations", "segments")
# Counted at every request and release, so by pool only: what all have is summed when asked for.
_IN_USE = ("allocated", "requested", "allocations")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def format_bytes(nbytes: int) -> str:
    """A number of bytes for people.

    Example:
        >>> format_bytes(512), format_bytes(1536), format_bytes(3 << 30)
        ('512 bytes', '1.50 KiB', '3.00 GiB')
    """
    value, unit = float(nbytes), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.2f} {_UNITS[unit]}" if unit else f"{nbytes} bytes"


@dataclass(slots=True)
class Gauge:
    """A quantity that rises and falls.

    Attributes:
        current: what it is now.
        peak: the most that it was since the start or the last reset.
        freed: by how much it ever fell, all falls together.

    Example:
        >>> gauge = Gauge()
        >>> gauge.add(5)
        >>> gauge.remove(2)
        >>> gauge.current, gauge.peak, gauge.allocated, gauge.freed
        (3, 5, 5, 2)
    """

    current: int = 0
    peak: int = 0
    freed: int = 0

    @property
    def allocated(self) -> int:
        """By how much it ever rose, all rises together."""
        return self.current + self.freed

    def add(self, amount: int) -> None:
        """Rise."""
        self.current += amount
        self.peak = max(self.peak, self.current)

    def remove(self, amount: int) -> None:
        """Fall."""
        self.current -= amount
        self.freed += amount

    def as_dict(self, name: str) -> dict[str, int]:
        """The four numbers under PyTorch's names."""
        kinds = ("current", "peak", "allocated", "freed")
        return {f"{name}.{kind}": getattr(self, kind) for kind in kinds}


@dataclass(slots=True)
class Counts:
    """The numbers of the small pools, of the large ones, or of all.

    Attributes:
        allocated: bytes set aside for blocks that are in use.
        active: these, and those taken back that another stream still uses.
        requested: bytes that the users of blocks in use asked for.
        reserved: bytes taken from the device.
        allocations: blocks in use.
        segments: segments taken from the device.
        inactive_split, inactive_split_bytes: free parts of segments of which another part is used.
    """

    allocated: Gauge = field(default_factory=Gauge)
    active: Gauge = field(default_factory=Gauge)
    requested: Gauge = field(default_factory=Gauge)
    reserved: Gauge = field(default_factory=Gauge)
    allocations: Gauge = field(default_factory=Gauge)
    segments: Gauge = field(default_factory=Gauge)
    inactive_split: int = 0
    inactive_split_bytes: int = 0

    def gauges(self) -> list[Gauge]:
        """All that rise and fall."""
        return [getattr(self, name) for name in _GAUGES]

    def copy(self) -> Counts:
        """The same numbers, which then stay as they are."""
        return Counts(
            **{name: replace(getattr(self, name)) for name in _GAUGES},
            inactive_split=self.inactive_split,
            inactive_split_bytes=self.inactive_split_bytes,
        )

    def as_dict(self, pool: str) -> dict[str, int]:
        """The numbers under the keys of `torch.cuda.memory_stats`."""
        return {
            **self.allocated.as_dict(f"allocated_bytes.{pool}"),
            **self.active.as_dict(f"active_bytes.{pool}"),
            **self.requested.as_dict(f"requested_bytes.{pool}"),
            **self.reserved.as_dict(f"reserved_bytes.{pool}"),
            **self.allocations.as_dict(f"allocation.{pool}"),
            **self.segments.as_dict(f"segment.{pool}"),
            f"inactive_split.{pool}.current": self.inactive_split,
            f"inactive_split_bytes.{pool}.current": self.inactive_split_bytes,
        }


class PoolCounts:
    """The numbers of the small pools, of the large ones, and of all together.

    Within these, `active` is only what other streams still use, with the peak of that and the
    allocated together; of what `total` has in use, only the peaks are kept.

    Attributes:
        small, large: of the pools of either name.
        total: of all.
    """

    def __init__(self) -> None:
        self.small, self.large, self.total = Counts(), Counts(), Counts()
        self._in_use = [
            (getattr(self.small, name), getattr(self.large, name), getattr(self.total, name))
            for name in _IN_USE
        ]

    def note_peaks(self) -> None:
        """Let the peaks be at least what is in use now.

        Until something is freed, use only rises: so this is needed before each release and before
        the peaks are read, not at each request.
        """
        for small, large, total in self._in_use:
            of_small, of_large = small.current, large.current
            if of_small > small.peak:
                small.peak = of_small
            if of_large > large.peak:
                large.peak = of_large
            if of_small + of_large > total.peak:
                total.peak = of_small + of_large
        if self.total.active.current:
            allocated = self.small.allocated.current, self.large.allocated.current
            for counts, used in (
                (self.small, allocated[0]),
                (self.large, allocated[1]),
                (self.total, sum(allocated)),
            ):
                counts.active.peak = max(counts.active.peak, used + counts.active.current)

    def reset_peaks(self) -> None:
        """Let the peaks start again from the present."""
        for counts in (self.small, self.large, self.total):
            for gauge in counts.gauges():
                gauge.peak = gauge.current
            counts.active.peak = 0
        self.note_peaks()

    def by_pool(self) -> dict[str, Counts]:
        """Copies with all sums, by the name that PyTorch gave each."""
        self.note_peaks()
        small, large, total = self.small.copy(), self.large.copy(), self.total.copy()
        for name in _IN_USE:
            gauges = [getattr(small, name), getattr(large, name)]
            together: Gauge = getattr(total, name)
            together.current = sum(g.current for g in gauges)
            together.freed = sum(g.freed for g in gauges)
        for counts in (small, large, total):
            # Without other streams nothing but the allocated is active, and no peak was noted.
            counts.active.peak = max(counts.active.peak, counts.allocated.peak)
            counts.active.current += counts.allocated.current
            counts.active.freed = counts.allocated.allocated - counts.active.current
        return {"all": total, "small_pool": small, "large_pool": large}


@dataclass(slots=True)
class Statistics:
    """The state of an allocator in numbers; sizes in bytes.

    Attributes:
        allocated: set aside for blocks that are in use, rounded as the allocator rounds.
        peak_allocated: the most that it was.
        requested: what the users of these blocks asked for.
        reserved: taken from the device, in use or cached.
        peak_reserved: the most that it was.
        pending: taken back, but another stream may still use it.
        largest_free: the largest piece of the cache.
        n_allocations, n_frees: blocks given out and taken back.
        n_segments: pieces that were taken from the device.
        n_retries: requests for which the cache was given back to the device first.
        n_out_of_memory: requests that failed.
        pools: the same by pool: "all", "small_pool", "large_pool".
    """

    allocated: int = 0
    peak_allocated: int = 0
    requested: int = 0
    reserved: int = 0
    peak_reserved: int = 0
    pending: int = 0
    largest_free: int = 0
    n_allocations: int = 0
    n_frees: int = 0
    n_segments: int = 0
    n_retries: int = 0
    n_out_of_memory: int = 0
    pools: dict[str, Counts] = field(default_factory=dict)

    @property
    def cached(self) -> int:
        """Bytes that are reserved and not in use."""
        return self.reserved - self.allocated

    @property
    def fragmentation(self) -> float:
        """The share of the cache that one request could not have, from 0 to 1.

        Example:
            >>> Statistics(reserved=100, allocated=20, largest_free=60).fragmentation
            0.25
        """
        return 1 - self.largest_free / self.cached if self.cached else 0.0

    def as_dict(self) -> dict[str, int]:
        """The numbers under the keys of `torch.cuda.memory_stats`, as far as they exist here."""
        numbers = {
            "largest_free_block": self.largest_free,
            "num_alloc_retries": self.n_retries,
            "num_ooms": self.n_out_of_memory,
        }
        for pool, counts in self.pools.items():
            numbers.update(counts.as_dict(pool))
        return numbers

    def summary(self, title: str) -> str:
        """The numbers as a table."""
        live = self.n_allocations - self.n_frees
        rows = [
            ("allocated", format_bytes(self.allocated), format_bytes(self.peak_allocated)),
            ("reserved", format_bytes(self.reserved), format_bytes(self.peak_reserved)),
            ("requested", format_bytes(self.requested), ""),
            ("used by other streams", format_bytes(self.pending), ""),
            ("largest free block", format_bytes(self.largest_free), ""),
            ("fragmentation", f"{self.fragmentation:.1%}", ""),
            ("blocks in use", str(live), ""),
            ("segments", str(self.n_segments), ""),
            ("cache given back", f"{self.n_retries} times", ""),
            ("out of memory", f"{self.n_out_of_memory} times", ""),
        ]
        for pool, counts in self.pools.items():
            if pool != "all":
                now, peak = counts.allocated.current, counts.allocated.peak
                name = pool.replace("_", " ") + ", allocated"
                rows.append((name, format_bytes(now), format_bytes(peak)))
        lines = [title, f"{'':<24}{'now':>16}{'peak':>16}"]
        lines += [f"{name:<24}{now:>16}{peak:>16}".rstrip() for name, now, peak in rows]
        return "\n".join(lines)


def statistics_of(counts: PoolCounts, n_retries: int, n_out_of_memory: int) -> Statistics:
    """All but the numbers of free blocks."""
    pools = counts.by_pool()
    total = pools["all"]
    return Statistics(
        allocated=total.allocated.current,
        peak_allocated=total.allocated.peak,
        requested=total.requested.current,
        reserved=total.reserved.current,
        peak_reserved=total.reserved.peak,
        pending=total.active.current - total.allocated.current,
        n_allocations=total.allocations.allocated,
        n_frees=total.allocations.freed,
        n_segments=total.segments.current,
        n_retries=n_retries,
        n_out_of_memory=n_out_of_memory,
        pools=pools,
    )
