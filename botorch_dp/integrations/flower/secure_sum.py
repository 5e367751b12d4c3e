"""An agent's half of a secure sum: masked vectors, and shares of what removes masks.

The protocol is that of [Bonawitz2017secure]_, against a server that follows it but
wants to learn more. It has four stages, in each of which some agents may drop out:

1. **Keys.** Every agent draws two secrets, and tells the others both public keys.
2. **Shares.** It draws a seed, and splits the seed and the secret of its mask key among
   all agents, so that ``threshold`` of them can find these again. The server forwards
   the shares, which are encrypted.
3. **Vector.** It adds to its vector the mask of its seed, and a mask for each other
   agent, which cancels in the sum.
4. **Reveal.** For every agent that sent its vector it reveals its share of the seed;
   for every other one, its share of the mask key. Never both: together they would
   uncover the vector of one agent.

Every agent shares with every other one, so the work grows with the square of their
number. There are no Flower messages here.

References:
    .. [Bonawitz2017secure] K. Bonawitz et al. Practical Secure Aggregation for
        Privacy-Preserving Machine Learning. CCS 2017.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from torch import Tensor

from botorch_dp.exceptions import MessageError
from botorch_dp.integrations.flower.secure_masks import (
    KEY_BYTES,
    SumTask,
    exchange,
    new_secret,
    public_key,
)

KEYS, SHARES, VECTOR, REVEAL = STAGES = (1, 2, 3, 4)
#: Which share of an agent's secrets is to be revealed.
SEED, MASK_KEY = b"seed", b"mask key"
#: The bytes of a share of a secret: a number and two blocks.
SHARE_BYTES = 4 + 2 * 16


@dataclass
class SumAgent:
    """An agent in one secure sum; each method may be called once, in this order.

    Args:
        task: The sum.
        agent: The index of the agent.
        stage: The last stage in which it has answered; 0 for none.
        private_channel: The secret of the key with which shares are encrypted.
        private_mask_key: The secret of the key from which pairs derive their masks.
        private_seed: The seed of its own mask.
        peers: Both public keys of each agent that takes part, joined.
        private_shares: Its shares of the seed and of the mask key of every agent whose
            vector may be in the sum, joined.
    """

    task: SumTask
    agent: int
    stage: int = 0
    private_channel: bytes = field(default_factory=new_secret)
    private_mask_key: bytes = field(default_factory=new_secret)
    private_seed: bytes = field(default_factory=new_secret)
    peers: dict[int, bytes] = field(default_factory=dict)
    private_shares: dict[int, bytes] = field(default_factory=dict)

    def keys(self) -> bytes:
        """Return both public keys."""
        self._enter(KEYS)
        return self._public_keys()

    def share(self, peers: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return encrypted shares for each other agent.

        Args:
            peers: The public keys of all agents that take part, with its own.
        """
        self._enter(SHARES)
        self._check_enough(peers)
        if peers.get(self.agent) != self._public_keys():
            raise MessageError("The server lists other keys for this agent.")
        if len(set(peers.values())) < len(peers):
            raise MessageError("Two agents have the same keys.")
        if any(len(keys) != 2 * KEY_BYTES for keys in peers.values()):
            raise MessageError(f"Public keys must have {2 * KEY_BYTES} bytes.")
        self.peers = dict(sorted(peers.items()))
        sealed = {}
        for other, seed, key in zip(
            self.peers,
            self._split(self.private_seed),
            self._split(self.private_mask_key),
            strict=True,
        ):
            if other == self.agent:
                self.private_shares = {other: seed + key}
            else:
                secret = self._channel_to(other)
                sealed[other] = self.task.seal(secret, self.agent, other, seed + key)
        return sealed

    def masked(self, private_vector: Tensor, sealed: Mapping[int, bytes]) -> Tensor:
        """Return the vector with all masks, which looks random.

        Args:
            private_vector: What the agent adds to the sum, whole numbers (int64).
            sealed: The shares from each other agent that is still there.
        """
        self._enter(VECTOR)
        self._check_enough({*sealed, self.agent})
        if self.agent in sealed or not set(sealed) <= set(self.peers):
            raise MessageError("Shares come from agents that do not take part.")
        for other, data in sealed.items():
            secret = self._channel_to(other)
            plain = self.task.unseal(secret, other, self.agent, data)
            if len(plain) != 2 * SHARE_BYTES:
                raise MessageError(f"The shares of agent {other} are not complete.")
            self.private_shares[other] = plain
        masked = private_vector + self.task.self_mask(self.private_seed, self.agent)
        for other in sealed:
            secret = exchange(self.private_mask_key, self.peers[other][KEY_BYTES:])
            masked += self.task.pair_mask(secret, self.agent, other)
        return masked

    def reveal(
        self, active: Collection[int], dropped: Collection[int]
    ) -> dict[int, bytes]:
        """Return its shares of seeds and mask keys, from which the sum follows.

        Args:
            active: The agents whose vectors are in the sum: shares of their seeds.
            dropped: The others that sent shares: shares of their mask keys.
        """
        self._enter(REVEAL)
        self._check_enough(active)
        if set(active) & set(dropped):
            raise MessageError("An agent is both in the sum and not in it.")
        if {*active, *dropped} != set(self.private_shares):
            raise MessageError("The sum has other agents than those that sent shares.")
        if self.agent not in active:
            raise MessageError("The sum does not contain this agent.")
        return {
            **{other: self.private_shares[other][:SHARE_BYTES] for other in active},
            **{other: self.private_shares[other][SHARE_BYTES:] for other in dropped},
        }

    def forget(self) -> None:
        """Erase all secrets, so that nothing more can be revealed."""
        self.private_channel = self.private_mask_key = self.private_seed = b""
        self.private_shares = {}

    def private_state_dict(self) -> dict[str, Any]:
        """Return everything but the task, as plain values."""
        return {
            "agent": self.agent,
            "stage": self.stage,
            "secrets": [self.private_channel, self.private_mask_key, self.private_seed],
            "peers": list(self.peers),
            "keys": list(self.peers.values()),
            "senders": list(self.private_shares),
            "shares": list(self.private_shares.values()),
        }

    @classmethod
    def from_private_state(cls, task: SumTask, state: Mapping[str, Any]) -> "SumAgent":
        """Return the agent with this state."""
        channel, mask_key, seed = state["secrets"]
        return cls(
            task,
            state["agent"],
            state["stage"],
            channel,
            mask_key,
            seed,
            peers=dict(zip(state["peers"], state["keys"], strict=True)),
            private_shares=dict(zip(state["senders"], state["shares"], strict=True)),
        )

    def _enter(self, stage: int) -> None:
        """Go to a stage, once: it is over even if the agent then refuses to answer."""
        if self.stage != stage - 1:
            raise MessageError(
                f"Asked for stage {stage} of round {self.task.number} after stage "
                f"{self.stage}."
            )
        self.stage = stage

    def _check_enough(self, agents: Collection[int]) -> None:
        if len(set(agents)) < self.task.threshold:
            raise MessageError(
                f"A sum needs {self.task.threshold} agents, got {len(set(agents))}."
            )

    def _public_keys(self) -> bytes:
        return public_key(self.private_channel) + public_key(self.private_mask_key)

    def _channel_to(self, other: int) -> bytes:
        return exchange(self.private_channel, self.peers[other][:KEY_BYTES])

    def _split(self, secret: bytes) -> list[bytes]:
        return create_shares(secret, self.task.threshold, len(self.peers))


def sum_of(vectors: Collection[Tensor]) -> Tensor:
    """Return the sum of whole numbers modulo 2^64."""
    return torch.stack(list(vectors)).sum(dim=0)
