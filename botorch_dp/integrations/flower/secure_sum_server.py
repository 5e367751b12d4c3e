"""The server's half of a secure sum: it forwards, adds up and removes the masks.

It learns the sum of the vectors that arrived. See
:mod:`~botorch_dp.integrations.flower.secure_sum` for the protocol. Every method takes
the answers of a stage by agent, and raises :class:`SumFailedError` if too few are left,
whose vectors then remain hidden.
"""

from collections.abc import Mapping, Sized

from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from torch import Tensor

from botorch_dp.exceptions import BotorchDPError, MessageError
from botorch_dp.integrations.flower.secure_masks import (
    KEY_BYTES,
    SumTask,
    exchange,
    public_key,
)
from botorch_dp.integrations.flower.secure_sum import (
    MASK_KEY,
    SEED,
    SHARE_BYTES,
    sum_of,
)

Private = Mapping[int, Mapping[int, bytes]]


class SumFailedError(BotorchDPError):
    """Too few agents answered, or what they revealed does not fit together."""


class SumServer:
    """The server of one secure sum.

    Args:
        task: The sum.
    """

    def __init__(self, task: SumTask) -> None:
        self.task = task
        self._keys: dict[int, bytes] = {}
        self._masked: dict[int, Tensor] = {}
        self._dropped: set[int] = set()

    def introduce(self, keys: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        """Return for each agent the public keys of all."""
        keys = {agent: both for agent, both in keys.items() if _is_pair(both)}
        self._check_enough(keys)
        self._keys = keys
        return dict.fromkeys(keys, keys)

    def forward(self, sealed: Private) -> dict[int, dict[int, bytes]]:
        """Return for each agent the encrypted shares from all others."""
        # Shares that are not for all others are of no use.
        whole = {
            sender: shares
            for sender, shares in sealed.items()
            if sender in self._keys and {*shares, sender} == set(self._keys)
        }
        self._check_enough(whole)
        self._dropped = set(whole)  # until their vectors arrive
        return {
            agent: {
                sender: shares[agent]
                for sender, shares in whole.items()
                if sender != agent
            }
            for agent in whole
        }

    def wanted_shares(
        self, masked: Mapping[int, Tensor]
    ) -> dict[int, dict[int, bytes]]:
        """Return for each agent what it has to reveal of each agent."""
        arrived = {
            agent: vector for agent, vector in masked.items() if agent in self._dropped
        }
        self._check_enough(arrived)
        self._masked, self._dropped = arrived, self._dropped - set(arrived)
        wanted = dict.fromkeys(arrived, SEED) | dict.fromkeys(self._dropped, MASK_KEY)
        return dict.fromkeys(arrived, wanted)

    def total(self, revealed: Private) -> Tensor:
        """Return the sum of the vectors modulo 2^64.

        Args:
            revealed: The shares that each agent revealed, by whose secret they belong
                to.
        """
        wanted = {*self._masked, *self._dropped}
        whole = [
            shares
            for agent, shares in revealed.items()
            if agent in self._masked
            and set(shares) == wanted
            and all(len(share) == SHARE_BYTES for share in shares.values())
        ]
        self._check_enough(whole)
        enough = whole[: self.task.threshold]
        total = sum_of(self._masked.values())
        for agent in self._masked:
            total -= self.task.self_mask(self._combined(enough, agent), agent)
        for absent in self._dropped:
            total -= self._masks_with(absent, self._combined(enough, absent))
        return total

    def _masks_with(self, absent: int, secret: bytes) -> Tensor:
        """Return the masks that others added for an agent whose vector is missing."""
        if public_key(secret) != self._keys[absent][KEY_BYTES:]:
            raise SumFailedError(f"The shares of agent {absent} are wrong.")
        return sum_of(
            [
                self.task.pair_mask(
                    exchange(secret, self._keys[agent][KEY_BYTES:]), agent, absent
                )
                for agent in self._masked
            ]
        )

    def _combined(self, shares: list[Mapping[int, bytes]], agent: int) -> bytes:
        try:
            return combine_shares([one[agent] for one in shares])
        except (ValueError, MessageError) as error:
            raise SumFailedError(f"The shares of agent {agent} are wrong.") from error

    def _check_enough(self, agents: Sized) -> None:
        if len(agents) < self.task.threshold:
            raise SumFailedError(
                f"A sum needs {self.task.threshold} agents, got {len(agents)}."
            )


def _is_pair(keys: bytes) -> bool:
    return len(keys) == 2 * KEY_BYTES
