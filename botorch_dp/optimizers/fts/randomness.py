"""Random numbers that an agent makes alone and a simulation makes for all agents.

A counter-based generator (numpy's Philox) is keyed by a seed, a purpose and a round;
agent n has the n-th block of its output. So an agent on its own machine and a batch of
ten thousand draw the same numbers, and neither has to know the other.

Needs torch and numpy only.
"""

import hashlib
import secrets

import numpy as np
import torch
from torch import Tensor

from botorch_dp._validation import check_count

_WORDS = 4  # of 64 bits, for each step of the counter


class AgentRandomness:
    """Uniform and normal numbers, by purpose, round and agent.

    An agent's own choices need no secret for the guarantee, which rests on the server's
    noise. But whoever knows the seed can repeat them, so by default it is drawn from
    the operating system.

    Args:
        seed: A whole number; None for one that nobody knows.

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
            purpose: What they are for; other purposes have other numbers.
            number: Of the round.
            agents: The agents' numbers, a tensor in ascending order.
            size: How many for each.
        """
        digest = hashlib.sha256(f"{self.seed} {purpose} {number}".encode()).digest()
        key = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
        steps = -(-size // _WORDS)
        numbers = agents.tolist()
        blocks = []
        for first, count in _runs(numbers):
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
        """Return the seed of something that all agents make anew in a round."""
        digest = hashlib.sha256(f"{self.seed} {purpose} {number}".encode()).digest()
        return int.from_bytes(digest[:7], "little")


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Return the first number and the length of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs
