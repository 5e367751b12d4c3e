"""Random numbers that an agent makes alone and a simulation makes for all agents.

A counter-based generator (numpy's Philox) is keyed by a seed, a purpose and a round.
Agent n takes the n-th block of its output. So an agent on its own machine draws the
same numbers as in a batch of ten thousand.

Needs torch and numpy only.
"""

import hashlib
import secrets

import numpy as np
import torch
from torch import Tensor

from botorch_dp._validation import check_count

_WORDS = 4  # words of 64 bits in each step of the counter


class AgentRandomness:
    """Uniform and normal numbers by purpose, round and agent.

    The guarantee depends on the server's noise and not on this seed. But anyone who
    knows the seed can repeat an agent's choices, so it is drawn from the operating
    system by default.

    Args:
        seed: A whole number; None for a random one.

    Example:
        >>> randomness = AgentRandomness(seed=3)
        >>> together = randomness.normals("message", 1, torch.arange(5), size=10)
        >>> alone = randomness.normals("message", 1, torch.tensor([4]), size=10)
        >>> torch.equal(together[4], alone[0])
        True
    """

    def __init__(self, seed: int | None = None) -> None:
        if seed is None:
            seed = secrets.randbits(63)
        self.seed = check_count("seed", seed, minimum=0)

    def uniforms(self, purpose: str, number: int, agents: Tensor, size: int) -> Tensor:
        """Return doubles strictly between zero and one, ``len(agents) x size``.

        Args:
            purpose: What the numbers are for; each purpose has its own numbers.
            number: The index of the round.
            agents: The indices of the agents, a tensor in ascending order.
            size: How many numbers to draw for each agent.
        """
        key = np.frombuffer(self._digest(purpose, number)[:16], dtype="<u8").astype(
            np.uint64
        )
        steps = -(-size // _WORDS)
        blocks = []
        for first, count in consecutive(agents.tolist()):
            generator = np.random.Philox(key=key, counter=[first * steps, 0, 0, 0])
            words = generator.random_raw(count * steps * _WORDS)
            blocks.append(words.reshape(count, steps * _WORDS)[:, :size])
        words = np.concatenate(blocks) if blocks else np.empty((0, size), np.uint64)
        doubles = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return torch.from_numpy(doubles).to(agents.device)

    def normals(self, purpose: str, number: int, agents: Tensor, size: int) -> Tensor:
        """Return standard normal doubles, ``len(agents) x size``."""
        return torch.special.ndtri(self.uniforms(purpose, number, agents, size))

    def child_seed(self, purpose: str, number: int) -> int:
        """Return the seed of something that all agents draw again in a round."""
        return int.from_bytes(self._digest(purpose, number)[:7], "little")

    def _digest(self, purpose: str, number: int) -> bytes:
        return hashlib.sha256(f"{self.seed} {purpose} {number}".encode()).digest()


def consecutive(numbers: list[int]) -> list[tuple[int, int]]:
    """Return the first number and the length of each block of consecutive numbers."""
    if numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return [(numbers[0], len(numbers))]  # all of them, as in a simulation
    blocks: list[tuple[int, int]] = []
    for number in numbers:
        if blocks and number == sum(blocks[-1]):
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + 1)
        else:
            blocks.append((number, 1))
    return blocks
