"""What the page shows of a job, and that it follows while windows arrive."""

import csv
import re
from pathlib import Path

import pytest

from tests.support.browser import shows
from tools.harness.builders import two_hosts
from tools.harness.chromium import READY, OpenPage, Tab
from tools.harness.controller import Controller
from tools.harness.recorded import LONG_WINDOW, RecordedJob
from tools.harness.sinks import Http

pytestmark = pytest.mark.browser

CHARTS = ("cf", "efficiency", "gain", "useful", "backlog", "steps", "loss")


def picture(tab: Tab, chart: str) -> str:
    """The pixels of a chart."""
    return str(tab.page.evaluate(f"document.querySelector('#chart-{chart} canvas').toDataURL()"))


def test_waits_for_the_first_job_and_then_fills(controller: Controller, open_page: OpenPage) -> None:
    tab = open_page(controller.url)
    tab.wait("!document.querySelector('#waiting').hidden")
    assert "gravac demo" in tab.text("#waiting")
    assert f'controller="{controller.url}"' in tab.text("#waiting")
    RecordedJob(Http(controller))
    tab.wait(READY)
    assert tab.text("#chip-word") == "starting"
    assert tab.text("#plan") == "dense"
    assert tab.text("#reason") == "First 2 dense windows, to have a baseline."
    assert tab.page.locator("#waiting").is_hidden()


@pytest.mark.smoke
def test_shows_the_plan_and_why(controller: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(controller))
    recorded.until("hold")
    recorded.play(4, **LONG_WINDOW)
    tab = open_page(controller.url)
    tab.wait(READY)
    assert tab.text("#plan") == "37.7×"
    assert tab.text("#plan-note") == "fewer bytes on the wire"
    words = tab.page.locator("#plan-words")
    assert not words.is_visible(), "how comes after how much"
    tab.page.locator("#plan-how summary").click()
    assert words.is_visible()
    assert tab.content("#plan-words") == "largest 2.5\xa0%"
    assert tab.text("#phase") == "Holding"
    assert "CF 160 keeps only 0.22" in tab.text("#reason"), "why this epoch began"
    assert "by the policy gravac: largest 0.625 % → largest 2.5 %" in tab.text("#changed")
    assert tab.text("#chip-word") == "running"
    assert tab.text("#link-badge") == "emulated link: 100 Mbit/s at the start"
    assert tab.text("[data-fact=agents] dd") == "2 of 2"
    assert tab.text("[data-fact=step] dd") == f"{recorded.window * 20 - 1:,}"
    assert tab.page.title() == "37.7× · demo"


def test_the_first_row_under_auto(shared: Controller, open_page: OpenPage) -> None:
    """What an on-call person asks, and no figure of the paper's policy."""
    recorded = RecordedJob(Http(shared), job="auto", policy="auto", world_size=4, window_steps=2000)
    recorded.play(12)
    tab = open_page(f"{shared.url}/#job=auto")
    tab.wait(READY)
    job = shared.ask("GET", "/v1/jobs/auto").json
    latest = job["latest"]
    assert tab.text("#state-word") == "running"
    assert "4 ranks" in tab.text("#state-note")
    faster = job["predicted_dense_step_seconds"] / latest["step_seconds"]
    assert float(tab.text("#speed").rstrip("×")) == pytest.approx(faster, rel=0.01)
    assert "dense 1.92 s (predicted)" in tab.text("#speed-note")
    assert tab.text("#risk-word") == "low"
    assert tab.text("#risk-first") == job["risk"]["because"][0]
    assert tab.content("#plan-words").replace("\xa0", " ") == job["plan"]
    assert job["plan"] == latest["plan"]
    wire = float(tab.text("#plan").removesuffix("×"))
    assert wire == pytest.approx(latest["wire_cf"], rel=0.01), "what is on the wire, not the CF"
    assert wire != pytest.approx(job["cf"], rel=0.1)
    assert "by the policy auto: " in tab.text("#changed")
    assert tab.text("#advice") == "Nothing needs to be done."
    assert tab.text("[data-fact=codec] dd") == job["codec"]
    said = tab.text("main")
    assert said.count(tab.text("#reason")) == 2, "once in the first row, once in the table of decisions"
    assert not [one for one in ("T_comp", "ε", "B_S", "Gain") if one in said]
    for hidden in ("#chart-gain", "#curve", "[data-fact=gain]", "[data-fact=bound]"):
        assert tab.page.locator(hidden).first.is_hidden(), hidden
    paper = opened_paper(shared, open_page)
    assert not [one for one in ("T_comp", "ε", "B_S", "Gain") if one not in paper.text("main")]


def test_both_levels_of_links_are_shown(shared: Controller, open_page: OpenPage, tmp_path: Path) -> None:
    hosts = two_hosts()
    RecordedJob(Http(shared), job="links", policy="auto", world_size=4, hosts=hosts).play(4)
    tab = open_page(f"{shared.url}/#job=links")
    tab.wait(READY)
    report = shared.ask("GET", "/v1/jobs/links").json["latest"]["report"]
    waited, inside = report["phases"]["communicate"] / 20, report["inside"]
    for level, seconds, sent in (
        ("between", waited - inside["seconds"] / 20, report["payload_bytes"] / 20),
        ("inside", inside["seconds"] / 20, inside["sent_bytes"] / 20),
    ):
        shown = tab.text(f"[data-fact={level}] dd")
        number, unit = shown.split()
        assert float(number) * {"s": 1, "ms": 1e-3}[unit] == pytest.approx(seconds, rel=0.01)
        note = tab.text(f"[data-fact={level}] .note")
        assert note.startswith("waited a step" + (", the longer of both; " if level == "between" else "; "))
        megabytes = re.search(r"; ([\d,.]+) MB sent, all ranks", note)
        assert megabytes is not None
        assert float(megabytes[1]) == pytest.approx(sent / 1e6, rel=0.01)
    assert tab.text("[data-fact=world] .note") == "2 hosts of 2 ranks"
    assert "dense in two levels" in tab.text("#speed-note")
    tab.wait("document.querySelector('#chart-steps canvas') !== null")
    assert "Inside hosts" in tab.text("#chart-steps .legend")
    with tab.page.expect_download() as download:
        tab.page.locator("#csv").click()
    download.value.save_as(tmp_path / "levels.csv")
    rows = list(csv.DictReader((tmp_path / "levels.csv").read_text().splitlines()))
    assert float(rows[-1]["inside_seconds"]) == pytest.approx(inside["seconds"] / 20)
    assert float(rows[-1]["inside_bytes"]) == pytest.approx(inside["sent_bytes"] / 20)
    RecordedJob(Http(shared), job="one-level").play(3)
    flat = open_page(f"{shared.url}/#job=one-level")
    flat.wait(READY)
    flat.wait("document.querySelector('#chart-steps canvas') !== null")
    for hidden in ("[data-fact=between]", "[data-fact=inside]"):
        assert flat.page.locator(hidden).is_hidden()
    assert "Inside hosts" not in flat.text("#chart-steps .legend")


def opened_paper(shared: Controller, open_page: OpenPage) -> Tab:
    """The page of a job under the paper's policy."""
    RecordedJob(Http(shared), job="paper").play(3)
    tab = open_page(f"{shared.url}/#job=paper")
    tab.wait(READY)
    tab.wait("document.querySelector('#chart-gain canvas') !== null")
    return tab


def test_plans_that_say_something_and_bars_as_long_as_they_say(
    shared: Controller, open_page: OpenPage
) -> None:
    recorded = RecordedJob(Http(shared), job="plans", policy="auto", world_size=4, window_steps=2000)
    decision = recorded.play(12)
    tab = open_page(f"{shared.url}/#job=plans")
    tab.wait(READY)
    rows = tab.page.locator("#candidates tbody tr")
    listed = {row["words"] for row in shared.ask("GET", "/v1/jobs/plans").json["plans"]}
    assert set(rows.locator("th").all_inner_texts()) == listed, "those that the command line lists"
    assert 4 <= rows.count() < 10
    tab.page.get_by_role("button", name=f"Show {len(decision.candidates) - len(listed)} more plans").click()
    assert rows.count() == len(decision.candidates)
    whole = dict(zip(rows.locator("th").all_inner_texts(), rows.all_inner_texts(), strict=True))
    assert "≈" in whole["8 bits"], "why this one and not int8: by prediction"
    assert " % less" in whole["8 bits"]
    shares = tab.page.evaluate(
        """[...document.querySelectorAll("#ranks .with-bar, #candidates .with-bar")].map((cell) => [
          cell.closest("table").id, Number(cell.querySelector(".value").textContent.replace("≈ ", "")),
          cell.querySelector(".bar-fill")?.offsetWidth / cell.querySelector(".meter")?.offsetWidth])"""
    )
    for table in ("ranks", "candidates"):
        found = [(value, share) for name, value, share in shares if name == table and share is not None]
        most = max(value for value, _ in found)
        assert len(found) >= 4
        for value, share in found:
            assert share == pytest.approx(value / most, abs=0.03), table


def test_ranks_that_are_alike_are_a_sentence(shared: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(shared), job="alike", world_size=4)
    rows = recorded.report().ranks
    alike = tuple(rows[0].model_copy(update={"rank": rank}) for rank in range(4))
    recorded.play(3, ranks=alike)
    tab = open_page(f"{shared.url}/#job=alike")
    tab.wait(READY)
    tab.page.locator("#heat-note").scroll_into_view_if_needed()
    tab.shows("#heat-note", "All ranks take about the same time. Slowest: ")
    assert tab.page.locator("#heat").is_hidden(), "no empty box"
    recorded.play(1, ranks=rows)
    tab.until(tab.page.locator("#heat canvas").is_visible, "one is slower now")


def test_the_time_by_window_is_there_without_scrolling(shared: Controller, open_page: OpenPage) -> None:
    """Also in a picture of the whole page; an empty box under its legend says nothing."""
    recorded = RecordedJob(Http(shared), job="unscrolled", world_size=4, straggles={2: range(1, 2)})
    recorded.play(3)
    tab = open_page(f"{shared.url}/#job=unscrolled")
    tab.wait(READY)
    tab.shows("#heat-note", "Slowest: Rank 2, window 1: ")
    assert tab.page.evaluate("scrollY") == 0
    assert tab.page.locator("#heat canvas").is_visible()


def test_the_first_plan_is_the_one_in_force_and_others_say_why_not(
    shared: Controller, open_page: OpenPage
) -> None:
    """One that will not be taken stood first, as it would be the fastest."""
    recorded = RecordedJob(Http(shared), job="first", policy="auto", world_size=4, window_steps=2000)
    recorded.play(12)
    tab = open_page(f"{shared.url}/#job=first")
    tab.wait(READY)
    more = tab.page.locator("#candidates-all")
    for whole in (False, True):
        if whole:
            more.click()
        rows = tab.page.locator("#candidates tbody tr")
        assert rows.first.get_attribute("aria-current") == "true"
        verdicts = tab.page.locator("#candidates .verdict").all_inner_texts()
        late = [at for at, text in enumerate(verdicts) if "too much" in text]
        assert late == list(range(len(verdicts) - len(late), len(verdicts))), (
            "those that can be taken come before"
        )
    known = shared.ask("GET", "/v1/jobs/first/candidates").json["candidates"]
    others = [row for row in known if row["verdict"] != "chosen"]  # which is held as long as its error allows
    losing = {row["words"]: row["efficiency"] for row in others if (row["efficiency"] or 1.0) < 0.979}
    assert len(losing) > 3
    plans = tab.page.locator("#candidates tbody th").all_inner_texts()
    said = dict(zip(plans, verdicts, strict=True))
    for plan, kept in losing.items():
        assert re.fullmatch(r"(is expected to lose|loses) \d+(\.\d)? % of progress: too much", said[plan]), (
            plan
        )
        assert float(re.findall(r"[\d.]+", said[plan])[0]) == pytest.approx(100 * (1 - kept), abs=0.51)
    against = tab.page.locator("#candidates tbody td:nth-child(4)").all_inner_texts()
    assert against[0] == ""
    assert all(re.fullmatch(r"(\d+(\.\d)? % (more|less))?", text) for text in against)
    assert tab.page.locator("#ranks thead th").nth(1).inner_text() == "Speed (fastest rank: 1)"


def test_saved_bytes_are_the_controllers(controller: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(controller))
    recorded.until("hold")
    totals = controller.ask("GET", "/v1/jobs/demo").json["totals"]
    tab = open_page(controller.url)
    tab.wait(READY)
    saved = (totals["dense_bytes"] - totals["payload_bytes"]) / 1e9
    assert f"{saved:.2f} GB\nnot sent (exact)" in tab.text("#saved").replace(" not", "\nnot")
    assert "saved (estimate)" in tab.text("#saved")
    assert "(measured)" in tab.text("#saved")
    assert "Range from the slowest and the fastest of 2 dense windows: " in tab.text("#saved")
    assert "of that wait is saved" in tab.text("#saved")


def test_a_loss_of_time_is_said(controller: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(controller))
    recorded.play(2)
    recorded.play(3, seconds=20 * 9.0)
    tab = open_page(controller.url)
    tab.wait(READY)
    assert "≈ −" in tab.text("#saved")
    assert "lost, not saved (estimate)" in tab.text("#saved")


def test_the_light_and_its_rule(shared: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(shared), job="light")
    tab = open_page(f"{shared.url}/#job=light")
    tab.wait(READY)
    assert tab.page.locator("#risk").is_hidden(), "nothing to judge before the first window"
    recorded.play()
    shows(tab, "#risk-word", "no")
    recorded.until("hold")
    recorded.play(2)
    shows(tab, "#risk-word", "high")
    assert "At equal steps the loss is expected to be " in tab.text("#risk-because"), (
        "Top-k 40x, as under Adam"
    )
    tab.page.locator("#risk summary").click()
    assert "Low where the plan loses no more of the statistical efficiency η than you accept" in tab.text(
        "#risk-rule"
    )
    level = recorded.report().levels[0]
    sums = level.sums.model_copy(update={"residual_dot_gradient": 0.0})
    levels = (level.model_copy(update={"codec": "int8", "cf": 3.9, "sums": sums}),)
    recorded.play(2, levels=levels, cf=3.9, loss=9.0)  # it no longer falls, so the efficiency alone counts
    shows(tab, "#risk-word", "low")
    assert tab.content("#plan-words") == "8 bits"
    tab.until(lambda: "8 bits" in tab.text("#chart-cf .legend"), "the chart names what was sent")
    shape = "getComputedStyle(document.querySelector('.lamp')).clipPath"
    low = tab.page.evaluate(shape)
    recorded.play(1, levels=levels, cf=3.9, loss=9.0, nonfinite_steps=1)
    shows(tab, "#risk-word", "raised")
    assert tab.page.evaluate(shape) != low, "color is not the only sign"
    recorded.play(1, levels=())
    shows(tab, "#risk-word", "unknown")


def test_follows_the_job(controller: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(controller))
    recorded.play()
    tab = open_page(controller.url)
    tab.wait(READY)
    assert tab.text("#plan") == "dense"
    before = {chart: picture(tab, chart) for chart in CHARTS}
    reasons = set()
    seen = []
    for _ in range(7):
        reasons.add(recorded.play().reason)
        tab.until(lambda: tab.text("#facts [data-fact=window] dd") == str(recorded.window - 1), "the window")
        seen.append(tab.content("#plan-words").partition("largest ")[2] or tab.text("#plan"))
    assert seen == ["dense", "10\xa0%", "5\xa0%", "2.5\xa0%", "10\xa0%", "2.5\xa0%", "2.5\xa0%"]
    assert len(reasons) > 5
    for chart in CHARTS:
        tab.until(lambda chart=chart: picture(tab, chart) != before[chart], f"another picture of {chart}")  # type: ignore[misc]
    rows = tab.page.locator("#log tbody tr")
    tab.until(lambda: rows.count() == 6, "one row for each decision that changed something")
    tab.page.locator("#log-all").check()
    tab.until(lambda: rows.count() == 9, "a row for each decision")
    assert tab.text("#candidates [aria-current] th") == "largest 2.5 %"
    assert tab.text("#candidates .verdict-too_strong .verdict") == "too strong"


def test_says_when_the_gate_sends_less_than_wanted(controller: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(controller))
    recorded.play_until(lambda decision: decision.cf_candidate == 160, "CF 160")
    tab = open_page(controller.url)
    tab.wait(READY)
    assert tab.text("#plan-next") == "Next: largest 0.625 %"
    recorded.play(levels=())  # nothing to judge by: the decision stays while the ranks send the minimum
    tab.wait("!document.querySelector('#gate').hidden")
    assert "Chosen CF 160, sent CF 10" in tab.text("#gate")


def test_loss_is_hidden_when_never_logged(controller: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(controller), losses=False)
    recorded.play(3)
    tab = open_page(controller.url)
    tab.wait("document.querySelectorAll('canvas').length >= 4")
    assert tab.page.locator("#chart-loss").is_hidden()
    assert (
        tab.page.locator("[data-fact=loss]").count() == 0 or tab.page.locator("[data-fact=loss]").is_hidden()
    )


def test_faults_and_the_end(controller: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(controller))
    recorded.play(3)
    recorded.event("nonfinite", "a gradient was infinite on rank 1")
    recorded.play(1, nonfinite_steps=1)
    tab = open_page(controller.url)
    tab.wait(READY)
    assert tab.text("#faults tbody tr").split("\t") == [
        "▲ steps with a non-finite gradient",
        "1",
        "window 3",
        "window 3",
    ]
    assert "▲ non-finite" in tab.text("#events .is-fault")
    recorded.end()
    shows(tab, "#chip-word", "ended")
    assert "final numbers, from step 79" in tab.text("#banner")
    assert tab.page.locator("body.grey").count() == 0, "final is not old"


def test_the_heat_map_shows_who_was_slow_when(shared: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(shared), job="heat", world_size=6, straggles={4: range(3, 6)})
    recorded.play(10)
    tab = open_page(f"{shared.url}/#job=heat")
    tab.wait(READY)
    tab.page.locator("#heat").scroll_into_view_if_needed()
    tab.wait("document.querySelector('#heat-note').textContent.startsWith('Slowest: Rank 4, window')")
    box = tab.page.locator("#heat canvas").bounding_box()

    def point(window: int, rank: int) -> tuple[float, float]:
        return box["width"] * (window + 0.5) / 10, box["height"] * (rank + 0.5) / 6

    table = {}
    history = shared.ask("GET", "/v1/jobs/heat/ranks/history").json
    for window, rank in ((4, 4), (4, 3), (7, 4)):
        x, y = point(window, rank)
        tab.page.mouse.move(box["x"] + x, box["y"] + y)
        percent = history["columns"][window]["percent"][rank]
        assert (
            tab.text("#heat-note")
            == f"Rank {rank}, window {window}: {percent} % of the median rank's own time."
        )
        table[window, rank] = tab.page.evaluate(
            """([x, y]) => [...document.querySelector('#heat canvas').getContext('2d')
            .getImageData(x * devicePixelRatio, y * devicePixelRatio, 1, 1).data]""",
            [x, y],
        )
    assert table[4, 4] != table[7, 4] == table[4, 3], "the straggler's color, and only then"
    x, y = point(7, 4)
    tab.page.mouse.click(box["x"] + x, box["y"] + y)
    tab.shows("#card-title", "No change")
    assert "after window 7 " in tab.text("#card")


def test_ranks_slowest_first(controller: Controller, open_page: OpenPage) -> None:
    RecordedJob(Http(controller), world_size=3).play(2)
    tab = open_page(controller.url)
    tab.wait(READY)
    order = tab.page.locator("#ranks tbody th").all_inner_texts()
    assert order == ["2", "1", "0"]
    speeds = [float(text) for text in tab.page.locator("#ranks tbody td:nth-child(2)").all_inner_texts()]
    wanted = controller.ask("GET", "/v1/jobs/demo/ranks").json["ranks"]
    assert speeds == [round(wanted[rank]["relative_speed"], 2) for rank in (2, 1, 0)]
