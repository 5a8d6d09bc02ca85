"""The sample of coordinates, on its way through buckets and ticks."""

import torch
from torch import nn

from gravac.memories import Bucket
from gravac_agent.exchange.plan import Directive
from gravac_agent.exchange.sample import Coordinates, GradientSample
from gravac_agent.exchange.tick import StepSums, TickCodec
from tests.agent.windows.test_progress import bucket, copy, fill, weights


def test_the_sample_does_not_depend_on_the_buckets() -> None:
    parameters = weights(a=(300, 7), b=(40,), c=(9, 9), d=(5000,))
    fill(parameters, 0)
    coordinates = Coordinates(parameters, 3)
    sample = GradientSample(coordinates)
    found = []
    for groups in (["ab", "cd"], ["dca", "b"], ["cbda"]):
        sample.begin_step()
        for number, names in enumerate(groups):
            copy(sample, *bucket(number, parameters, names), sample.raw)
            copy(sample, *bucket(number, parameters, names[::-1]), sample.exchanged)
        found += [sample.raw.clone(), sample.exchanged.clone()]
    expected = torch.cat(
        [
            parameters[name].grad.flatten()[places]  # type: ignore[union-attr]
            for name, places in coordinates.places.items()
        ]
    )
    assert coordinates.size == len(expected) > 300
    for one in found:
        assert torch.equal(one, expected.double())


def test_what_cannot_be_sampled_is_zero_and_what_fails_is_nan() -> None:
    parameters = weights(a=(50, 50), b=(30, 10))
    fill(parameters, 0)
    sample = GradientSample(Coordinates(parameters, 0))
    copy(sample, Bucket(0, ("a",), (2500,)), torch.zeros(2500).to_sparse(), sample.raw)
    copy(sample, *bucket(1, parameters, "b"), sample.raw)
    slots = sample.coordinates.slots
    assert not sample.raw[slots["a"]].any()
    assert sample.raw[slots["b"]].all()
    copy(sample, Bucket(0, ("a",), (2500,)), torch.zeros(3), sample.raw)
    assert sample.raw.isnan().all()
    sample.begin_step()
    assert not sample.raw.any()


def test_which_parameters_are_sampled() -> None:
    parameters = weights(a=(400, 400), frozen=(400, 400), c=(1,), d=(), e=(2000, 2000))
    parameters["frozen"].requires_grad_(False)
    parameters["complex"] = nn.Parameter(torch.randn(3000, dtype=torch.complex64))
    parameters["gaps"] = nn.Parameter(torch.randn(3000, 2)[:, 0])
    coordinates = Coordinates(parameters, 0)
    assert set(coordinates.places) <= {"a", "c", "e"}
    assert 480 <= coordinates.size <= 512
    again = Coordinates(parameters, 0)
    assert all(torch.equal(places, again.places[name]) for name, places in coordinates.places.items())
    assert coordinates.places["e"].max() > 1_000_000
    assert Coordinates({}, 0).size == 0


def test_a_tick_carries_the_mean_of_the_samples() -> None:
    codecs = [TickCodec(rank, 3, sampled=4) for rank in range(3)]
    directive = Directive(1, "hold", 10.0, 10.0, 0.1)
    samples = torch.randn(3, 4, dtype=torch.float64)
    vectors = [
        codec.pack(StepSums(gradient_sq=2.0), directive, (1, 2, 3), (3.0, 6.0), sample=sample)
        for codec, sample in zip(codecs, samples, strict=True)
    ]
    tick = codecs[1].unpack(torch.stack(vectors).sum(0))
    torch.testing.assert_close(tick.sample, samples.mean(0))
    assert (tick.means, tick.sums.gradient_sq, tick.agreed) == ((3.0, 6.0), 6.0, True)
    assert codecs[0].pack_status(StepSums(), 2).shape == vectors[0].shape, (
        "a rank in a step waits for this size"
    )
