"""Shares of images and their shifts."""

import torch

from gravac_lab.tasks.data.images import Images


def test_shares_and_shifts() -> None:
    """Image i of the test is a dot of value i + 1: ranks have every third, held-out limits take a part."""
    dots = torch.zeros(30, 1, 9, 9, dtype=torch.uint8)
    dots[:, 0, 4, 4] = torch.arange(1, 31)
    found = Images(
        source="a test",
        train=dots,
        train_classes=torch.arange(30),
        heldout_images=dots,
        heldout_classes=torch.arange(30),
        classes=30,
        white=1.0,
        shift=2,
        heldout_limit=20,
        heldout_batch=8,
    )
    places = set()
    for images, classes in (batch for batch, _ in zip(found.batches(1, 3, 0, 16), range(300), strict=False)):
        assert set((classes % 3).tolist()) == {1}
        assert torch.equal(images.amax((1, 2, 3)).long(), classes + 1)
        places.add(tuple((images[0, 0] > 0).nonzero()[0].tolist()))
    assert places == {(row, column) for row in range(2, 7) for column in range(2, 7)}
    assert [len(classes) for _, classes in found.heldout()] == [8, 8, 4]
    shares = [classes for rank in range(2) for _, classes in found.heldout(rank, 2)]
    assert torch.cat(shares).unique().tolist() == torch.cat([c for _, c in found.heldout()]).unique().tolist()
