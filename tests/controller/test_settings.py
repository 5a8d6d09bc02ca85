"""Settings of the controller have descriptions."""

import json

from gravac_controller.settings import ControllerSettings


def test_settings_have_descriptions() -> None:
    for name, field in ControllerSettings.model_fields.items():
        assert field.description, name
    for name in json.loads(json.dumps(ControllerSettings.model_json_schema()))["properties"]:
        if name.endswith("_seconds"):
            described = ControllerSettings.model_fields[name].description or ""
            assert "second" in described, name
