"""The live page as one HTML file: markup, style and scripts inlined, and the traces as data instead of a controller.

The page makes no requests, and its content security policy forbids them: scripts and styles are allowed by hash.
"""

import json
import re
from base64 import b64encode
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel

from gravac_controller.page.files import STATIC, bundle
from gravac_controller.report.summary import TraceSummary, labels, thinning_note
from gravac_controller.views.history import Plain, plain

DATA = "report-data"
"""Id of the element that holds the JSON of ``document`` (``static/report.js``)."""
FORMAT = 1
_LINKED = re.compile(r' *<(?:script|link)\b[^>]*(?:src|href)="/static/([\w./-]+)"[^>]*>(?:</script>)?\n')
_NOSCRIPT = re.compile(r"<noscript>.*?</noscript>", re.DOTALL)
WITHOUT_SCRIPT = '<noscript><p class="banner">This page draws charts and needs JavaScript.</p></noscript>'


def page(summaries: list[TraceSummary], folder: Path = STATIC) -> str:
    """Return the HTML of a report. ``folder``: the files of the live page. Raises OSError where they are missing."""
    text = (folder / "index.html").read_text(encoding="utf-8")
    names = _LINKED.findall(text)
    icon = f"data:image/svg+xml;base64,{b64encode((folder / 'icon.svg').read_bytes()).decode()}"
    styles = [_read(folder, name) for name in names if name.endswith(".css")]
    early = _read(folder, "early.js")
    scripts = [
        *(_read(folder, name) for name in names if name.startswith("vendor/") and name.endswith(".js"))
    ]
    scripts.append(bundle(folder))
    head = "\n".join(
        [
            f'<meta http-equiv="Content-Security-Policy" content="{policy([early, *scripts], styles)}">',
            f'<link rel="icon" href="{icon}">',
            *(f"<style>{style}</style>" for style in styles),
            f"<script>{early}</script>\n</head>",
        ]
    )
    tail = "\n".join(
        [
            f'<script type="application/json" id="{DATA}">{document(summaries)}</script>',
            *(f"<script>{_checked(script)}</script>" for script in scripts),
            "</body>",
        ]
    )
    text = _LINKED.sub("", text).replace('src="/static/icon.svg"', f'src="{icon}"')
    text = _NOSCRIPT.sub(WITHOUT_SCRIPT, text).replace('data-mode="live"', 'data-mode="report"')
    before, _, after = text.partition("</head>")
    body, _, end = after.rpartition("</body>")
    return f"{before}{head}{body}{tail}{end}"


def policy(scripts: list[str], styles: list[str]) -> str:
    """Return the content security policy: only these scripts and styles, and images inside the page."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src {' '.join(map(_hash, styles))}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _read(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def _checked(script: str) -> str:
    """Return the script. Raises ValueError where it would end its own element."""
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError(
            "a script of the page contains the end of a script element, or the start of a comment"
        )
    return script


def document(summaries: list[TraceSummary]) -> str:
    """Return the data of the page as JSON. ``<`` is escaped, so that no text can end the element."""
    jobs = [_job(summary, label) for summary, label in zip(summaries, labels(summaries), strict=True)]
    whole = {"format": FORMAT, "made_by": f"gravac {version('gravac')}", "jobs": jobs}
    return json.dumps(whole, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _job(summary: TraceSummary, label: str) -> Plain:
    return {
        "label": label,
        "path": summary.path,
        "job": _record(summary.view) | {"job": label},
        "heat": _record(summary.heat),
        **plain(list(summary.history.windows), summary.history.decisions(), exact=False),
        "figures": asdict(summary.figures),
        "notes": [*summary.notes, *filter(None, [thinning_note(summary)])],
    }


def _record(record: BaseModel) -> Plain:
    found: Plain = record.model_dump(mode="json")
    return found
