"""Counting what a program asks of the device."""

import contextlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass


@dataclass
class Counts:
    """What a program asked the device to do.

    Attributes:
        operations: Calls that reached the device: kernels, views, allocations and
            copies. Each costs the host some microseconds.
        kernels: The operations that compute something on the device.
        synchronizations: How often the host waited for a result: ``item``, ``bool``,
            ``tolist``, ``equal``, ``nonzero``, boolean masks as indices, every other
            result whose shape depends on values, and copies to the host.
        to_device: Copies from the host to the device. Torch may wait for these too, but
            not for a result, so they are not among the synchronizations.
        to_host: Copies from the device to the host, except for ``item`` and ``bool``.
    """

    operations: int = 0
    kernels: int = 0
    synchronizations: int = 0
    to_device: int = 0
    to_host: int = 0

    @property
    def transfers(self) -> int:
        """Return the number of copies in both directions."""
        return self.to_device + self.to_host

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


_open_counts: list[Counts] = []


@contextlib.contextmanager
def count() -> Iterator[Counts]:
    """Count what happens on the device inside the block. Blocks may be nested."""
    counts = Counts()
    _open_counts.append(counts)
    try:
        yield counts
    finally:
        _open_counts[:] = [other for other in _open_counts if other is not counts]


def note(**numbers: int) -> None:
    for counts in _open_counts:
        for name, number in numbers.items():
            setattr(counts, name, getattr(counts, name) + number)
