"""Twenty trials in Ax that follow the gradient of its own surrogate.

Each round evaluates three points: one step from the best point along the gradient of
the surrogate, and two points that teach most about the gradient there.
"""

from collections.abc import Mapping

import torch
from ax.adapter.registry import Generators
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generation_strategy.transition_criterion import MinTrials

from botorch_dp import GradientInformation, gradient_posterior

BOUNDS = (-2.0, 2.0)
NAMES = ("x0", "x1", "x2")
NUM_SOBOL, NUM_ROUNDS, NUM_INFORMATION = 5, 5, 2
FIRST_STEP = 0.8  # divided by the number of the round


def loss(parameters: Mapping[str, float]) -> float:
    """Return a quadratic with an optimum at (0.5, 0.5, 0.5), which is narrow."""
    x, y, z = (parameters[name] - 0.5 for name in NAMES)
    return x**2 + 3.0 * y**2 + (z - x) ** 2


def make_strategy() -> GenerationStrategy:
    """Return the strategy: Sobol points, then gradient information at the best one."""
    sobol = GenerationNode(
        name="Sobol",
        generator_specs=[GeneratorSpec(Generators.SOBOL)],
        transition_criteria=[MinTrials(NUM_SOBOL, transition_to="GradientInformation")],
    )
    options = {"optimizer_kwargs": {"num_restarts": 2, "raw_samples": 32}}
    local = GenerationNode(
        name="GradientInformation",
        generator_specs=[
            GeneratorSpec(
                Generators.BOTORCH_MODULAR,
                generator_kwargs={"botorch_acqf_class": GradientInformation},
                generator_gen_kwargs={"model_gen_options": options},
            )
        ],
    )
    return GenerationStrategy(name="Local search", nodes=[sobol, local])


def run(seed: int = 0, strategy: GenerationStrategy | None = None) -> Client:
    """Run 20 trials and return the client.

    Args:
        seed: Ax's seed.
        strategy: Another strategy whose second node fits a surrogate.
    """
    client = Client(random_seed=seed)
    client.configure_experiment(
        parameters=[
            RangeParameterConfig(name=name, parameter_type="float", bounds=BOUNDS)
            for name in NAMES
        ]
    )
    client.configure_optimization(objective="-loss")
    strategy = make_strategy() if strategy is None else strategy
    client.set_generation_strategy(strategy)
    observed: list[tuple[float, list[float]]] = []

    def evaluate(trial: int, parameters: Mapping[str, float]) -> None:
        value = loss(parameters)
        client.complete_trial(trial, raw_data={"loss": (value, 0.0)})
        observed.append((value, [parameters[name] for name in NAMES]))

    for _ in range(NUM_SOBOL):
        for trial, parameters in client.get_next_trials(max_trials=1).items():
            evaluate(trial, parameters)
    for number in range(1, NUM_ROUNDS + 1):
        best = torch.tensor(min(observed)[1], dtype=torch.float64).unsqueeze(0)
        trials = client.get_next_trials(max_trials=NUM_INFORMATION)
        model = strategy.adapter.generator.surrogate.model  # fitted just now
        gradient = gradient_posterior(model, best).mean[0].detach()
        step = FIRST_STEP / number * gradient / gradient.norm()
        moved = (best[0] - step).clamp(*BOUNDS).tolist()
        parameters = dict(zip(NAMES, moved, strict=True))
        evaluate(client.attach_trial(parameters), parameters)
        for trial, found in trials.items():
            evaluate(trial, found)
    return client


if __name__ == "__main__":
    client = run()
    parameters, metrics, trial, _ = client.get_best_parameterization()
    print(f"best of {len(client.summarize())} trials: {parameters}, {metrics}")
