r"""The two messages of local privacy: the server's query and a user's answer.

Both are plain numbers in a fixed layout, little-endian, never pickled:

=========  ======  ==========================================================
bytes      type    meaning
=========  ======  ==========================================================
4          bytes   ``LDPQ`` for a query, ``LDPA`` for an answer
2          uint16  version of the layout
2          uint16  query: 0 for a stencil, 1 for a dictionary; answer: 0
16         bytes   the identity of the run, drawn by the server
8          uint64  the index of the step, starting at 1
4, 4       uint32  the numbers p of parameters and M of points (answer: M = 0)
8          double  query: the stencil's half width, 0 for a dictionary; answer: 0
8 (p)      double  query: the parameter; answer: the noised gradient
8 (M p)    double  dictionary: the points
8 (p M)    double  dictionary: the weights W
=========  ======  ==========================================================

A query contains public values only. An answer is the release of a mechanism. Neither is
signed or encrypted: send them over a channel that is.
"""

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from botorch_dp._deprecated import renamed_attribute, renamed_names
from botorch_dp._validation import check_count, check_nonnegative, check_tensor
from botorch_dp.exceptions import InvalidArgumentError, MessageError
from botorch_dp.models.surrogates.stencil import stencil_gradient, stencil_offsets

VERSION = 1
MAX_BYTES = 2**26  # no honest message is larger: p = 2,000 with 2,000 points
_QUERY, _ANSWER = b"LDPQ", b"LDPA"
_STENCIL, _DICTIONARY = 0, 1
_HEADER = struct.Struct("<4sHH16sQIId")


@dataclass(frozen=True)
class LDPQuery:
    """What the server sends: where to evaluate, and how losses become a gradient.

    A query has either a ``half_width``, or ``points`` and ``weights``.

    Args:
        run_id: The identity of the run, 16 bytes.
        step: The index of the step, starting at 1.
        x: The current parameter, a ``p`` tensor.
        half_width: The half width of a stencil around ``x``; 0 for a dictionary.
        points: The points of a dictionary, an ``M x p`` tensor.
        weights: The weights W of a dictionary, a ``p x M`` tensor.
    """

    run_id: bytes
    step: int
    x: Tensor
    half_width: float = 0.0
    points: Tensor | None = None
    weights: Tensor | None = None
    run = renamed_attribute("run", "run_id")

    def __post_init__(self) -> None:
        _check_header(self.run_id, self.step)
        check_tensor("x", self.x, ("p",))
        check_nonnegative("half_width", self.half_width)
        p, is_stencil = len(self.x), self.half_width > 0
        if (self.points is None) != is_stencil or (self.weights is None) != is_stencil:
            raise InvalidArgumentError(
                "A query has either a half_width above 0, or points and weights."
            )
        if self.points is not None and self.weights is not None:
            check_tensor("points", self.points, ("M", p))
            meaning = "a column for each point"
            check_tensor(
                "weights", self.weights, (p, len(self.points)), meaning=meaning
            )
        elif 16 * p**2 > MAX_BYTES:  # the size of the stencil's points
            raise InvalidArgumentError(
                f"x must have at most {math.isqrt(MAX_BYTES // 16)} numbers for a "
                f"stencil, got {p}."
            )

    @property
    def evaluation_points(self) -> Tensor:
        """The points at which the user evaluates its loss, ``M x p``."""
        if self.points is not None:
            return self.points
        offsets = stencil_offsets(
            len(self.x), self.half_width, dtype=self.x.dtype, device=self.x.device
        )
        return self.x + offsets

    def gradient(self, losses: Tensor) -> Tensor:
        """Return the private gradient, a ``p`` tensor, which is linear in ``M`` losses.

        A hostile server can choose weights that make it arbitrarily large, so it must
        be clipped afterwards.
        """
        if self.weights is None:
            return stencil_gradient(losses, self.half_width)
        return self.weights @ losses

    def to_bytes(self) -> bytes:
        """Return the message."""
        kind, num_points, parts = _STENCIL, 0, [self.x]
        if self.points is not None and self.weights is not None:
            kind, num_points = _DICTIONARY, len(self.points)
            parts += [self.points, self.weights]
        fields = (kind, self.run_id, self.step, len(self.x), num_points)
        return _pack(_QUERY, *fields, self.half_width, parts=parts)

    @classmethod
    def from_bytes(cls, message: bytes) -> "LDPQuery":
        """Read a message.

        Raises:
            MessageError: If it is not a query of this version, or has the wrong size.
        """
        kind, run_id, step, p, m, half_width, values = _unpack(_QUERY, message)
        if kind not in (_STENCIL, _DICTIONARY):
            raise MessageError(f"The query is of an unknown kind, {kind}.")
        if kind == _STENCIL:
            m = 0  # it sends no points
        _check_size(len(values), p + 2 * m * p)
        x, points, weights = values.split([p, m * p, m * p])
        try:
            if kind == _STENCIL:
                return cls(run_id, step, x, half_width)
            points, weights = points.reshape(m, p), weights.reshape(p, m)
            return cls(run_id, step, x, half_width, points, weights)
        except InvalidArgumentError as error:
            raise MessageError(f"The query is invalid: {error}") from error


@dataclass(frozen=True)
class LDPAnswer:
    """What a user sends: its clipped gradient plus its own noise.

    Args:
        run_id: The identity of the run that asked.
        step: The index of the step that asked.
        gradient: The noised gradient, a public ``p`` tensor.
    """

    run_id: bytes
    step: int
    gradient: Tensor
    run = renamed_attribute("run", "run_id")

    def __post_init__(self) -> None:
        _check_header(self.run_id, self.step)
        check_tensor("gradient", self.gradient, ("p",))

    def to_bytes(self) -> bytes:
        """Return the message."""
        fields = (0, self.run_id, self.step, len(self.gradient), 0, 0.0)
        return _pack(_ANSWER, *fields, parts=[self.gradient])

    @classmethod
    def from_bytes(cls, message: bytes) -> "LDPAnswer":
        """Read a message.

        Raises:
            MessageError: If it is not an answer of this version, or has the wrong size.
        """
        _, run_id, step, p, _, _, values = _unpack(_ANSWER, message)
        _check_size(len(values), p)
        try:
            return cls(run_id, step, values)
        except InvalidArgumentError as error:
            raise MessageError(f"The answer is invalid: {error}") from error


def _pack(magic: bytes, *fields: int | bytes | float, parts: list[Tensor]) -> bytes:
    size = _HEADER.size + 8 * sum(part.numel() for part in parts)
    if size > MAX_BYTES:
        raise MessageError(
            f"The message would have {size} bytes, more than {MAX_BYTES}: use a "
            "smaller dictionary, or a stencil."
        )
    arrays = [part.detach().cpu().double().numpy() for part in parts]
    numbers = b"".join(array.astype("<f8").tobytes() for array in arrays)
    return _HEADER.pack(magic, VERSION, *fields) + numbers


def _unpack(
    magic: bytes, message: bytes
) -> tuple[int, bytes, int, int, int, float, Tensor]:
    name = "a query" if magic == _QUERY else "an answer"
    if not isinstance(message, bytes):
        raise MessageError(f"A message must be bytes, got {type(message).__name__}.")
    if not _HEADER.size < len(message) <= MAX_BYTES:
        raise MessageError(
            f"A message has more than {_HEADER.size} and at most {MAX_BYTES} bytes, "
            f"got {len(message)}."
        )
    found, version, *fields = _HEADER.unpack_from(message)
    if found != magic:
        raise MessageError(f"The message is not {name}: it begins with {found!r}.")
    if version != VERSION:
        raise MessageError(
            f"The message has version {version}, but this library reads {VERSION}."
        )
    payload = message[_HEADER.size :]
    if len(payload) % 8:
        raise MessageError(f"The message ends within a number: {len(message)} bytes.")
    numbers = np.frombuffer(payload, dtype="<f8").astype(np.float64)
    kind, run_id, step, p, m, half_width = fields
    return kind, run_id, step, p, m, half_width, torch.from_numpy(numbers)


def _check_size(found: int, expected: int) -> None:
    if found != expected:
        raise MessageError(
            f"The header announces {expected} numbers, but the message has {found}."
        )


def _check_header(run_id: bytes, step: int) -> None:
    if not isinstance(run_id, bytes) or len(run_id) != 16:
        raise InvalidArgumentError(f"run_id must be 16 bytes, got {run_id!r}.")
    check_count("step", step)


if not TYPE_CHECKING:
    __getattr__ = renamed_names(__name__, {"Answer": "LDPAnswer", "Query": "LDPQuery"})
