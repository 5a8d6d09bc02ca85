"""Columns and curves of a trace."""

from dataclasses import replace

from gravac_controller.views.columns import NAMES
from gravac_controller.views.history import MOST_CURVES, plain
from gravac_controller.views.thinning import ThinnedWindow


def window(
    at: int, *, gain: float = 0.5, backlog: float = 0.1, seconds: float = 1.0, marked: bool = False
) -> ThinnedWindow:
    known = {"window": at, "first_step": at, "last_step": at, "time": float(at), "seconds": seconds}
    known |= {"cf": 10.0, "gain": gain, "backlog": backlog}
    row = tuple(known.get(name) for name in NAMES)
    return ThinnedWindow(row=row, curve=None, dense=(None, None), decision=None, marked=marked)


def test_columns_that_no_window_fills_are_left_out() -> None:
    """A null in each of many windows takes room."""
    columns = plain([window(at) for at in range(3)], [], exact=False)["columns"]
    assert isinstance(columns, dict)
    assert columns["gain"] == [0.5] * 3
    assert not {"loss", "inside_bytes"} & set(columns)
    nothing = plain([], [], exact=False)["columns"]
    assert isinstance(nothing, dict)
    assert set(nothing) == set(NAMES), "the page reads their number"


def test_curves_of_a_long_trace_are_those_of_some_windows() -> None:
    curve = (3, True, (1.0, 0.123456, None))
    windows = [replace(window(at, marked=at == 777), curve=curve) for at in range(5 * MOST_CURVES)]
    curves = plain(windows, [], exact=False)["curves"]
    assert isinstance(curves, list)
    places = [at for at, *_ in curves]
    assert places == sorted({*range(0, 5 * MOST_CURVES, 5), 777, 5 * MOST_CURVES - 1})
    assert curves[0] == [0, 3, True, [1, 0.123, None]]
