"""The first questions: is it alive, at which CF and why, what is saved, is it worth it."""

from grafana.model import Panel, Query, Row
from grafana.panels import named, of_job, stat, timeline

DENSE, PAYLOAD = of_job("gravac_gradient_dense_bytes_total"), of_job("gravac_gradient_payload_bytes_total")
ORDERED = of_job("gravac_decision_info", ', reason=~"pinned|paused"')
ENDED = of_job("gravac_job_state", ', state="ended"') + " == 1"

ALIVE = Row(
    title="Is it alive, and what is it doing?",
    panels=[
        stat(
            "State",
            "stale: no window for five times the duration of the last one, at least 30 s.",
            f"{of_job('gravac_job_state')} == 1",
            legend="{{state}}",
            overrides=[named("running", "green"), named("stale", "orange"), named("ended", "blue")],
        ),
        stat(
            "Phase",
            "warmup: dense, to measure the baseline. explore: tries stronger CFs. hold: uses the chosen CF. "
            "fallback: dense because something failed.",
            f"{of_job('gravac_job_phase')} == 1",
            legend="{{phase}}",
            overrides=[named("fallback", "orange")],
        ),
        stat("Steps", "Reported so far.", of_job("gravac_steps_total")),
        stat(
            "Configuration",
            "Policy, codec, error memory and number of ranks.",
            of_job("gravac_job_info"),
            legend="{{policy}} · {{compressor}} · {{memory}} · {{world_size}} ranks",
            width=16,
        ),
        stat(
            "Alerts",
            "Alerts of this job and of the controllers that are firing.",
            'count(ALERTS{alertstate="firing", alertname=~"Gravac.*", job_name=~"$job_name|"}) or vector(0)',
            thresholds=[(None, "green"), (1, "red")],
        ),
        stat(
            "Decided by",
            "An operator can pin a CF, switch to dense or pause exploration where the controller allows it.",
            f"count({ORDERED} unless on (job_name) {ENDED}) or vector(0)",
            mappings=[
                {"type": "value", "options": {"0": {"text": "the policy"}, "1": {"text": "an operator"}}},
            ],
        ),
        stat(
            "Agent CPU",
            "CPU time of the agents as a share of training time.",
            of_job("gravac_agent_cpu_ratio"),
            unit="percentunit",
        ),
    ],
)
WHY = Row(
    title="Which CF, and why?",
    panels=[
        stat(
            "CF",
            "Dense elements per element sent in the last window. 1 is dense.",
            of_job("gravac_compression_factor"),
            decimals=1,
        ),
        stat(
            "CF on the wire",
            "Dense bytes per byte sent, including indices.",
            of_job("gravac_wire_compression_factor"),
            decimals=1,
        ),
        stat("Epoch", "Number of the decision in force.", of_job("gravac_decision_epoch")),
        stat(
            "Rule",
            "Rule of the last decision, and the codec that it chose. The live page shows the full reason and its "
            "evidence.",
            of_job("gravac_decision_info"),
            legend="{{reason}} · {{codec}}",
            width=12,
        ),
        Panel(
            title="CF",
            kind="timeseries",
            about="The chosen CF, and the ratio in bytes.",
            queries=[
                Query(expr=of_job("gravac_compression_factor"), legend="CF"),
                Query(expr=of_job("gravac_wire_compression_factor"), legend="on the wire"),
            ],
            width=12,
            minimum=1,
            custom={"scaleDistribution": {"type": "log", "log": 10}},
        ),
        timeline(
            "Rule", "One decision per window.", of_job("gravac_decision_info"), "{{reason}} · {{codec}}"
        ),
        timeline("Phase", "Phase of the ranks.", f"{of_job('gravac_job_phase')} == 1", "{{phase}}"),
        Panel(
            title="Epoch",
            kind="timeseries",
            about="Increases by one whenever the decision changes what is sent.",
            queries=[Query(expr=of_job("gravac_decision_epoch"), legend="epoch")],
            width=12,
        ),
    ],
)
SAVED = Row(
    title="How much did it save?",
    panels=[
        stat(
            "Not sent",
            "Exact: bytes that dense would have handed to the collectives, minus those that were, over all ranks.",
            DENSE + " - " + PAYLOAD,
            unit="decbytes",
            width=6,
        ),
        stat(
            "Time saved (estimate)",
            "Steps so far times the dense step of the warm-up, minus the time they took, with exploration. May be "
            "negative.",
            of_job("job_name:gravac_time_saved_estimate:seconds"),
            unit="s",
            minimum=None,
            thresholds=[(None, "red"), (0, "green")],
            no_value="no dense baseline yet",
            width=6,
        ),
        Panel(
            title="Bytes sent per dense byte",
            kind="timeseries",
            about="Over the last 15 minutes.",
            queries=[Query(expr=of_job("job_name:gravac_payload_per_dense:ratio_rate15m"), legend="sent")],
            width=12,
            height=8,
            unit="percentunit",
        ),
    ],
)
ROWS = (ALIVE, WHY, SAVED)
