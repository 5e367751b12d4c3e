"""Signatures of certificates with Ed25519 keys in files."""

import base64
import binascii
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botorch_dp._imports import import_extra
from botorch_dp.exceptions import InvalidArgumentError

# A signature for another purpose, made with the same key, is not one of a certificate.
_CONTEXT = b"botorch-dp certificate 2\n"


@dataclass(frozen=True)
class Signature:
    """An Ed25519 signature of a certificate's digest.

    Attributes:
        public_key: The public key that belongs to it, in base64. A reader compares it
            with a key that is known from elsewhere.
        value: The signature, in base64.
    """

    public_key: str
    value: str


def create_key(path: str | os.PathLike[str]) -> Path:
    """Create a key pair, and return the file of the public key.

    The private key is written to ``path``, readable by its owner alone, and is not
    encrypted. The public key is written to ``path`` with ``.pub`` at the end; give it
    to everybody who checks certificates.

    Args:
        path: A file that does not exist.
    """
    private = _ed25519().Ed25519PrivateKey.generate()
    kinds = _serialization()
    secret = private.private_bytes(
        kinds.Encoding.PEM, kinds.PrivateFormat.PKCS8, kinds.NoEncryption()
    )
    public = private.public_key().public_bytes(
        kinds.Encoding.PEM, kinds.PublicFormat.SubjectPublicKeyInfo
    )
    public_path = Path(f"{os.fspath(path)}.pub")
    if public_path.exists():
        raise InvalidArgumentError(
            f"path must be new, got {os.fspath(path)!r}: {public_path} exists."
        )
    _write_new(Path(path), secret, mode=0o600)
    _write_new(public_path, public, mode=0o644)
    return public_path


def sign(digest: str, key: str | os.PathLike[str]) -> Signature:
    """Return the signature of a certificate's digest.

    Args:
        digest: The digest.
        key: The file of a private key.
    """
    private = _load(key, "key", "load_pem_private_key", "Ed25519PrivateKey")
    return Signature(
        public_key=_encoded(_raw(private.public_key())),
        value=_encoded(private.sign(_CONTEXT + digest.encode())),
    )


def is_signed(
    digest: str, signature: Signature, public_key: str | os.PathLike[str]
) -> bool:
    """Return whether the owner of a public key signed a certificate's digest.

    Args:
        digest: The digest.
        signature: The signature.
        public_key: The file of the public key.
    """
    public = _load(public_key, "public_key", "load_pem_public_key", "Ed25519PublicKey")
    wrong = import_extra(
        "cryptography.exceptions", extra="signatures", purpose="Checking a signature"
    ).InvalidSignature
    with contextlib.suppress(wrong, binascii.Error, ValueError):
        value = base64.b64decode(signature.value, validate=True)
        public.verify(value, _CONTEXT + digest.encode())
        return signature.public_key == _encoded(_raw(public))
    return False


def _load(path: str | os.PathLike[str], name: str, load: str, kind: str) -> Any:
    """Return the key in a file."""
    options = {"password": None} if "private" in load else {}
    try:
        content = Path(path).read_bytes()
        key = getattr(_serialization(), load)(content, **options)
    except (OSError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{name} must be the file of an Ed25519 key without a password, as "
            f"create_key writes it, got {os.fspath(path)!r}."
        ) from error
    if not isinstance(key, getattr(_ed25519(), kind)):
        raise InvalidArgumentError(
            f"{name} must be the file of an Ed25519 key, got {os.fspath(path)!r}."
        )
    return key


def _raw(public: Any) -> bytes:
    kinds = _serialization()
    raw: bytes = public.public_bytes(kinds.Encoding.Raw, kinds.PublicFormat.Raw)
    return raw


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _write_new(path: Path, content: bytes, *, mode: int) -> None:
    try:
        # The mode is there from the first moment, and an existing key is kept.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise InvalidArgumentError(
            f"path must be a new file in an existing folder, got {str(path)!r} "
            f"({error.strerror})."
        ) from error
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _ed25519() -> Any:
    return import_extra(
        "cryptography.hazmat.primitives.asymmetric.ed25519",
        extra="signatures",
        purpose="Signing certificates",
    )


def _serialization() -> Any:
    return import_extra(
        "cryptography.hazmat.primitives.serialization",
        extra="signatures",
        purpose="Signing certificates",
    )
