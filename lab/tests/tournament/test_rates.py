"""The table of learning rates: means over seeds, and how far a task's own rate is from the best one."""

from lab.benchmarks.rates import rate_of, table


def row(rate: float, loss: float, seed: int = 1) -> dict[str, object]:
    return {
        "task": "logistic:images=digits",
        "rate": rate,
        "ranks": 4,
        "seed": seed,
        "steps": 300,
        "loss": loss,
    }


def test_a_rate_that_is_not_the_best_one_is_seen() -> None:
    own = rate_of("logistic:images=digits")
    rows = [row(own, 2.0), row(own, 2.4, seed=2), row(own / 2, 1.8), row(own / 2, 2.2, seed=2)]
    (line,) = table(rows)[2:]
    assert line == f"| `logistic:images=digits` | {own:g} | +10.0% | {own / 2:g}: 2.000, {own:g}: 2.200 |"


def test_a_task_whose_own_rate_was_not_measured_says_so() -> None:
    assert "| not measured |" in table([row(1e-6, 2.0)])[-1]


def test_the_rate_is_that_of_the_optimizer_that_the_task_makes() -> None:
    assert rate_of("logistic:images=digits,rate=0.25") == 0.25
    assert rate_of("lm:size=3m,optimizer=adamw") < rate_of("lm:optimizer=adamw")
