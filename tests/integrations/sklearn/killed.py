"""A search in a process of its own, killed at a given moment. Run by the tests."""

import os
import signal
import sys

from botorch_dp.integrations.sklearn import search_checkpoint
from botorch_dp.privacy import GaussianMechanism, PermuteAndFlipMechanism
from tests.integrations.sklearn.interrupted import Failing, fit, search_of

MOMENTS = ("model", "charged", "drawn", "saved")


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


if __name__ == "__main__":
    kind, path, moment, number = sys.argv[1:]
    die_at(moment, int(number))
    fit(search_of(kind, checkpoint=path))
    print("survived")
