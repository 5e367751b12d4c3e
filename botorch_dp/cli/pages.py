"""Writing a report to a file, and opening it."""

import argparse
from pathlib import Path

from botorch_dp.cli.answer import Answer


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that writes a page."""
    parser.add_argument(
        "--output", help="the page (default: report.html)", default="report.html"
    )
    parser.add_argument(
        "--open", action="store_true", help="open the page in the browser"
    )


def write(page: str, options: argparse.Namespace) -> Answer:
    """Write a page, open it if that was asked for, and answer where it is."""
    from botorch_dp.privacy.report import write_page

    path = write_page(page, options.output)
    opened = options.open and _opened(path)
    text = f"wrote {path}"
    if options.open and not opened:
        text += ", but found no browser to open it"
    return Answer(text, {"output": str(path), "opened": opened})


def _opened(path: Path) -> bool:
    import webbrowser

    try:
        return webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        return False
