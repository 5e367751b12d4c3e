"""Ax runs our acquisition function and our model."""

import pytest
import torch

pytest.importorskip("ax")
pytestmark = [
    pytest.mark.default_device,
    pytest.mark.cpu_only("Ax creates its tensors on the CPU"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def client():
    from examples.ax_service import search

    torch.manual_seed(0)
    return search.run()


def test_twenty_trials_with_ax_s_own_surrogate(client):
    from botorch.models import SingleTaskGP

    summary = client.summarize()
    assert len(summary) == 20
    assert set(summary["trial_status"]) == {"COMPLETED"}
    assert (summary["generation_node"] == "GradientInformation").sum() == 10
    losses = summary["loss"].to_numpy()
    # Less than half of what the Sobol points found: with five seeds of Ax, the ratio
    # was 0.01 to 0.24.
    assert losses.min() < 0.5 * losses[:5].min()
    model = client._generation_strategy.adapter.generator.surrogate.model
    assert type(model) is SingleTaskGP


def test_fixed_hyperparameters_are_refused(client):
    # Ax fits them.
    from ax.adapter.registry import Generators
    from ax.generators.torch.botorch_modular.surrogate import (
        ModelConfig,
        SurrogateSpec,
    )

    from botorch_dp import GradientGP
    from botorch_dp.exceptions import InvalidArgumentError

    config = ModelConfig(botorch_model_class=GradientGP, model_options={"fixed": True})
    with pytest.raises(InvalidArgumentError, match="fixed=False"):
        Generators.BOTORCH_MODULAR(
            experiment=client._experiment,
            surrogate_spec=SurrogateSpec(model_configs=[config]),
        )


def test_gradient_gp_is_a_surrogate(client):
    # With the same hyperparameters, fitted by Ax, it proposes the same points.
    from ax.adapter.registry import Generators
    from ax.generators.torch.botorch_modular.surrogate import (
        ModelConfig,
        SurrogateSpec,
    )

    from botorch_dp import GradientGP, GradientInformation

    spec = SurrogateSpec(model_configs=[ModelConfig(botorch_model_class=GradientGP)])
    experiment = client._experiment
    found = []
    for options in ({}, {"surrogate_spec": spec}):
        adapter = Generators.BOTORCH_MODULAR(
            experiment=experiment,
            botorch_acqf_class=GradientInformation,
            **options,
        )
        model = adapter.generator.surrogate.model
        found.append(model.covar_module.lengthscale.detach())
        assert isinstance(model, GradientGP) == bool(options)
        arms = adapter.gen(
            1,
            model_gen_options={
                "optimizer_kwargs": {"num_restarts": 1, "raw_samples": 8}
            },
        ).arms
        assert len(arms) == 1
    assert torch.allclose(*found, rtol=1e-3)
