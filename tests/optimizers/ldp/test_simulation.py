"""Streams of users simulated in one process."""

import math
import os
import signal
import subprocess
import sys
import textwrap
from itertools import pairwise

import pytest
import torch

from botorch_dp import GDP, LDPBO, LDPSGD, ApproxDP, LDPBOClient, StepSchedule
from botorch_dp.exceptions import (
    InvalidArgumentError,
    OptimizerStateError,
    WeakGuaranteeWarning,
)
from botorch_dp.models import NystromSurrogate, Stencil
from botorch_dp.optimizers import LocalRelease, OnlineBO
from botorch_dp.privacy import GaussianEvent, audit_mu
from tests.devices import DEVICE
from tests.optimizers.ldp.streams import Alone, Means, P, R, make
from tests.optimizers.problems import DOUBLE, same_state, seeded


class TestRun:
    @pytest.mark.parametrize("mode", ["stencil", "swc"])
    def test_finds_the_mean(self, mode):
        result = make(mode=mode).run(Means(), num_steps=600, progress=False)
        assert result.average.shape == (R, P)
        # Noise of 2 on each of 600 messages: 0.08 on a mean; allow 6 of these.
        assert ((result.average - 1.0).abs() < 0.5).all()
        assert result.certificate.guarantee.mu == pytest.approx(2.0)

    def test_replications_are_runs_of_their_own(self):
        """Those of a batch, fed with the noise it drew, are those of one each."""
        stream, batch = Means(), make(OnlineBO0, mode="swc")
        batch.run(stream, 50, progress=False)
        for r in range(R):
            alone = make(OnlineBO0, x=torch.zeros(P, **DOUBLE), mode="swc")
            for t in range(1, 51):
                losses = (alone.ask() - stream.records[t - 1, r]).square().sum(-1) / 2
                alone.tell(losses)
            assert torch.allclose(alone.x, batch.x[r], atol=1e-9)

    @pytest.mark.cpu_only("users send and receive CPU tensors")
    def test_is_what_server_and_clients_do(self):
        """The simulation and a fleet of clients, with the same noise."""
        stream = Means()
        simulated = make(x=torch.zeros(P, **DOUBLE), seed=9)
        fleet = make(x=torch.zeros(P, **DOUBLE)).server
        generator = seeded(9)
        for t in range(30):
            record = stream.records[t, 0]

            def losses(X, record=record):
                return (X - record).square().sum(dim=-1) / 2

            simulated.tell(losses(simulated.ask()))
            fleet.visit(LDPBOClient(losses, GDP(2.0), 2.0, generator=generator))
        assert torch.equal(simulated.x, fleet.x)

    def test_simulation_and_client_release_through_the_same_code(self, monkeypatch):
        """Both charge, clip and add noise in one function, in this order."""
        counts, real = [], LocalRelease.charge_first

        def charge_first(self, *args, count=1, **kwargs):
            counts.append(count)
            return real(self, *args, count=count, **kwargs)

        monkeypatch.setattr(LocalRelease, "charge_first", charge_first)
        opt = make()
        opt.tell(torch.zeros(R, 2 * P, **DOUBLE))
        user = LDPBOClient(lambda X: X.sum(dim=-1), GDP(2.0), 2.0)
        user.answer(make(x=torch.zeros(P, **DOUBLE)).server.query())
        assert counts == [R, 1]
        assert (opt.num_asked, len(user.ledger)) == (1, 1)

    def test_default_steps_come_from_public_facts(self):
        opt = make()
        expected = StepSchedule.for_noise(
            radius=math.sqrt(P), clip_norm=2.0, noise_std=2.0, dim=P
        )
        assert opt.server.step_sizes == expected
        assert make(radius=0.1).server.step_sizes.initial < expected.initial

    def test_history_stays_short(self):
        opt = make(OnlineBO0, x=torch.zeros(P, **DOUBLE))
        for _ in range(3000):
            opt.tell(torch.zeros(2 * P, **DOUBLE))
        numbers = [step.number for step in opt.history]
        assert 256 <= len(numbers) < 512
        assert len({b - a for a, b in pairwise(numbers)}) == 1
        assert opt.history[-1].num_evaluations == numbers[-1] * 2 * P
        assert opt.history[-1].num_points is None  # no dictionary

    @pytest.mark.parametrize("mode", ["swc", "swc-literal"])
    @pytest.mark.parametrize("batch", [(R,), ()])
    def test_history_of_a_dictionary(self, mode, batch):
        opt = make(x=torch.zeros(*batch, P, **DOUBLE), mode=mode)
        expected = []
        for _ in range(8):
            X = opt.ask()
            opt.tell((X - 1.0).square().sum(dim=-1))
            # A slot without a point has weight zero for every partial derivative.
            used = (opt.server.surrogate.weights != 0).any(dim=-2)
            expected.append(tuple(used.sum(dim=-1).flatten().tolist()))
        assert [step.num_points for step in opt.history] == expected
        other = make(x=torch.zeros(*batch, P, **DOUBLE), mode=mode)
        other.load_state_dict(opt.state_dict())
        assert [step.num_points for step in other.history] == expected

    def test_a_history_without_sizes_is_still_read(self):
        opt = make(mode="swc")
        opt.run(Means(), 3, progress=False)
        state = opt.state_dict()
        state["history"] = [dict(step) for step in state["history"]]
        for step in state["history"]:
            del step["num_points"]
        opt.load_state_dict(state)
        assert [step.num_points for step in opt.history] == [None] * 3

    @pytest.mark.parametrize("mode", ["stencil", "swc"])
    def test_single_precision(self, mode):
        x = torch.zeros(R, P, dtype=torch.float32, device=DEVICE)
        stream = Means(dtype=torch.float32, device=DEVICE)
        result = make(x=x, mode=mode).run(stream, 20, progress=False)
        assert result.average.dtype == torch.float32

    def test_progress_bar(self, capsys):
        make().run(Means(), 5)
        assert "ldp-bo" in capsys.readouterr().err


def OnlineBO0(x, guarantee, *, clip_norm, generator, **kwargs):
    """A non-private run with the arguments of a private one."""
    del guarantee, clip_norm, generator
    return OnlineBO(x, step_sizes=StepSchedule(0.2), **kwargs)


class TestGuarantees:
    def test_one_for_each_user(self):
        opt = make(guarantee=lambda user: GDP(1.0 + (user % 3)))
        opt.run(Means(), 10, progress=False)
        assert opt.certificate().guarantee.mu == pytest.approx(3.0)  # the weakest
        stds = [step.noise_std for step in opt.history[:3]]
        assert stds == pytest.approx([4.0 / 2.0, 4.0 / 3.0, 4.0])
        assert "function" in opt.settings()["asked for"]

    def test_noise_is_each_users_own(self):
        opt = make(guarantee=lambda user: GDP(1e-3 if user == 2 else 1e6))
        before = opt.x
        opt.tell(torch.zeros(R, 2 * P, **DOUBLE))
        assert (opt.x - before).abs().max() < 1e-3
        opt.tell(torch.zeros(R, 2 * P, **DOUBLE))
        assert (opt.x - before).abs().max() > 1.0

    def test_weak_delta_warns(self):
        with pytest.warns(WeakGuaranteeWarning, match="probability 0.2"):
            make(guarantee=ApproxDP(2.0, 0.2))

    def test_certificate(self):
        certificate = make().run(Means(), 3, progress=False).certificate
        assert certificate.unit == "user"
        assert certificate.for_experiments_only
        assert any("every user answers once" in a for a in certificate.assumptions)
        assert any("4 replications" in a for a in certificate.assumptions)
        alone = make(x=torch.zeros(P, **DOUBLE), generator=None)
        alone.tell(torch.zeros(2 * P, **DOUBLE))
        assert not alone.certificate().for_experiments_only

    def test_audit_of_a_step(self):
        """Two users as different as can be, in 2,000 replications of one step.

        Their messages differ by 2 B against noise of 2 B / mu: with mu = 1 a claim of
        half of that is refuted (power above 0.999), and so is noise that was halved.
        """
        count, sides = 2000, []
        for sign in (-1.0, 1.0):
            opt = LDPBO(
                torch.zeros(count, P, **DOUBLE),
                GDP(1.0),
                clip_norm=2.0,
                step_sizes=StepSchedule(1.0),
                generator=seeded(30 + int(sign)),
            )
            slope = torch.tensor([sign * 1e6, 0.0, 0.0], **DOUBLE)
            opt.tell(opt.ask() @ slope)
            sides.append(-opt.x[:, 0])
        result = audit_mu(*sides, threshold=0.0)
        assert not result.rejects(GDP(1.0))
        assert result.rejects(GDP(0.5))

    def test_public_state_depends_on_messages_alone(self):
        opts = [make(mode="swc") for _ in range(2)]
        opts[1].server.run_id = opts[0].server.run_id
        for t in range(20):
            message = torch.randn(R, P, generator=seeded(t), **DOUBLE)
            for number, opt in enumerate(opts):
                opt._message_was, opt._message = opt._message, None

                def fixed(release, private, opt=opt, message=message):
                    opt._message_was(release, private)
                    return message

                opt._message = fixed
                opt.tell((1.0 + number) * opt.ask().square().sum(dim=-1))
                opt._message = opt._message_was
        assert same_state(opts[0].state_dict(), opts[1].state_dict())


class TestState:
    @pytest.mark.parametrize("mode", ["stencil", "swc"])
    def test_goes_on_with_the_noise_it_would_have_drawn(self, mode):
        whole = make(mode=mode).run(Means(), 40, progress=False)
        half = make(mode=mode)
        half.run(Means(), 15, progress=False)
        resumed = make(mode=mode)
        resumed.load_state_dict(half.state_dict())
        result = resumed.run(Means(), 25, progress=False)
        assert torch.equal(result.average, whole.average)
        assert resumed.num_asked == resumed.num_steps == 40
        assert result.certificate.guarantee == whole.certificate.guarantee

    def test_seeded_noise_is_not_forgotten(self):
        state = make().state_dict()
        opt = make()
        opt.run(Means(), 3, progress=False)
        state = opt.state_dict()
        other = make(generator=None)
        other.load_state_dict(state)
        other.run(Means(), 3, progress=False)
        assert other.certificate().for_experiments_only

    def test_going_back_does_not_forget_who_was_asked(self):
        opt = make(guarantee=lambda user: GDP(5.0 if user == 8 else 1.0))
        opt.run(Means(), 5, progress=False)
        state = opt.state_dict()
        opt.run(Means(), 5, progress=False)
        opt.load_state_dict(state)
        stream = Means()
        opt.run(stream, 2, progress=False)
        assert stream.seen == [11, 12]  # nobody answers twice
        assert opt.certificate().guarantee.mu == pytest.approx(5.0)

    @pytest.mark.parametrize(
        "guarantee", [GDP(1.0), lambda user: GDP(1.0 if user == 3 else 0.5)]
    )
    def test_a_state_edited_to_cheap_answers_certifies_the_true_cost(self, guarantee):
        opt = make(guarantee=guarantee)
        opt.run(Means(), 5, progress=False)
        state = opt.state_dict()
        state["spent"]["worst"] = [GaussianEvent(1e9).to_dict()]
        other = make(guarantee=guarantee)
        other.load_state_dict(state)
        assert other.certificate().guarantee == opt.certificate().guarantee == GDP(1.0)

    @pytest.mark.parametrize(
        ("key", "change", "match"),
        [
            ("spent", {"num_users": 0, "worst": [], "noise": []}, "5 steps with 0 ans"),
            ("spent", {"worst": [], "noise": []}, "5 users do not fit"),
            ("spent", {"num_users": 4}, "5 steps with 4 answers"),
            ("spent", {"noise": ["white"]}, "noise must be one of"),
            ("spent", {"worst": [{"type": "nothing"}]}, "a UserAccount"),
            ("stride", 0, "stride must be a whole number"),
            ("history", [{}], "KeyError"),
            ("server", {"num_steps": math.inf}, "num_steps must be a whole number"),
            ("server", {"x": torch.zeros(1, **DOUBLE)}, "the parameter or the run"),
            ("server", {"version": 1}, "version 2, got 1"),
        ],
    )
    def test_refuses_broken_states(self, key, change, match):
        opt = make()
        opt.run(Means(), 5, progress=False)
        state, before = opt.state_dict(), opt.state_dict()
        state[key] = {**state[key], **change} if isinstance(change, dict) else change
        with pytest.raises(OptimizerStateError, match=match):
            opt.load_state_dict(state)
        assert same_state(opt.state_dict(), before)

    @pytest.mark.parametrize(
        "change", [{"num_points": (3,)}, {"x": torch.zeros(P, **DOUBLE)}]
    )
    def test_refuses_a_history_of_another_shape(self, change):
        opt = make()
        opt.run(Means(), 5, progress=False)
        state = opt.state_dict()
        state["history"][0].update(change)
        with pytest.raises(OptimizerStateError, match="history has another shape"):
            opt.load_state_dict(state)

    def test_refuses_states_of_other_settings(self):
        for other in (make(radius=0.5), make(mode="swc")):
            with pytest.raises(OptimizerStateError, match="other settings: "):
                make().load_state_dict(other.state_dict())

    def test_interrupted(self, tmp_path):
        """An exception in the stream loses no step and no user."""

        class Breaks(Means):
            def losses(self, step, X):
                if step == 13 and not self.mended:
                    raise KeyboardInterrupt
                return super().losses(step, X)

        stream, path = Breaks(), tmp_path / "run"
        stream.mended = False
        opt = make()
        with pytest.raises(KeyboardInterrupt):
            opt.run(stream, 30, progress=False, checkpoint=path)
        stream.mended = True
        result = opt.run(stream, 30, progress=False, checkpoint=path)
        assert stream.seen == list(range(1, 31))
        whole = make().run(Means(), 30, progress=False)
        assert torch.equal(result.average, whole.average)

    def test_lost_users_paid_what_they_were_promised(self, tmp_path):
        """Not what the optimizer that goes on would have given them."""
        sizes = StepSchedule(0.1)
        first = make(guarantee=lambda user: GDP(5.0), step_sizes=sizes)
        first.run(Means(), 10, progress=False)
        first._write(tmp_path / "run", ahead=7)  # and the process is killed
        second = make(guarantee=lambda user: GDP(0.1), generator=None, step_sizes=sizes)
        second.run(Means(), 12, progress=False, checkpoint=tmp_path / "run")
        assert second.num_asked == 10 + 7 + 2
        certificate = second.certificate()
        assert certificate.guarantee == GDP(5.0)
        assert certificate.for_experiments_only

    def test_noise_of_every_user_is_named(self, tmp_path):
        """Exact noise for some users is not exact noise for all."""
        path, guarantee = tmp_path / "run", ApproxDP(1.0, 1e-5)
        x = torch.zeros(P, **DOUBLE)
        stream = Alone(Means())
        secure = LDPBO(x, guarantee, 2.0, secure=True, step_sizes=StepSchedule(0.1))
        secure.run(stream, 3, progress=False, checkpoint=path)
        assert secure.certificate().noise == ("secure",)
        other = LDPBO(x, guarantee, 2.0, step_sizes=StepSchedule(0.1))
        other.run(stream, 6, progress=False, checkpoint=path)
        certificate = other.certificate()
        assert certificate.noise == ("secure", "system")
        assert certificate.guarantee is None
        assert certificate.epsilons[1e-5] == pytest.approx(1.0, abs=1e-6)

    def test_a_server_from_elsewhere_is_not_certified(self):
        opt = make()
        opt.run(Means(), 2, progress=False)
        other = OnlineBO(torch.zeros(R, P, **DOUBLE), step_sizes=opt.server.step_sizes)
        other.run(Means(), 5, progress=False)
        opt.server.load_state_dict(other.server.state_dict())
        with pytest.raises(OptimizerStateError, match="5 steps with 2 answers"):
            opt.certificate()

    def test_checkpoint(self, tmp_path):
        path = tmp_path / "run"
        whole = make().run(Means(), 30, progress=False)
        make().run(Means(), 18, progress=False, checkpoint=path, checkpoint_every=7)
        resumed = make()
        result = resumed.run(Means(), 30, progress=False, checkpoint=path)
        assert torch.equal(result.average, whole.average)
        assert resumed.num_asked == 30

    def test_killed(self, tmp_path):
        """Users who may have answered before a crash are not asked again."""
        path = tmp_path / "run"
        script = f"""
            import os, signal, torch
            from botorch_dp import GDP, LDPBO
            class Stream:
                def losses(self, step, X):
                    if step == 17:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return X.square().sum(dim=-1)
            x = torch.zeros(3, dtype=torch.float64)
            opt = LDPBO(x, lambda user: GDP(3.0 if user == 16 else 1.0), 2.0)
            opt.run(Stream(), 30, progress=False, checkpoint={str(path)!r},
                    checkpoint_every=5)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == -signal.SIGKILL

        class Stream:
            def __init__(self):
                self.seen = []

            def losses(self, step, X):
                self.seen.append(step)
                return X.square().sum(dim=-1)

        def guarantee(user):
            return GDP(3.0 if user == 16 else 1.0)

        opt = LDPBO(torch.zeros(3, **DOUBLE), guarantee, 2.0)
        stream = Stream()
        opt.run(stream, 30, progress=False, checkpoint=path, checkpoint_every=5)
        assert stream.seen == list(range(21, 36))  # 15 steps were kept, 16 to 20 lost
        assert opt.num_steps == 30
        assert opt.num_asked == 35
        # User 16 answered, or may have: the certificate covers it.
        assert opt.certificate().guarantee.mu == pytest.approx(3.0)


class TestRefuses:
    @pytest.mark.parametrize(
        ("losses", "match"),
        [
            (torch.zeros(R, 5, **DOUBLE), "must have shape 4 x 6, one loss for each"),
            (torch.zeros(6, **DOUBLE), "must have shape 4 x 6"),
            (
                torch.zeros(R, 6, dtype=torch.float32, device=DEVICE),
                "must be torch.float",
            ),
            ([0.0], r"must be a torch\.Tensor"),
        ],
    )
    def test_losses(self, losses, match):
        opt = make()
        with pytest.raises(InvalidArgumentError, match=match):
            opt.tell(losses)
        assert opt.num_asked == 0

    def test_the_old_name_of_the_step_sizes_works_and_warns(self):
        sizes = StepSchedule(0.1)
        for cls in (LDPBO, LDPSGD):
            with pytest.warns(DeprecationWarning, match="step= is .* use step_sizes="):
                assert make(cls, step=sizes).server.step_sizes is sizes

    def test_arguments(self):
        with pytest.raises(InvalidArgumentError, match="exclude each other"):
            make(radius=1.0, step_sizes=StepSchedule(0.1))
        x = torch.zeros(P, **DOUBLE)
        for guarantee in (1.0, {}, None):
            with pytest.raises(InvalidArgumentError, match="guarantee must be a Pure"):
                LDPBO(x, guarantee, 1.0)
        with pytest.raises(
            InvalidArgumentError, match=r"initial_x must be a \.\.\. x p tensor"
        ):
            LDPBO([0.0], GDP(1.0), 1.0)
        with pytest.raises(InvalidArgumentError, match="surrogate must be"):
            make(surrogate=5)
        with pytest.raises(InvalidArgumentError, match="x must have shape"):
            make(surrogate=Stencil(torch.zeros(R, P + 1, **DOUBLE)))
        with pytest.raises(InvalidArgumentError, match="kappa has no effect"):
            make(kappa=0.1)
        with pytest.raises(InvalidArgumentError, match="half_width has no effect"):
            make(mode="swc", half_width=0.1)
        with pytest.raises(InvalidArgumentError, match="num_steps"):
            make().run(Means(), 0)
        with pytest.raises(OptimizerStateError, match="No step has been taken"):
            make().result()

    @pytest.mark.parametrize("kind", ["stencil", "swc", "nystrom", "sgd"])
    def test_what_a_user_does_to_its_query_stays_with_the_user(self, kind):
        x = torch.zeros(P, **DOUBLE)
        cls, kwargs = LDPBO, {"mode": kind}
        if kind == "nystrom":
            kwargs = {"surrogate": NystromSurrogate(x)}
        if kind == "sgd":
            cls, kwargs = LDPSGD, {}
        opt = cls(x, GDP(1e-3), 1e-9, step_sizes=StepSchedule(1e-12), **kwargs)
        before = opt.server.state_dict(), opt.server.surrogate.points.clone()
        query = opt.ask()
        query -= 3.0  # a record
        assert same_state(opt.server.state_dict(), before[0])
        assert torch.equal(opt.server.surrogate.points, before[1])

    def test_hostile_losses_move_no_further_than_the_bound(self):
        for value in (float("nan"), float("inf"), 1e308):
            opt = make(guarantee=GDP(1e9), step_sizes=StepSchedule(1.0))
            losses = torch.zeros(R, 2 * P, **DOUBLE)
            losses[0, 0] = value
            opt.tell(losses)
            assert opt.x.isfinite().all()
            assert opt.x.norm(dim=-1).max() <= 2.0 + 1e-6
