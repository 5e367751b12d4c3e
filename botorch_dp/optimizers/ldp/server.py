r"""The server's side of local privacy: public messages in, public parameters out.

One user answers one query. The server's state (the parameter, its averages, the
dictionary, the number of steps) is a function of the received messages and the
settings. All of it may be published at any time, and its size does not grow.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Algorithm 1.
"""

import copy
import hashlib
import math
import os
import secrets
from dataclasses import asdict
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._deprecated import renamed_argument, renamed_attribute
from botorch_dp._validation import (
    check_choice,
    check_count,
    check_inside,
    check_instance,
    check_positive,
    check_tensor,
)
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    MessageError,
    OptimizerStateError,
)
from botorch_dp.models.surrogates.base import GradientSurrogate
from botorch_dp.models.surrogates.budget import BudgetSchedule
from botorch_dp.models.surrogates.compressed import CompressedSurrogate
from botorch_dp.models.surrogates.stencil import HALF_WIDTH, Stencil
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.optimizers.core.state import Stateful
from botorch_dp.optimizers.ldp.averaging import IterateAverage
from botorch_dp.optimizers.ldp.client import LDPBOClient
from botorch_dp.optimizers.ldp.messages import LDPAnswer, LDPQuery
from botorch_dp.optimizers.ldp.step_sizes import StepSchedule

MODES = ("stencil", "swc", "swc-literal")


class LDPBOServer(Stateful):
    r"""Follows private gradients of users who come one at a time.

    Minimizes the expected loss of a user ([LDPBO2025]_, Algorithm 1). In contrast to
    the paper, the current user evaluates its loss at every point, because losses of
    earlier users do not make it converge, and the choice of points depends on no loss,
    because it would not be private otherwise.

    Args:
        initial_x: The start, a ``p`` tensor, which also sets dtype and device. A
            ``batch_shape x p`` tensor is a batch of independent servers, for
            simulations.
        step_sizes: The step sizes; :meth:`StepSchedule.for_noise` chooses them.
        mode: ``"stencil"``: 2 p points around the current one, see :class:`Stencil`;
            ``"swc"``: a compressed dictionary of about p + 1 points, see
            :class:`CompressedSurrogate`; ``"swc-literal"``: the paper's compression,
            which may collapse.
        half_width: The half width of the stencil; 0.05 by default.
        kappa: The compression budget of a dictionary, a number or a
            :class:`~botorch_dp.models.BudgetSchedule`; 0.1 by default, 0.2 above 10
            dimensions. A constant leaves a bias, which long streams should avoid with
            ``BudgetSchedule.for_noise``.
        kernel: The kernel of a dictionary, with fixed hyperparameters.
        average: ``"suffix"``, ``"running"`` (as in the paper), ``"exponential"`` or
            ``"last"``, see :class:`IterateAverage`.
        half_life: The half-life of the exponential average, in steps.
        bounds: A ``2 x p`` box for the parameter; none by default.
        max_staleness: How many steps late an answer may come.
        max_norm: The length above which answers are refused, so that a hostile user
            moves the parameter by no more than the step size times this length. By
            default the length in a :meth:`StepSchedule.for_noise` schedule; for another
            schedule use :func:`longest_message`. With ``math.inf`` a single user can
            move the parameter anywhere.
        surrogate: A custom choice of points instead of ``mode``.

    Example:
        >>> x = torch.zeros(2, dtype=torch.float64)
        >>> server = LDPBOServer(x, step_sizes=StepSchedule(0.1), max_norm=20.0)
        >>> query = server.query()
        >>> query.evaluation_points.shape
        torch.Size([4, 2])
        >>> server.receive(LDPAnswer(query.run_id, query.step, -torch.ones(2).double()))
        >>> server.x
        tensor([0.1000, 0.1000], dtype=torch.float64)
    """

    run = renamed_attribute("run", "run_id")
    step = renamed_attribute("step", "step_sizes")

    @renamed_argument("step", "step_sizes")
    def __init__(
        self,
        initial_x: Tensor,
        *,
        step_sizes: StepSchedule,
        mode: str = "stencil",
        half_width: float | None = None,
        kappa: float | BudgetSchedule | None = None,
        kernel: Kernel | None = None,
        average: str = "suffix",
        half_life: float | None = None,
        bounds: Tensor | None = None,
        max_staleness: int = 0,
        max_norm: float | None = None,
        surrogate: GradientSurrogate | None = None,
    ) -> None:
        self._x = check_start(initial_x)
        self.bounds = None if bounds is None else _check_bounds(bounds, self._x)
        self.step_sizes = check_instance("step_sizes", step_sizes, StepSchedule)
        self.max_staleness = check_count("max_staleness", max_staleness, minimum=0)
        self.max_norm = _check_max_norm(max_norm, step_sizes)
        self._average = IterateAverage(average, self._x, half_life=half_life)
        self.mode = check_choice("mode", mode, MODES)
        if surrogate is not None:
            self.mode = "custom"
            check_instance("surrogate", surrogate, GradientSurrogate)
        unused = {
            "stencil": {"kappa": kappa, "kernel": kernel},
            "custom": {"kappa": kappa, "kernel": kernel, "half_width": half_width},
        }.get(self.mode, {"half_width": half_width})
        for name, value in unused.items():
            if value is not None:
                raise InvalidArgumentError(
                    f"{name} has no effect with mode={self.mode!r}, got {value!r}."
                )
        if surrogate is not None:
            surrogate.update(self._x)
        elif mode == "stencil":
            surrogate = Stencil(
                self._x,
                half_width=HALF_WIDTH if half_width is None else half_width,
                bounds=self.bounds,
            )
        else:
            if kappa is None:
                kappa = 0.1 if self._x.shape[-1] <= 10 else 0.2
            surrogate = CompressedSurrogate(
                self._x,
                budget=kappa,
                rule="trace" if mode == "swc" else "literal",
                kernel=kernel,
                bounds=self.bounds,
            )
        self._surrogate = surrogate
        self._num_steps = 0
        self._recent: list[str] = []  # digests of answers that could come again
        self.run_id = secrets.token_bytes(16)

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
        """The number of answers received."""
        return self._num_steps

    @property
    def surrogate(self) -> GradientSurrogate:
        """The points for users, and the weights that turn losses into a gradient."""
        return self._surrogate

    def query(self) -> LDPQuery:
        """Return the query to send to the next user."""
        if self._x.dim() != 1:
            raise OptimizerStateError(
                "A batch of servers is for simulations: it has no messages."
            )
        number, surrogate = self._num_steps + 1, self._surrogate
        if isinstance(surrogate, Stencil):
            return LDPQuery(self.run_id, number, surrogate.center, surrogate.half_width)
        return LDPQuery(
            self.run_id,
            number,
            self._x,
            points=surrogate.points,
            weights=surrogate.weights,
        )

    def receive(self, answer: LDPAnswer | bytes) -> None:
        """Take a step along a user's answer.

        Raises:
            MessageError: If the answer cannot be read, belongs to another run or a step
                too long ago, or is not finite. The state does not change then.
        """
        if not isinstance(answer, LDPAnswer):
            answer = LDPAnswer.from_bytes(answer)
        number = self._num_steps + 1
        if answer.run_id != self.run_id:
            raise MessageError("The answer is to a query of another run.")
        if not 0 <= number - answer.step <= self.max_staleness:
            raise MessageError(
                f"The answer is to step {answer.step}, but the server is at step "
                f"{number}; max_staleness is {self.max_staleness}."
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
                f"{self.max_norm}: no honest user sends such an answer."
            )
        digest = hashlib.sha256(answer.to_bytes()).hexdigest()
        if digest in self._recent:
            raise MessageError("The server has already received this answer.")
        self.follow(gradient)
        # Older answers are refused as too late.
        self._recent = [*self._recent, digest][-(self.max_staleness + 1) :]

    def visit(self, client: LDPBOClient) -> bool:
        """Ask a client in this process, through bytes as over a network.

        Returns:
            Whether the client answered. If its budget is spent, the server does not
            change.
        """
        try:
            answer = client.answer(self.query().to_bytes())
        except BudgetExceededError:
            return False
        self.receive(answer.to_bytes())
        return True

    def follow(self, gradient: Tensor) -> None:
        """Take a step along a released gradient, ``batch_shape x p``.

        The gradient is public, and so is the new state: Algorithm 1, line 11, then
        lines 6 and 7 for the next user.
        """
        x = self._next(gradient)
        self._surrogate.update(x)  # only this may raise, so it comes first
        self._num_steps += 1
        self._x = x
        self._average.update(x)

    def _next(self, gradient: Tensor) -> Tensor:
        step_size = self.step_sizes(self._num_steps + 1)
        x = torch.sub(self._x, gradient, alpha=step_size)
        return x if self.bounds is None else x.clamp(*self.bounds)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        sizes = asdict(self.step_sizes)
        return {
            "method": "ldp-bo",
            "shape": list(self._x.shape),
            "mode": self.mode,
            **self._surrogate.settings(),
            "step": {key: sizes[key] for key in ("initial", "power", "offset")},
            "average": self._average.kind,
            "half_life": self._average.half_life,
            "bounds": None if self.bounds is None else self.bounds.tolist(),
            "max_staleness": self.max_staleness,
            "max_norm": None if math.isinf(self.max_norm) else self.max_norm,
        }

    def _state(self) -> dict[str, Any]:
        return {
            "run": self.run_id.hex(),
            "num_steps": self._num_steps,
            "recent": self._recent,
            "x": self._x,
            "average": self._average.state_dict(),
            "surrogate": self._surrogate.state_dict(),
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        # Surrogates check a state while they load it, so a copy tries it first.
        trial = copy.copy(self)
        trial._average = copy.deepcopy(self._average)
        trial._surrogate = copy.deepcopy(self._surrogate)
        trial._restore(state)

    def _restore(self, state: dict[str, Any]) -> None:
        x, run_id = state["x"].to(self._x), bytes.fromhex(state["run"])
        if x.shape != self._x.shape or not x.isfinite().all() or len(run_id) != 16:
            raise ValueError("the parameter or the run has another form")
        number = check_count("num_steps", state["num_steps"], minimum=0)
        if state["average"]["count"] != number:
            raise ValueError("the average has another number of steps")
        self._average.load_state_dict(state["average"])
        self._num_steps, self._x, self.run_id = number, x, run_id
        self._recent = [str(digest) for digest in state["recent"]]
        self._surrogate.update(x)
        self._surrogate.load_state_dict(state["surrogate"])
        theirs = self._surrogate.state_dict().get("x")
        if theirs is not None and not torch.equal(theirs.reshape(x.shape).to(x), x):
            raise ValueError("the dictionary belongs to another parameter")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file. A crash leaves the old file or the new one."""
        write_checkpoint(path, self.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Restore the state from a file of :meth:`save`."""
        self.load_state_dict(read_checkpoint(path, self._x.device))


def check_start(initial_x: Tensor) -> Tensor:
    """Return a copy of ``initial_x`` if it is a finite ``batch_shape x p`` tensor."""
    check_tensor("initial_x", initial_x, ("...", "p"), finite=True)
    if not initial_x.numel():
        raise InvalidArgumentError(
            f"initial_x must not be empty, got shape {tuple(initial_x.shape)}."
        )
    return initial_x.detach().clone()


def _check_max_norm(max_norm: float | None, step_sizes: StepSchedule) -> float:
    if max_norm is None:
        max_norm = step_sizes.longest_message
    if max_norm is None:
        raise InvalidArgumentError(
            f"max_norm must be given with {step_sizes!r}, which does not say how long "
            "honest answers are. Use StepSchedule.for_noise(...), or give "
            "max_norm=longest_message(clip_norm=..., noise_std=..., dim=...) from "
            "botorch_dp.optimizers. With math.inf one hostile answer can move the "
            "parameter anywhere."
        )
    return max_norm if max_norm == math.inf else check_positive("max_norm", max_norm)


def _check_bounds(bounds: Tensor, x: Tensor) -> Tensor:
    """Return bounds like ``x``, some of which may be infinite."""
    if isinstance(bounds, Tensor):
        bounds = bounds.detach().to(x)
    check_tensor("bounds", bounds, (2, x.shape[-1]), meaning="lower bounds first")
    if not (bounds[0] < bounds[1]).all():
        raise InvalidArgumentError(
            "bounds must have every lower bound below its upper bound, got "
            f"{bounds.tolist()}."
        )
    check_inside("initial_x", x, bounds)
    return bounds
