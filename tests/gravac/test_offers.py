"""What codecs state of themselves to policy auto."""

import pytest

from gravac import offers
from gravac.aggregators import AGGREGATORS
from gravac.compressors import COMPRESSORS, TopK
from gravac.policies.auto import plans as space
from tools.pages import offers as offers_page


def test_the_file_of_offers_has_what_codecs_state() -> None:
    members = {**COMPRESSORS, **AGGREGATORS}
    stated = {name: vars(member)["offer"] for name, member in members.items() if "offer" in vars(member)}
    assert offers_page.text() == offers.FILE.read_text(), "run python -m tools.pages.offers"
    assert offers.own() == stated, "what is written is read again"
    assert offers.of("topk+bf16:x=1").strengths == TopK.offer.stacks["bf16"].strengths
    assert offers.of("redsync-trimmed") == offers.of("topk+int8") == offers.UNKNOWN, "nothing is inherited"


def test_the_offer_of_a_plugin_counts_where_its_class_is_and_is_no_plan_by_default() -> None:
    theirs = offers.Offer(plans={"": 5.0}, stacks={"int8": offers.UNKNOWN})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offers, "_REGISTERED", dict(offers._REGISTERED))
        offers.register("theirs", type("Theirs", (), {"offer": theirs}))
        offers.register("heirs", type("Heirs", (type("Theirs", (), {"offer": theirs}),), {}))
        assert offers.of("theirs:a=1") == theirs
        assert offers.of("heirs") == offers.UNKNOWN, "what a class states of itself"
        assert space.size_of("theirs") == 5.0
        assert "theirs" not in {plan.codec for plan in space.defaults()}, "only where a user lists it"
    offers.of.cache_clear()


def test_a_rank_decodes_no_huffman_codes_of_its_own() -> None:
    plain, coded = "dither:levels=5", "dither:levels=5,coding=huffman"
    more = {
        payloads: offers.pass_ns(coded, 11.8, payloads)[1] - offers.pass_ns(plain, 11.8, payloads)[1]
        for payloads in (0, 1, 2, 4)
    }
    assert more[0] == more[1] == 0.0
    assert more[4] == pytest.approx(3 * more[2])
