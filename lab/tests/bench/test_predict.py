"""How ``lab/benchmarks/predict.py`` judges, on windows made from a model: what is so passes, what is not does not."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gravac.collectives import Network
from tests.support.predicted import RANKS, spec, windows

CFS, FITTED = (1.0, 4.0, 10.0, 30.0, 100.0, 1000.0), (1.0, 10.0, 30.0, 1000.0)
LINKS = ("50mbit", "200mbit", "1gbit")
RATES = {"100mbit": 1e8, "50mbit": 5e7, "200mbit": 2e8, "1gbit": 1e9}


@pytest.fixture
def judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[float], tuple[int, str]]:
    """Exit code and what is printed, with steps on links outside the fit that many times as slow."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    for name in [name for name in sys.modules if name == "predict" or name.startswith("predict_parts")]:
        monkeypatch.delitem(sys.modules, name)

    def judge(slower: float) -> tuple[int, str]:
        import predict  # type: ignore[import-not-found]
        from predict_parts.measured import Measured  # type: ignore[import-not-found]

        measured = Measured(spec())
        for link, bits in RATES.items():
            network = Network(latency_seconds=predict.LATENCY_SECONDS, bytes_per_second=bits / 8)
            for cf in CFS:
                reports = list(windows(cfs=(cf,), each=3, network=network, ranks=RANKS))
                if link != "100mbit":
                    reports = [_slower(report, slower) for report in reports]
                measured.windows[link, cf] = reports
        with pytest.raises(SystemExit) as ended:
            predict.judge(measured, "100mbit", list(LINKS), list(FITTED), list(CFS))
        return int(str(ended.value.code)), capsys.readouterr().out

    return judge


def _slower(report, times):  # type: ignore[no-untyped-def]
    level = report.levels[0]
    level = level.model_copy(update={"step_seconds_median": times * level.step_seconds_median})
    return report.model_copy(update={"levels": (level,)})


def test_what_is_so_passes(judged: Callable[[float], tuple[int, str]]) -> None:
    code, output = judged(1.0)
    assert code == 0, output
    assert "best CF right, or within 5% of the best T_comp: 3 of 3" in output
    assert "18 of 18 within the prediction interval" in output


def test_steps_that_take_longer_than_told_do_not(judged: Callable[[float], tuple[int, str]]) -> None:
    code, output = judged(1.3)
    assert code == 1
    assert "median error 23" in output  # 1 / 1.3 - 1
