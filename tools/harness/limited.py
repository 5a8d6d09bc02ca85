"""A controller with other limits than a user's: ``python -m tools.harness.limited '{"max_streams": 3}' serve …``."""

import json
import sys

from gravac_controller import settings
from gravac_controller.cli import main

settings.usual_limits = settings.Limits(**json.loads(sys.argv.pop(1)))
main()
