"""Features of the module and of DDP."""

from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gravac_agent import Agent
from tests.ranks.scenarios.features.base import CLASSES, WIDTH, Feature, layers


class Branched(nn.Module):
    """Its side branch is not used in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side, self.head = layers(WIDTH, 64, 64), nn.Linear(64, 64), layers(64, 64, CLASSES)
        self.use_side = True

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x))
        if self.use_side:
            hidden = hidden + torch.tanh(self.side(hidden))
        found: Tensor = self.head(hidden)
        return found


class UnusedParameters(Feature):
    """find_unused_parameters."""

    ddp: ClassVar[dict[str, Any]] = {"find_unused_parameters": True}

    def model(self) -> nn.Module:
        return Branched()

    def step(self, module: Any, optimizer: Any, agent: Agent | None, step: int) -> None:
        module.module.use_side = step % 3 > 0 and not (self.rank and step % 5 == 0)
        super().step(module, optimizer, agent, step)

    def scores(self, model: nn.Module, x: Tensor) -> Tensor:
        model.use_side = True  # type: ignore[assignment]
        return super().scores(model, x)


class StaticGraph(Feature):
    """static_graph."""

    ddp: ClassVar[dict[str, Any]] = {"static_graph": True}


class BucketView(Feature):
    """gradient_as_bucket_view."""

    ddp: ClassVar[dict[str, Any]] = {"gradient_as_bucket_view": True}


class CompiledModule(Feature):
    """DDP of torch.compile(module)."""

    ddp: ClassVar[dict[str, Any]] = {"bucket_cap_mb": 1.1}  # torch.compile wants no smaller buckets
    steps = 30

    def model(self) -> nn.Module:
        return layers(WIDTH, 540, 540, 540, CLASSES)

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        self.inner = model
        compiled: Any = torch.compile(model, backend="eager")
        return super().wrap(compiled)

    def train(self) -> nn.Module:
        super().train()
        return self.inner


class CompiledDDP(Feature):
    """torch.compile(DDP)."""

    ddp: ClassVar[dict[str, Any]] = CompiledModule.ddp
    steps = CompiledModule.steps
    model = CompiledModule.model

    def train(self) -> nn.Module:
        module = self.wrap(self.model())  # type: ignore[arg-type]
        called: Any = torch.compile(module, backend="eager")
        optimizer = self.optimizer(module)
        with ExitStack() as stack:
            agent = self.agent(stack, called, optimizer)
            for step in range(self.steps):
                self.step(called, optimizer, agent, step)
            self.look(agent)
        return module.module


class Frozen(Feature):
    """Parameters frozen from the start."""

    def model(self) -> nn.Module:
        model = layers(WIDTH, 64, 64, 64, CLASSES)
        model[0].requires_grad_(False)
        return model


class Added(Feature):
    """Parameters added: a frozen layer is released, in a new DDP with a new agent that takes over the residual."""

    def train(self) -> nn.Module:
        model = self.model()
        state = None
        for begin in (0, self.steps // 2):
            model[0].requires_grad_(begin > 0)  # type: ignore[operator,index]
            module = self.wrap(model)
            optimizer = self.optimizer(module)
            with ExitStack() as stack:
                agent = self.agent(stack, module, optimizer)
                if state is not None and agent is not None:
                    agent.load_state_dict(state)
                for step in range(begin, begin + self.steps // 2):
                    self.step(module, optimizer, agent, step)
                self.look(agent)
                if agent is not None and agent.state is not None:
                    state = agent.state_dict()
            del module, agent, stack  # DDP's hooks on the parameters end with it
        return model


class Sparse(Feature):
    """Sparse embeddings, which are sent as DDP sends them."""

    def model(self) -> nn.Module:
        return SparseModel()

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=0.3)


class SparseModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(32, 64, sparse=True)
        self.layers = layers(WIDTH + 64, 64, 64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        signs = (x[:, :5] > 0).long() @ torch.tensor([1, 2, 4, 8, 16])
        found: Tensor = self.layers(torch.cat((x, self.words(signs)), 1))
        return found


class SharedStorage(Feature):
    """A weight used twice, and parameters that are views of one storage."""

    def model(self) -> nn.Module:
        model = layers(WIDTH, 64, 64, 64, CLASSES)
        whole = torch.cat([model[2].weight.detach(), model[2].weight.detach().T.contiguous()])
        model[0].weight, model[2].weight = nn.Parameter(whole[:64]), nn.Parameter(whole[64:])
        model[4].weight = model[2].weight
        return model


MODULES = (
    *(UnusedParameters, StaticGraph, BucketView, CompiledModule, CompiledDDP, Frozen, Added, Sparse),
    SharedStorage,
)
