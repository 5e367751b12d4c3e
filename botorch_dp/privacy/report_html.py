"""The building blocks of reports: escaped texts, tables, sections and pages."""

import html
from collections.abc import Iterable

from botorch_dp.privacy.certificate_text import in_one_line
from botorch_dp.privacy.report_style import PAGE_STYLE, STYLE


def escaped(value: object) -> str:
    """Return a text that HTML shows as it is.

    Characters that are not shown, such as those that reverse the text after them, are
    spaces.
    """
    return html.escape(in_one_line(str(value)), quote=True)


def section(title: str, content: str) -> str:
    """Return a section of a page."""
    return f"<section><h2>{escaped(title)}</h2>{content}</section>"


def table(rows: Iterable[tuple[str, str]], caption: str = "") -> str:
    """Return a table in which a label that repeats is shown once."""
    cells, before = "", None
    for label, text in rows:
        shown = "" if label == before else label
        before = label
        cells += (
            f"<tr><th scope='row'>{escaped(shown)}</th><td>{escaped(text)}</td></tr>"
        )
    return f"<table class='rows'>{caption}{cells}</table>"


def card(content: str) -> str:
    """Return what a notebook shows."""
    return f"<style>{STYLE}</style><div class='botorch-dp'>{content}</div>"


def page(title: str, parts: Iterable[str]) -> str:
    """Return a whole page, which needs no network."""
    body = "".join(parts)
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<meta name='color-scheme' content='light dark'>"
        f"<title>{escaped(title)}</title><style>{PAGE_STYLE}{STYLE}</style></head>"
        f"<body><main class='botorch-dp'>{body}<footer>This report counts what its "
        "ledger was charged, nothing else. Made with botorch_dp.</footer></main></body>"
        "</html>\n"
    )
