"""The cost of gradient information, as ratios measured in one run.

Writes ``benchmarks/results/gradient_information.json`` and the table made from it. Run
it with ``make benchmarks``. The implementations are:

* **ours** and **ours on tensors**: the library, which evaluates small problems on the
  CPU in NumPy arrays, and the same with PyTorch's operations alone, as on any other
  device.
* **autograd, forward** and **reverse**: what a BoTorch user would write. The posterior
  covariance of the gradient from GPyTorch's kernel: its Jacobian and its mixed second
  derivative by ``torch.func``, a new factorization of the kernel matrix of the observed
  points and the candidates, and a backward pass through all of it. The faster of the
  two is the baseline. (GPyTorch's Matern kernel has no forward mode, and its mixed
  second derivative is zero: for Matern, the kernel is written in plain torch and the
  prior is given, which makes it faster.)
* **lean autograd**: the trace before the candidates is given, the kernel is written in
  plain torch, and its gradient is computed for one pair of points and vectorized. This
  is the fastest version with autograd that we found.
* **GIBO style**: the closed form of the RBF kernel's gradient on GPyTorch's kernels,
  a new factorization of the whole kernel matrix for each evaluation, and a backward
  pass. It is written from the equations and is leaner than research code: it does not
  copy or update a model, and it does not form an inverse.

All give the same values and gradients, which is checked before the measurements.

References:
    .. [Mueller2021local] S. Mueller, A. von Rohr and S. Trimpe. Local Policy Search
        with Bayesian Optimization. NeurIPS 2021. The method GIBO.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from botorch.exceptions.warnings import BotorchWarning
from botorch.optim import optimize_acqf
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks._common import Row, race, report, seconds
from botorch_dp.acquisition import GradientInformation, optimal_design
from botorch_dp.models import GradientGP, prior_gradient_covariance

SIZES = ((5, 50), (10, 265), (33, 500))
NOISE = 1e-4
MEGABYTE = 2**20
# Operations that copy nothing, and those that wait for a result.
VIEWS = frozenset(
    {"alias", "detach", "diagonal", "expand", "lift_fresh", "mT", "reshape", "select"}
    | {"slice", "split", "transpose", "unbind", "unflatten", "unsqueeze", "view"}
)
WAITS = frozenset({"item", "_local_scalar_dense", "is_nonzero"})
Evaluation = Callable[[Tensor], Tensor]


def make_model(kernel_name: str, d: int, n: int, seed: int = 0) -> GradientGP:
    """A model of n points in the unit cube."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    base: Kernel = RBFKernel(ard_num_dims=d)
    if kernel_name == "Matern-5/2":
        base = MaternKernel(nu=2.5, ard_num_dims=d)
    kernel = ScaleKernel(base).double()
    base.lengthscale = math.sqrt(d) * torch.linspace(0.4, 0.8, d, dtype=torch.float64)
    kernel.outputscale = 2.0
    return GradientGP(X, X[:, :1], kernel, noise_variance=NOISE)


def plain_kernel(
    kernel_name: str, kernel: ScaleKernel
) -> Callable[[Tensor, Tensor], Tensor]:
    """The kernel in plain torch: ``... n x d`` and ``... m x d`` to ``... n x m``."""
    lengthscale = kernel.base_kernel.lengthscale.detach()
    outputscale = kernel.outputscale.detach()

    def evaluate(A: Tensor, B: Tensor) -> Tensor:
        A, B = A / lengthscale, B / lengthscale
        norms = A.square().sum(dim=-1, keepdim=True)
        norms = norms + B.square().sum(dim=-1, keepdim=True).mT
        q = norms - 2 * A @ B.mT
        if kernel_name == "RBF":
            return outputscale * torch.exp(-q / 2)
        s = (5 * q).clamp(min=1e-20).sqrt()  # the root has no derivative at 0
        return outputscale * (1 + s + s.square() / 3) * torch.exp(-s)

    return evaluate


def straightforward(
    acqf: GradientInformation, kernel_name: str
) -> dict[str, Evaluation]:
    """The acquisition by autograd through GPyTorch's kernel, in two modes."""
    inputs, x = acqf.model.train_inputs[0], acqf.X_center
    kernel, noise_variance = acqf.model.covar_module, acqf.model.noise_variance
    given = prior_gradient_covariance(kernel, x)[0]
    plain = plain_kernel(kernel_name, kernel)

    def covariance_of(A: Tensor, B: Tensor) -> Tensor:
        return kernel(A, B).to_dense() if kernel_name == "RBF" else plain(A, B)

    def k(point: Tensor, points: Tensor) -> Tensor:
        return covariance_of(point.expand(len(points), 1, -1), points).squeeze(-2)

    def prior() -> Tensor:
        if kernel_name != "RBF":
            return given
        mixed = jacfwd(jacrev(k, argnums=0), argnums=1)(x, x.unsqueeze(0))
        return mixed[0, 0, 0, :, 0, 0]

    def with_derivative(jacobian: Callable[..., Any]) -> Evaluation:
        def evaluate(Z: Tensor) -> Tensor:
            points = with_inputs(inputs, Z)
            noise = noise_variance * torch.eye(points.shape[-2], dtype=points.dtype)
            root = torch.linalg.cholesky(covariance_of(points, points) + noise)
            cross = jacobian(k)(x, points).squeeze(-2)  # b x (n + q) x d
            half = torch.linalg.solve_triangular(root, cross, upper=False)
            covariance = prior() - half.mT @ half
            return -covariance.diagonal(dim1=-2, dim2=-1).sum(dim=-1)

        return evaluate

    return {
        "autograd, forward": with_derivative(jacfwd),
        "autograd, reverse": with_derivative(jacrev),
    }


def lean_autograd(acqf: GradientInformation, kernel_name: str) -> Evaluation:
    """The acquisition by autograd, with all that can be spared left out."""
    inputs, x = acqf.model.train_inputs[0], acqf.X_center[0]
    k = plain_kernel(kernel_name, acqf.model.covar_module)
    noise_variance = acqf.model.noise_variance
    prior = prior_gradient_covariance(acqf.model.covar_module, acqf.X_center)
    prior = prior.diagonal(dim1=-2, dim2=-1).sum()

    def pair(point: Tensor, other: Tensor) -> Tensor:
        return k(point[None], other[None])[0, 0]

    derivative = vmap(vmap(grad(pair), in_dims=(None, 0)), in_dims=(None, 0))

    def evaluate(Z: Tensor) -> Tensor:
        points = with_inputs(inputs, Z)
        noise = noise_variance * torch.eye(points.shape[-2], dtype=points.dtype)
        root = torch.linalg.cholesky(k(points, points) + noise)
        cross = derivative(x, points)  # b x (n + q) x d
        half = torch.linalg.solve_triangular(root, cross, upper=False)
        return half.square().sum(dim=(-2, -1)) - prior

    return evaluate


def gibo_style(acqf: GradientInformation) -> Evaluation:
    """The acquisition with the closed form of the RBF kernel's gradient."""
    inputs, x = acqf.model.train_inputs[0], acqf.X_center
    kernel = acqf.model.covar_module
    noise_variance = acqf.model.noise_variance
    precision = kernel.base_kernel.lengthscale.detach().square().reciprocal()
    prior = (kernel.outputscale.detach() * precision).squeeze(0).diag()

    def evaluate(Z: Tensor) -> Tensor:
        points = with_inputs(inputs, Z)
        noise = noise_variance * torch.eye(points.shape[-2], dtype=points.dtype)
        root = torch.linalg.cholesky(kernel(points).to_dense() + noise)
        cross = (
            (points - x)
            * precision
            * kernel(x.expand(len(Z), -1, -1), points).to_dense().mT
        )
        covariance = prior - cross.mT @ torch.cholesky_solve(cross, root)
        return -covariance.diagonal(dim1=-2, dim2=-1).sum(dim=-1)

    return evaluate


def with_inputs(inputs: Tensor, Z: Tensor) -> Tensor:
    """The points seen and the candidates, ``b x (n + q) x d``."""
    return torch.cat([inputs.expand(len(Z), -1, -1), Z], dim=-2)


def with_gradient(
    evaluate: Evaluation, Z: Tensor
) -> Callable[[], tuple[Tensor, Tensor]]:
    def call() -> tuple[Tensor, Tensor]:
        value = evaluate(Z).sum()
        return value.detach(), torch.autograd.grad(value, Z)[0]

    return call


def on_tensors(acqf: GradientInformation) -> GradientInformation:
    """The acquisition with PyTorch's operations alone, as on any other device."""
    acqf._geometry.most_in_arrays = 0
    return acqf


def evaluation() -> list[Row]:
    """One evaluation with its gradient, of one or of several restarts (b) at once."""
    rows = []
    for kernel_name in ("RBF", "Matern-5/2"):
        for d, n in SIZES:
            model = make_model(kernel_name, d, n)
            center = torch.full((d,), 0.5).double()
            acqf = GradientInformation(model, center)
            contestants = {
                "ours": acqf,
                "ours on tensors": on_tensors(GradientInformation(model, center)),
                **straightforward(acqf, kernel_name),
                "lean autograd": lean_autograd(acqf, kernel_name),
            }
            if kernel_name == "RBF":
                contestants["GIBO style"] = gibo_style(acqf)
            for b, q in ((1, 1), (1, 5), (5, 1), (10, 5)):
                Z = torch.rand(b, q, d, dtype=torch.float64, requires_grad=True)
                calls = {
                    name: with_gradient(contestant, Z)
                    for name, contestant in contestants.items()
                    # Reverse mode does b (N + q) passes: seconds, and never the faster.
                    if b == 1 or name != "autograd, reverse"
                }
                check_equal(calls)
                rows.append(
                    evaluation_row(f"{kernel_name}, ({d}, {n}, {q}), {b}", calls)
                )
    return rows


def check_equal(calls: dict[str, Callable[[], tuple[Tensor, Tensor]]]) -> None:
    """Raise unless all give the values and gradients of the first to 1e-6."""
    (first, expected), *others = ((name, call()) for name, call in calls.items())
    for name, result in others:
        for got, wanted in zip(result, expected, strict=True):
            error = float((got - wanted).abs().max() / wanted.abs().max())
            if not error < 1e-6:
                raise AssertionError(f"{name} differs from {first} by {error:.2g}.")


def evaluation_row(
    what: str, calls: dict[str, Callable[[], tuple[Tensor, Tensor]]]
) -> Row:
    taken = race(calls, rounds=5)
    row: Row = {"kernel, (d, N, q), b": what}
    row |= {f"{name}, ms": 1e3 * time for name, time in taken.items()}
    baseline = min(time for name, time in taken.items() if "autograd, " in name)
    row["ours on tensors / ours"] = taken["ours on tensors"] / taken["ours"]
    row["baseline / ours"] = baseline / taken["ours"]
    row["lean autograd / ours"] = taken["lean autograd"] / taken["ours"]
    if "GIBO style" in taken:
        row["GIBO style / ours"] = taken["GIBO style"] / taken["ours"]
    return row


def tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


class LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.megabytes = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {tensor.untyped_storage().data_ptr() for tensor in tensors(args)}
        for tensor in tensors(result):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:  # not a view, not in place
                self.megabytes = max(self.megabytes, storage.nbytes() / MEGABYTE)
        return result


class Launches(TorchDispatchMode):
    """Counts operations that compute something, and those that wait for a result."""

    def __init__(self) -> None:
        super().__init__()
        self.launched = self.waited = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.__name__.split(".")[0]
        self.waited += name in WAITS
        self.launched += name not in WAITS and name not in VIEWS
        return func(*args, **(kwargs or {}))


def operations() -> list[Row]:
    """Operations of an evaluation with its gradient on tensors, as on a GPU.

    They depend neither on the number of points nor on that of restarts. Two belong to
    the caller: the sum of the values and the start of the backward pass. An operation
    that waits for a result stops the queue of a GPU.
    """
    rows = []
    for kernel_name in ("RBF", "Matern-5/2"):
        model = make_model(kernel_name, d=10, n=50)
        acqf = on_tensors(GradientInformation(model, torch.full((10,), 0.5).double()))
        for b, q in ((1, 1), (5, 1), (1, 5), (5, 5)):
            Z = torch.rand(b, q, 10, dtype=torch.float64, requires_grad=True)
            with Launches() as counted:
                with_gradient(acqf, Z)()
            rows.append(
                {
                    "kernel, q, b": f"{kernel_name}, {q}, {b}",
                    "operations": counted.launched,
                    "waits": counted.waited,
                }
            )
    return rows


def search() -> list[Row]:
    """Five restarts of ``optimize_acqf`` on 500 points in 33 dimensions (RBF)."""
    d = 33
    model, center = make_model("RBF", d, 500), torch.full((d,), 0.5).double()
    bounds = torch.stack([torch.zeros(d), torch.ones(d)]).double()
    rows = []
    for q in (1, 5):

        def call(acqf: GradientInformation, q: int = q) -> Callable[[], object]:
            def run() -> object:
                torch.manual_seed(0)
                return optimize_acqf(acqf, bounds, q, num_restarts=5, raw_samples=20)

            return run

        calls = {
            "ours": call(GradientInformation(model, center)),
            "ours on tensors": call(on_tensors(GradientInformation(model, center))),
        }
        taken = race(calls, rounds=7)
        row: Row = {"q": q}
        row |= {f"{name}, ms": 1e3 * time for name, time in taken.items()}
        row["ours on tensors / ours"] = taken["ours on tensors"] / taken["ours"]
        rows.append(row)
    return rows


def growth_row(kernel_name: str, d: int, n: int, q: int) -> Row:
    model = make_model(kernel_name, d, n)
    X_center = torch.full((d,), 0.5).double()
    with LargestTensor() as making:
        acqf = GradientInformation(model, X_center)
    Z = torch.rand(1, q, d, dtype=torch.float64, requires_grad=True)
    call = with_gradient(acqf, Z)
    with LargestTensor() as evaluating:
        call()
    return {
        "(d, N, q)": f"({d}, {n}, {q})",
        "made once, ms": 1e3 * seconds(lambda: GradientInformation(model, X_center), 3),
        "evaluation with gradient, ms": 1e3 * race({"ours": call}, 5)["ours"],
        "largest tensor made once, MB": making.megabytes,
        "largest tensor of an evaluation, MB": evaluating.megabytes,
        "N x N, MB": 8 * n**2 / MEGABYTE,
        "N d x N d would be, MB": 8 * (n * d) ** 2 / MEGABYTE,
    }


def growth_in_points() -> list[Row]:
    """Growth with the number of points (RBF)."""
    sizes = (50, 100, 250, 500, 1000, 2000, 4000)
    return [growth_row("RBF", d=10, n=n, q=5) for n in sizes]


def growth_in_dimensions() -> list[Row]:
    """Growth with the dimension (RBF)."""
    sizes = (2, 5, 10, 20, 50, 100, 200)
    return [growth_row("RBF", d=d, n=200, q=5) for d in sizes]


def design() -> list[Row]:
    """The design in closed form against ``optimize_acqf``, no history."""
    rows = []
    for kernel_name in ("RBF", "Matern-5/2"):
        for d, b, restarts in ((5, 6, 4), (10, 11, 4), (10, 20, 4), (33, 34, 1)):
            rows.append(design_row(kernel_name, d, b, restarts))
    return rows


def design_row(kernel_name: str, d: int, b: int, restarts: int) -> Row:
    base = RBFKernel() if kernel_name == "RBF" else MaternKernel(nu=2.5)
    base = base.double()
    base.lengthscale = 1.0
    far = torch.full((1, d), 1e3, dtype=torch.float64)
    model = GradientGP(far, far[:, :1], base, noise_variance=NOISE)
    X_center = torch.full((d,), 0.5, dtype=torch.float64)
    bounds = torch.stack([torch.zeros_like(X_center), torch.ones_like(X_center)])
    acqf = GradientInformation(model, X_center)
    prior = float(acqf.prior_covariance.diagonal(dim1=-2, dim2=-1).mean())
    first = seconds(lambda: optimal_design(model, X_center, b, bounds), 1)
    designed = optimal_design(model, X_center, b, bounds)
    found = []

    def search() -> None:
        found.append(
            optimize_acqf(
                acqf, bounds, q=b, num_restarts=restarts, raw_samples=4 * restarts
            )
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BotorchWarning)
        searching = seconds(search, 1)
    designing = seconds(lambda: optimal_design(model, X_center, b, bounds), 51)
    return {
        "kernel, (d, b)": f"{kernel_name}, ({d}, {b})",
        "first design, ms": 1e3 * first,
        "design, ms": 1e3 * designing,
        "restarts": restarts,
        "L-BFGS, ms": 1e3 * searching,
        "L-BFGS / first design": searching / first,
        "L-BFGS / design": searching / designing,
        # The trace after the design over the trace before.
        "design, share left": float(designed.trace) / (d * prior),
        "L-BFGS, share left": -float(found[0][1]) / (d * prior),
    }


SECTIONS = (
    evaluation,
    operations,
    search,
    growth_in_points,
    growth_in_dimensions,
    design,
)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # SciPy's L-BFGS on two threads beside torch would be ten times slower.
    with threadpool_limits(limits=1):
        report("gradient_information", "Gradient information, measured", SECTIONS)


if __name__ == "__main__":
    main()
