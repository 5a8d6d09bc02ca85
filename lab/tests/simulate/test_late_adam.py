"""AdamW for late gradients does what ``lab/benchmarks/adam.md`` derives, and what arrived is counted whole."""

from functools import partial
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from gravac import optim
from gravac.memories import Bucket
from gravac_agent.exchange.plan import Directive, StepPlan
from gravac_lab.simulate import pool
from gravac_lab.simulate.late_adam import Age, Ages, LateAdamW, parse_late
from gravac_lab.simulate.learning import Learner
from gravac_lab.simulate.ranks import SimulatedRanks
from gravac_lab.tasks import make
from lab.benchmarks import adam

RATE = 1e-3


def late(parameter: nn.Parameter, rule: str, betas: tuple[float, float] = (0.9, 0.999)) -> LateAdamW:
    return LateAdamW([parameter], RATE, betas, 0.0, parse_late(rule))


def settled(optimizer: torch.optim.Optimizer, square: float) -> None:
    """Begin long after the start, with the mean square of gradients known."""
    (group,) = optimizer.param_groups
    for one in group["params"]:
        mean, squares = torch.zeros_like(one), torch.full_like(one, square)
        step = torch.tensor(1e6) if type(optimizer) is torch.optim.AdamW else 10**6
        optimizer.state[one] = {"step": step, "exp_avg": mean, "exp_avg_sq": squares}


def step(optimizer: LateAdamW, gradient: Tensor, ages: Tensor) -> None:
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad, optimizer.ages = gradient, {parameter: (ages, ages.clamp_min(1.0))}
    optimizer.step()


@pytest.mark.parametrize(
    "rule", ["late", "late:move=replay", "late:move=eager", "late:move=mass,power=2", "late:move=delay"]
)
def test_gradients_that_are_one_step_old_make_it_adamw(rule: str) -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(3, 50, generator=generator)
    ours, theirs = nn.Parameter(first.clone()), nn.Parameter(first.clone())
    optimizers = (
        LateAdamW([ours], RATE, (0.9, 0.95), 0.1, parse_late(rule)),
        torch.optim.AdamW([theirs], lr=RATE, betas=(0.9, 0.95), weight_decay=0.1),
    )
    for _ in range(50):
        ours.grad = theirs.grad = torch.randn(3, 50, generator=generator)
        for optimizer in optimizers:
            optimizer.step()
    assert (theirs - first).abs().min() > 1e-5
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("age", [2, 7, 40])
def test_one_late_step_is_as_many_of_adams(age: int) -> None:
    """From any first moment, where the second does not change: both decay it hardly."""
    generator = torch.Generator().manual_seed(1)
    u, mean = torch.randn(100, generator=generator) * age, torch.randn(100, generator=generator)
    ours, theirs = nn.Parameter(torch.zeros(100)), nn.Parameter(torch.zeros(100))
    betas = (0.9, 1 - 1e-9)
    lately, plainly = (
        late(ours, "late:move=replay", betas),
        torch.optim.AdamW([theirs], lr=RATE, betas=betas, weight_decay=0.0),
    )
    for optimizer in (lately, plainly):
        settled(optimizer, 1e-3)  # corrected by 1 - beta2^1e6: the mean square is 1 in effect
    lately.state[ours]["exp_avg"] = mean.clone()
    plainly.state[theirs]["exp_avg"] = mean.clone()
    step(lately, u, torch.full((100,), float(age)))
    for _ in range(age):
        theirs.grad = u / age
        plainly.step()
    torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=1e-7)
    torch.testing.assert_close(
        lately.state[ours]["exp_avg"], plainly.state[theirs]["exp_avg"], rtol=1e-5, atol=1e-6
    )


def test_all_of_a_gradient_moves_whatever_the_ages_are() -> None:
    """The movement of all arrivals is lr·Σu/√v. Ages that change by turns lose a part of it where Adam's last step
    counts a times."""
    moved = {}
    for move in ("replay", "mass", "eager", "delay", "end"):
        parameter = nn.Parameter(torch.zeros(1))
        optimizer = late(parameter, f"late:cap=1000,move={move}", (0.9, 1 - 1e-9))
        settled(optimizer, 1e-3)  # corrected by 1 - beta2^1e6: the mean square is 1 in effect
        total = 0.0
        for age in [1.0, 30.0] * 20:
            u = 5.0 if age == 1 else 1.0
            for _ in range(int(age) - 1):
                step(optimizer, torch.zeros(1), torch.zeros(1))
            step(optimizer, torch.full((1,), u), torch.full((1,), age))
            total += u
        for _ in range(200):
            step(optimizer, torch.zeros(1), torch.zeros(1))
        step(optimizer, torch.zeros(1), torch.full((1,), 200.0))
        moved[move] = -parameter.item() / (RATE * total)
    assert moved.pop("end") < 0.5
    assert moved == pytest.approx(dict.fromkeys(moved, 1.0), abs=0.01)


@pytest.mark.parametrize(
    ("power", "constant", "noise"), [(1, 16**-0.5, 1.0), (2, 1.0, 16**0.5)], ids=["u2/a", "u2/a2"]
)
def test_the_square_is_right_for_noise_with_a_power_of_one_and_for_a_constant_with_two(
    power: int, constant: float, noise: float
) -> None:
    """Movement next to Adam's in as many steps, of gradients that arrive every 16 steps: its size where the gradient is
    constant, and the deviation of its sum where it is white noise."""
    age, arrivals, n = 16, 300, 2000
    generator = torch.Generator().manual_seed(2)

    def moved(optimizer: torch.optim.Optimizer, gradient: Tensor, by: float) -> None:
        (parameter,) = optimizer.param_groups[0]["params"]
        parameter.grad = gradient
        if isinstance(optimizer, LateAdamW):
            ages = torch.full_like(parameter, by)
            optimizer.ages = {parameter: (ages, ages.clamp_min(1.0))}
        optimizer.step()

    results = {}
    for name in ("constant", "noise"):
        ours, theirs = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(n))
        lately = late(ours, f"late:move=eager,power={power}", (0.9, 0.999))
        adam = torch.optim.Adam([theirs], lr=RATE, betas=(0.9, 0.999))
        for _ in range(arrivals):
            waiting = torch.zeros(n)
            for passed in range(age):
                gradient = torch.ones(n) if name == "constant" else torch.randn(n, generator=generator)
                waiting += gradient
                moved(adam, gradient, 1.0)
                if passed < age - 1:
                    moved(lately, torch.zeros(n), 0.0)
            moved(lately, waiting, float(age))
        ours, theirs = ours.detach(), theirs.detach()
        results[name] = float(
            ours.mean() / theirs.mean() if name == "constant" else ours.std() / theirs.std()
        )
    assert results["constant"] == pytest.approx(constant, rel=0.02)
    assert results["noise"] == pytest.approx(noise, rel=0.15)


@pytest.mark.parametrize("age", ["share", "pooled", "any"])
def test_what_arrived_and_what_waits_are_all_steps(age: str) -> None:
    """In two buckets and four ranks that send by chance, a dense step among them."""
    buckets = [Bucket(0, ("a",), (500,), ((500,),)), Bucket(1, ("b",), (300,), ((300,),))]
    ages = Ages(parse_late(f"late:age={age},cap=1000000"), 4)
    generator = torch.Generator().manual_seed(3)
    total = [torch.zeros(500), torch.zeros(300)]
    steps = 60
    for number in range(steps):
        for bucket, sum_ in zip(buckets, total, strict=True):
            n = bucket.numels[0]
            supports = [torch.randperm(n, generator=generator)[: n // 9].int() for _ in range(4)]
            arrived, _ = ages.arrived(bucket, [None] * 4 if number == 40 else supports)
            sum_ += arrived
            sent = torch.zeros(n, dtype=torch.bool)
            sent[torch.cat(supports).long()] = True
            assert number == 40 or torch.equal(arrived > 0, sent)
            if number == 40:
                assert (arrived > 0).all()
                torch.testing.assert_close(sum_, torch.full((n,), 41.0))  # nothing waits
    assert all((sum_ <= steps + 1e-3).all() for sum_ in total)
    ended = [ages.arrived(bucket, [None] * 4)[0] for bucket in buckets]
    for sum_, last in zip(total, ended, strict=True):
        torch.testing.assert_close(sum_ + last, torch.full_like(sum_, steps + 1))


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_gravac_optim_steps_by_the_rule(ranks: int) -> None:
    """``eager`` with ages that ranks pool, as far as an age is rounded, to a 64th of a step."""
    n, generator, betas = 4000, torch.Generator().manual_seed(ranks), (0.9, 0.95)
    start, bucket = torch.randn(n, generator=generator), Bucket(0, ("a",), (n,), ((n,),))
    ours, theirs = (nn.Parameter(start.clone()) for _ in range(2))
    product = optim.AdamW([ours], lr=RATE, betas=betas, weight_decay=0.1)
    rule = parse_late("late:move=eager,age=pooled,cap=1023")
    study, ages = LateAdamW([theirs], RATE, betas, 0.1, rule), Ages(rule, ranks)
    residuals, parts = torch.zeros(ranks, n), torch.rand(n, generator=generator) * 0.2
    for number in range(150):
        residuals += torch.randn(ranks, n, generator=generator)
        sent = torch.rand(ranks, n, generator=generator) < (1.0 if number == 70 else parts)
        gradient = (residuals * sent).sum(0) / ranks
        residuals *= ~sent
        ours.grad, theirs.grad = gradient.clone(), gradient
        found = ages.arrived(bucket, [one.nonzero().squeeze(1) for one in sent])
        study.ages = {theirs: found}
        product.arrived({ours: sent.sum(0).to(torch.uint8)}, ranks)
        for optimizer in (product, study):
            optimizer.step()
    assert found[1].max() > 40
    torch.testing.assert_close(ours - start, theirs - start, rtol=3e-3, atol=RATE / 100)


@pytest.mark.parametrize("plan", ["topk+twobit", "nearest:levels=3"])
def test_simulated_ranks_tell_what_arrived(plan: str) -> None:
    """The elements whose mean is not zero are those that have an age, on tasks of several buckets."""
    recipe = make("digits:width=8,optimizer=adamw")
    made = partial(LateAdamW, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, rule=parse_late("late"))
    elements = sum(one.numel() for one in recipe.build_model(0).parameters())
    object.__setattr__(recipe, "optimizer", made)
    object.__setattr__(recipe, "bucket_mb", 0.02)
    learner = Learner(recipe, 4, 1, 4, SimulatedRanks(4, plan, elements=elements, seed=1))
    assert len(learner.buckets) > 2
    for number in range(4):
        learner.train(StepPlan(Directive(0, "hold", 10.0, 10.0, 0.0), 10.0))
        assert isinstance(learner.optimizer, LateAdamW)
        for parameter, (ages, _) in learner.optimizer.ages.items():
            assert parameter.grad is not None
            arrived = parameter.grad != 0
            assert (ages[arrived] > 0).all()
            if plan == "nearest:levels=3":
                assert (ages == 1).all()
            else:
                assert (arrived == (ages > 0)).float().mean() > 0.98  # a sent value may round to zero
                assert ages.max() <= number + 1


@pytest.mark.parametrize("rule", ["late:age=pooled", "late:age=pooled,wait=2"])
def test_half_of_what_waits_arrives_from_owners(rule: str) -> None:
    """An element that owners sent in each of the steps has waited 1, 1.5, 1.75, … steps."""
    recipe = make("digits:width=8,optimizer=adamw")
    made = partial(LateAdamW, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, rule=parse_late(rule))
    elements = sum(one.numel() for one in recipe.build_model(0).parameters())
    object.__setattr__(recipe, "optimizer", made)
    ranks = SimulatedRanks(4, "topk+twobit", collective="owners", elements=elements, seed=1)
    learner, always = Learner(recipe, 4, 1, 4, ranks), None
    for number in range(3):
        learner.train(StepPlan(Directive(0, "hold", 10.0, 10.0, 0.0), 10.0))
        assert isinstance(learner.optimizer, LateAdamW)
        ages, waits = (
            torch.cat([one.flatten() for one in column])
            for column in zip(*learner.optimizer.ages.values(), strict=True)
        )
        always = ages > 0 if always is None else always & (ages > 0)
        assert always.sum() > 20
        waited = 2.0 - 0.5**number
        assert ages[always].unique().tolist() == [waited / 2]
        assert waits[always].unique().tolist() == [2 * waited - 1 if "wait" in rule else waited]


@pytest.mark.parametrize("rule", ["adamw", "late", "late:move=eager", "late:move=delay"])
def test_the_delay_is_the_derived_one(rule: str) -> None:
    for age in (1, 5, 17):
        assert adam.delay(rule, age) == pytest.approx(adam.predicted(rule, age)[2], abs=0.01)


def test_with_many_ranks_one_age_for_all_delays_as_adam_does_and_what_waits_does_not() -> None:
    delays = {age: adam.delay_of_ranks(f"late:move=eager,age={age}", 8, 16, 500) for age in get_args(Age)}
    stock = adam.delay_of_ranks(adam.STOCK, 8, 16, 500)  # of the same gradients
    assert stock - delays["any"] < 1.0
    assert min(stock - delays["share"], stock - delays["pooled"]) > 2.5


def test_the_page_shows_the_committed_runs() -> None:
    rows = pool.read_lines(adam.ROWS)
    assert len(rows) > 20
    every = "\n".join(adam.table(rows))
    assert all(f"`{row['task'].partition(',')[0]}" in every for row in rows)
    assert "\n".join(adam.summary(rows)) in adam.PAGE.read_text()


def test_runs_are_compared_with_dense_of_the_same_and_of_its_best_settings() -> None:
    def row(plan: str, steps: int, loss: float, **settings: object) -> dict[str, object]:
        given = {
            "task": "gpt",
            "ranks": 4,
            "seed": 1,
            "beta1": 0.9,
            "beta2": 0.95,
            "rule": "adamw",
            **settings,
        }
        return {**given, "plan": plan, "steps": steps, "curve": [[steps // 2, 9.0], [steps, loss]]}

    shorter = [row("dense", 50, 2.5), row("dense", 80, 2.1)]
    plain, better = row("dense", 100, 2.0), row("dense", 100, 1.9, task="gpt:rate=0.01", beta1=0.5)
    worse, late = row("dense", 100, 2.2, beta1=0.5), row("topk@10", 100, 2.3)
    lost = row("topk@10", 100, 2.3, seed=2)  # has no dense run
    (group,) = adam.groups([plain, better, worse, late, lost, *shorter]).values()
    assert lost not in group.rows
    own = adam.settings_of(late)
    assert group.best() == adam.settings_of(better)
    assert group.above(late, own) == pytest.approx(0.3)
    assert group.above(late, group.best()) == pytest.approx(0.4)
    found = [group.of_own_schedule(above, own) for above in (-0.1, 0.05, 0.1, 0.3, 0.6)]
    assert found == [1.0, pytest.approx(0.9), pytest.approx(0.8), pytest.approx(0.65), None]
    assert group.of_own_schedule(0.05, group.best()) is None  # it has no shorter runs
    (alone,) = adam.groups([plain, late]).values()
    assert alone.best() is None
    assert alone.above(late, None) is None


def test_muon_steps_the_matrices_of_layers_and_adamw_the_rest() -> None:
    job = adam.Job("gpt:size=0.3m,batch=4,heldout=4", "nearest:levels=7@10", adam.MUON, 2, 1, 2)
    recipe = adam.changed(job, make(job.learned))
    ours, theirs = recipe.build_model(1), recipe.build_model(1)
    whole = recipe.optimizer(ours.parameters())
    hidden = [one for name, one in theirs.named_parameters() if name.startswith("layers.") and one.dim() == 2]
    others = [one for one in theirs.parameters() if not any(one is each for each in hidden)]
    assert len(hidden) == 16
    settings = {key: whole.param_groups[0][key] for key in ("lr", "weight_decay")}
    parts = (
        torch.optim.Muon(hidden, adjust_lr_fn="match_rms_adamw", **settings),
        torch.optim.AdamW(others, betas=(0.9, 0.95), **settings),
    )
    generator = torch.Generator().manual_seed(0)
    for rate in (1e-3, 2e-3, 0.0):
        for optimizer in (whole, *parts):
            for group in optimizer.param_groups:
                group["lr"] = rate
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        for optimizer in (whole, *parts):
            optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    row = adam.run(job)
    assert (row["rule"], row["optimizer"], row["task"]) == (adam.MUON, "muon", job.task)
    assert "progress" not in row
    dense = {**row, "plan": "dense"}
    plain = {**dense, "rule": adam.STOCK}
    assert [group.rows for group in adam.groups([row, dense, plain]).values()] == [[row, dense]]
