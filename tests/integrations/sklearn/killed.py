"""Searches in processes of their own, killed at given moments. Run by the tests."""

import json
import os
import signal
import sys
import warnings

from botorch_dp.integrations.sklearn import search_checkpoint
from botorch_dp.privacy import GaussianMechanism, PermuteAndFlipMechanism
from tests.integrations.sklearn.interrupted import Failing, fit, search_of


def die_at(moment, number):
    """Kill this process the ``number``-th time that the moment comes."""
    count = []

    def came(name):
        count.append(name == moment)
        if name == moment and sum(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    for mechanism in (GaussianMechanism, PermuteAndFlipMechanism):

        def drawn(self, value, *, draw=mechanism._draw):
            came("charged")
            found = draw(self, value)
            came("drawn")
            return found

        mechanism._draw = drawn
    write = search_checkpoint.write_checkpoint

    def written(path, state):
        write(path, state)
        came("saved")

    search_checkpoint.write_checkpoint = written
    predict = Failing.predict

    def scored(self, X):
        came("model")
        return predict(self, X)

    Failing.predict = scored


def killed(kind, path, moment, number):
    """Return whether a search in a child of this process was killed."""
    child = os.fork()
    if child == 0:
        try:
            die_at(moment, number)
            fit(search_of(kind, checkpoint=path))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    fit(search_of("both"))  # imports what children would import one by one
    for case in json.loads(sys.argv[1]):
        print(killed(*case))
