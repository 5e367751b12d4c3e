"""Texts that are not what to_json writes are no certificates, whatever their digest."""

import json

import pytest

from botorch_dp import ApproxDP, Certificate, Ledger
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import GaussianEvent
from botorch_dp.privacy.certificate_json import digest


@pytest.fixture
def text():
    ledger = Ledger(cap=ApproxDP(20.0, 1e-5))
    ledger.charge(GaussianEvent(noise_multiplier=1.0), count=3)
    return Certificate.from_ledger(ledger).to_json()


def _set(name, value):
    return lambda state: state.update({name: value})


OTHER_TYPES = {
    "private": _set("private", "no"),
    "private as a number": _set("private", 1),
    "number of releases": _set("num_releases", 3.0),
    "parameters": _set("parameters", [["num_records", 100]]),
    "assumptions": _set("assumptions", "none"),
    "no text as assumption": _set("assumptions", [1]),
    "created": _set("created", 20261118),
    "version": _set("certificate", 2.0),
    "epsilon": _set("epsilons", [[1e-5, "0.1"]]),
    "delta": _set("epsilons", [[True, 0.1]]),
    "three numbers": _set("epsilons", [[1e-5, 0.1, 0.2]]),
    "rows of the head": lambda state: state["head"].update(num_rows=2.0),
    "one row": lambda state: state["head"].update(num_rows=True),
    "not a number": _set("guess", float("nan")),
    "guess": _set("guess", "0.5"),
    "a guarantee with more": lambda state: state["guarantee"].update(epsilon=0.1),
    "a field more": _set("epsilon", 0.1),
}


class TestLoad:
    @pytest.mark.parametrize("name", OTHER_TYPES)
    def test_other_types_are_refused(self, text, name):
        state = json.loads(text)
        OTHER_TYPES[name](state)
        with pytest.raises(InvalidArgumentError, match="that to_json wrote"):
            Certificate.from_json(json.dumps(state), check_digest=False)

    def test_a_key_is_there_once(self, text):
        # A reader of the text sees the first value, and Python takes the last one.
        twice = text.replace('"private":', '"private": false, "private":')
        with pytest.raises(InvalidArgumentError, match="a key is there twice"):
            Certificate.from_json(twice)

    def test_an_epsilon_is_there_once(self, text):
        state = json.loads(text)
        state["epsilons"].insert(0, [1e-5, 0.01])
        with pytest.raises(InvalidArgumentError, match="that to_json wrote"):
            Certificate.from_json(json.dumps(state))

    def test_what_to_json_wrote_comes_back(self, text):
        read = Certificate.from_json(text)
        assert read.to_json() == text
        assert digest(read) == json.loads(text)["digest"]
