"""``gravac report``: the page in a file shows what a server shows, makes no requests, and escapes text."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from gravac_controller.cli import main
from gravac_controller.report import summary
from gravac_controller.views.columns import NAMES
from tests.support.browser import PARTS, TraceServer, open_trace, serious, texts_of
from tools.harness.chromium import READY, OpenPage, Tab
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Disk

pytestmark = pytest.mark.browser

HOSTILE = '</script><script>hacked = 1</script><img src=x onerror="hacked = 1"><!-- \u2028 "\'&'


def written(folder: Path, job: str, windows: int, **how: object) -> Path:
    """A finished job's journal."""
    disk = Disk()
    recorded = RecordedJob(disk, job=job, world_size=3, curves=True, **how)  # type: ignore[arg-type]
    recorded.play(windows)
    recorded.event("nonfinite", f"a gradient was infinite {HOSTILE}")
    recorded.end()
    disk.write(folder, iter(range(1_700_000_000, 1_800_000_000)).__next__)
    return folder / job / "journal.jsonl"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two jobs; the model of the first, and what happened to both, is hostile."""
    folder = tmp_path_factory.mktemp("traces")
    return [
        written(folder, "first", 60, model=HOSTILE),
        written(folder, "second", 30, settings={"epsilon": 0.6}, losses=False),
    ]


Report = Callable[..., str]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Traces and options in, the address of their report out."""
    folder, made = tmp_path_factory.mktemp("reports"), dict[tuple[str, ...], str]()

    def of(*words: Path | str) -> str:
        key = tuple(map(str, words))
        if key not in made:
            path = folder / f"{len(made)}.html"
            result = CliRunner().invoke(main, ["report", *key, "-o", str(path)])
            assert result.exit_code == 0, result.output
            made[key] = path.as_uri()
        return made[key]

    return of


def shown(open_page: OpenPage, url: str, **look: object) -> Tab:
    tab = open_page(url, **look)
    tab.wait(READY)
    return tab


def test_it_shows_what_the_page_of_a_server_shows(
    traces: list[Path], report: Report, open_page: OpenPage
) -> None:
    ui = TraceServer(traces[0])
    try:
        server = open_trace(open_page, ui.url)
        served = texts_of(server)
        server.page.goto("about:blank")  # it would ask again, without an answer
    finally:
        ui.stop()
    tab = shown(open_page, report(traces[0]))
    in_file = texts_of(tab)
    assert {part: in_file[part] for part in PARTS} == served
    assert "Slowest: Rank" in tab.text("#heat-note")
    assert tab.text("#chip-word") == "report"
    assert tab.text("#report-notes") == f"State at the end of the trace {traces[0]}."


def test_it_makes_no_requests_and_may_not(traces: list[Path], report: Report, open_page: OpenPage) -> None:
    tab = shown(open_page, report(*traces))
    tab.page.keyboard.press("End")
    asked = tab.page.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in asked if not name.startswith("data:")] == []
    for hidden in ("#trace", "#curl", "#copy-curl", "footer a"):
        assert tab.page.locator(hidden).count() == 0, f"{hidden} needs a server"
    for hidden in ("#steer", "#pause", "#scrubber", "#waiting"):
        assert tab.page.locator(hidden).is_hidden()
    tab.page.evaluate("fetch('http://127.0.0.1:9/').catch(() => {})")
    tab.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'ran = 1'}))"
    )
    tab.until(lambda: len(tab.violations) >= 2, "both are refused by the page's own policy")
    assert tab.page.evaluate("typeof ran") == "undefined"
    tab.page.evaluate("window.violations = []")
    tab.errors.clear()


def test_text_stays_text(traces: list[Path], report: Report, open_page: OpenPage) -> None:
    tab = shown(open_page, report(traces[0]))
    assert HOSTILE.replace("\u2028", "")[:40] in tab.text("#events")
    assert "</script>" in tab.text("#facts")
    assert tab.page.evaluate("typeof hacked") == "undefined"
    assert tab.page.locator("img").count() == 1, "the page's own"


def test_keys_zoom_and_the_address(traces: list[Path], report: Report, open_page: OpenPage) -> None:
    tab = shown(open_page, report(traces[0]))
    plot = tab.page.locator("#chart-cf .plot")
    plot.focus()
    tab.page.keyboard.press("Home")
    tab.shows("#readout", "Window 0 ")
    tab.page.keyboard.press("Escape")
    box = plot.locator(".u-over").bounding_box()
    assert box is not None
    tab.page.mouse.move(box["x"] + 100, box["y"] + 50)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + 300, box["y"] + 50, steps=4)
    tab.page.mouse.up()
    tab.wait("location.hash.includes('from=')")
    assert tab.page.locator("#zoom-reset").is_visible()
    again = shown(open_page, f"{report(traces[0])}#window=3&x=time")
    again.shows("#card-title", "Decision: largest 5 % → largest 2.5 %")
    assert again.page.locator("#axis-time").get_attribute("aria-pressed") == "true"
    again.page.keyboard.press("p")  # there is nothing to pause


def test_several_jobs(traces: list[Path], report: Report, open_page: OpenPage) -> None:
    tab = shown(open_page, report(*traces))
    rows = tab.page.locator("#compare-table tbody tr")
    assert rows.count() == 2
    assert "+" not in rows.nth(0).inner_text(), "the first is what the others are compared with"
    assert "−50 %" in rows.nth(1).inner_text(), "half as many steps"
    for chart in ("cf", "efficiency", "gain", "steps"):
        legend = tab.text(f"#chart-compare-{chart} .legend")
        assert "first" in legend
        assert "second" in legend
        assert tab.page.locator(f"#chart-compare-{chart} canvas").count() == 1
    assert tab.text("#chart-compare-loss .legend").endswith("second\n–"), "it logged none"
    tab.page.locator("#chart-compare-cf .plot").focus()
    tab.page.keyboard.press("Home")
    tab.shows("#chart-compare-cf .legend", "first\ndense")
    tab.page.locator("#compare-since").click()
    assert tab.page.locator("#chart-compare-gain canvas").count() == 1
    tab.page.locator("#job-select").select_option("second")
    tab.until(lambda: "0.60" in tab.text("#chart-gain .legend"), "the other job's ε")
    assert tab.page.evaluate("location.hash") == "#job=second"
    assert str(traces[1]) in tab.text("#report-notes")
    same = shown(open_page, report(traces[0], traces[0]))
    assert same.page.locator("#compare-table tbody tr th").all_inner_texts() == ["first", "first (2)"]


def test_the_csv(traces: list[Path], report: Report, open_page: OpenPage, tmp_path: Path) -> None:
    """The page's and the command's have the same columns; a report's numbers are rounded."""
    tab = shown(open_page, report(traces[0]))
    with tab.page.expect_download() as download:
        tab.page.locator("#csv").click()
    result = CliRunner().invoke(main, ["export", str(traces[0]), "-o", str(tmp_path / "it.csv")])
    assert result.exit_code == 0, result.output
    with (tmp_path / "it.csv").open(newline="") as file, download.value.path().open(newline="") as page:
        head, *exported = csv.reader(file)
        assert [head, *csv.reader(page)][0] == head == list(NAMES)
    with download.value.path().open(newline="") as page:
        _, *downloaded = csv.reader(page)
    assert len(downloaded) == len(exported) == 60
    for one, other in zip(downloaded, exported, strict=True):
        for name, a, b in zip(head, one, other, strict=True):
            if name in ("phase", "codec", "plan") or "" in (a, b):
                assert a == b, name
            else:
                assert float(a) == pytest.approx(float(b), rel=1e-8), name


def test_a_long_trace_is_thinned_and_says_so(
    traces: list[Path], tmp_path: Path, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "MOST_WINDOWS", 100)
    long = written(tmp_path, "long", 300)
    path = tmp_path / "long.html"
    result = CliRunner().invoke(main, ["report", str(long), "-o", str(path)])
    assert result.exit_code == 0
    assert "of 300 windows are shown" in result.output
    tab = shown(open_page, path.as_uri())
    assert "of 300 windows are shown" in tab.text("#report-notes")
    assert "6,000 steps" in tab.text("#saved"), "totals count them all"
    assert tab.text("#readout") == ""
    data = json.loads(tab.page.evaluate("document.getElementById('report-data').textContent"))
    kept = data["jobs"][0]["columns"]["window"]
    assert 25 < len(kept) <= 101
    assert (kept[0], kept[-1]) == (0, 299)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(
    traces: list[Path], report: Report, open_page: OpenPage, scheme: str
) -> None:
    assert serious(shown(open_page, report(*traces), scheme=scheme)) == []
