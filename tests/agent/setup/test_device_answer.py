"""Coding times of a device without a job, found by its place or its name."""

import pytest
import torch

from gravac_agent.setup import device_answer


def test_a_device_is_measured_without_a_job() -> None:
    asked = {"device": "cpu", "elements": 1 << 16, "buckets": 2, "ranks": 2}
    found = device_answer.answer({**asked, "plans": [["bf16", 2.0, 2], ["nonsense", 10.0, 2]]})
    assert found["name"] == "this CPU"
    (coding, host), unknown = found["seconds"]
    assert 0.0 < coding < 5.0
    assert (host, unknown) == (0.0, None)


def test_a_device_is_found_by_its_place_or_a_part_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_answer.answer({"device": "l4"}) == {"name": None, "seconds": []}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda at: ("NVIDIA L4", "NVIDIA H100 80GB HBM3")[at])
    asked = ("cpu", "cuda", "cuda:1", "cuda:2", "cuda:x", "H100", "l4", "a100")
    found = [str(device_answer.place_of(name)) for name in asked]
    assert found == ["cpu", "cuda:0", "cuda:1", "None", "None", "cuda:1", "cuda:0", "None"]
