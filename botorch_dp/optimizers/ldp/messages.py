r"""The two messages of local privacy: what the server asks, what a user answers.

Both are plain numbers in a fixed layout, little-endian, never pickled:

=========  ======  ==========================================================
bytes      type    meaning
=========  ======  ==========================================================
4          bytes   ``LDPQ`` for a query, ``LDPA`` for an answer
2          uint16  version of the layout
2          uint16  query: 0 for a stencil, 1 for a dictionary; answer: 0
16         bytes   the run's name, drawn by the server
8          uint64  the step's number
4, 4       uint32  the numbers p of parameters and M of points (answer: M = 0)
8          double  query: the stencil's half width, 0 for a dictionary; answer: 0
8 (p)      double  query: the parameter; answer: the noised gradient
8 (M p)    double  dictionary: the points
8 (p M)    double  dictionary: the weights W
=========  ======  ==========================================================

A query holds public values only. An answer is the release of a mechanism. Neither is
signed or encrypted: use a channel that is.
"""

import math
import struct
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from botorch_dp._validation import check_count, check_nonnegative
from botorch_dp.exceptions import InvalidArgumentError, MessageError
from botorch_dp.models.surrogates.stencil import stencil_gradient, stencil_offsets

VERSION = 1
MAX_BYTES = 2**26  # no honest message is larger: p = 2,000 with 2,000 points
_QUERY, _ANSWER = b"LDPQ", b"LDPA"
_STENCIL, _DICTIONARY = 0, 1
_HEADER = struct.Struct("<4sHH16sQIId")


@dataclass(frozen=True)
class Query:
    """What the server sends: where to evaluate, and how losses become a gradient.

    Args:
        run: The run's name, 16 bytes.
        step: The number of the step, from 1.
        x: The current parameter, a ``p`` tensor.
        half_width: Of a stencil around ``x``; 0 if there is a dictionary.
        points: The dictionary, an ``M x p`` tensor.
        weights: Its weights W, a ``p x M`` tensor.
    """

    run: bytes
    step: int
    x: Tensor
    half_width: float = 0.0
    points: Tensor | None = None
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        _check_run(self.run)
        check_count("step", self.step)
        _check_tensors(x=self.x, points=self.points, weights=self.weights)
        if self.x.dim() != 1 or not 1 <= self.x.shape[0] < 2**32:
            raise InvalidArgumentError(
                f"x must be a p tensor, got shape {tuple(self.x.shape)}."
            )
        if (self.points is None) != (self.weights is None) or (self.points is None) == (
            self.half_width == 0.0
        ):
            raise InvalidArgumentError(
                "A query has either a half_width above 0, or points and weights."
            )
        check_nonnegative("half_width", self.half_width)
        if self.points is None or self.weights is None:
            if 16 * len(self.x) ** 2 > MAX_BYTES:  # of its points
                raise InvalidArgumentError(
                    f"x must have at most {math.isqrt(MAX_BYTES // 16)} numbers for a "
                    f"stencil, got {len(self.x)}."
                )
            return
        p = self.x.shape[0]
        if self.points.dim() != 2 or self.points.shape[1] != p or not len(self.points):
            raise InvalidArgumentError(
                f"points must be an M x {p} tensor, got shape "
                f"{tuple(self.points.shape)}."
            )
        if self.weights.shape != (p, len(self.points)):
            raise InvalidArgumentError(
                f"weights must have shape {p} x {len(self.points)}, a column for each "
                f"point of the dictionary, got {tuple(self.weights.shape)}."
            )

    @property
    def evaluation_points(self) -> Tensor:
        """Where the user has to evaluate its loss, ``M x p``."""
        if self.points is not None:
            return self.points
        offsets = stencil_offsets(
            len(self.x), self.half_width, dtype=self.x.dtype, device=self.x.device
        )
        return self.x + offsets

    def gradient(self, losses: Tensor) -> Tensor:
        """Return the gradient, a ``p`` tensor, from the ``M`` losses: linear in them.

        Private. With hostile weights it is anything at all, of any size: it has to be
        clipped afterwards.
        """
        if self.weights is None:
            return stencil_gradient(losses, self.half_width)
        return self.weights @ losses

    def to_bytes(self) -> bytes:
        """Return the message."""
        parts = [self.x]
        if self.points is not None and self.weights is not None:
            parts += [self.points, self.weights]
        kind = _STENCIL if self.points is None else _DICTIONARY
        num_points = 0 if self.points is None else len(self.points)
        return _pack(
            _QUERY, kind, self.run, self.step, num_points, self.half_width, parts
        )

    @classmethod
    def from_bytes(cls, message: bytes) -> "Query":
        """Read a message.

        Raises:
            MessageError: If it is not a query of this version, or of the wrong size.
        """
        kind, run, step, p, m, half_width, values = _unpack(_QUERY, message)
        if kind not in (_STENCIL, _DICTIONARY):
            raise MessageError(f"The query is of an unknown kind, {kind}.")
        expected = p if kind == _STENCIL else p + 2 * m * p
        _check_size(len(values), expected)
        try:
            if kind == _STENCIL:
                return cls(run, step, values, half_width)
            return cls(
                run,
                step,
                values[:p],
                half_width,
                points=values[p : p + m * p].reshape(m, p),
                weights=values[p + m * p :].reshape(p, m),
            )
        except InvalidArgumentError as error:
            raise MessageError(f"The query makes no sense: {error}") from error


@dataclass(frozen=True)
class Answer:
    """What a user sends: its gradient, clipped, with noise of its own.

    Args:
        run: The name of the run that asked.
        step: The step that asked.
        gradient: A ``p`` tensor: public.
    """

    run: bytes
    step: int
    gradient: Tensor

    def __post_init__(self) -> None:
        _check_run(self.run)
        check_count("step", self.step)
        _check_tensors(gradient=self.gradient)
        if self.gradient.dim() != 1 or not len(self.gradient):
            raise InvalidArgumentError(
                f"gradient must be a p tensor, got shape {tuple(self.gradient.shape)}."
            )

    def to_bytes(self) -> bytes:
        """Return the message."""
        return _pack(_ANSWER, 0, self.run, self.step, 0, 0.0, [self.gradient])

    @classmethod
    def from_bytes(cls, message: bytes) -> "Answer":
        """Read a message.

        Raises:
            MessageError: If it is not an answer of this version, or of the wrong size.
        """
        _, run, step, p, _, _, values = _unpack(_ANSWER, message)
        _check_size(len(values), p)
        try:
            return cls(run, step, values)
        except InvalidArgumentError as error:
            raise MessageError(f"The answer makes no sense: {error}") from error


def _pack(
    magic: bytes,
    kind: int,
    run: bytes,
    step: int,
    num_points: int,
    half_width: float,
    parts: list[Tensor],
) -> bytes:
    p = parts[0].shape[0]
    header = _HEADER.pack(magic, VERSION, kind, run, step, p, num_points, half_width)
    arrays = [part.detach().cpu().double().numpy() for part in parts]
    message = header + b"".join(array.astype("<f8").tobytes() for array in arrays)
    if len(message) > MAX_BYTES:
        raise MessageError(
            f"The message would have {len(message)} bytes, more than {MAX_BYTES}: use "
            "a smaller dictionary, or a stencil."
        )
    return message


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
    found, version, kind, run, step, p, m, half_width = _HEADER.unpack_from(message)
    if found != magic:
        raise MessageError(f"The message is not {name}: it begins with {found!r}.")
    if version != VERSION:
        raise MessageError(
            f"The message is of version {version}, this library reads {VERSION}."
        )
    payload = message[_HEADER.size :]
    if len(payload) % 8:
        raise MessageError(f"The message ends within a number: {len(message)} bytes.")
    numbers = np.frombuffer(payload, dtype="<f8").astype(np.float64)
    return kind, run, step, p, m, half_width, torch.from_numpy(numbers)


def _check_size(found: int, expected: int) -> None:
    if found != expected:
        raise MessageError(
            f"The message must hold {expected} numbers by its header, got {found}."
        )


def _check_tensors(**values: Tensor | None) -> None:
    for name, value in values.items():
        if value is not None and not (
            isinstance(value, Tensor) and value.is_floating_point()
        ):
            raise InvalidArgumentError(
                f"{name} must be a tensor of real numbers, got {value!r}."
            )


def _check_run(run: bytes) -> None:
    if not isinstance(run, bytes) or len(run) != 16:
        raise InvalidArgumentError(f"run must be 16 bytes, got {run!r}.")
