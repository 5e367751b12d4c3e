"""How a notebook shows a search: what was released, and who is protected."""

from typing import Any

from botorch_dp.integrations.sklearn.refitted import RefittedModel
from botorch_dp.privacy.report import result_card


class ShownSearch(RefittedModel):
    """The part of a search that a notebook shows. All of it is public."""

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_inner()
        return bundle

    def _repr_html_inner(self) -> str:
        """Return the released result; before the fit, scikit-learn's diagram."""
        certificate = getattr(self, "certificate_", None)
        if certificate is None:
            return str(super()._repr_html_inner())
        rows = [
            (name, f"{value:.6g}" if isinstance(value, float) else str(value))
            for name, value in getattr(self, "best_params_", {}).items()
        ]
        score, noise = (
            getattr(self, name, None) for name in ("best_score_", "best_score_std_")
        )
        if score is not None:
            extra = "" if noise is None else f" (noise: {noise:.3g})"
            rows.append(("score", f"{score:.6g}{extra}"))
        if getattr(self, "stopped_", None) is not None:
            rows.append(("stopped", str(self.stopped_)))
        return result_card("Private search", rows, certificate)
