r"""LDP-BO: a stream of users under local privacy, simulated in one process.

The server is :class:`LDPBOServer`, and gradients are released by the code that
:class:`LDPBOClient` uses. R replications of the stream run side by side, as one batch.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Algorithm 1.
"""

import copy
import functools
import math
import os
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from tqdm import tqdm

from botorch_dp._deprecated import renamed_argument
from botorch_dp._validation import check_count, check_private_tensor
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.models.surrogates.base import GradientSurrogate
from botorch_dp.models.surrogates.budget import BudgetSchedule
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.optimizers.core.optimizer import OptimizationResult, Step
from botorch_dp.optimizers.core.state import Stateful
from botorch_dp.optimizers.ldp.client import LOCAL_ASSUMPTIONS
from botorch_dp.optimizers.ldp.gradient_release import LocalRelease
from botorch_dp.optimizers.ldp.server import LDPBOServer, check_start
from botorch_dp.optimizers.ldp.step_sizes import StepSchedule
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.certificate import Certificate
from botorch_dp.privacy.guarantees import ApproxDP, Guarantee
from botorch_dp.privacy.noise import SecureNoise
from botorch_dp.privacy.user_account import UserAccount

Guarantees = Guarantee | Callable[[int], Guarantee]
_LONGEST_HISTORY = 512


class Stream(Protocol):
    """Users in the order of their arrival, such as a ``StreamProblem``."""

    def losses(self, step: int, X: Tensor) -> Tensor:
        """Return ``batch_shape x M`` losses at ``batch_shape x M x p`` points."""
        ...


class LDPBO(Stateful):
    r"""Online optimization under local differential privacy, from losses alone.

    Every step belongs to another user, who evaluates its loss at a few points around
    the current parameter, turns the losses into a gradient, clips it, adds noise and
    sends it. Minimizes the expected loss of a user.

    Args:
        initial_x: The start: a ``p`` tensor, or ``R x p`` for R replications of the
            same experiment side by side.
        guarantee: The guarantee of each user's message: one guarantee for all, or a
            function from the index of a user (starting at 1) to its own.
        clip_norm: The bound B on a user's gradient. For losses with Mallows weights
            use their gradient bound, which causes no bias. A smaller bound means less
            noise, but biased gradients where it clips.
        mechanism: ``"gaussian"``, ``"laplace"`` or ``"classical"``, see
            :class:`LocalRelease`.
        radius: How far from the start the minimum may be, a guess made without private
            data, for the default step sizes. One in each coordinate by default.
        step_sizes: The step sizes; by default :meth:`StepSchedule.for_noise` for the
            noise of the first user.
        mode: ``"stencil"``, ``"swc"`` or ``"swc-literal"``, see :class:`LDPBOServer`.
        half_width: The half width of the stencil.
        kappa: The compression budget of a dictionary, a number or a
            :class:`~botorch_dp.models.BudgetSchedule`. By default ``"swc"`` uses
            ``BudgetSchedule.for_noise`` for the noise of the first user, and
            ``"swc-literal"`` the paper's 0.1, or 0.2 above 10 dimensions.
        kernel: The kernel of a dictionary.
        average: ``"suffix"``, ``"running"``, ``"exponential"`` or ``"last"``.
        half_life: The half-life of the exponential average, in steps.
        bounds: A ``2 x p`` box for the parameter; none by default.
        surrogate: A custom choice of points instead of ``mode``.
        generator: A seeded generator of the noise, for experiments only.
        secure: Whether to draw exact discrete noise.

    Example:
        >>> from botorch_dp import ApproxDP
        >>> from botorch_dp.problems import LinearStream
        >>> stream = LinearStream(dim=2, num_replications=3)
        >>> x = stream.initial_x.expand(3, 2)
        >>> opt = LDPBO(x, ApproxDP(2.0, 1e-3), clip_norm=stream.gradient_bound)
        >>> result = opt.run(stream, num_steps=100, progress=False)
        >>> result.average.shape, result.certificate.unit
        (torch.Size([3, 2]), 'user')
    """

    name: ClassVar[str] = "ldp-bo"
    noun: ClassVar[str] = "one loss for each point"

    @renamed_argument("step", "step_sizes")
    def __init__(
        self,
        initial_x: Tensor,
        guarantee: Guarantees,
        clip_norm: float,
        *,
        mechanism: str = "gaussian",
        radius: float | None = None,
        step_sizes: StepSchedule | None = None,
        mode: str = "stencil",
        half_width: float | None = None,
        kappa: float | BudgetSchedule | None = None,
        kernel: Kernel | None = None,
        average: str = "suffix",
        half_life: float | None = None,
        bounds: Tensor | None = None,
        surrogate: GradientSurrogate | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
    ) -> None:
        check_start(initial_x)
        if not callable(guarantee):
            check_guarantee(
                "guarantee",
                guarantee,
                expected="a PureDP, ApproxDP, GDP or RDP, or a function from the index "
                "of a user to one",
            )
        self._guarantee = guarantee
        make = functools.partial(
            LocalRelease,
            clip_norm=clip_norm,
            mechanism=mechanism,
            generator=generator,
            secure=secure,
            ahead=True,
        )
        # Calibration takes longer than a step, so it runs once for each guarantee.
        self._make_release = functools.lru_cache(maxsize=256)(make)
        if isinstance(guarantee, Guarantee):
            self._release_of_all = self._make_release(guarantee)
        first = self._release_of(1)
        if step_sizes is None:
            dim = initial_x.shape[-1]
            step_sizes = StepSchedule.for_noise(
                radius=math.sqrt(dim) if radius is None else radius,
                clip_norm=first.clip_norm,
                noise_std=self._noise_std(first),
                dim=dim,
            )
        elif radius is not None:
            raise InvalidArgumentError(
                "radius and step_sizes exclude each other, got "
                f"{radius!r} and {step_sizes!r}."
            )
        if kappa is None and mode == "swc" and surrogate is None:
            kappa = BudgetSchedule.for_noise(
                clip_norm=first.clip_norm,
                noise_std=self._noise_std(first),
                dim=initial_x.shape[-1],
            )
        self.server = LDPBOServer(
            initial_x,
            step_sizes=step_sizes,
            mode=mode,
            half_width=half_width,
            kappa=kappa,
            kernel=kernel,
            average=average,
            half_life=half_life,
            bounds=bounds,
            max_norm=math.inf,  # simulated users are not hostile
            surrogate=surrogate,
        )
        self._spent = UserAccount()
        self._history: list[Step] = []
        self._stride = 1

    @property
    def x(self) -> Tensor:
        """The current parameter, ``batch_shape x p``."""
        return self.server.x

    @property
    def average(self) -> Tensor:
        """The average of the parameters so far, ``batch_shape x p``."""
        return self.server.average

    @property
    def num_steps(self) -> int:
        """The number of messages received."""
        return self.server.num_steps

    @property
    def num_asked(self) -> int:
        """The number of users who were asked, or may have been before a crash."""
        return self._spent.num_users

    @property
    def history(self) -> tuple[Step, ...]:
        """Public facts about steps. A long history keeps every second step."""
        return tuple(self._history)

    def ask(self) -> Tensor:
        """Return the points for the next user, ``batch_shape x M x p``."""
        return self.server.surrogate.points

    def tell(self, losses: Tensor) -> None:
        """Take a step with the losses of the next user, who is never asked again.

        Args:
            losses: The user's private losses at the points of :meth:`ask`, a
                ``batch_shape x M`` tensor.
        """
        surrogate = self.server.surrogate
        self._check("losses", losses, surrogate.points_shape[:-1])
        self._step(surrogate.gradient(losses.detach()))

    def run(
        self,
        stream: Stream,
        num_steps: int,
        *,
        progress: bool = True,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 1000,
    ) -> OptimizationResult:
        """Ask and tell ``num_steps`` more users.

        Args:
            stream: The users. The next one has the index ``num_asked + 1``.
            num_steps: The number of users.
            progress: Whether to show a progress bar.
            checkpoint: A file for the state. If it exists, the run continues from there
                up to ``num_steps`` in total. If the process was killed, users who may
                have answered since the last checkpoint are not asked again. Their
                messages are lost, and the stream needs as many more users.
            checkpoint_every: The number of steps between checkpoints.
        """
        check_count("num_steps", num_steps)
        check_count("checkpoint_every", checkpoint_every)
        last = self.num_steps + num_steps
        if checkpoint is not None and os.path.exists(checkpoint):
            self.load_state_dict(read_checkpoint(checkpoint, self.x.device))
            last = max(num_steps, self.num_steps)
        with tqdm(
            total=last,
            initial=self.num_steps,
            desc=self.name,
            unit="user",
            disable=not progress,
        ) as bar:
            try:
                while self.num_steps < last:
                    count = min(checkpoint_every, last - self.num_steps)
                    self._write(checkpoint, ahead=count)
                    for _ in range(count):
                        self._visit(stream)
                    bar.update(count)
            finally:  # an interruption loses no answer
                self._write(checkpoint, ahead=0)
        return self.result()

    def _visit(self, stream: Stream) -> None:
        self.tell(stream.losses(self.num_asked + 1, self.ask()))

    def _step(self, private_gradients: Tensor) -> None:
        """Release gradients, then follow them (Algorithm 1, lines 10 and 11)."""
        release = self._release_of(self.num_asked + 1)
        message = self._message(release, private_gradients)
        self.server.follow(message)
        if self.num_steps % self._stride == 0:
            self._record(self._noise_std(release))

    def _message(self, release: LocalRelease, private_gradients: Tensor) -> Tensor:
        return release(private_gradients, ledger=self._spent)

    def _noise_std(self, release: LocalRelease) -> float:
        return release.noise_std

    def _release_of(self, user: int) -> LocalRelease:
        if isinstance(self._guarantee, Guarantee):
            return self._release_of_all
        return self._make_release(self._guarantee(user))

    def _cost_of(self, num_users: int) -> UserAccount:
        """Return the cost of the first users' answers according to the settings."""
        cost, same_for_all = UserAccount(), isinstance(self._guarantee, Guarantee)
        for user in range(1, 1 + (min(num_users, 1) if same_for_all else num_users)):
            self._release_of(user).charge(cost, size=self.x.shape[-1])
        return cost

    def _record(self, noise_std: float) -> None:
        number = self.num_steps
        surrogate, num_points = self.server.surrogate, None
        if self.server.mode != "stencil":  # the size of a stencil never changes
            num_points = tuple(surrogate.num_points.flatten().tolist())
        num_evaluations = number * surrogate.points_shape[-2]
        self._history.append(
            Step(number, self.x, num_evaluations, noise_std, num_points=num_points)
        )
        if len(self._history) == _LONGEST_HISTORY:
            self._history = self._history[1::2]
            self._stride *= 2

    def result(self) -> OptimizationResult:
        """Return the current result, with its certificate."""
        if not self.num_steps:
            raise OptimizerStateError("No step has been taken: call run() or tell().")
        return OptimizationResult(
            x=self.x,
            average=self.average,
            history=self.history,
            certificate=self.certificate(),
        )

    def certificate(self) -> Certificate:
        """Return the guarantee to every user, which is the weakest one."""
        if self.num_steps > self.num_asked:
            raise OptimizerStateError(
                f"The server has taken {self.num_steps} steps with {self.num_asked} "
                "answers: its state belongs to another run, whose cost is unknown."
            )
        parameters = {**self.settings(), "users": self.num_asked}
        del parameters["bounds"]  # it may be long
        replications = self.x.shape[:-1].numel()
        deltas = {1e-3, 1e-5, 1e-7}
        if isinstance(self._guarantee, ApproxDP):
            deltas.add(self._guarantee.delta)
        each = [f"in each of {replications} replications separately"]
        return self._spent.certificate(
            deltas=sorted(deltas, reverse=True),
            assumptions=(
                *LOCAL_ASSUMPTIONS,
                "every user answers once; if users have different guarantees, the "
                "weakest is stated",
                *(each if replications > 1 else ()),
            ),
            parameters=parameters,
        )

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        first, guarantee = self._release_of(1), self._guarantee
        each = "a function of the user's number"
        return {
            **self.server.settings(),
            "method": self.name,
            "clip_norm": first.clip_norm,
            "mechanism": first.kind,
            "asked for": repr(guarantee) if isinstance(guarantee, Guarantee) else each,
        }

    def _state(self) -> dict[str, Any]:
        return {
            "server": self.server.state_dict(),
            "spent": self._spent.state_dict(),
            "history": [vars(step) for step in self._history],
            "stride": self._stride,
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        num_users = UserAccount.from_state_dict(state["spent"]).num_users
        num_steps = check_count("num_steps", state["server"]["num_steps"], minimum=0)
        if num_steps > num_users:
            raise ValueError(f"it has {num_steps} steps with {num_users} answers")
        check_count("stride", state["stride"])
        replications = self.x.shape[:-1].numel()
        for step in self._steps_of(state):
            if step.x.shape != self.x.shape or (
                step.num_points and len(step.num_points) != replications
            ):
                raise ValueError("the history has another shape")

    def _restore(self, state: dict[str, Any]) -> None:
        spent = UserAccount.from_state_dict(state["spent"])
        spent.merge(self._spent)
        # The costs in a state may have been edited. Answers cost no less than those of
        # this optimizer.
        spent.merge(self._cost_of(spent.num_users))
        self.server.load_state_dict(state["server"])  # may raise, then nothing changes
        # Seeded noise continues where it was, so that none is used twice.
        for _ in range(self.num_asked, spent.num_users):
            self._release_of(1).skip(self.x)
        self._spent, self._stride = spent, state["stride"]
        self._history = self._steps_of(state)

    def _steps_of(self, state: dict[str, Any]) -> list[Step]:
        return [
            Step(**{**step, "x": step["x"].to(self.x)}) for step in state["history"]
        ]

    def _write(self, path: str | os.PathLike[str] | None, ahead: int) -> None:
        """Write the state, charged for ``ahead`` users whom a crash may lose."""
        if path is None:
            return
        state, spent = self.state_dict(), copy.deepcopy(self._spent)
        for user in range(self.num_asked + 1, self.num_asked + ahead + 1):
            self._release_of(user).charge(spent, size=self.x.shape[-1])
        state["spent"] = spent.state_dict()
        write_checkpoint(path, state)

    def _check(self, name: str, value: Tensor, shape: torch.Size) -> None:
        check_private_tensor(name, value)
        dtype, device = self.x.dtype, self.x.device
        if (value.shape, value.dtype, value.device) != (shape, dtype, device):
            raise InvalidArgumentError(
                f"{name} must have shape {' x '.join(map(str, shape))}, {self.noun}, "
                f"and must be {dtype} on {device}, got {value.dtype} of shape "
                f"{tuple(value.shape)} on {value.device}."
            )
