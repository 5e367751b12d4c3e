"""The operator's list of agents: a folder with one public key for each of them.

``keys/agent-3.pub`` is the public key of agent 3, as ``ssh-keygen`` writes it. The
gateway refuses callers without a listed key. The server counts an answer for the agent
with whose key it was signed.
"""

import os
import re
from datetime import datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from botorch_dp.exceptions import InvalidArgumentError

_NAME = re.compile(r"agent-(0|[1-9][0-9]*)\.pub")


def key_file(folder: str | os.PathLike[str], agent: int) -> Path:
    """Return the path of an agent's public key in the folder with all keys."""
    return Path(folder) / f"agent-{agent}.pub"


def read_keys(
    folder: str | os.PathLike[str], num_agents: int | None = None
) -> dict[bytes, int]:
    """Return the agent of each key.

    Args:
        folder: A folder with files ``agent-0.pub``, ``agent-1.pub`` and so on.
        num_agents: The number of agents; None does not check it.

    Returns:
        A dictionary from public keys, in the encoding that Flower sends (PEM), to the
        indices of the agents.

    Raises:
        InvalidArgumentError: If the folder has no keys, a file is not a public key on
            an elliptic curve, or two agents have the same key.
    """
    agents: dict[bytes, int] = {}
    for path in sorted(Path(folder).glob("*.pub")):
        match = _NAME.fullmatch(path.name)
        if match is None or (num_agents is not None and int(match[1]) >= num_agents):
            last = "and so on" if num_agents is None else f"up to {num_agents - 1}"
            raise InvalidArgumentError(
                f"keys must contain files named agent-0.pub, agent-1.pub {last}, got "
                f"{path.name!r}: rename or remove it."
            )
        key = _read_key(path)
        if key in agents:
            raise InvalidArgumentError(
                f"keys must have a different key for each agent, but {path.name!r} is "
                f"also the key of agent {agents[key]}: ask that agent for its own."
            )
        agents[key] = int(match[1])
    if not agents:
        raise InvalidArgumentError(
            f"keys must be a folder with the public keys of the agents, but "
            f"{os.fspath(folder)!r} has no agent-0.pub."
        )
    return agents


def _read_key(path: Path) -> bytes:
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InvalidArgumentError(
            f"keys must contain public keys as ssh-keygen -t ecdsa writes them, got "
            f"{str(path)!r}."
        )
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def is_signed_by(key: bytes, timestamp: str, signature: bytes) -> bool:
    """Return whether a signature of a timestamp was made with the key."""
    public = serialization.load_pem_public_key(key)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    try:
        public.verify(signature, timestamp.encode(), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def seconds_since(timestamp: str) -> float:
    """Return the age of a time in ISO format with a time zone, or raise ValueError."""
    then = datetime.fromisoformat(timestamp)
    if then.tzinfo is None:
        raise ValueError("no time zone")
    return (datetime.now(then.tzinfo) - then).total_seconds()
