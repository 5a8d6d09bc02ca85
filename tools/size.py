"""How large the repository is: ``python -m tools.size``. Files, lines by room, tests, words of prose, tracked bytes.

Prose: Markdown without code blocks and without the pages that a command writes.
"""

import re
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MADE = {
    "catalogue.md",
    "claims.md",
    "constants.md",
    "features.md",
    "findings.md",
    "gpu-h100.md",
    "metrics.md",
    "settings.md",
    "trace.md",
    "routes.md",
}
"""Pages that a command writes."""
SERVICE = ("gravac", "agent", "controller")


def room(path: Path) -> str:
    """The folder that a file of Python is counted in: two levels of the packages, one of the rest."""
    parts = path.parts
    deep = 3 if parts[0] in ("agent", "controller", "observe", "lab") else 2 if parts[0] == "gravac" else 1
    return "/".join(parts[: min(deep, len(parts) - 1)]) or "."


def main() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [Path(name) for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    lines: Counter[str] = Counter()
    tests = words = 0
    for path in paths:
        if path.suffix == ".py":
            text = (ROOT / path).read_text()
            lines[room(path)] += text.count("\n")
            tests += len(re.findall(r"^(?:async )?def test_", text, re.MULTILINE))
        elif path.suffix == ".md" and path.name not in MADE:
            words += len(re.sub(r"```.*?```", "", (ROOT / path).read_text(), flags=re.DOTALL).split())
    for name, count in sorted(lines.items()):
        print(f"{count:7,}  {name}")
    service = sum(count for name, count in lines.items() if name.split("/")[0] in SERVICE)
    print(f"{service:7,}  lines of the service; {sum(lines.values()):,} of Python in all")
    print(
        f"{len(paths):7,}  files, {sum((ROOT / path).stat().st_size for path in paths) / 1e6:.1f} MB tracked"
    )
    print(f"{tests:7,}  test functions, {words:,} words of prose written by hand")


if __name__ == "__main__":
    main()
