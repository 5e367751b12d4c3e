"""Read a picture's data back from its axes."""


def band_of(ax):
    """The lower and the upper edge of the only band."""
    (band,) = ax.collections
    (path,) = band.get_paths()
    edges = {}
    for x, y in path.vertices:
        edges.setdefault(float(x), []).append(float(y))
    return [min(ys) for ys in edges.values()], [max(ys) for ys in edges.values()]


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]
