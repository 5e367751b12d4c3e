"""Read the data sets of the papers from a local folder.

They are not part of this library, because their licenses are restrictive or unknown.
The folder, given by the argument ``data_dir`` or the environment variable
``BOTORCH_DP_DATA``, contains .npz archives, whose checksums are verified.

References:
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025.
    .. [Xue2007landmine] Y. Xue, X. Liao, L. Carin and B. Krishnapuram. Multi-Task
        Learning for Classification with Dirichlet Process Priors. JMLR, 2007.
    .. [Anguita2013har] D. Anguita, A. Ghio, L. Oneto, X. Parra and J. L. Reyes-Ortiz. A
        Public Domain Dataset for Human Activity Recognition Using Smartphones. ESANN,
        2013.
    .. [DalPozzolo2015credit] A. Dal Pozzolo, O. Caelen, R. A. Johnson and G. Bontempi.
        Calibrating Probability with Undersampling for Unbalanced Classification. IEEE
        SSCI, 2015.
    .. [Becker1996adult] B. Becker and R. Kohavi. Adult. UCI Machine Learning
        Repository, 1996.
    .. [LeCun1998mnist] Y. LeCun, C. Cortes and C. J. C. Burges. The MNIST Database of
        Handwritten Digits. 1998.
    .. [Papernot2022tuning] N. Papernot and T. Steinke. Hyperparameter Tuning with Renyi
        Differential Privacy. ICLR, 2022.
"""

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from botorch_dp._validation import check_choice
from botorch_dp.exceptions import InvalidArgumentError

_VARIABLE = "BOTORCH_DP_DATA"


@dataclass(frozen=True)
class Dataset:
    """A description of a data set.

    Attributes:
        file: The name of its file.
        sha256: The SHA-256 digest of that file, in hexadecimal.
        origin: Its content, and where the original is available.
    """

    file: str
    sha256: str
    origin: str


DATASETS: dict[str, Dataset] = {
    "substitute_pol": Dataset(
        file="substitute_pol.npz",
        sha256="9d41f1eda8282224102d59c779eae2d2b4d757bd57dd18644e8083e6fa37ef9c",
        origin="The 15,000 x 26 regression set 'pol' (telecommunications), on OpenML. "
        "It replaces the CT slices of [Sopa2025dpgibo], so results on it do not "
        "reproduce that paper.",
    ),
    "ct_slices_fragment": Dataset(
        file="ct_slices_fragment.npz",
        sha256="d9a618f6d3d2305d0841b6d65248ffa9d0bd5f9e32ab814e76267d3f93f5b53e",
        origin="682 rows (2 patients) of the 53,500 of 'Relative location of CT slices "
        "on axial axis', in the UCI Machine Learning Repository. For testing a loader.",
    ),
    "landmine": Dataset(
        file="landmine.npz",
        sha256="75aaeebae7622b1702511270303d54b35ec3b2f871e6bb3f63f0844398ee4ca1",
        origin="Radar features of 29 fields with and without mines [Xue2007landmine], "
        "published by the authors at Duke University; complete, no license stated.",
    ),
    "har": Dataset(
        file="har_time265.npz",
        sha256="db120d260f57af387a40f90f7d1f80d8b5b80dddd9c5924e5ca80de8cab36969",
        origin="'Human Activity Recognition Using Smartphones' [Anguita2013har], in "
        "the UCI Machine Learning Repository, for non-commercial use: all 10,299 rows, "
        "the 265 features of the time domain out of 561.",
    ),
    "creditcard": Dataset(
        file="creditcard_27k.npz",
        sha256="f8bbf3cad412ee47943d951109f99d988e52ef6fa2f52470f5be4c7860e39b96",
        origin="'Credit Card Fraud Detection' [DalPozzolo2015credit], on Kaggle "
        "(mlg-ulb): all 492 frauds and 26,523 of the legitimate payments, so that "
        "frauds are ten times as frequent as in the original.",
    ),
    "uber": Dataset(
        file="uber_fares_27k.npz",
        sha256="849d3b2a1741054f6ef65f3e14a66e2962de6ed833b951a370d59cb0017f1740",
        origin="'Uber Fares Dataset', on Kaggle: 27,671 cleaned rows of the first "
        "28,352 out of 200,000.",
    ),
    "adult": Dataset(
        file="adult.npz",
        sha256="79cbac1e9fbf493b2ff63ea4c3d490df304ae442ec68b2f6ba58871020f6a23e",
        origin="'Adult' [Becker1996adult], in the UCI Machine Learning Repository, CC "
        "BY 4.0: the 45,222 rows without gaps.",
    ),
    "mnist": Dataset(
        file="mnist.npz",
        sha256="d2fc8bab397b964798b4c839bd1e705e10a4bb65f4d56a88002229d145796751",
        origin="All of MNIST [LeCun1998mnist], CC BY-SA 3.0: 60,000 training images "
        "and 10,000 test images of digits.",
    ),
    "papernot_steinke_mnist": Dataset(
        file="papernot_steinke_mnist.npz",
        sha256="7ff0475ec6951586b6a78de5595d3082320d6ccafe95acf6828b0d08a7cba0d8",
        origin="Learning rates and accuracies of 1,012 DP-SGD runs on MNIST, published "
        "with [Papernot2022tuning], Apache 2.0.",
    ),
}


def load_dataset(
    name: str, data_dir: str | os.PathLike[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of a data set and verify its checksum.

    Args:
        name: One of ``DATASETS``: ``"substitute_pol"``, ``"ct_slices_fragment"``,
            ``"landmine"``, ``"har"``, ``"creditcard"``, ``"uber"``, ``"adult"``,
            ``"mnist"`` or ``"papernot_steinke_mnist"``.
        data_dir: The folder with the files; by default the value of the environment
            variable ``BOTORCH_DP_DATA``.

    Returns:
        The arrays of the archive by their names.

    Raises:
        InvalidArgumentError: If no folder is given, if the file is not in it, or if
            its checksum differs.

    Example:
        >>> load_dataset("pol")
        Traceback (most recent call last):
        ...
        botorch_dp.exceptions.InvalidArgumentError: name must be one of ...
    """
    dataset = DATASETS[check_choice("name", name, tuple(DATASETS))]
    folder = os.environ.get(_VARIABLE) if data_dir is None else data_dir
    if not folder:
        raise InvalidArgumentError(
            "No data folder: pass data_dir, or set the environment variable "
            f"{_VARIABLE} to the folder that contains {dataset.file}. "
            f"The data: {dataset.origin}"
        )
    path = Path(folder) / dataset.file
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(
            f"data_dir must contain {dataset.file}, which could not be read: {error}. "
            f"The data: {dataset.origin}"
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != dataset.sha256:
        raise InvalidArgumentError(
            f"{path} is not the expected file: its SHA-256 is {digest}, not "
            f"{dataset.sha256}. The data: {dataset.origin}"
        )
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}
