"""The recorder in this process: what it counts as a step, when it steps aside, and that nothing of it is left."""

import atexit
import gc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd.profiler import profile as lowest_profile
from torch.optim import optimizer as torch_optimizer
from torch.profiler import ProfilerActivity, profile

from gravac import optim
from gravac_observe.measure import measure
from gravac_observe.record import observe
from gravac_observe.record.delivery import WORD
from gravac_observe.record.recorder import CUT_OFF, UNSEEN, Recorder
from gravac_observe.traces import RankTrace, read


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """A recorder of two steps, of which no hook, method or thread may be left."""
    monkeypatch.setattr(atexit, "register", lambda _: None)
    hooks, methods = dict(torch_optimizer._global_optimizer_post_hooks), vars(lowest_profile).copy()
    watching = list(gc.callbacks)
    made = Recorder(2, 2, tmp_path / "runs" / "new", judges=False)
    made.start()
    yield made
    made._at_exit()
    assert dict(torch_optimizer._global_optimizer_post_hooks) == hooks
    assert vars(lowest_profile) == methods
    assert gc.callbacks == watching
    assert not torch.autograd._profiler_enabled()
    assert made._delivery is None or not made._delivery.is_alive()


def training(kind: type[torch.optim.Optimizer] = torch.optim.SGD, **settings: object) -> Callable[[], None]:
    model = nn.Linear(8, 8)
    trained = kind(model.parameters(), lr=0.01, **settings)  # type: ignore[call-arg]

    def step() -> None:
        def closure() -> torch.Tensor:
            trained.zero_grad()
            loss = model(torch.ones(2, 8)).square().mean()
            loss.backward()
            return loss

        trained.step(closure)

    return step


def trace(recorder: Recorder, folder: Path) -> RankTrace:
    recorder._at_exit()
    made = folder / "runs" / "new"
    assert [each.stat().st_mode & 0o777 for each in (made.parent, made)] == [0o700, 0o700]
    return read(made / "rank0.json.gz")


def test_a_step_is_a_round_of_all_optimizers(recorder: Recorder, tmp_path: Path) -> None:
    recorder._warmup = 6
    often, rarely = training(), training(torch.optim.Adam)
    for _ in range(8):
        often()
        often()
        rarely()
    found = trace(recorder, tmp_path)
    assert len(found.steps) == 2
    assert found.optimizer == "SGD, Adam"
    assert found.optimizers == [(("SGD",), None, 72), (("Adam",), 0.9, 72)]
    assert found.about["parameters"] == 144
    inside = [end for _, end in found.optimizer_steps if found.steps[0][0] < end <= found.steps[-1][1] + 1e5]
    assert len(inside) == 6, "two rounds of three"


def test_classes_that_derive_from_others(recorder: Recorder, tmp_path: Path) -> None:
    class Own(optim.AdamW):
        pass

    step = training(Own, betas=(0.5, 0.9))
    for _ in range(5):
        step()
    ((classes, beta, parameters),) = trace(recorder, tmp_path).optimizers
    assert (classes[:2], classes[-2:]) == (("Own", "gravac.optim.AdamW"), ("AdamW", "Adam"))
    assert (beta, parameters) == (0.5, 72)


def test_numbers_of_a_tensor_are_not_waited_for(recorder: Recorder, tmp_path: Path) -> None:
    """On a GPU that would end a step, and break the capture of a graph."""
    betas = (torch.tensor(0.5), torch.tensor(0.9))
    step = training(torch.optim.AdamW, betas=betas, capturable=False, foreach=False)
    for _ in range(5):
        step()
    assert trace(recorder, tmp_path).optimizers == [(("AdamW", "Adam"), None, 72)]


def test_an_optimizer_within_another(recorder: Recorder, tmp_path: Path) -> None:
    """As in SAM, whose steps are rounds of both."""

    class Outer(torch.optim.Optimizer):
        def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
            self.optim = "another"
            self.inside = torch.optim.SGD(parameters, lr)
            super().__init__(self.inside.param_groups, {})

        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
            self.inside.step(closure)

    step = training(Outer)
    for _ in range(6):
        step()
    found = trace(recorder, tmp_path)
    assert (len(found.steps), found.optimizer) == (2, "SGD")
    assert found.optimizers == [(("SGD",), None, 72)]


def test_collections_of_garbage_are_noted(recorder: Recorder, tmp_path: Path) -> None:
    step = training()
    gc.freeze()  # else a collection takes as long as what other tests of this process have left
    try:
        for _ in range(5):
            gc.collect()
            step()
    finally:
        gc.unfreeze()
    found = trace(recorder, tmp_path)
    (first, *_, last), collections = sorted(found.steps), found.collections
    assert len(collections.starts) >= 2
    assert 0.0 < collections.within(first[0], last[1]) < last[1] - first[0]
    assert collections.length < 2 * (last[1] - first[0])


def test_several_backwards_within_a_closure(recorder: Recorder, tmp_path: Path) -> None:
    step = training(torch.optim.LBFGS, max_iter=3)
    for _ in range(6):
        step()
    found = trace(recorder, tmp_path)
    assert len(found.steps) == 2
    assert found.optimizer == "LBFGS"
    assert measure([found]).tensors > 2, "gradients of weight and bias, several times a step"


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_program_that_ends_early(
    recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int
) -> None:
    """The whole steps so far count, if there are any."""
    step = training()
    for _ in range(steps):
        step()
    if steps == 3:
        assert len(trace(recorder, tmp_path).steps) == 1
    else:
        recorder._at_exit()
        assert (
            f"the program ended after {steps} steps of its optimizer, and 3 are needed"
            in capsys.readouterr().err
        )


def test_one_rank_speaks_for_all(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others leave word for the gravac observe of their own machine."""
    monkeypatch.setenv("RANK", "1")
    recorder._warmup = 4
    word = tmp_path / "runs" / "new" / WORD
    word.parent.mkdir(parents=True)
    training()()
    assert word.read_text() == CUT_OFF
    recorder._at_exit()
    assert capsys.readouterr().err == ""
    assert word.read_text().startswith("the program ended after 1 steps of its optimizer, and 5 are needed")


def test_a_hook_of_the_program_that_comes_later(recorder: Recorder, tmp_path: Path) -> None:
    seen: list[object] = []
    handle = torch_optimizer.register_optimizer_step_post_hook(lambda *_: seen.append(None))
    step = training()
    for _ in range(6):
        step()
    handle.remove()
    assert len(seen) == 6
    assert len(trace(recorder, tmp_path).steps) == 2
    recorder._hook.remove()  # in its place stands a function that does nothing


@pytest.mark.parametrize("before", [0, 3])
def test_it_leaves_the_profiler_to_the_program(
    recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str], before: int
) -> None:
    """Which starts its own before the recording, or during its second step."""
    step = training()
    for _ in range(before):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as own:
        for _ in range(4):
            step()
    assert any("Optimizer.step" in event.key for event in own.key_averages())
    said = capsys.readouterr().err
    if before:
        assert len(trace(recorder, tmp_path).steps) == 1
    else:
        assert said.count("gravac observe FILE") == 1
        assert not list(tmp_path.iterdir())


def test_what_fails_is_said_once(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no profiler today")

    monkeypatch.setattr(torch.profiler, "profile", broken)
    step = training()
    for _ in range(6):
        step()
    said = capsys.readouterr().err
    assert said == "gravac observe: cannot record: RuntimeError('no profiler today')\n"


def test_a_program_that_is_never_seen_to_step(capsys: pytest.CaptureFixture[str]) -> None:
    made = Recorder(2, 2, None, judges=True)
    made.start()
    atexit.unregister(made._say_if_unseen)
    made._say_if_unseen()
    assert f"no verdict: {UNSEEN}\n" in capsys.readouterr().err
    assert made._hook.id not in torch_optimizer._global_optimizer_post_hooks
    assert gc.callbacks.count(made._collecting) == 0


def test_arguments() -> None:
    with pytest.raises(ValueError, match="steps=0: give a whole number from 1 on"):
        observe(steps=0)
    with pytest.raises(ValueError, match="warmup='2'"):
        observe(warmup="2")  # type: ignore[arg-type]
