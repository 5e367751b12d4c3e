"""The style sheets of reports: for paper and screens, light and dark."""

# Everything is scoped to one class, because notebooks have styles of their own.
_LIGHT = """--ink:#1b2330;--soft:#5b6675;--line:#dde2e9;--paper:#fff;--good:#176b3a;
--good-bg:#e4f4ea;--fair:#7a5200;--fair-bg:#fdf1d6;--bad:#a1232b;--bad-bg:#fce6e7;
--mark:#2f5fd0"""
_DARK = """--ink:#e4e8ee;--soft:#9aa6b5;--line:#343d4a;--paper:#14181f;--good:#7fd6a0;
--good-bg:#16331f;--fair:#f0c869;--fair-bg:#3a2d0e;--bad:#ff9aa0;--bad-bg:#43191d;
--mark:#86a8ff"""


def _inside(*themes: str) -> str:
    return ",".join(f"{theme} .botorch-dp" for theme in themes)


# The theme of the system decides, unless the program around it has one of its own:
# this library's site, JupyterLab or Visual Studio Code.
_LIGHT_THEMES = _inside(
    "[data-theme=light]", "[data-jp-theme-light=true]", ".vscode-light"
)
_DARK_THEMES = _inside(
    "[data-theme=dark]", "[data-jp-theme-light=false]", ".vscode-dark"
)
_COLORS = f"""
.botorch-dp{{{_LIGHT}}}
@media (prefers-color-scheme:dark){{.botorch-dp{{{_DARK}}}}}
{_LIGHT_THEMES}{{{_LIGHT}}}
{_DARK_THEMES}{{{_DARK}}}
"""
STYLE = (
    _COLORS
    + """
.botorch-dp{color:var(--ink);background:var(--paper);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
overflow-wrap:anywhere}
div.botorch-dp{border:1px solid var(--line);border-radius:8px;padding:14px 18px;
margin:0 0 18px}
.botorch-dp table{border-collapse:collapse;width:100%;font-size:14px;margin:0;
color:inherit;background:none;border:0}
.botorch-dp caption{text-align:left;font-weight:650;padding:0 0 6px;color:inherit;
caption-side:top}
.botorch-dp th,.botorch-dp td{text-align:left;vertical-align:top;padding:6px 12px 6px 0;
border:0;border-bottom:1px solid var(--line);background:none;color:inherit;
white-space:normal;max-width:none}
.botorch-dp tr:last-child>*{border-bottom:0}
.botorch-dp th{font-weight:600;color:var(--soft)}
.botorch-dp table.rows th{width:9.5em}
.botorch-dp table.charges{font-variant-numeric:tabular-nums;white-space:nowrap}
.botorch-dp table.charges>*>tr>*{white-space:nowrap}
.botorch-dp table.charges td:nth-child(4),.botorch-dp table.charges td:nth-child(5){
white-space:normal;overflow-wrap:break-word}
.botorch-dp table.charges td:nth-child(4){min-width:7em}
.botorch-dp table.charges td:nth-child(5){font-family:ui-monospace,monospace;
font-size:12px;min-width:15em}
.botorch-dp table.lights td:first-child{width:4.5em}
.botorch-dp table.lights th{width:12em;color:var(--ink)}
.botorch-dp .light{display:inline-block;min-width:3.2em;text-align:center;
border-radius:99px;font-size:12px;font-weight:650;padding:1px 9px}
.botorch-dp .good{color:var(--good);background:var(--good-bg)}
.botorch-dp .fair{color:var(--fair);background:var(--fair-bg)}
.botorch-dp .bad{color:var(--bad);background:var(--bad-bg)}
.botorch-dp .verdict{border-left:4px solid currentColor;border-radius:4px;
padding:10px 16px;margin:0 0 14px}
.botorch-dp .says{margin:4px 0;color:var(--ink);font-size:16px;line-height:1.5}
.botorch-dp .wide{overflow-x:auto}
.botorch-dp .kind{color:var(--soft);margin:0 0 6px;font-size:14px}
.botorch-dp details{margin:10px 0 0}
.botorch-dp summary{cursor:pointer;color:var(--soft);padding:4px 0}
"""
)

PAGE_STYLE = """
body{margin:0;background:#fff}
@media (prefers-color-scheme:dark){body{background:#14181f}}
main.botorch-dp{max-width:900px;margin:0 auto;padding:32px 24px 48px}
main h1{font-size:28px;line-height:1.2;margin:2px 0 18px}
main h2{font-size:17px;margin:32px 0 8px;padding-bottom:6px;
border-bottom:2px solid var(--line)}
main .kind{color:var(--soft);margin:0;font-size:14px}
main .verdict .says{font-size:17px}
main figure{margin:0}main svg{width:100%;height:auto;display:block}
main svg text{font-size:12px;fill:var(--soft)}main svg .grid{stroke:var(--line)}
main svg .cap{stroke:var(--bad);stroke-dasharray:5 4}
main svg text.cap{fill:var(--bad);stroke:none}
main svg .spent{fill:none;stroke:var(--mark);stroke-width:2.2}
main figcaption,main footer{color:var(--soft);font-size:13px}
main footer{margin-top:36px;border-top:1px solid var(--line);padding-top:12px}
@media (max-width:600px){main.botorch-dp{padding:20px 16px 36px}main h1{font-size:23px}
main table.rows th,main table.rows td{display:block;width:auto}
main table.rows th{border-bottom:0;padding-bottom:0}
main table.rows th:empty{display:none}
main table.lights tr{display:grid;grid-template-columns:5em 1fr;padding:6px 0;
border-bottom:1px solid var(--line)}main table.lights tr:last-child{border:0}
main table.lights th,main table.lights td{border:0;padding:1px 0;width:auto}
main table.lights td:last-child{grid-column:2}main svg text{font-size:20px}}
@media print{@page{margin:16mm}main.botorch-dp{max-width:none;padding:0;--ink:#000;
--soft:#444;--line:#bbb;--good:#176b3a;--good-bg:#e4f4ea;--fair:#7a5200;
--fair-bg:#fdf1d6;--bad:#a1232b;--bad-bg:#fce6e7;--mark:#2f5fd0}body{background:#fff}
main section,main tr{break-inside:avoid}main h2{break-after:avoid}
main section:has(table.charges){break-inside:auto}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
