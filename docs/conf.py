"""Configuration of the documentation site, which ``make docs`` builds from the whole repository.

The source folder is the root of the repository, so that README.md, ARCHITECTURE.md and docs/ link to each other on
the site as they do on GitHub. The build needs no network and is strict: a warning is an error.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from gravac import __version__

project = "gravac"
author = "the authors of gravac"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "tools.site.extension",
]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "lab/benchmarks/README.md",
    "lab/benchmarks/adam.md",
    "lab/benchmarks/auto_worlds.md",
    "lab/benchmarks/observe.md",
    "lab/benchmarks/tournament/README.md",
]
ours = ["tests", "tools", "agent", "controller", "observe", "gravac", "lab/gravac_lab", "lab/tests"]
exclude_patterns = [".*", "build", "dist", "gravac-runs", *ours]

myst_heading_anchors = 4  # [links](page.md#heading), with GitHub's anchors
suppress_warnings = ["myst.header"]  # a page may begin below the first level

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
# A build without a network cannot look up what other projects document.
nitpick_ignore_regex = [("py:.*", r"(torch|pydantic)\..*")]

html_theme = "furo"  # brings its fonts, styles and scripts; nothing is fetched from elsewhere
html_title = f"gravac {version}"
html_baseurl = ""
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_additional_pages = {"index": "to_start.html"}
templates_path = ["_templates"]
