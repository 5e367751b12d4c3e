"""The loader: a right file is read, everything else is a clear error."""

import hashlib
import re

import numpy as np
import pytest

import benchmarks.problems.data as module
from benchmarks.problems import DATASETS, Dataset, load_dataset
from botorch_dp.exceptions import InvalidArgumentError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / "tiny.npz"
    np.savez(path, X=np.arange(6.0).reshape(2, 3), y=np.array([1, 2]))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(DATASETS, "tiny", Dataset("tiny.npz", digest, "made up"))
    monkeypatch.delenv("BOTORCH_DP_DATA", raising=False)
    return tmp_path


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_reads(folder, kind):
    arrays = load_dataset("tiny", kind(folder))
    assert sorted(arrays) == ["X", "y"]
    np.testing.assert_array_equal(arrays["X"], [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])


def test_reads_from_the_variable(folder, monkeypatch):
    monkeypatch.setenv("BOTORCH_DP_DATA", str(folder))
    assert load_dataset("tiny")["y"].tolist() == [1, 2]


def test_argument_before_variable(folder, monkeypatch):
    monkeypatch.setenv("BOTORCH_DP_DATA", str(folder / "nowhere"))
    assert load_dataset("tiny", folder)["y"].tolist() == [1, 2]


@pytest.mark.parametrize("value", [None, ""])
def test_no_folder(folder, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("BOTORCH_DP_DATA", value)
    with pytest.raises(InvalidArgumentError, match=r"BOTORCH_DP_DATA.*made up"):
        load_dataset("tiny")


def test_no_file(folder):
    with pytest.raises(InvalidArgumentError, match=r"must contain landmine\.npz.*Duke"):
        load_dataset("landmine", folder)


def test_other_file(folder):
    path = folder / "tiny.npz"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(InvalidArgumentError, match=r"SHA-256 is [0-9a-f]{64}, not"):
        load_dataset("tiny", folder)


def test_no_pickles(folder, monkeypatch):
    path = folder / "pickled.npz"
    np.savez(path, X=np.array([{}], dtype=object))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(DATASETS, "pickled", Dataset("pickled.npz", digest, "made up"))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_dataset("pickled", folder)


def test_unknown_name():
    with pytest.raises(InvalidArgumentError, match=r"'landmine'.*got 'nothing'"):
        load_dataset("nothing")


def test_table():
    names = ["substitute_pol", "ct_slices_fragment", "landmine", "har", "creditcard"]
    assert sorted(DATASETS) == sorted(
        [*names, "uber", "adult", "mnist", "papernot_steinke_mnist"]
    )
    assert module.DATASETS is DATASETS
    for dataset in DATASETS.values():
        assert re.fullmatch(r"[0-9a-f]{64}", dataset.sha256)
        assert dataset.file.endswith(".npz")
        assert len(dataset.origin) > 50
