"""Ask and tell: in turn, with losses of the right shape."""

import pytest
import torch

from botorch_dp.exceptions import (
    InvalidArgumentError,
    OptimizerStateError,
)
from tests.optimizers.problems import Quadratics, make


class TestMisuse:
    def test_out_of_turn(self):
        opt, problem = make(num_steps=2), Quadratics()
        X = opt.search_box.box
        with pytest.raises(OptimizerStateError, match="call ask"):
            opt.tell(problem(X))
        with pytest.raises(OptimizerStateError, match="No step has been taken"):
            opt.result()
        X = opt.ask()
        opt.tell(problem(X))
        with pytest.raises(OptimizerStateError, match="once for each"):
            opt.tell(problem(X))
        opt.tell(problem(opt.ask()))
        with pytest.raises(OptimizerStateError, match="All 2 steps"):
            opt.ask()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda L: L[:-1], "num_records=200 rows"),
            (lambda L: L[:, :-1], "200 x 4"),
            (lambda L: L.mean(dim=0), "200 x 4"),
            (lambda L: torch.cat([L, L]), "400 rows in all"),
            (lambda L: [L, L[:1]], "201 rows in all"),
            (lambda L: [], "got 0"),
            (lambda L: L.long(), "dtype"),
            (lambda L: L.tolist(), "torch.Tensor"),
            (lambda L: 3.0, "n x 4 tensor"),
        ],
    )
    def test_losses_of_the_wrong_shape_cost_nothing(self, change, message):
        opt, problem = make(), Quadratics()
        losses = problem(opt.ask())
        losses[:] = 0.777
        with pytest.raises(InvalidArgumentError, match=message) as raised:
            opt.tell(change(losses))
        assert "777" not in str(raised.value)  # a loss is private, its shape is not
        assert len(opt.ledger) == 0
        opt.tell(losses)  # the same question can still be answered
        assert len(opt.ledger) == 1
