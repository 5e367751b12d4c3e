"""Global random numbers and warnings inside a run: what other runs must not tell.

A new process begins with torch's default seed, so two workers would shuffle and
initialize alike, and their runs would not be independent. And whoever knows the state
of a global generator before and after a selection could count the runs. So could
whoever counts the warnings of a training loop: those of torch come once for each step.
"""

import contextlib
import random
import warnings
from collections.abc import Iterator

import numpy as np
import torch

from botorch_dp.optimizers.core.randomness import kept_generators


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch.

    They are not meant for noise: torch's have 32-bit seeds on the CPU. The mechanisms
    of this library draw from the operating system.

    Args:
        seed: A number of at most 63 bits.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextlib.contextmanager
def fresh_globals(seed: int) -> Iterator[None]:
    """Seed the global generators, and restore their states afterwards."""
    state, numpy_state = random.getstate(), np.random.get_state()
    with kept_generators():
        try:
            seed_globals(seed)
            yield
        finally:
            random.setstate(state)
            np.random.set_state(numpy_state)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Drop all warnings, and restore the filters afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
