"""A simulated accelerator: a second device for machines that have only a CPU.

:func:`install` adds the device ``sim`` to torch. A tensor on it wraps a CPU tensor that
computes its values, so each operation gives the bits of the CPU. Everything else
follows CUDA:

* Tensors on different devices do not mix, except that CPU tensors without dimensions
  take part in elementwise operations, and that CPU indices may index a tensor on the
  device.
* ``.numpy()`` and ``numpy.asarray`` raise. A tensor that is created without ``device=``
  is on the CPU.
* Random numbers come from a stream of the device's own, which ``torch.manual_seed``
  seeds, or from a :class:`Generator` of the device. A CPU generator raises.
* ``copy.deepcopy``, ``pickle``, ``torch.save`` and ``torch.load`` (with
  ``map_location``), autograd, ``torch.inference_mode`` and ``torch.random.fork_rng``
  work.

:func:`count` counts what a program pays for on an accelerator (see :class:`Counts`).

The simulation differs from CUDA in these ways. ``torch.Generator(device="sim")`` is not
possible, so use :class:`Generator`; torch also takes that one for CPU tensors, where it
would refuse a CUDA generator. Streams and pinned memory do not exist. One call of an
operation is one kernel, even if CUDA needs several.

Importing this module changes nothing; :func:`install` lasts as long as the process.

Example::

    install()
    X = torch.rand(10, 3).to("sim")
    with count() as counts:
        smallest = X.square().sum(dim=-1).min().item()
    counts  # Counts(operations=4, kernels=4, synchronizations=1, ...)
"""

from tests.simulated_accelerator.counts import Counts, count
from tests.simulated_accelerator.randomness import NAME, Generator
from tests.simulated_accelerator.setup import install, is_available
from tests.simulated_accelerator.tensor import SimulatedTensor

__all__ = [
    "NAME",
    "Counts",
    "Generator",
    "SimulatedTensor",
    "count",
    "install",
    "is_available",
]
