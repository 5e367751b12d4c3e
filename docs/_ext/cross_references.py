"""Links from a short name in a docstring to where it is documented.

Docstrings name things as the code around them does; the API documents a name under the
package that exports it. So what Sphinx does not find is looked up by its last part.
"""

from itertools import dropwhile
from typing import Any

from docutils import nodes
from sphinx.util.nodes import make_refnode


def find(target: str, objects: dict[str, Any]) -> str | None:
    """Return the outermost documented name that ends as the target does, if it is one.

    Args:
        target: As written: ``LDPBO``, ``LDPBO.run`` or ``botorch_dp.x.y.LDPBO``.
        objects: What is documented, by full name.
    """
    parts = target.lstrip(".~").split(".")
    if parts[0] == "botorch_dp":  # where it is defined, not where it is documented
        parts = list(dropwhile(str.islower, parts)) or parts[-1:]
    ending = "." + ".".join(parts)
    found = [
        name
        for name, entry in objects.items()
        if name.endswith(ending) and not entry[3]
    ]
    least = min((name.count(".") for name in found), default=0)
    nearest = [name for name in found if name.count(".") == least]
    return nearest[0] if len(nearest) == 1 else None


def resolve(app: Any, env: Any, node: Any, contnode: nodes.Node) -> nodes.Node | None:
    """Resolve a reference that Sphinx could not: a handler of its event."""
    if node.get("refdomain") != "py":
        return None
    objects = env.domaindata["py"]["objects"]
    name = find(node["reftarget"], objects)
    if name is None:
        return None
    entry = objects[name]
    return make_refnode(app.builder, node["refdoc"], entry[0], entry[1], contnode, name)
