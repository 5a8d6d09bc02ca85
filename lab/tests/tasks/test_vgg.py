"""One layer of VGG holds most parameters."""

from gravac_lab.tasks import (
    elements_of,
    make,
)


def test_one_layer_of_vgg_holds_most_parameters() -> None:
    model = make("vgg:images=digits").build_model(0)
    assert max(parameter.numel() for parameter in model.parameters()) > 0.8 * elements_of(model)
