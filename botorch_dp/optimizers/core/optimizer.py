"""What all optimizers share: ask, tell, run, history, result, state and checkpoints.

The losses that ``tell`` takes are private. An optimizer's state, its history and the
points that it asks for may be published if the optimizer is private.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from tqdm import tqdm

from botorch_dp._deprecated import renamed_attribute
from botorch_dp._validation import check_callable, check_count
from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.optimizers.core.checkpoint import read_checkpoint, write_checkpoint
from botorch_dp.optimizers.core.private_values import Losses, RecordIds, RecordOrder
from botorch_dp.optimizers.core.search_box import SearchBox
from botorch_dp.optimizers.core.state import Stateful
from botorch_dp.privacy import Certificate, Ledger
from botorch_dp.privacy.report import result_card, write_page


@dataclass(frozen=True)
class Step:
    """Public facts about one step.

    Attributes:
        number: The number of the step, starting at 1.
        x: Where the step ended, a ``d`` tensor.
        num_evaluations: The number of points evaluated so far.
        noise_std: The standard deviation of the noise on each released number; 0 if
            no noise was added.
        trace: The trace of the gradient's posterior covariance, if there is a
            surrogate.
        num_points: The number of points in the dictionary after the step, for each
            replication, if there is a dictionary.
    """

    number: int
    x: Tensor
    num_evaluations: int
    noise_std: float = 0.0
    trace: float | None = None
    num_points: tuple[int, ...] | None = None


@dataclass(frozen=True)
class OptimizationResult:
    """What a run found, and its certificate.

    Attributes:
        x: The last point, or the best if the method knows it, a ``d`` tensor. NaN if
            no point was released.
        average: The mean of the second half of the iterates in search coordinates,
            which varies less under noise; x if there are no iterates. On a stream, the
            average that the user chose.
        history: Public facts about each step.
        certificate: What is guaranteed, to whom, and under which assumptions.
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

    def report(
        self, path: str | os.PathLike[str], ledger: Ledger | None = None
    ) -> Path:
        """Write the certificate as a page of HTML, and return the file.

        Args:
            path: The file.
            ledger: The ledger of the run, which adds the budget over time.
        """
        return write_page(self.certificate.to_html(ledger), path)

    def _repr_html_(self) -> str:
        """Return what was found and the certificate, for notebooks."""
        rows = [("x", str(self.x.tolist())), ("steps", str(len(self.history)))]
        if self.value is not None:
            rows.append(("value", f"{self.value:.6g}"))
        return result_card("Result", rows, self.certificate)


class Optimizer(Stateful):
    """Minimizes the mean of per-record losses over a box.

    ``ask`` returns the points to evaluate. ``tell`` takes the private losses there.
    A private optimizer validates them, charges its ledger and draws noise, in that
    order; see :class:`PrivateOptimizer`.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds, which gives dtype and
            device.
        num_records: The number n of private records, which is public.
        num_steps: The number T of steps.
        transform: The search coordinates, see :class:`SearchBox`.
    """

    name: ClassVar[str]
    noun: ClassVar[str] = "one loss for each record and point"
    coordinates = renamed_attribute("coordinates", "search_box")

    def __init__(
        self,
        *,
        bounds: Tensor,
        num_records: int,
        num_steps: int,
        transform: str | Sequence[str] = "linear",
    ) -> None:
        self.search_box = SearchBox(bounds, transform)
        self.num_records = check_count("num_records", num_records)
        self.num_steps = check_count("num_steps", num_steps)
        self._history: list[Step] = []
        self._pending: Tensor | None = None  # in search coordinates
        self._record_order = RecordOrder(self.num_records)

    @property
    def bounds(self) -> Tensor:
        """The ``2 x d`` bounds."""
        return self.search_box.bounds

    @property
    def history(self) -> tuple[Step, ...]:
        """Public facts about the steps so far."""
        for index, step in enumerate(self._history):
            if step.x.device != self.bounds.device:  # it was taken on the CPU
                x = step.x.to(self.bounds.device)
                self._history[index] = replace(step, x=x)
        return tuple(self._history)

    @property
    def done(self) -> bool:
        """Whether all steps have been taken, or paid for."""
        return len(self._history) >= self.num_steps

    @property
    def num_evaluations(self) -> int:
        """The number of points evaluated so far."""
        return self._history[-1].num_evaluations if self._history else 0

    def ask(self) -> Tensor:
        """Return the points to evaluate next.

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
        pass ``record_ids``, and ``tell`` puts the rows in order.

        Args:
            losses: An ``n x b`` tensor with one row for each record. Or chunks of its
                rows (``n_i x b`` tensors), or a function from the points to such
                chunks: the whole tensor then never has to be in memory. Losses in
                chunks are not remembered, so the optimizer may ask for a point again.
            record_ids: Labels of the rows: a sequence or a tensor of n distinct
                values, in every ``tell`` or in none. The first ``tell`` fixes the
                order. The rows of a tensor in another order are reordered; chunks in
                another order and other labels are refused. Labels are public (row
                numbers, pseudonyms) and are not part of the state.

        Raises:
            InvalidArgumentError: If the losses have the wrong shape or come from a
                ``DataLoader`` that shuffles, or if ``record_ids`` do not match.
                Nothing was charged.
        """
        if self.done:
            raise OptimizerStateError(self._why_done())
        if self._pending is None:
            raise OptimizerStateError(
                "tell() needs an ask() before it: call ask() first, and tell() "
                "once for each."
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
        """Call ``ask`` and ``tell`` until all steps are done.

        Args:
            objective: A function from ``b x d`` points to the losses that :meth:`tell`
                takes, with the same record in row i in every call.
            progress: Whether to show a progress bar.
            checkpoint: A file that is written after every step. If it exists, the run
                resumes from it. The ledger must outlive the process as well: unless it
                has a path, it is kept in ``<checkpoint>.ledger``.
        """
        check_callable(
            "objective",
            objective,
            expected="a function from points to losses (pass losses to tell())",
        )
        if checkpoint is not None:
            self.state_dict()  # raises at once if this optimizer has no public state
            self._keep_ledger_at(f"{os.fspath(checkpoint)}.ledger")
            if os.path.exists(checkpoint):
                device = self.bounds.device
                self.load_state_dict(read_checkpoint(checkpoint, device))
            # Before anything is charged, since the state names the run.
            write_checkpoint(checkpoint, self.state_dict())
        with tqdm(
            total=self.num_steps,
            initial=len(self._history),
            desc=self.name,
            unit="step",
            disable=not progress,
        ) as bar:
            while not self.done:
                X = self.ask()
                # A step may need no new losses: what was told before is enough.
                none = X.new_empty(self.num_records, 0)
                self.tell(objective(X) if len(X) else none)
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
        X = torch.stack([step.x for step in self.history])
        second_half = self.search_box.to_search(X[len(X) // 2 :])
        return OptimizationResult(
            x=self._best(),
            average=self.search_box.from_search(second_half.mean(dim=0)),
            history=self.history,
            certificate=self.certificate(),
        )

    def _why_done(self) -> str:
        taken = len(self._history)
        if taken >= self.num_steps:
            start = f"All {taken} steps have been taken and paid for."
        else:
            start = (
                f"All {self.num_steps} steps have been paid for, but only {taken} were "
                "taken: the others were interrupted before anything was drawn."
            )
        read = "Call result(), or start" if taken else "Start"
        return f"{start} {read} a new run with a budget of its own."

    @abstractmethod
    def certificate(self) -> Certificate:
        """Return what is guaranteed about everything released so far."""

    @abstractmethod
    def _propose(self) -> Tensor:
        """Return the next points in search coordinates, ``b x d``."""

    @abstractmethod
    def _learn(self, losses: Losses, points: Tensor) -> Step:
        """Validate, charge, draw and update, and raise only before the charge."""

    def _points_of(self, pending: Tensor) -> Tensor:
        """Return points in the user's coordinates."""
        return self.search_box.from_search(pending)

    def _best(self) -> Tensor:
        return self.history[-1].x

    def _keep_ledger_at(self, path: str) -> None:
        """Keep the ledger, if there is one, in a file."""
        del path

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise OptimizerStateError(
            "An optimizer may hold private losses while it runs, so it cannot be "
            "pickled or copied. Save its state_dict()."
        )

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            "method": self.name,
            "num_records": self.num_records,
            "num_steps": self.num_steps,
            "bounds": self.bounds.tolist(),
            "transform": list(self.search_box.transform),
        }

    def _state(self) -> dict[str, Any]:
        return {"history": [vars(step) for step in self._history]}

    def _check_state(self, state: dict[str, Any]) -> None:
        self._steps_of(state)

    def _restore(self, state: dict[str, Any]) -> None:
        self._pending = None  # the points are asked for again
        self._record_order.restart()  # a state holds no losses to combine with others
        self._history = self._steps_of(state)

    def _steps_of(self, state: dict[str, Any]) -> list[Step]:
        steps = [
            Step(**{**step, "x": step["x"].to(self.bounds)})
            for step in state["history"]
        ]
        if any(step.x.shape != self.bounds.shape[1:] for step in steps):
            raise ValueError("a history in another dimension")
        return steps
