"""The first questions: is it alive, at which CF and why, what is saved, is it worth it."""

from grafana.model import Panel, Query, Row
from grafana.panels import named, of_job, stat, timeline

DENSE, PAYLOAD = of_job("gravac_gradient_dense_bytes_total"), of_job("gravac_gradient_payload_bytes_total")

ALIVE = Row(
    title="Is it alive, and what is it doing?",
    panels=[
        stat(
            "State",
            "stale: no window for five times as long as the last one took, 30 s at least.",
            f"{of_job('gravac_job_state')} == 1",
            legend="{{state}}",
            overrides=[named("running", "green"), named("stale", "orange"), named("ended", "blue")],
        ),
        stat(
            "Phase",
            "warmup: dense, measuring. explore: trying stronger CFs. hold: settled. fallback: dense, something failed.",
            f"{of_job('gravac_job_phase')} == 1",
            legend="{{phase}}",
            overrides=[named("fallback", "orange")],
        ),
        stat(
            "Last report",
            "Ago.",
            f"time() - {of_job('gravac_last_report_timestamp_seconds')}",
            unit="s",
            decimals=0,
        ),
        stat("Ranks", "As registered.", of_job("gravac_world_size")),
        stat("Steps", "Reported so far.", of_job("gravac_steps_total")),
        stat(
            "Emulated network",
            "The rate that the job pretends its network has.",
            of_job("gravac_emulated_link_bytes_per_second"),
            unit="Bps",
            no_value="none, it is real",
        ),
        stat(
            "What it runs",
            "Policy, codec, error memory.",
            of_job("gravac_job_info"),
            legend="{{policy}} · {{compressor}} · {{memory}}",
            width=12,
        ),
        stat(
            "Alerts",
            "Of this job and of the controllers, firing now.",
            'count(ALERTS{alertstate="firing", alertname=~"Gravac.*", job_name=~"$job_name|"}) or vector(0)',
            thresholds=[(None, "green"), (1, "red")],
        ),
        stat(
            "Who decides",
            "An operator can pin a CF, go dense or pause exploring, where the controller allows it.",
            of_job("gravac_override_active"),
            mappings=[
                {"type": "value", "options": {"0": {"text": "the policy"}, "1": {"text": "an operator"}}},
            ],
        ),
        stat(
            "Agent's CPU",
            "Of the time of training: what the agents themselves cost.",
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
            "Dense elements per element kept, as last sent. 1 is dense.",
            of_job("gravac_compression_factor"),
            decimals=1,
        ),
        stat(
            "CF on the wire",
            "Dense bytes per byte sent, indices included.",
            of_job("gravac_wire_compression_factor"),
            decimals=1,
        ),
        stat("Epoch", "Number of the decision in force.", of_job("gravac_decision_epoch")),
        stat(
            "Rule",
            "What made the last decision. The sentence and its evidence are on the live page.",
            of_job("gravac_decision_info"),
            legend="{{reason}}",
        ),
        stat(
            "Decided",
            "Ago.",
            f"time() - {of_job('gravac_last_decision_timestamp_seconds')}",
            unit="s",
            decimals=0,
        ),
        stat("Windows", "Reported so far.", of_job("gravac_windows_total")),
        Panel(
            title="CF",
            kind="timeseries",
            about="As chosen, and what it is in bytes.",
            queries=[
                Query(expr=of_job("gravac_compression_factor"), legend="CF"),
                Query(expr=of_job("gravac_wire_compression_factor"), legend="on the wire"),
            ],
            width=12,
            minimum=1,
            custom={"scaleDistribution": {"type": "log", "log": 10}},
        ),
        timeline("Rule that decided", "One decision a window.", of_job("gravac_decision_info"), "{{reason}}"),
        timeline("Phase", "What the ranks did.", f"{of_job('gravac_job_phase')} == 1", "{{phase}}"),
        Panel(
            title="Epoch",
            kind="timeseries",
            about="Grows by one whenever what is sent changes.",
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
            "Exact: what dense would have handed to collectives less what was, all ranks.",
            DENSE + " - " + PAYLOAD,
            unit="decbytes",
            width=6,
        ),
        stat(
            "Time saved (estimate)",
            "Steps so far at the warm-up's dense step, less the time they took, exploring included. May be negative.",
            of_job("job_name:gravac_time_saved_estimate:seconds"),
            unit="s",
            minimum=None,
            thresholds=[(None, "red"), (0, "green")],
            no_value="no dense baseline yet",
            width=6,
        ),
        Panel(
            title="Sent, of what dense would send",
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
