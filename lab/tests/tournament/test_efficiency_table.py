"""The table of efficiencies is what the committed runs say."""

from tools.pages.efficiency import TABLE, runs_of_the_table, table


def test_the_table_is_made_of_the_committed_runs() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(runs_of_the_table()), (
        "run python -m tools.pages.efficiency"
    )
