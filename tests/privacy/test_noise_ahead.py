"""Noise that was drawn ahead: each draw is used once, wherever it is used."""

import copy
import os
import pickle
import threading

import pytest
import torch
from scipy.stats import kstest

from botorch_dp import GDP, Ledger
from botorch_dp.exceptions import BudgetExceededError
from botorch_dp.optimizers.ldp.gradient_release import LocalRelease
from botorch_dp.privacy import noise_ahead
from botorch_dp.privacy.noise import SystemNoise
from botorch_dp.privacy.noise_ahead import NoiseAhead
from botorch_dp.privacy.user_account import UserAccount

CPU = torch.device("cpu")


def standard(zeros):
    return SystemNoise().add_gaussian(zeros, 2.0)


def zeros(*shape, dtype=torch.float64):
    return torch.zeros(*shape, dtype=dtype, device=CPU)


class TestNoiseAhead:
    def test_distribution(self):
        noise = NoiseAhead(standard)
        drawn = torch.stack([noise.add(zeros(5)) for _ in range(4000)]).flatten()
        assert kstest(drawn.numpy() / 2.0, "norm").pvalue > 1e-4

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_message_has_memory_of_its_own(self, dtype):
        # Otherwise its pickle would contain the noise of later messages.
        message = NoiseAhead(standard).add(zeros(2, dtype=dtype))
        assert message.untyped_storage().nbytes() == 2 * message.element_size()
        assert message._base is None

    def test_any_mode_and_any_value(self):
        noise = NoiseAhead(standard)
        with torch.inference_mode():
            noise.add(zeros(2))
        assert noise.add(zeros(2).requires_grad_()).isfinite().all()
        assert noise.add(zeros(2) / 0).isfinite().all()
        assert noise.add(zeros(0)).shape == (0,)

    def test_no_draw_is_used_twice(self, monkeypatch):
        monkeypatch.setattr(noise_ahead, "_NUMBERS", 32)
        noise = NoiseAhead(standard)
        drawn = [float(noise.add(zeros(1))) for _ in range(1000)]
        assert len(set(drawn)) == 1000

    def test_in_threads(self, monkeypatch):
        monkeypatch.setattr(noise_ahead, "_NUMBERS", 64)
        noise, drawn = NoiseAhead(standard), []

        def work():
            drawn.extend([float(noise.add(zeros(1))) for _ in range(500)])

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(drawn)) == len(drawn) == 4000

    @pytest.mark.parametrize(
        "duplicate",
        [copy.copy, copy.deepcopy, lambda noise: pickle.loads(pickle.dumps(noise))],
    )
    def test_copies_have_noise_of_their_own(self, duplicate):
        noise = NoiseAhead(standard)
        noise.add(zeros(1))
        other = duplicate(noise)
        mine = {float(noise.add(zeros(1))) for _ in range(100)}
        assert mine.isdisjoint(float(other.add(zeros(1))) for _ in range(100))

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_forked_processes_have_noise_of_their_own(self):
        noise = NoiseAhead(standard)
        noise.add(zeros(1))
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, float(noise.add(zeros(1))).hex().encode())
            os._exit(0)
        os.waitpid(child, 0)
        theirs = float.fromhex(os.read(reading, 100).decode())
        assert theirs not in {float(noise.add(zeros(1))) for _ in range(1000)}

    def test_shapes_do_not_mix(self):
        noise = NoiseAhead(standard)
        for shape in ((3,), (2, 3), (3,), (1, 3)):
            assert noise.add(zeros(*shape)).shape == shape

    def test_added_in_double_precision(self):
        value = torch.full((3,), 1 / 3, dtype=torch.float32, device=CPU)
        noise = NoiseAhead(lambda zeros: zeros + 1e-9)
        found = noise.add(value)
        assert found.dtype == torch.float32
        assert torch.equal(found, (value.double() + 1e-9).float())
        assert torch.equal(value, torch.full_like(value, 1 / 3))


class TestInAStream:
    def test_charged_before_the_noise_is_added(self, monkeypatch):
        release = LocalRelease(GDP(1.0), 1.0, ahead=True)
        added = []
        monkeypatch.setattr(NoiseAhead, "add", lambda self, value: added.append(1))
        ledger = Ledger(cap=GDP(0.5))
        with pytest.raises(BudgetExceededError):
            release(zeros(2), ledger=ledger)
        assert not added
        account = UserAccount()
        release(zeros(2), ledger=account)
        assert (account.num_users, added) == (1, [1])

    @pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
    def test_same_distribution_as_a_single_message(self, mechanism):
        guarantee = GDP(1.0)
        ahead = LocalRelease(guarantee, 1.0, mechanism=mechanism, ahead=True)
        account = UserAccount()
        rows = zeros(20_000, 1) + 5.0
        drawn = torch.cat([ahead(row, ledger=account) for row in rows])
        scale = ahead.noise_std
        assert float(drawn.mean()) == pytest.approx(1.0, abs=5 * scale / 20_000**0.5)
        assert float(drawn.std()) == pytest.approx(scale, rel=0.05)

    def test_seeded_and_secure_noise_is_drawn_message_by_message(self):
        generator = torch.Generator(CPU).manual_seed(1)
        seeded = LocalRelease(GDP(1.0), 1.0, generator=generator, ahead=True)
        assert seeded._ahead is None
        assert LocalRelease(GDP(1.0), 1.0)._ahead is None
        assert LocalRelease(GDP(1.0), 1.0, ahead=True)._ahead is not None
