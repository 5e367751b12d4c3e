"""The command audit: true claims stand, false ones fall.

At confidence 0.99 and with fixed seeds. The false claims are half of the truth; against
those 20,000 samples have power above 0.999 (``mu_audit_power``).
"""

import json

import pytest
import torch

from botorch_dp.cli import main

CASES = [
    ["gaussian", "--mu", "1"],
    ["gaussian", "--epsilon", "1", "--delta", "0.01"],
    ["laplace", "--epsilon", "1"],
    ["exponential", "--epsilon", "2"],
    ["permute-and-flip", "--epsilon", "2"],
]


def audit(capsys, mechanism, *arguments):
    code = main(["audit", "--mechanism", mechanism, "--seed", "0", *arguments])
    text = capsys.readouterr().out
    code_as_json = main(
        ["audit", "--mechanism", mechanism, "--seed", "0", *arguments, "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert code == code_as_json == int(found["refuted"])
    assert ("REFUTED" in text) == found["refuted"]
    assert found["refuted"] == (found["lower_bound"] > found["claim"])
    return found


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_truth_stands(capsys, case):
    found = audit(capsys, *case)
    assert not found["refuted"]
    assert found["num_samples"] == 10_000  # the other half chose the test
    assert found["lower_bound"] > 0.6 * found["claim"]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_half_of_it_is_refuted(capsys, case):
    assert audit(capsys, *case, "--claim", str(float(case[2]) / 2))["refuted"]


def test_outputs_in_files(tmp_path, capsys):
    draws = torch.randn(
        2,
        5000,
        dtype=torch.float64,
        device="cpu",
        generator=torch.Generator("cpu").manual_seed(1),
    )
    draws[1] += 1.0
    files = []
    for name, values in zip("ab", draws.tolist(), strict=True):
        files.append(str(tmp_path / name))
        (tmp_path / name).write_text("\n".join(map(str, values)))
    assert main(["audit", "--files", *files, "--mu", "1"]) == 0
    assert main(["audit", "--files", *files, "--mu", "0.5"]) == 1
    (tmp_path / "a").write_text("1\ntwo\n")
    capsys.readouterr()
    assert main(["audit", "--files", *files, "--mu", "1"]) == 2
    assert "must have one number on each line" in capsys.readouterr().err


@pytest.mark.parametrize(
    "case",
    [
        ["gaussian", "--epsilon", "1"],
        ["laplace", "--mu", "1"],
        ["laplace", "--epsilon", "1", "--delta", "0.1"],
        ["gaussian", "--mu", "1", "--samples", "2"],
        ["gaussian", "--mu", "1", "--confidence", "1"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_audited(case, capsys):
    assert main(["audit", "--mechanism", *case]) == 2
    assert capsys.readouterr().err.count("\n") == 1
