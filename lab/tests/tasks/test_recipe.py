"""Recipes: made from a name and settings, the same from the same seed, shared among ranks, and they learn."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from gravac_lab.tasks import (
    TASKS,
    Recipe,
    Schedule,
    Score,
    TaskError,
    elements_of,
    evaluate,
    lm,
    loss_of,
    make,
)
from gravac_lab.tasks.optimizers import MuonAdamW

SMALL = {
    "lm": "lm:width=64,length=16,text=python,heldout=16",
    "gpt": "gpt:size=0.3m,text=python,heldout=16",
    "resnet": "resnet:images=digits",
    "vgg": "vgg:images=digits",
    "vit": "vit:images=digits",
    "logistic": "logistic:images=digits",
    "digits": "digits:width=16",
}


@pytest.fixture(params=TASKS)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    if "digits" in SMALL[request.param]:
        pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'gravac[digits]'")
    return make(SMALL[request.param])


def test_everything_follows_from_the_seed(recipe: Recipe) -> None:
    state = torch.get_rng_state()
    one, same, other = (
        nn.utils.parameters_to_vector(recipe.build_model(seed).parameters()) for seed in (3, 3, 4)
    )
    assert torch.equal(torch.get_rng_state(), state), "building a model must leave torch's random state alone"
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    first, again, reseeded, second = (
        torch.cat([inputs for inputs, _ in itertools.islice(recipe.batches(rank, 4, seed), 3)])
        for rank, seed in ((0, 3), (0, 3), (0, 4), (1, 3))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, reseeded)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("ranks", [1, 2, 8, 16])
def test_ranks_share_the_global_batch(recipe: Recipe, ranks: int) -> None:
    parts = [len(next(recipe.batches(rank, ranks, 0))[1]) for rank in range(ranks)]
    assert parts == [recipe.global_batch // ranks] * ranks
    assert len(next(recipe.on_rank(0, ranks, 0).batches)[1]) == recipe.rank_batch


def test_a_global_batch_that_cannot_be_shared() -> None:
    with pytest.raises(TaskError, match=r"3 ranks cannot share a batch of 16 equally.*batch=18"):
        next(make(SMALL["lm"]).batches(0, 3, 0))


def learned(recipe: Recipe, steps: int) -> tuple[Score, Score]:
    """The held-out score before and after training."""
    model = recipe.build_model(0)
    optimizer = recipe.optimizer(model.parameters())
    peak = optimizer.param_groups[0]["lr"]
    before = evaluate(model, recipe.data.heldout())
    for step, (inputs, classes) in enumerate(itertools.islice(recipe.batches(0, 1, 0), steps)):
        optimizer.param_groups[0]["lr"] = peak * recipe.schedule(step, steps)
        loss_of(model(inputs), classes).backward()
        recipe.clip(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    return before, evaluate(model, recipe.data.heldout())


@pytest.mark.long
def test_the_heldout_loss_falls(recipe: Recipe) -> None:
    before, after = learned(recipe, 100 if recipe.name.startswith(("vgg", "vit", "logistic")) else 30)
    assert after.loss < 0.9 * before.loss
    assert after.count == before.count


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb"])
def test_every_optimizer_learns(optimizer: str) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'gravac[digits]'")
    recipe = make(f"logistic:images=digits,optimizer={optimizer}")
    before, after = learned(recipe, 100)
    assert after.loss < 0.7 * before.loss
    kind = type(recipe.optimizer(recipe.build_model(0).parameters())).__name__
    assert kind.lower() == recipe.optimizer_kind == optimizer


def test_muon_steps_the_layers_of_the_gpt_and_adamw_the_rest() -> None:
    recipe = replace(make(f"{SMALL['gpt']},optimizer=muon"), clip_norm=None)
    model = recipe.build_model(0)
    optimizer = recipe.optimizer(model.parameters())
    assert isinstance(optimizer, MuonAdamW)
    adamw, muon = (
        {id(one) for group in part.param_groups for one in group["params"]} for part in optimizer.parts
    )
    assert muon == {id(one) for one in model.get_submodule("layers").parameters() if one.dim() == 2}
    assert adamw == {id(one) for one in model.parameters()} - muon
    before, after = learned(recipe, 10)
    assert after.loss < 0.95 * before.loss


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gtp", "task='gtp' is unknown.*did you mean 'gpt'"),
        ("gpt:size=3M", "size='3M' is unknown.*did you mean '3m'"),
        ("gpt:optimiser=sgd", "no setting 'optimiser'.*did you mean 'optimizer'"),
        ("lm:optimizer=adam", "optimizer='adam' is unknown.*did you mean 'adamw'"),
        ("lm:optimizer=muon", "optimizer='muon' is unknown"),
        ("lm:text=linus", "text='linus' is unknown.*did you mean 'linux'"),
        ("vgg:images=glyph", "images='glyph' is unknown.*did you mean 'glyphs'"),
        ("lm:size=7", "size=7 is unknown; choose one of 0.3m"),
        ("lm:rate=fast", "rate='fast'"),
        ("lm:batch=0", "batch=0 must be more than 0"),
        ("lm:width", "'width' must be written setting=value"),
    ],
)
def test_wrong_names_and_settings(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        make(text)


def test_a_rate_of_ones_own() -> None:
    recipe = make("logistic:images=digits,rate=0.25")
    assert recipe.optimizer(recipe.build_model(0).parameters()).param_groups[0]["lr"] == 0.25
    assert recipe.name == "logistic:images=digits,rate=0.25"


@pytest.mark.parametrize(
    ("text", "millions"),
    [
        ("lm", 0.3),
        ("lm:size=10m", 10.0),
        ("lm:size=30m", 30.0),
        ("gpt:size=0.3m", 0.35),
        ("gpt", 0.5),
        ("gpt:size=3m", 3.2),
        ("gpt:size=10m", 10.8),
        ("gpt:size=30m", 31.6),
        ("resnet:images=digits", 0.3),
        ("resnet:size=10m,images=digits", 10.0),
        ("resnet:size=30m,images=digits", 30.0),
        ("vgg:images=digits", 0.42),
        ("vgg:size=30m,images=digits", 26.0),
        ("vit:images=digits", 0.45),
        ("vit:size=10m,images=digits", 10.7),
    ],
)
def test_sizes(text: str, millions: float) -> None:
    assert elements_of(make(text).build_model(0)) / 1e6 == pytest.approx(millions, rel=0.05)


def test_the_demo_is_worth_compressing() -> None:
    """The documents say 4.2 MB a step, and of the same text on every machine."""
    assert 3e6 < 4 * elements_of(lm.demo().build_model(0)) < 5e6
    assert lm.demo().data.source.startswith("standard library")
    assert len(torch.cat([inputs for inputs, _ in lm.demo().data.heldout()])) == lm.DEMO_HELDOUT


def test_the_learning_rate_rises_then_falls() -> None:
    schedule = Schedule(ramp_steps=10, floor=0.05)
    rates = [schedule(step, 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9]
    assert rates[100] == pytest.approx(0.05)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[9:]))


def test_clipping_is_the_recipes() -> None:
    weight = nn.Parameter(torch.zeros(2))
    for clip_norm, expected in ((None, 5.0), (1.0, 1.0)):
        weight.grad = torch.tensor([3.0, 4.0])
        replace(make(SMALL["lm"]), clip_norm=clip_norm).clip([weight])
        assert float(weight.grad.norm()) == pytest.approx(expected, rel=1e-5)


def test_scores_add_up_and_evaluating_keeps_the_mode() -> None:
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
    batches = [(torch.zeros(1, 2), torch.tensor([2])), (torch.zeros(3, 2), torch.tensor([0, 1, 2]))]
    for mode in (True, False):
        whole = evaluate(model.train(mode), batches)
        assert model.training is mode
    assert (whole.right, whole.count, whole.accuracy) == (2, 4, 0.5)
    parts = evaluate(model, batches[:1]) + evaluate(model, batches[1:])
    assert parts.loss == pytest.approx(whole.loss) == pytest.approx(1.5514 - 0.5, abs=1e-3)
    assert Score() + whole == whole


def test_the_second_moment_decays_as_is_asked() -> None:
    for task in ("gpt:size=0.3m,text=python", "vit:images=digits"):
        for optimizer in ("adamw", "adamw-aged"):
            recipe = make(f"{task},optimizer={optimizer},beta2=0.999")
            (group,) = recipe.optimizer(recipe.build_model(0).parameters()).param_groups
            assert group["betas"] == (0.9, 0.999)
