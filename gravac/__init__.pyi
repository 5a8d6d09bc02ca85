# What type checkers see of ``gravac/__init__.py``, which imports these names at their first use.

from gravac import (
    aggregators as aggregators,
)
from gravac import (
    collectives as collectives,
)
from gravac import (
    compressors as compressors,
)
from gravac import (
    memories as memories,
)
from gravac import (
    optim as optim,
)
from gravac import (
    policies as policies,
)
from gravac import (
    predict as predict,
)
from gravac import (
    protocol as protocol,
)
from gravac import (
    testing as testing,
)
from gravac.aggregators import Aggregator as Aggregator
from gravac.collectives import Collective as Collective
from gravac.compressors import Compressor as Compressor
from gravac.compressors import Key as Key
from gravac.compressors import Payload as Payload
from gravac.compressors import Traits as Traits
from gravac.memories import Bucket as Bucket
from gravac.memories import Memory as Memory
from gravac.policies import (
    ConfiguredPolicy as ConfiguredPolicy,
)
from gravac.policies import (
    Policy as Policy,
)
from gravac.policies import (
    PolicySettings as PolicySettings,
)
from gravac.policies import (
    PolicyState as PolicyState,
)
from gravac.policies import (
    Verdict as Verdict,
)
from gravac.protocol import Decision as Decision
from gravac.protocol import WindowReport as WindowReport
from gravac.replays.redecide import redecide as redecide
from gravac.replays.replay import check as check
from gravac.replays.replay import replay as replay
from gravac.traces import TraceError as TraceError
from gravac.traces import read_trace as read_trace
from gravac.version import __version__ as __version__
from gravac_agent import (
    Agent as Agent,
)
from gravac_agent import (
    AgentError as AgentError,
)
from gravac_agent import (
    AgentSettings as AgentSettings,
)
from gravac_agent import (
    AgentState as AgentState,
)
from gravac_agent import (
    AgreementError as AgreementError,
)
from gravac_agent import (
    ClosedError as ClosedError,
)
from gravac_agent import (
    Link as Link,
)
from gravac_agent import (
    PeerError as PeerError,
)
from gravac_agent import (
    SetupError as SetupError,
)
from gravac_agent import integrations as integrations
from gravac_agent.integrations.comm_hook import hook as hook
from gravac_agent.state.dcp import LoadPlanner as LoadPlanner
from gravac_controller.client import (
    Client as Client,
)
from gravac_controller.client import (
    ControllerError as ControllerError,
)
from gravac_controller.client import (
    NoController as NoController,
)
from gravac_controller.client import (
    NotAController as NotAController,
)
from gravac_controller.client import (
    Refused as Refused,
)
from gravac_observe.record import observe as observe
