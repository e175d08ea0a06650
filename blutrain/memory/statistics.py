"""What the allocator counts, under the names that PyTorch gave these numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
class Statistics:
    """The state of an allocator in numbers; sizes in bytes.

    Attributes:
        allocated: set aside for blocks that are in use, rounded as the allocator rounds.
        peak_allocated: the most that it was.
        requested: what the users of these blocks asked for.
        reserved: taken from the device, in use or cached.
        peak_reserved: the most that it was.
        largest_free: the largest piece of the cache.
        n_allocations, n_frees: blocks given out and taken back.
        n_segments: pieces that were taken from the device.
        n_retries: requests for which the cache was given back to the device first.
        n_out_of_memory: requests that failed.
    """

    allocated: int = 0
    peak_allocated: int = 0
    requested: int = 0
    reserved: int = 0
    peak_reserved: int = 0
    largest_free: int = 0
    n_allocations: int = 0
    n_frees: int = 0
    n_segments: int = 0
    n_retries: int = 0
    n_out_of_memory: int = 0

    def copy(self) -> Statistics:
        """The same numbers, which then stay as they are."""
        return replace(self)

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
        return {
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak_allocated,
            "requested_bytes.all.current": self.requested,
            "reserved_bytes.all.current": self.reserved,
            "reserved_bytes.all.peak": self.peak_reserved,
            "allocation.all.current": self.n_allocations - self.n_frees,
            "allocation.all.allocated": self.n_allocations,
            "allocation.all.freed": self.n_frees,
            "segment.all.current": self.n_segments,
            "largest_free_block": self.largest_free,
            "num_alloc_retries": self.n_retries,
            "num_ooms": self.n_out_of_memory,
        }

    def summary(self, title: str) -> str:
        """The numbers as a table."""
        live = self.n_allocations - self.n_frees
        rows = [
            ("allocated", format_bytes(self.allocated), format_bytes(self.peak_allocated)),
            ("reserved", format_bytes(self.reserved), format_bytes(self.peak_reserved)),
            ("requested", format_bytes(self.requested), ""),
            ("largest free block", format_bytes(self.largest_free), ""),
            ("fragmentation", f"{self.fragmentation:.1%}", ""),
            ("blocks in use", str(live), ""),
            ("segments", str(self.n_segments), ""),
            ("cache given back", f"{self.n_retries} times", ""),
            ("out of memory", f"{self.n_out_of_memory} times", ""),
        ]
        lines = [title, f"{'':<20}{'now':>16}{'peak':>16}"]
        lines += [f"{name:<20}{now:>16}{peak:>16}".rstrip() for name, now, peak in rows]
        return "\n".join(lines)
