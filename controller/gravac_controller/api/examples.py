"""A small example job for the API documentation: its requests, and the answers computed from them."""

from functools import cache

from gravac import proof
from gravac.fold import JobFold
from gravac.protocol import (
    End,
    Environment,
    Event,
    GainSums,
    JobSpec,
    LevelSums,
    ModelShape,
    OptimizerSpec,
    Order,
    PhaseSeconds,
    PolicySpec,
    RankRow,
    Record,
    SmoothedGain,
    WindowReport,
)
from gravac_controller.live import job_views
from gravac_controller.live.projection import LiveJob
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import EventView, Health, JobList, Page, Problem, ProofView

REGISTERED = 1793200000.0
ADDRESS = "127.0.0.1:8756"
PHASES = PhaseSeconds(data_wait=0.1, compute=4.0, compress=0.4, communicate=2.9, decompress=0.1)

SPEC = JobSpec(
    job="my-job",
    incarnation="start-1",
    world_size=2,
    window_steps=50,
    policy=PolicySpec(name="static", settings={"cf": 10.0}),
    compressor="topk",
    memory="residual",
    model=ModelShape(name="Net", tensors=4, elements=1_000_000),
    environment=Environment(
        python="3.12", torch="2.9", gravac="0.1.0", platform="Linux", backend="gloo", device="cpu"
    ),
    optimizer=OptimizerSpec(name="SGD", kind="sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.0),
)
SUMS = GainSums(
    steps=100,
    gradient_sq=80.0,
    compensated_sq=100.0,
    sent_sq=70.0,
    minimum_sq=70.0,
    candidate_sq=70.0,
    residual_sq=30.0,
    residual_dot_gradient=8.0,
)
WINDOW = WindowReport(
    job="my-job",
    incarnation="start-1",
    window=0,
    first_step=0,
    last_step=49,
    epoch=0,
    phase="hold",
    cf=10.0,
    seconds=7.5,
    samples=3200,
    dense_bytes=400_000_000,
    payload_bytes=48_000_000,
    loss=1.25,
    nonfinite_steps=0,
    failed_steps=0,
    levels=(
        LevelSums(
            epoch=0,
            cf=10.0,
            steps=50,
            settled_steps=47,
            step_seconds_median=0.15,
            exposed_seconds_median=0.06,
            dense_bytes=400_000_000,
            payload_bytes=48_000_000,
            sums=SUMS,
        ),
    ),
    gains=(SmoothedGain(cf=10.0, gain=0.7),),
    phases=PHASES,
    ranks=tuple(
        RankRow(
            rank=rank,
            steps=50,
            step_seconds=7.5,
            phases=PHASES,
            samples=1600,
            nonfinite_steps=0,
            failed_steps=0,
            memory_bytes=4_000_000,
        )
        for rank in range(2)
    ),
)
ORDER = Order(action="pin", cf=20.0, actor="alice", note="comparing with last week")
EVENT = Event(kind="note", window=0, message="a new learning rate")
END = End(incarnation="start-1", windows=1, steps=50, message="finished")
PROBLEM = Problem(
    type="about:blank",
    title="Not Found",
    status=404,
    detail="no such job; GET /v1/jobs lists the jobs, agents register with POST /v1/jobs",
    reason="unknown_job",
)


@cache
def answers() -> dict[str, Record]:
    """Return the answer of each route after the job's first window, by method and path."""
    fold, live = JobFold(SPEC), LiveJob(ControllerSettings.model_construct())
    registered = fold.job_answer()
    live.apply(1, REGISTERED, SPEC)
    live.apply(2, REGISTERED, fold.decision)
    live.apply(3, REGISTERED + 8, WINDOW)
    live.apply(4, REGISTERED + 8, fold.decide(WINDOW))
    event = EventView(time=REGISTERED + 9, event=EVENT)
    live.apply(5, event.time, EVENT)
    running = {"state": "running"}
    summary = job_views.summary(live).model_copy(update=running)
    health = Health(status="ok", instance="3f9c2a7be1d04a55")
    return {
        "GET /v1/jobs": JobList(items=(summary,), next=None),
        "POST /v1/jobs": registered,
        "GET /v1/jobs/{job}": job_views.job_view(live).model_copy(update=running),
        "GET /v1/jobs/{job}/windows": Page(items=tuple(live.all_windows()), next=None),
        "POST /v1/jobs/{job}/windows": fold.answer(),
        "GET /v1/jobs/{job}/decisions": Page(items=tuple(live.recent.decisions), next=None),
        "GET /v1/jobs/{job}/candidates": job_views.candidates(live),
        "GET /v1/jobs/{job}/ranks": job_views.ranks(live),
        "GET /v1/jobs/{job}/ranks/history": job_views.rank_heat(live),
        "POST /v1/jobs/{job}/events": event,
        "POST /v1/jobs/{job}/end": summary.model_copy(update={"state": "ended"}),
        "GET /v1/jobs/{job}/override": job_views.override(live),
        "GET /healthz": health,
        "GET /readyz": health,
        "GET /v1/proof": ProofView(proofs=(proof.prove("a-token-that-both-know", "5f" * 32),)),
    }
