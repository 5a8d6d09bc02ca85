"""Tests of the whole path, each on the CPU and on a GPU: without one, those marked ``gpu`` are skipped."""

import os

import pytest
import torch

from tests.support.gpu.cases import Runs

GPU = torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not GPU:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU, and torch sees none here (make gpu)"))


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.getbasetemp()
    return Runs(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
