"""The stages of a search: what is left to pay, and a certificate before any release."""

import json
import re

from botorch_dp.integrations.sklearn.stages import Stages, _certificate_of_nothing
from botorch_dp.privacy import Certificate


def test_stages_that_are_absent_are_left_out():
    assert list(Stages()) == []
    assert list(Stages(score="score")) == ["score"]
    assert list(Stages("choice", "gradients")) == ["choice", "gradients"]


def test_certificate_of_nothing():
    certificate = _certificate_of_nothing("replace_one", "record")
    text = str(certificate)
    assert "nothing was charged, 0 release(s)" in text
    assert re.search(r"epsilon +0 at delta=1e-05", text)
    assert not certificate.for_experiments_only
    assert json.loads(certificate.to_json())["num_releases"] == 0
    assert Certificate.from_json(certificate.to_json()).epsilons[1e-5] == 0.0
