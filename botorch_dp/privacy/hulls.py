"""The least concave function above points of the plane."""

import numpy as np

from botorch_dp.privacy.curves import FloatArray


def upper_hull(x: FloatArray, y: FloatArray) -> list[int]:
    """Return the vertices of the least concave function above points, while it rises.

    Args:
        x: Coordinates that do not fall.
        y: The other coordinates.

    Returns:
        The indices of the vertices from left to right, up to the largest y.

    Example:
        >>> x = np.arange(4.0)
        >>> upper_hull(x, np.array([0.0, 1.0, 1.5, 3.0]))
        [0, 3]
    """
    points = list(zip(np.asarray(x).tolist(), np.asarray(y).tolist(), strict=True))
    hull: list[int] = []
    for index, point in enumerate(points):
        if hull and point[1] <= points[hull[-1]][1]:
            continue
        while hull and (
            point[0] <= points[hull[-1]][0]
            or (len(hull) > 1 and _is_below(points[hull[-2]], points[hull[-1]], point))
        ):
            hull.pop()
        hull.append(index)
    return hull


def _is_below(
    left: tuple[float, float], middle: tuple[float, float], right: tuple[float, float]
) -> bool:
    """Return whether ``middle`` is not above the chord from ``left`` to ``right``."""
    rise, width = middle[1] - left[1], middle[0] - left[0]
    return rise * (right[0] - left[0]) <= (right[1] - left[1]) * width
