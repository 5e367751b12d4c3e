"""Accounts of users who answer once each."""

import copy

import pytest

from botorch_dp import GDP, Ledger
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import GaussianEvent, ZCDPEvent, user_account
from botorch_dp.privacy.user_account import UserAccount


class TestUserAccount:
    @pytest.mark.parametrize("scale", [1.0, 1e-8, 1e7])
    def test_the_worst_of_each_kind(self, scale):
        spent = UserAccount()
        for multiplier in (1.0, 0.5, 2.0):
            spent.charge(GaussianEvent(multiplier / scale), count=7, noise="seeded")
        assert spent.num_users == 3
        assert spent.certificate().guarantee == GDP(2.0 * scale)
        spent.charge(ZCDPEvent(0.5), noise="secure")
        spent.charge(ZCDPEvent(0.1), noise="secure")
        certificate = spent.certificate()
        assert certificate.guarantee is None
        assert certificate.noise == ("secure", "seeded")
        exact = [GDP(2.0 * scale).epsilon(1e-5), zcdp_epsilon(0.5)]
        assert certificate.epsilons[1e-5] == pytest.approx(max(exact), rel=1e-6)
        again = UserAccount.from_state_dict(spent.state_dict())
        assert again.state_dict() == spent.state_dict()

    def test_merging_forgets_nothing(self):
        ours, other = UserAccount(), UserAccount()
        ours.charge(GaussianEvent(1.0))
        for noise, multiplier in (("seeded", 3.0), ("system", 0.5)):
            other.charge(GaussianEvent(multiplier), noise=noise)
        ours.merge(other)
        assert ours.num_users == 2
        assert ours.certificate().guarantee == GDP(2.0)
        assert ours.certificate().for_experiments_only

    def test_nobody(self):
        state = UserAccount().state_dict()
        assert UserAccount.from_state_dict(state).num_users == 0
        with pytest.raises(InvalidArgumentError, match="at least one charge"):
            UserAccount().certificate()

    @pytest.mark.parametrize(
        "labels", [{"unit": "record"}, {"adjacency": "zero_out"}, {"noise": "white"}]
    )
    def test_refuses_other_charges(self, labels):
        spent = UserAccount()
        with pytest.raises(InvalidArgumentError, match=f"{next(iter(labels))} must be"):
            spent.charge(GaussianEvent(1.0), **labels)
        assert spent.num_users == 0

    def test_a_copy_is_independent(self):
        spent = UserAccount()
        spent.charge(GaussianEvent(1.0))
        other = copy.deepcopy(spent)
        other.charge(GaussianEvent(0.5), noise="seeded")
        assert (spent.num_users, other.num_users) == (1, 2)
        assert spent.certificate().guarantee == GDP(1.0)
        assert not spent.certificate().for_experiments_only

    def test_the_old_name_works_and_warns(self):
        with pytest.warns(DeprecationWarning, match="OneAnswerEach is deprecated"):
            assert user_account.OneAnswerEach is UserAccount
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            user_account.nothing  # noqa: B018


def zcdp_epsilon(rho):
    ledger = Ledger()
    ledger.charge(ZCDPEvent(rho))
    return ledger.spent(1e-5)
