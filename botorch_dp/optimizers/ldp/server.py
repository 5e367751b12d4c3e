r"""The server's side of local privacy: public messages in, public parameters out.

One user answers one query. What the server holds (the parameter, its averages, the
dictionary, the number of steps) is a function of the messages it received and of its
settings; all of it may be published, at any time, and its size does not grow.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Algorithm 1.
"""

import copy
import hashlib
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._validation import check_choice, check_count, check_positive
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    MessageError,
    OptimizerStateError,
)
from botorch_dp.models.surrogates.base import GradientSurrogate
from botorch_dp.models.surrogates.compressed import CompressedSurrogate
from botorch_dp.models.surrogates.stencil import HALF_WIDTH, Stencil
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.optimizers.ldp.averaging import IterateAverage
from botorch_dp.optimizers.ldp.client import LDPBOClient
from botorch_dp.optimizers.ldp.messages import Answer, Query
from botorch_dp.optimizers.ldp.step_sizes import StepSchedule

MODES = ("stencil", "swc", "swc-literal")
_STATE_VERSION = 1


class LDPBOServer:
    r"""Follows private gradients of users who come one at a time.

    Minimizes the expected loss of a user ([LDPBO2025]_, Algorithm 1). Losses enter
    fresh, from the current user at every point, and the choice of points sees no loss
    at all; both differ from what the paper prints, where the one does not converge and
    the other is not private.

    Args:
        initial_x: Where to start: a ``p`` tensor, with dtype and device. A
            ``batch_shape x p`` tensor is a batch of independent servers, for
            simulations.
        step: The step sizes; :meth:`StepSchedule.for_noise` chooses them.
        mode: ``"stencil"``: 2 p points around the current one, see :class:`Stencil`;
            ``"swc"``: a compressed dictionary of about p + 1 points, see
            :class:`CompressedSurrogate`; ``"swc-literal"``: the paper's compression,
            which may collapse.
        half_width: Of the stencil; 0.05 by default.
        kappa: The compression budget of a dictionary; 0.1 by default, 0.2 above 10
            dimensions.
        kernel: Of a dictionary, with fixed hyperparameters.
        average: ``"suffix"``, ``"running"`` (as in the paper), ``"exponential"`` or
            ``"last"``, see :class:`IterateAverage`.
        half_life: In steps, of the exponential average.
        bounds: A ``2 x p`` box to stay in; none by default.
        max_staleness: How many steps late an answer may come.
        max_norm: Refuse answers longer than this, so that a hostile user moves the
            parameter by no more than the step size times this length. By default what
            :meth:`StepSchedule.for_noise` knows of honest answers; for another schedule
            give a length from :func:`longest_message`. ``math.inf`` lets a single user
            carry the parameter anywhere.
        surrogate: One's own choice of points, in place of ``mode``.

    Example:
        >>> x = torch.zeros(2, dtype=torch.float64)
        >>> server = LDPBOServer(x, step=StepSchedule(initial=0.1), max_norm=20.0)
        >>> query = server.query()
        >>> query.evaluation_points.shape
        torch.Size([4, 2])
        >>> server.receive(Answer(query.run, query.step, -torch.ones(2).double()))
        >>> server.x
        tensor([0.1000, 0.1000], dtype=torch.float64)
    """

    def __init__(
        self,
        initial_x: Tensor,
        *,
        step: StepSchedule,
        mode: str = "stencil",
        half_width: float | None = None,
        kappa: float | None = None,
        kernel: Kernel | None = None,
        average: str = "suffix",
        half_life: float | None = None,
        bounds: Tensor | None = None,
        max_staleness: int = 0,
        max_norm: float | None = None,
        surrogate: GradientSurrogate | None = None,
    ) -> None:
        self._x = check_start(initial_x)
        self.bounds = None if bounds is None else _check_box(bounds, self._x)
        if not isinstance(step, StepSchedule):
            raise InvalidArgumentError(f"step must be a StepSchedule, got {step!r}.")
        self.step = step
        self.mode = check_choice("mode", mode, MODES)
        if surrogate is not None:
            self.mode = "custom"
        not_for_it = {
            "stencil": {"kappa": kappa, "kernel": kernel},
            "custom": {"kappa": kappa, "kernel": kernel, "half_width": half_width},
        }.get(self.mode, {"half_width": half_width})
        for name, value in not_for_it.items():
            if value is not None:
                raise InvalidArgumentError(
                    f"{name} is of no use with mode={self.mode!r}, got {value!r}."
                )
        self.max_staleness = check_count("max_staleness", max_staleness, minimum=0)
        self.max_norm = _check_max_norm(max_norm, step)
        self._recent: list[str] = []  # digests of answers that could come once more
        self._average = IterateAverage(average, self._x, half_life=half_life)
        self._surrogate: GradientSurrogate
        if surrogate is not None:
            if not isinstance(surrogate, GradientSurrogate):
                raise InvalidArgumentError(
                    f"surrogate must be a GradientSurrogate, got {surrogate!r}."
                )
            self._surrogate = surrogate
            self._surrogate.update(self._x)
        elif mode == "stencil":
            self._surrogate = Stencil(
                self._x,
                half_width=HALF_WIDTH if half_width is None else half_width,
                bounds=self.bounds,
            )
        else:
            if kappa is None:
                kappa = 0.1 if self._x.shape[-1] <= 10 else 0.2
            self._surrogate = CompressedSurrogate(
                self._x,
                budget=kappa,
                rule="trace" if mode == "swc" else "literal",
                kernel=kernel,
                bounds=self.bounds,
            )
        self._num_steps = 0
        self.run = secrets.token_bytes(16)

    @property
    def x(self) -> Tensor:
        """The current parameter, ``batch_shape x p``."""
        return self._x

    @property
    def average(self) -> Tensor:
        """The average of the parameters so far, ``batch_shape x p``."""
        return self._average.value

    @property
    def num_steps(self) -> int:
        """How many answers were followed."""
        return self._num_steps

    @property
    def surrogate(self) -> GradientSurrogate:
        """Where users evaluate, and how losses become a gradient."""
        return self._surrogate

    def query(self) -> Query:
        """Return what to ask the next user."""
        if self._x.dim() != 1:
            raise OptimizerStateError(
                "A batch of servers is for simulations: it has no messages."
            )
        number = self._num_steps + 1
        surrogate = self._surrogate
        if isinstance(surrogate, Stencil):
            return Query(self.run, number, surrogate.center, surrogate.half_width)
        return Query(
            self.run,
            number,
            self._x,
            points=surrogate.points,
            weights=surrogate.weights,
        )

    def receive(self, answer: Answer | bytes) -> None:
        """Take a step along a user's answer.

        Raises:
            MessageError: If the answer cannot be read, is of another run or a step too
                long ago, or is not finite. The state is left as it was.
        """
        if not isinstance(answer, Answer):
            answer = Answer.from_bytes(answer)
        number, late = self._num_steps + 1, self._num_steps + 1 - answer.step
        if answer.run != self.run:
            raise MessageError("The answer is to a query of another run.")
        if not 0 <= late <= self.max_staleness:
            raise MessageError(
                f"The answer is to step {answer.step}, the server is at {number}; "
                f"max_staleness is {self.max_staleness}."
            )
        if answer.gradient.shape != self._x.shape:
            raise MessageError(
                f"The answer must have {self._x.shape[-1]} numbers, got "
                f"{len(answer.gradient)}."
            )
        gradient = answer.gradient.detach().to(self._x)
        if (
            not float(gradient.norm()) <= self.max_norm
            or not self._next(gradient).isfinite().all()
        ):
            raise MessageError(
                "The answer must be finite, and no longer than max_norm="
                f"{self.max_norm}: no honest user sends that."
            )
        digest = hashlib.sha256(answer.to_bytes()).hexdigest()
        if digest in self._recent:
            raise MessageError("The answer was followed before.")
        self.follow(gradient)
        # Later ones are too late by then.
        self._recent = [*self._recent, digest][-(self.max_staleness + 1) :]

    def visit(self, client: LDPBOClient) -> bool:
        """Ask a client in this process, through bytes as over a network.

        Returns:
            Whether it answered; False if its budget is spent. The server goes on.
        """
        try:
            answer = client.answer(self.query().to_bytes())
        except BudgetExceededError:
            return False
        self.receive(answer.to_bytes())
        return True

    def follow(self, gradient: Tensor) -> None:
        """Take a step along a released gradient, ``batch_shape x p``.

        It is public, and so is everything that follows from it: Algorithm 1, line 11,
        then lines 6 and 7 for the next user.
        """
        x = self._next(gradient)
        self._surrogate.update(x)  # the one thing that may raise, and change nothing
        self._num_steps += 1
        self._x = x
        self._average.update(x)

    def _next(self, gradient: Tensor) -> Tensor:
        x = self._x - self.step(self._num_steps + 1) * gradient
        return x if self.bounds is None else x.clamp(*self.bounds)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            "method": "ldp-bo",
            "shape": list(self._x.shape),
            "mode": self.mode,
            **self._surrogate.settings(),
            "step": _step_sizes(self.step),
            "average": self._average.kind,
            "half_life": self._average.half_life,
            "bounds": None if self.bounds is None else self.bounds.tolist(),
            "max_staleness": self.max_staleness,
            "max_norm": None if math.isinf(self.max_norm) else self.max_norm,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which may be published."""
        return {
            "version": _STATE_VERSION,
            "settings": self.settings(),
            "run": self.run.hex(),
            "num_steps": self._num_steps,
            "recent": list(self._recent),
            "x": self._x.clone(),
            "average": self._average.state_dict(),
            "surrogate": self._surrogate.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from the state of a server with the same settings.

        Raises:
            OptimizerStateError: If it is not such a state; nothing is changed then.
        """
        before = self.state_dict()
        try:
            self._restore(copy.deepcopy(dict(state_dict)))
        except Exception as error:  # whatever a broken state may raise
            self._restore(before)
            raise OptimizerStateError(
                f"state_dict is not one of {type(self).__name__}: {error!r}."
            ) from error

    def _restore(self, state: dict[str, Any]) -> None:
        if state["version"] != _STATE_VERSION:
            raise ValueError(f"version {state['version']!r}")
        theirs, ours = state["settings"], self.settings()
        for key in ours:
            if theirs[key] != ours[key]:
                raise ValueError(f"{key}={theirs[key]!r} there, {ours[key]!r} here")
        x, run = state["x"].to(self._x), bytes.fromhex(state["run"])
        if x.shape != self._x.shape or not x.isfinite().all() or len(run) != 16:
            raise ValueError("a parameter or a run of another form")
        number = check_count("num_steps", state["num_steps"], minimum=0)
        if state["average"]["count"] != number:
            raise ValueError("an average of another number of steps")
        self._average.load_state_dict(state["average"])
        self._num_steps, self._x, self.run = number, x, run
        self._recent = [str(digest) for digest in state["recent"]]
        self._surrogate.update(x)
        self._surrogate.load_state_dict(state["surrogate"])
        theirs = self._surrogate.state_dict().get("x")
        if theirs is not None and not torch.equal(theirs.reshape(x.shape).to(x), x):
            raise ValueError("a dictionary of another parameter")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, which a crash leaves whole."""
        write_checkpoint(path, self.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file of :meth:`save`."""
        self.load_state_dict(read_checkpoint(path, self._x.device))


def check_start(initial_x: Tensor) -> Tensor:
    """Return a copy of the start if it is one."""
    if not isinstance(initial_x, Tensor) or initial_x.dtype not in (
        torch.float32,
        torch.float64,
    ):
        raise InvalidArgumentError(
            "initial_x must be a tensor of float32 or float64, got "
            f"{getattr(initial_x, 'dtype', initial_x)!r}."
        )
    if initial_x.dim() < 1 or not initial_x.numel() or not initial_x.isfinite().all():
        raise InvalidArgumentError(
            "initial_x must be a finite batch_shape x p tensor, got shape "
            f"{tuple(initial_x.shape)}."
        )
    return initial_x.detach().clone()


def _check_max_norm(max_norm: float | None, step: StepSchedule) -> float:
    """Return the length beyond which answers are refused."""
    if max_norm is None:
        max_norm = step.longest_message
    if max_norm is None:
        raise InvalidArgumentError(
            f"max_norm must be given with {step!r}, which does not know how long "
            "honest answers are: make it with StepSchedule.for_noise(...), or give "
            "max_norm=longest_message(clip_norm=..., noise_std=..., dim=...) from "
            "botorch_dp.optimizers. math.inf lets one hostile answer carry the "
            "parameter anywhere."
        )
    if max_norm == math.inf:
        return math.inf
    return check_positive("max_norm", max_norm)


def _step_sizes(step: StepSchedule) -> dict[str, Any]:
    """Return what decides the size of steps, as plain values."""
    return {k: v for k, v in asdict(step).items() if k != "longest_message"}


def _check_box(bounds: Tensor, x: Tensor) -> Tensor:
    if not isinstance(bounds, Tensor) or bounds.shape != (2, x.shape[-1]):
        raise InvalidArgumentError(
            f"bounds must be a 2 x {x.shape[-1]} tensor, got "
            f"{tuple(getattr(bounds, 'shape', ()))}."
        )
    bounds = bounds.detach().to(x)
    if not (bounds[0] < bounds[1]).all() or bounds.isnan().any():
        raise InvalidArgumentError(
            f"bounds must have lower below upper ones, got {bounds.tolist()}."
        )
    if not ((x >= bounds[0]) & (x <= bounds[1])).all():
        raise InvalidArgumentError("initial_x must lie within bounds.")
    return bounds
