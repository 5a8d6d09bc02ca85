"""The shortfall of what was sent: on a device that of the host."""

import math

import torch

from gravac.aggregators.shortfall import Shortfall


def test_a_shortfall_on_a_device_is_that_of_the_host() -> None:
    """Any energies, with steps that count and that do not, and CFs that were not sent."""
    host, device = Shortfall(0), Shortfall(0)
    steps = [
        (4.0, 2.0, 1.0, True),
        (9.0, 0.0, 1.0, True),
        (9.0, 3.0, math.nan, True),
        (50.0, 2.0, 1.9, False),
    ]
    steps += [
        (9.0, 3.0, 1.0, True),
        (4.0, math.inf, 1.0, True),
        (4.0, 2.0, 5.0, True),
        (9.0, 3.0, 2.0, False),
    ]
    for cf, chosen, through, counts in steps:
        host.record(cf, chosen, through)
        device.record(cf, torch.tensor(chosen).double(), torch.tensor(through).double())
        (host.commit if counts else host.rollback)()
        device.commit_where(torch.tensor(counts))
        for asked in (2.0, 4.0, 8.0, 60.0):
            assert float(host.expected(asked)) == float(device.expected(asked))
        assert {k: float(v) for k, v in host.state_dict().items()} == {
            k: float(v) for k, v in device.state_dict().items()
        }
