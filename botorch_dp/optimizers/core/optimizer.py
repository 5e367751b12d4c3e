"""What all optimizers share: ask, tell, run, history, result, state and checkpoints.

Left of a mechanism everything is private, right of it everything may be published. An
optimizer's state, its history and the points it asks for are on the right.
"""

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from tqdm import tqdm

from botorch_dp._validation import check_count
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.optimizers.core.private_values import Losses, RecordIds, RecordOrder
from botorch_dp.optimizers.core.search_box import Coordinates
from botorch_dp.privacy import Certificate

_STATE_VERSION = 1


@dataclass(frozen=True)
class Step:
    """Public facts about one step.

    Attributes:
        number: From 1.
        x: Where the step ended, a ``d`` tensor.
        num_evaluations: How many points were asked for so far.
        noise_std: The standard deviation of the noise on each released number; 0 where
            none was added.
        trace: What the surrogate left unknown of the gradient, if there is one.
        num_points: How many points the dictionary kept after the step, in each
            replication, if there is one.
    """

    number: int
    x: Tensor
    num_evaluations: int
    noise_std: float = 0.0
    trace: float | None = None
    num_points: tuple[int, ...] | None = None


@dataclass(frozen=True)
class OptimizationResult:
    """What a run found, and what may be said about its privacy.

    Attributes:
        x: The last point, or the best where a method knows it: a ``d`` tensor. Not
            a number if no point was released.
        average: The mean of the second half of the iterates in search coordinates,
            which is steadier under noise; x where there are no iterates. On a stream,
            the average that was asked for.
        history: Public facts, step by step.
        certificate: What is guaranteed, to whom, under which assumptions.
        value: The released estimate of the loss at x, if one was released.
        details: Public quantities that the release was calibrated with.
    """

    x: Tensor
    average: Tensor
    history: tuple[Step, ...]
    certificate: Certificate
    value: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_evaluations(self) -> int:
        """How many points were evaluated."""
        return self.history[-1].num_evaluations if self.history else 0


class PrivateOptimizer(ABC):
    """Minimizes the mean of per-record losses over a box.

    ``ask`` says where to evaluate, from public state alone. ``tell`` is where private
    data enters: it validates, charges the ledger, draws noise, in that order, and what
    it keeps of the data never leaves.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds, with dtype and device.
        num_records: The number n of private records, which is public.
        num_steps: The number T of steps.
        transform: The search coordinates, see :class:`Coordinates`.
    """

    name: ClassVar[str]
    noun: ClassVar[str] = "one loss for each record and point"

    def __init__(
        self,
        *,
        bounds: Tensor,
        num_records: int,
        num_steps: int,
        transform: str | Sequence[str] = "linear",
    ) -> None:
        self.coordinates = Coordinates(bounds, transform)
        self.num_records = check_count("num_records", num_records)
        self.num_steps = check_count("num_steps", num_steps)
        self._history: list[Step] = []
        self._pending: Tensor | None = None  # in search coordinates
        self._record_order = RecordOrder(self.num_records)

    @property
    def bounds(self) -> Tensor:
        """The ``2 x d`` bounds."""
        return self.coordinates.bounds

    @property
    def history(self) -> tuple[Step, ...]:
        """Public facts about the steps so far."""
        return tuple(self._history)

    @property
    def done(self) -> bool:
        """Whether all steps have been taken, or paid for."""
        return len(self._history) >= self.num_steps

    @property
    def num_evaluations(self) -> int:
        """How many points have been asked for and told."""
        return self._history[-1].num_evaluations if self._history else 0

    def ask(self) -> Tensor:
        """Return the points to evaluate next, from public state alone.

        Returns:
            A ``b x d`` tensor; the same one until :meth:`tell` is called.
        """
        if self.done:
            raise OptimizerStateError(self._why_done())
        if self._pending is None:
            self._pending = self._propose()
        return self._points_of(self._pending)

    def tell(self, losses: Losses, record_ids: RecordIds | None = None) -> None:
        """Take a step from the private losses at the points of :meth:`ask`.

        **Row i must be the same record in every tell**: an optimizer may combine a
        record's losses at several points, and the guarantee holds only if they belong
        to one record. A data loader that shuffles breaks this. Turn shuffling off, or
        give ``record_ids``, which put the rows in order.

        Args:
            losses: An ``n x b`` tensor with a row for each record. Or chunks of its
                rows (``n_i x b`` tensors), or a callable that yields such chunks from
                the points: then the whole never has to be in memory, and nothing is
                remembered; an optimizer that needs a point's losses again asks again.
            record_ids: Which record each row is about: a sequence or a tensor of n
                distinct labels, in every tell or in none. The first tell fixes the
                order; the rows of a tensor in another order are put into it, chunks in
                another order are refused, and so are other labels. Labels are public
                (row numbers, pseudonyms): whether they are accepted must not depend on
                private data. They are not part of the state.

        Raises:
            InvalidArgumentError: If the losses have a wrong shape or come from a
                ``DataLoader`` that shuffles, or ``record_ids`` do not fit. Nothing was
                charged.
        """
        if self.done:
            raise OptimizerStateError(self._why_done())
        if self._pending is None:
            raise OptimizerStateError(
                "tell has nothing to answer: call ask() first, and tell once for each."
            )
        losses, ids = self._record_order.align(losses, record_ids)
        step = self._learn(losses, self._pending)
        self._record_order.keep(ids)
        self._pending = None
        self._history.append(step)

    def run(
        self,
        objective: Callable[[Tensor], Tensor | Any],
        *,
        progress: bool = True,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> OptimizationResult:
        """Ask and tell until done.

        Args:
            objective: From ``b x d`` points to what :meth:`tell` takes as losses, row
                i for the same record in every call.
            progress: Whether to show a progress bar.
            checkpoint: A file that is written after every step. If it exists, the run
                goes on from there. The ledger has to outlive the process too: unless
                one with a path was given, it is kept in ``<checkpoint>.ledger``.
        """
        if not callable(objective):
            raise InvalidArgumentError(
                "objective must be a function from points to losses, got a "
                f"{type(objective).__name__}; losses that are there go to tell()."
            )
        if checkpoint is not None:
            self.state_dict()  # where there is none to keep, say so at once
            self._keep_ledger_at(f"{os.fspath(checkpoint)}.ledger")
            if os.path.exists(checkpoint):
                device = self.bounds.device
                self.load_state_dict(read_checkpoint(checkpoint, device))
            # Before anything is charged: it names the run.
            write_checkpoint(checkpoint, self.state_dict())
        with tqdm(
            total=self.num_steps,
            initial=len(self._history),
            desc=self.name,
            unit="step",
            disable=not progress,
        ) as bar:
            while not self.done:
                self.tell(objective(self.ask()))
                if checkpoint is not None:
                    write_checkpoint(checkpoint, self.state_dict())
                bar.update()
        return self.result()

    def result(self) -> OptimizationResult:
        """Return what has been found so far, with its certificate."""
        if not self._history:
            raise OptimizerStateError(
                self._why_done()
                if self.done
                else "No step has been taken: call run(), or ask()."
            )
        X = torch.stack([step.x for step in self._history])
        second_half = self.coordinates.to_search(X[len(X) // 2 :])
        return OptimizationResult(
            x=self._best(),
            average=self.coordinates.from_search(second_half.mean(dim=0)),
            history=self.history,
            certificate=self.certificate(),
        )

    def _why_done(self) -> str:
        taken = len(self._history)
        if taken >= self.num_steps:
            start = f"All {taken} steps have been taken and paid for: read result(), or"
        else:
            start = (
                f"All {self.num_steps} steps have been paid for, but {taken} were "
                "taken: the others were interrupted before anything was drawn."
                f"{' Read result(), or' if taken else ' You may'}"
            )
        return f"{start} start a new run with a budget of its own."

    @abstractmethod
    def certificate(self) -> Certificate:
        """Return what is guaranteed of everything released so far."""

    @abstractmethod
    def _propose(self) -> Tensor:
        """Return the next points in search coordinates, ``b x d``."""

    @abstractmethod
    def _learn(self, losses: Losses, points: Tensor) -> Step:
        """Validate, charge, draw, update; raise before the charge or not at all."""

    def _points_of(self, pending: Tensor) -> Tensor:
        """Return points in the user's coordinates."""
        return self.coordinates.from_search(pending)

    def _best(self) -> Tensor:
        return self._history[-1].x

    def _keep_ledger_at(self, path: str) -> None:
        """Make what was spent outlive the process."""
        del path

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise OptimizerStateError(
            "An optimizer may hold private losses while it runs, and cannot be pickled "
            "or copied: save its state_dict()."
        )

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            "method": self.name,
            "num_records": self.num_records,
            "num_steps": self.num_steps,
            "bounds": self.bounds.tolist(),
            "transform": list(self.coordinates.transform),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state, from which :meth:`load_state_dict` goes on.

        Of optimizers that are private it may be published: it holds releases and what
        follows from them.
        """
        return copy.deepcopy(self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "version": _STATE_VERSION,
            "settings": self.settings(),
            "history": [vars(step) for step in self._history],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state of an optimizer with the same settings.

        All of it is checked, and what was spent is charged, before anything changes.

        Raises:
            OptimizerStateError: If it is not a state of such an optimizer.
        """
        state = copy.deepcopy(dict(state_dict))
        try:
            self._check_state(state)
        except (KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise OptimizerStateError(
                f"state_dict is not one of {type(self).__name__}: {error!r}."
            ) from error
        self._settle(state)
        self._restore(state)

    def _check_state(self, state: dict[str, Any]) -> None:
        """Raise unless the state can be restored."""
        if state["version"] != _STATE_VERSION:
            raise OptimizerStateError(
                f"state_dict must have version {_STATE_VERSION}, got "
                f"{state['version']!r}."
            )
        theirs, ours = state["settings"], self.settings()
        different = [key for key in ours if theirs.get(key) != ours[key]]
        if different:
            raise OptimizerStateError(
                "state_dict is of a run with other settings: "
                + ", ".join(
                    f"{key}={theirs.get(key)!r} there, {ours[key]!r} here"
                    for key in different
                )
                + "."
            )
        self._steps_of(state)

    def _settle(self, state: dict[str, Any]) -> None:
        """Charge what the state has spent and the ledger does not know."""
        del state

    def _restore(self, state: dict[str, Any]) -> None:
        """Take over a state that has been checked and paid for."""
        self._pending = None  # what was asked for is asked for again
        self._record_order.restart()  # a state holds no losses to combine others with
        self._history = self._steps_of(state)

    def _steps_of(self, state: dict[str, Any]) -> list[Step]:
        steps = [
            Step(**{**step, "x": step["x"].to(self.bounds)})
            for step in state["history"]
        ]
        if any(step.x.shape != self.bounds.shape[1:] for step in steps):
            raise ValueError("a history in another dimension")
        return steps
