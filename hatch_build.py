"""Makes the long description of the package from README.md; hatchling calls it in each build.

Indexes of packages show it without the repository, so a link to a page of the repository would be broken there.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https:)[^)]*\)\n\n", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\((?!https:|#)([^)]*)\)")


class LongDescription(MetadataHookInterface):
    """Sets ``readme`` of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set README.md, with the path of a page after its name where a link to it was, and without its pictures.

        Args:
            metadata: The table ``project``, which gets ``readme``.
        """
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = LINK.sub(r"\1 (`\2`)", PICTURE.sub("", text))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
