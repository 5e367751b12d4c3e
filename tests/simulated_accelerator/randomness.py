"""The random numbers of the device."""

import weakref
from typing import Any

import torch

from tests.simulated_accelerator.counts import note

NAME = "sim"
DEVICE = f"{NAME}:0"
CPU = torch.device("cpu")

addresses: set[int] = set()


class Generator(torch.Generator):
    """A generator of random numbers on the simulated device.

    It draws the same numbers as a CPU generator with the same seed.
    """

    def __new__(cls):
        generator = super().__new__(cls)
        # Torch passes addresses on without their Python class.
        address = generator._cdata
        addresses.add(address)
        weakref.finalize(generator, addresses.discard, address)
        return generator

    @property
    def device(self) -> torch.device:
        return torch.device(DEVICE)


class Backend:
    """The module ``torch.sim``, with the state of the device's random numbers."""

    def __init__(self) -> None:
        self.state = torch.Generator(CPU).get_state()

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        self.state = torch.Generator(CPU).manual_seed(seed).get_state()

    def get_rng_state(self, device: Any = NAME) -> torch.Tensor:
        return self.state.clone()

    def set_rng_state(self, state: torch.Tensor, device: Any = NAME) -> None:
        self.state = state.clone()

    def synchronize(self, device: Any = NAME) -> None:
        note(synchronizations=1)


backend = Backend()
