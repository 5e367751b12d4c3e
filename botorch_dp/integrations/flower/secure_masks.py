"""The cryptography of a secure sum: keys, masks and sealed shares.

Everything is bound to one round of one experiment, so that nothing from another round
fits. A mask is the key stream of ChaCha20 under a key that HKDF derives from a whole
secret of 31 bytes or more, read as whole numbers of 64 bits.

Needs numpy, torch and cryptography only.
"""

import secrets
from dataclasses import dataclass

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from botorch_dp.exceptions import MessageError

# Sharing a secret pads it to more than its size, in blocks of 16 bytes: this makes two.
SECRET_BYTES = 31
KEY_BYTES = 32
_NONCE_BYTES = 12  # of sealed shares


@dataclass(frozen=True)
class SumTask:
    """One secure sum: public.

    Args:
        experiment: 32 hexadecimal digits that identify the run.
        number: The index of the round, starting at 0.
        threshold: The least number of agents in the sum.
        num_entries: The number of entries of a vector.
    """

    experiment: str
    number: int
    threshold: int
    num_entries: int

    def key(self, secret: bytes, purpose: str) -> bytes:
        """Derive a key for one purpose in this round from a secret."""
        info = f"botorch_dp sum {self.experiment} {self.number} {purpose}"
        return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info.encode()).derive(
            secret
        )

    def self_mask(self, seed: bytes, agent: int) -> Tensor:
        """Return the mask that hides an agent's vector if its mask key is revealed."""
        return self._stream(self.key(seed, f"self mask of {agent}"))

    def pair_mask(self, secret: bytes, agent: int, other: int) -> Tensor:
        """Return what an agent adds for another one, which adds the opposite."""
        low, high = sorted((agent, other))
        mask = self._stream(self.key(secret, f"mask of {low} and {high}"))
        return mask if agent == low else -mask

    def seal(self, secret: bytes, sender: int, receiver: int, plain: bytes) -> bytes:
        """Encrypt and authenticate what one agent tells another."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        cipher = self._cipher(secret, sender, receiver)
        return nonce + cipher.encrypt(nonce, plain, None)

    def unseal(self, secret: bytes, sender: int, receiver: int, sealed: bytes) -> bytes:
        """Return what was sealed, or raise a MessageError if it was altered."""
        nonce, data = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher(secret, sender, receiver).decrypt(nonce, data, None)
        except (InvalidTag, ValueError):
            raise MessageError(f"The shares of agent {sender} were altered.") from None

    def _cipher(self, secret: bytes, sender: int, receiver: int) -> ChaCha20Poly1305:
        purpose = f"shares from {sender} for {receiver}"
        return ChaCha20Poly1305(self.key(secret, purpose))

    def _stream(self, key: bytes) -> Tensor:
        # The key is used for this stream only, so the nonce may be zero.
        cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
        data = cipher.update(bytes(8 * self.num_entries))
        return torch.from_numpy(np.frombuffer(data, dtype="<i8").astype(np.int64))


def new_secret() -> bytes:
    """Return a random secret."""
    return secrets.token_bytes(SECRET_BYTES)


def public_key(secret: bytes) -> bytes:
    """Return the public key that belongs to a secret."""
    return _private_key(secret).public_key().public_bytes_raw()


def exchange(secret: bytes, other: bytes) -> bytes:
    """Return the secret that the owners of two keys have in common.

    Args:
        secret: One's own secret.
        other: The public key of the other.
    """
    try:
        return _private_key(secret).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise MessageError("A public key is not valid.") from None


def _private_key(secret: bytes) -> X25519PrivateKey:
    key = HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=b"botorch_dp key").derive(
        secret
    )
    return X25519PrivateKey.from_private_bytes(key)
