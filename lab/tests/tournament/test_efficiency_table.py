"""The efficiencies that codecs state are what the committed runs say."""

from gravac import offers
from gravac.offers import Row
from tools.pages.efficiency import late_table, runs_of_the_table, table


def test_offers_are_made_of_the_committed_runs() -> None:
    """``python -m tools.pages.efficiency`` prints them."""
    made = table(runs_of_the_table())
    assert late_table()
    for (codec, kind), kept in late_table().items():
        assert offers.of(codec).rows(kind) == tuple(Row(cf, *three) for cf, three in kept.items()), codec
    for (codec, kind), kept in made.items():
        assert offers.of(codec).rows(kind) == tuple(Row(cf, *three) for cf, three in kept.items()), codec
    stated = {name for name, offer in offers.own().items() if offer.sgd or offer.adam}
    assert stated | {"topk+twobit"} == {codec for codec, _ in made}
