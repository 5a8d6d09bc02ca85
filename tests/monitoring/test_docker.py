"""The images and the composition, as their files define them. What the controller's image runs: ``test_image.py``."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gravac_agent.settings import AgentSettings
from gravac_controller.cli.serve import serve
from gravac_controller.settings import ControllerSettings
from tests.support.monitoring.dockerfile import environment, only, read
from tests.support.monitoring.shipped import COMPOSE, DOCKER, PROMETHEUS, ROOT, SERVICES

DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
EVERY_DOCKERFILE = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
EVERY_SERVICE = pytest.mark.parametrize("name", SERVICES)


def exact(image: str) -> bool:
    """Whether an image is named with a version, not with whatever is newest."""
    return re.search(r":v?\d+\.\d+\.\d+", image) is not None


@EVERY_DOCKERFILE
def test_images_are_built_from_what_is_there(path: Path) -> None:
    included = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    ]
    for stage in read(path):
        base = only(stage, "FROM").words[0]
        assert exact(base), base
        for copy in (one for one in stage if one.name == "COPY"):
            if any(flag.startswith("--from=") for flag in copy.flags):
                continue
            for source in copy.words[:-1]:
                assert (ROOT / source).exists(), source
                assert source.split("/")[0] in included, f"{source} is excluded by .dockerignore"


@EVERY_DOCKERFILE
def test_images_run_as_nobody_special_and_get_signals(path: Path) -> None:
    stage = read(path)[-1]
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", only(stage, "USER").rest)
    names = [one.name for one in stage]
    assert names.index("USER") > max(number for number, name in enumerate(names) if name in ("RUN", "COPY"))
    for name in ("ENTRYPOINT", "CMD"):
        assert only(stage, name).rest.startswith("["), f"{name}: a shell would keep SIGTERM for itself"
    check_settings(environment(stage))


def test_the_controllers_image_has_all_but_torch() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    lines = (DOCKER / "controller-requirements.txt").read_text().splitlines()
    given = [line for line in lines if not line.startswith("#")]
    assert sorted(given) == sorted(one for one in wanted if not one.startswith("torch"))
    exactly = (ROOT / "constraints.txt").read_text().lower().replace("_", "-")
    for one in given:
        assert f"\n{one.partition('>')[0]}==" in exactly, f"{one} has no exact version"


def check_settings(names: dict[str, Any]) -> None:
    """Our variables are settings, of the agent or of the controller."""
    ours = {name for name in names if name.startswith("GRAVAC_")}
    agent = {f"GRAVAC_{name.upper()}" for name in AgentSettings.model_fields}
    controller = {f"GRAVAC_CONTROLLER_{name.upper()}" for name in ControllerSettings.model_fields}
    assert ours <= agent | controller


@EVERY_SERVICE
def test_services_are_exact_and_hardened(name: str) -> None:
    service = SERVICES[name]
    assert exact(service["image"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:"), "only this machine, unless somebody decides otherwise"
    check_settings(service.get("environment", {}))


@EVERY_SERVICE
def test_services_find_what_they_need(name: str) -> None:
    service = SERVICES[name]
    if "build" in service:
        assert (DOCKER / service["build"]["context"]).resolve() == ROOT
        assert ROOT / service["build"]["dockerfile"] in DOCKERFILES
    for volume in service.get("volumes", ()):
        source, target = volume.split(":")[:2]
        assert target.startswith("/")
        if source.startswith("."):
            assert (DOCKER / source).exists(), source
            assert volume.endswith(":ro"), f"{source} is not the container's to change"
        else:
            assert source in COMPOSE["volumes"]
    for other, how in service.get("depends_on", {}).items():
        assert other in SERVICES
        if how["condition"] == "service_healthy":
            built = ROOT / SERVICES[other].get("build", {}).get("dockerfile", "none")
            assert "healthcheck" in SERVICES[other] or "HEALTHCHECK" in built.read_text(), (
                f"{other}: never healthy"
            )


def test_services_call_each_other_by_name_and_port() -> None:
    own = f"http://controller:{ControllerSettings.model_fields['port'].default}"
    assert SERVICES["trainer"]["environment"]["GRAVAC_CONTROLLER"] == own
    (scrape,) = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    assert scrape["http_sd_configs"][0]["url"].startswith(f"{own}/")
    (source,) = yaml.safe_load((DOCKER / "grafana/datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"]
    command = SERVICES["controller"]["command"]
    assert command[command.index("--allowed-host") + 1] == "controller"
    for name, port in (("controller", "8756"), ("prometheus", "9090"), ("grafana", "3000")):
        assert SERVICES[name]["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_grafana_is_given_the_dashboard_and_opens_it() -> None:
    grafana = SERVICES["grafana"]
    targets = {volume.split(":")[1]: volume.split(":")[0] for volume in grafana["volumes"]}
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert targets[home] == "../dashboards/grafana/gravac.json"
    (provider,) = yaml.safe_load((DOCKER / "grafana/dashboards.yaml").read_text())["providers"]
    assert provider["options"]["path"] == str(Path(home).parent)


def test_the_command_lines_are_ours() -> None:
    """The controller's options exist, and so do the trainer's."""
    stage = read(DOCKER / "controller.Dockerfile")[-1]
    assert only(stage, "ENTRYPOINT").words == ["gravac", "serve"]
    for command in (only(stage, "CMD").words, SERVICES["controller"]["command"]):
        serve.make_context("serve", list(command), click.Context(serve)).close()
    script = (ROOT / "examples/train_ddp.py").read_text()
    words = only(read(DOCKER / "trainer.Dockerfile")[-1], "CMD").words
    assert words[0] == "torchrun"
    own = words[words.index("/app/train_ddp.py") + 1 :]
    assert own
    assert all(f'"{word}"' in script for word in own if word.startswith("--"))


def test_the_trainers_token_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-secret-of-the-tests")
    done = subprocess.run(
        [str(DOCKER / "with-token.sh"), "env"],
        env={"GRAVAC_TOKEN_FILE": str(tmp_path / "token"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("GRAVAC")]
    assert found == ["GRAVAC_TOKEN=a-secret-of-the-tests"]
