"""Poisson batches for a private training run, drawn by a noise source.

Opacus uses torch's generators, whose seeds an attacker can try one by one (see
:mod:`botorch_dp.privacy.noise`).
"""

from collections import deque
from collections.abc import Iterator, Sized
from typing import Any

import torch
from opacus.data_loader import wrap_collate_with_empty
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import NoiseSource

# A rate is one over a whole number; only rounding errors are tolerated.
_RATE_ROUNDING = 1e-9


class PoissonBatches(Sampler[list[int]]):
    """Batches that contain each record independently with the same probability.

    Args:
        num_records: The number of records.
        sample_rate: The probability that a record is in a batch.
        num_batches: The number of batches of an epoch.
        noise_source: The source of the samples.
        device: The device of the samples.

    Attributes:
        epochs_begun: The number of epochs begun so far.
        num_given: The number of batches drawn plus the number that a loader yielded.
        sizes: The secret sizes of the batches of the last epoch that still need a
            step, oldest first. There may be several, because workers draw ahead.
    """

    def __init__(
        self,
        *,
        num_records: int,
        sample_rate: float,
        num_batches: int,
        noise_source: NoiseSource,
        device: torch.device,
    ) -> None:
        self.num_records = num_records
        self.sample_rate = sample_rate
        self.epochs_begun = 0
        self.num_given = 0
        self.sizes: deque[int] = deque()
        self._num_batches = num_batches
        self._noise_source = noise_source
        self._device = device

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[list[int]]:
        self.epochs_begun += 1
        # A new queue, because batches of an earlier epoch have no step any more.
        sizes = self.sizes = deque()
        for _ in range(self._num_batches):
            sample = self._noise_source.poisson_sample(
                torch.Size([self.num_records]), self.sample_rate, self._device
            )
            records = sample.nonzero().flatten().tolist()
            sizes.append(len(records))
            self.num_given += 1
            yield records


class PoissonLoader(DataLoader[Any]):
    """A loader that counts each Poisson batch when it yields the batch.

    Workers draw ahead, so only this distinguishes the last batches of an epoch.
    """

    def __iter__(self) -> Any:
        batches: Any = self.batch_sampler
        for batch in super().__iter__():
            batches.num_given += 1
            yield batch


class Columns(list[Tensor]):
    """The tensors of a batch, read at once."""


class ColumnDataset(TensorDataset):
    """Tensors that are indexed once for a batch, not once for each record."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return a batch; a loader of torch calls this if it exists."""
        if not indices:  # the loader knows the form of an empty batch
            return []
        rows = torch.tensor(indices, device="cpu")
        return Columns(tensor[rows] for tensor in self.tensors)


def collate_columns(batch: Any) -> Any:
    """Return what torch's default function returns, also for :class:`Columns`."""
    return list(batch) if isinstance(batch, Columns) else default_collate(batch)


def poisson_loader(
    data_loader: DataLoader[Any], batches: PoissonBatches
) -> DataLoader[Any]:
    """Return a loader of the same records in Poisson batches, which may be empty."""
    dataset: Any = data_loader.dataset
    collate_fn = data_loader.collate_fn
    if (
        type(dataset) is TensorDataset
        and collate_fn is default_collate
        and all(type(tensor) is Tensor for tensor in dataset.tensors)
        and all(tensor.layout == torch.strided for tensor in dataset.tensors)
    ):
        dataset, collate_fn = ColumnDataset(*dataset.tensors), collate_columns
    collate = wrap_collate_with_empty(collate_fn=collate_fn)
    loader = PoissonLoader(
        dataset,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=data_loader.num_workers,
        pin_memory=data_loader.pin_memory,
        timeout=data_loader.timeout,
        worker_init_fn=data_loader.worker_init_fn,
        multiprocessing_context=data_loader.multiprocessing_context,
        prefetch_factor=data_loader.prefetch_factor,
        persistent_workers=data_loader.persistent_workers,
    )
    read_record(loader, 0)  # the collate function learns the form of an empty batch
    return loader


def read_record(data_loader: DataLoader[Any], number: int) -> Any:
    """Return a batch with only the record at position ``number`` of the data set."""
    return data_loader.collate_fn([data_loader.dataset[number]])


def num_prefetched(data_loader: DataLoader[Any]) -> int:
    """Return the number of batches that a loader's workers draw ahead."""
    return data_loader.num_workers * (data_loader.prefetch_factor or 0)


def check_loader(data_loader: DataLoader[Any], *, sample_rate: float) -> int:
    """Return the number of records; raise if the loader does not fit the plan."""
    if (
        not isinstance(data_loader, DataLoader)
        or isinstance(data_loader.dataset, IterableDataset)
        or not isinstance(data_loader.dataset, Sized)
    ):
        raise InvalidArgumentError(
            "data_loader must be a torch DataLoader of an indexed data set with a "
            f"length, got {type(data_loader).__name__}."
        )
    num_records = len(data_loader.dataset)
    batches = data_loader.batch_sampler
    if type(batches) is not BatchSampler or not _is_over_all(
        batches.sampler, num_records
    ):
        raise InvalidArgumentError(
            "data_loader must go over all records of its data set, in order or "
            f"shuffled, in batches of one size, got {_describe(batches)}. Private "
            "training draws its own batches and ignores samplers. To train on some of "
            "the records, use torch.utils.data.Subset."
        )
    if abs(len(data_loader) * sample_rate - 1) > _RATE_ROUNDING:
        raise InvalidArgumentError(
            f"data_loader must have {1 / sample_rate:.6g} batches, for the planned "
            f"sample_rate={sample_rate:.6g}, got {len(data_loader)}."
        )
    return num_records


def _is_over_all(sampler: Any, num_records: int) -> bool:
    if type(sampler) is RandomSampler:
        if sampler.replacement or len(sampler) != num_records:
            return False
    elif type(sampler) is not SequentialSampler:
        return False
    return len(sampler.data_source) == num_records


def _describe(batches: Any) -> str:
    if type(batches) is not BatchSampler:
        return f"batch_sampler={type(batches).__name__}"
    return f"sampler={type(batches.sampler).__name__}"
