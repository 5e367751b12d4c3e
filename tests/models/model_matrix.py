"""Models of BoTorch: classes, transforms, batches and outputs, on small data."""

import numpy
import pytest
import torch
from botorch.models import (
    AdditiveMapSaasSingleTaskGP,
    EnsembleMapSaasSingleTaskGP,
    MixedSingleTaskGP,
    ModelListGP,
    SingleTaskGP,
    fully_bayesian,
)
from botorch.models.map_saas import get_map_saas_model
from botorch.models.transforms import (
    ChainedInputTransform,
    Normalize,
    Standardize,
    Warp,
)
from botorch.models.transforms.input import AppendFeatures, FilterFeatures
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.models import ExactGP

from tests.devices import DEVICE, seeded

D = 3
HIGH = 2.0


def uniform(*shape, seed=1):
    points = torch.rand(
        *shape, D, generator=seeded(seed), dtype=torch.float64, device=DEVICE
    )
    return HIGH * points


def warp():
    bounds = torch.tensor([[0.0] * D, [HIGH] * D], dtype=torch.float64)
    transform = Warp(D, indices=[0, 2], bounds=bounds)
    transform._set_concentration(0, torch.tensor([1.5, 0.8]))
    transform._set_concentration(1, torch.tensor([0.7, 1.3]))
    return transform.double()


def bounded():
    bounds = torch.tensor([[0.0] * D, [HIGH] * D], dtype=torch.float64)
    return Normalize(D, bounds=bounds)


TRANSFORMS = {
    "none": lambda: None,
    "normalize": lambda: Normalize(D),
    "bounded": bounded,
    "warp": warp,
    "chain": lambda: ChainedInputTransform(first=Normalize(D), second=Normalize(D)),
    "filter": lambda: FilterFeatures(torch.tensor([2, 0])),
}


def data(batch=(), outputs=1, n=7):
    X = uniform(*batch, n)
    columns = [3 * X.sin().sum(dim=-1), X[..., 0] * X[..., 1]]
    return X, torch.stack(columns[:outputs], dim=-1)


def single_task(transform, batch, outputs, **kwargs):
    X, Y = data(batch, outputs)
    return SingleTaskGP(X, Y, input_transform=TRANSFORMS[transform](), **kwargs)


def fixed_noise(transform, batch, outputs):
    X, Y = data(batch, outputs)
    return SingleTaskGP(
        X, Y, 0.01 + 0.1 * Y.square(), input_transform=TRANSFORMS[transform]()
    )


def matern(transform, batch, outputs):
    shape = (*batch, *[outputs] * (outputs > 1))
    kernel = ScaleKernel(MaternKernel(nu=2.5, batch_shape=shape), batch_shape=shape)
    kernel.outputscale = 2.0 + torch.arange(kernel.outputscale.numel()).view(shape)
    return single_task(transform, batch, outputs, covar_module=kernel.double())


def environmental(transform, batch, outputs):
    """Known at training time, appended afterwards: BoTorch's default."""
    X, Y = data(batch, outputs)
    conditions = uniform(*batch, 7, seed=4)[..., :1]
    append = AppendFeatures(torch.tensor([[0.7]], dtype=torch.float64))
    if transform == "chain":
        append = ChainedInputTransform(first=append, second=Normalize(D + 1))
    X = torch.cat([X, conditions], dim=-1)
    return SingleTaskGP(X, Y, input_transform=append)


def linear_mean(transform, batch, outputs):
    features = 2 if transform == "filter" else D
    mean = LinearMean(features, batch_shape=batch).double()
    return single_task(transform, batch, outputs, mean_module=mean)


def fantasized(transform, batch, outputs):
    model = single_task(transform, batch, outputs)
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    return model.fantasize(uniform(2, seed=3), sampler)


def fantasized_with_fixed_noise(transform, batch, outputs):
    model = fixed_noise(transform, batch, outputs)
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    return model.fantasize(uniform(2, seed=3), sampler)


def model_list(transform, batch, outputs):
    X, Y = data(batch, 2)
    first = SingleTaskGP(X, Y[..., :1], input_transform=TRANSFORMS[transform]())
    others = [SingleTaskGP(X[..., 1:, :], Y[..., 1:, 1:])] * (outputs - 1)
    return ModelListGP(first, *others)


def list_with_two_outputs(transform, batch, outputs):
    del outputs
    return ModelListGP(
        single_task(transform, batch, 2), single_task("normalize", batch, 1)
    )


def map_saas(transform, batch, outputs):
    X, Y = data(batch, outputs)
    return get_map_saas_model(
        X,
        Y,
        input_transform=TRANSFORMS[transform](),
        outcome_transform=Standardize(outputs, batch_shape=torch.Size(batch)),
    )


def additive_map_saas(transform, batch, outputs):
    X, Y = data(batch, outputs)
    return AdditiveMapSaasSingleTaskGP(X, Y, input_transform=TRANSFORMS[transform]())


def ensemble_map_saas(transform, batch, outputs):
    X, Y = data(batch, outputs)
    taus = torch.tensor([0.1, 0.5, 1.0])
    model = EnsembleMapSaasSingleTaskGP(
        X, Y, num_taus=3, taus=taus, input_transform=TRANSFORMS[transform]()
    )
    kernel = model.covar_module.base_kernel
    kernel.lengthscale = kernel.lengthscale * (1 + taus[:, None, None])
    return model


def fully_bayesian_saas(transform, batch, outputs, warping=False):
    del batch, outputs
    X, Y = data()
    # BoTorch wants JAX for NUTS; loaded samples need none of it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fully_bayesian, "_HAS_JAX", True)
        patch.setattr(fully_bayesian, "jnp", numpy, raising=False)
        model = fully_bayesian.SaasFullyBayesianSingleTaskGP(
            X,
            Y,
            outcome_transform=Standardize(1),
            input_transform=TRANSFORMS[transform](),
            use_input_warping=warping,
        )
    samples = model.pyro_model.get_dummy_mcmc_samples(
        num_mcmc_samples=3, dtype=X.dtype, device=X.device
    )
    draw = seeded(5)
    scales = {
        name: 0.5
        + torch.rand(v.shape, generator=draw, dtype=torch.float64, device=DEVICE)
        for name, v in samples.items()
    }
    model.load_mcmc_samples({name: v * scales[name] for name, v in samples.items()})
    return model


def warped_saas(transform, batch, outputs):
    return fully_bayesian_saas(transform, batch, outputs, warping=True)


def mixed(transform, batch, outputs):
    X, Y = data(batch, outputs)
    X = torch.cat([X[..., :2], (X[..., 2:] > 1).double()], dim=-1)
    transforms = {"none": None, "normalize": Normalize(D, indices=[0, 1])}
    return MixedSingleTaskGP(X, Y, cat_dims=[2], input_transform=transforms[transform])


class PlainGP(ExactGP):
    """As in GPyTorch's first tutorial."""

    def __init__(self, X, y, kernel):
        likelihood = GaussianLikelihood()
        super().__init__(X, y, likelihood)
        self.mean_module = ConstantMean()
        self.covar_module = ScaleKernel(kernel)
        self.to(X)
        likelihood.noise = 0.01

    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


class DeepGP(PlainGP):
    """As in GPyTorch's tutorial of deep kernels: forward is more than a kernel."""

    def forward(self, x):
        return super().forward(torch.stack([x.sin().sum(-1), x.prod(-1)], dim=-1))


def plain(transform, batch, outputs, cls=PlainGP, kernel=MaternKernel):
    del transform, batch, outputs
    X, Y = data()
    return cls(X, Y[:, 0], kernel())


def deep(transform, batch, outputs):
    return plain(transform, batch, outputs, DeepGP, RBFKernel)


EVERY = tuple(TRANSFORMS)
BATCHES = [((), 1), ((), 2), ((2,), 1), ((2,), 2)]
ONE = [((), 1)]
# Class, transforms, batches and outputs.
MATRIX = [
    (single_task, EVERY, BATCHES),
    (fixed_noise, EVERY, BATCHES),
    (matern, ("none", "normalize", "warp"), BATCHES),
    (environmental, ("none",), BATCHES),
    (environmental, ("chain",), ONE),
    (linear_mean, ("none", "warp"), [((), 1), ((2,), 1)]),
    (fantasized, ("none", "normalize", "warp"), [((), 1), ((), 2)]),
    (fantasized_with_fixed_noise, ("none", "normalize"), [((), 1), ((), 2)]),
    (model_list, ("none", "normalize", "warp"), BATCHES),
    (list_with_two_outputs, ("normalize", "warp"), [((), 3)]),
    (map_saas, ("none", "normalize"), BATCHES[:2]),
    (additive_map_saas, ("normalize",), ONE),
    (ensemble_map_saas, ("none", "normalize", "warp"), ONE),
    (fully_bayesian_saas, ("none", "normalize"), ONE),
    (warped_saas, ("bounded",), ONE),
    (mixed, ("none", "normalize"), BATCHES),
    (plain, ("none",), ONE),
    (deep, ("none",), ONE),
]
CASES = [
    pytest.param(
        make,
        transform,
        batch,
        outputs,
        id=f"{make.__name__}-{transform}-{'x'.join(map(str, batch))}-{outputs}",
    )
    for make, transforms, shapes in MATRIX
    for transform in transforms
    for batch, outputs in shapes
]


def make_model(make, transform, batch, outputs):
    with DEVICE:
        return make(transform, torch.Size(batch), outputs)


def center(make, *shape, seed=2):
    """Points of the model's space, with categories where it has them."""
    X = uniform(*shape, seed=seed)
    if make is mixed:
        X = torch.cat([X[..., :2], (X[..., 2:] > 1).double()], dim=-1)
    return X


def values(model, X):
    """The process at X: means and covariances, with outputs before q, in float64."""
    with torch.no_grad() if not X.requires_grad else torch.enable_grad():
        if isinstance(model, ModelListGP):
            parts = [values(part, X) for part in model.models]
            rows = [
                part
                if submodel.num_outputs > 1
                else (part[0].unsqueeze(-2), part[1].unsqueeze(-3))
                for part, submodel in zip(parts, model.models, strict=True)
            ]
            means, covariances = zip(*rows, strict=True)
            mean, covariance = torch.cat(means, -2), torch.cat(covariances, -3)
            single = mean.shape[-2] == 1
            return (
                (mean[..., 0, :], covariance[..., 0, :, :])
                if single
                else (mean, covariance)
            )
        if not hasattr(model, "posterior"):
            model.eval()
            found = model(X)
            return found.mean, found.covariance_matrix
        distribution = model.posterior(X).distribution
        mean = model.posterior(X).mean
        covariance = distribution.covariance_matrix
        m, q = model.num_outputs, X.shape[-2]
        if m == 1:
            return mean.squeeze(-1), covariance
        # Points of one output are together, or outputs of one point.
        inside = distribution._interleaved
        shape = (q, m, q, m) if inside else (m, q, m, q)
        blocks = covariance.unflatten(-1, shape[:2]).unflatten(-3, shape[2:])
        dims = (-3, -1) if inside else (-4, -2)
        blocks = blocks.diagonal(dim1=dims[0], dim2=dims[1])
        return mean.mT, blocks.movedim(-1, -3)
