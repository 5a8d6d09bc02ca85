import pytest

from gravac.policies.paper.settings import exponential, geometric, rungs


def test_exponential_is_the_papers() -> None:
    assert exponential(10, 1000) == (10, 20, 40, 160, 1000)


def test_geometric_is_the_papers() -> None:
    assert geometric(10, 2000) == (10, 20, 40, 80, 160, 320, 640, 1280, 2000)


def test_a_cap_on_a_rung_is_not_doubled() -> None:
    assert geometric(10, 40) == (10, 20, 40)
    assert exponential(10, 160) == (10, 20, 40, 160)
    assert rungs("geometric", 10, 10) == (10,)


def test_widest_ladder_fits_a_decision() -> None:
    assert len(rungs("geometric", 1.000001, 1e9)) < 60


@pytest.mark.parametrize(
    ("ladder", "low", "high", "words"),
    [
        ("geometric", 1.0, 10.0, "cf_min must be above 1"),
        ("exponential", 20.0, 10.0, "at most cf_max"),
        ((10.0, 10.0), 10.0, 1000.0, "ascend strictly"),
        ((1.0, 10.0), 10.0, 1000.0, "from above 1"),
        ((), 10.0, 1000.0, "1 to 60"),
        (tuple(float(cf) for cf in range(2, 63)), 10.0, 1000.0, "1 to 60"),
    ],
)
def test_bad_ladders_say_what_is_wrong(ladder: object, low: float, high: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rungs(ladder, low, high)  # type: ignore[arg-type]
