"""The questions that follow: is accuracy at risk, where does the time go, is it worth it."""

from grafana.model import Panel, Query, Row
from grafana.panels import named, of_job, stat

from gravac.signals import risk

RISK = Row(
    title="Is accuracy at risk?",
    panels=[
        stat(
            "Risk",
            f"This is an estimate from gradients and the training loss, not a measurement of accuracy. {risk.RULE}",
            f"{of_job('gravac_risk_level')} == 1",
            legend="{{level}}",
            width=6,
            overrides=[named("raised", "orange"), named("high", "red"), named("unknown", "text")],
        ),
        stat(
            "Statistical efficiency",
            "Steps that dense training needs divided by the steps that this training needs (η), estimated.",
            of_job("gravac_statistical_efficiency_ratio", ', estimate="likely"'),
            width=6,
            unit="percentunit",
        ),
        stat(
            "Non-finite steps",
            "Share of steps in the last 15 minutes; skipped on all ranks.",
            of_job("job_name:gravac_nonfinite_steps:ratio_rate15m"),
            width=6,
            unit="percentunit",
            thresholds=[(None, "green"), (0.01, "red")],
        ),
        stat(
            "Backlog",
            "Steps of progress that wait in the error memory (τ).",
            of_job("gravac_backlog"),
            width=6,
            decimals=2,
            minimum=None,
        ),
        Panel(
            title="Statistical efficiency",
            kind="timeseries",
            about="Steps that dense training needs divided by the steps that this training needs (η), with the lowest "
            "and highest credible value. The lines mark where the risk is raised, with the default bound, and "
            "high while no slope of the loss is known.",
            queries=[
                Query(expr=of_job("gravac_statistical_efficiency_ratio"), legend="{{estimate}}"),
            ],
            unit="percentunit",
            minimum=None,
            thresholds=[(None, "red"), (risk.EFFICIENCY_HIGH, "orange"), (1.0 - risk.ACCEPTED, "green")],
            custom={"thresholdsStyle": {"mode": "dashed"}},
        ),
        Panel(
            title="Gain",
            kind="timeseries",
            about="Energy that was sent / energy of gradient + residual (above 1 where a codec rounds at random), "
            "and the minimum for a CF (ε).",
            queries=[
                Query(expr=of_job("gravac_gain_ratio"), legend="gain"),
                Query(expr=of_job("gravac_gain_threshold_ratio"), legend="ε"),
            ],
            unit="percentunit",
        ),
        Panel(
            title="Backlog",
            kind="timeseries",
            about="Steps of progress that wait in the error memory.",
            queries=[Query(expr=of_job("gravac_backlog"), legend="backlog")],
            minimum=None,
        ),
        Panel(
            title="Loss, and CF",
            kind="timeseries",
            about="Loss as passed to agent.log.",
            queries=[
                Query(expr=of_job("gravac_loss"), legend="loss"),
                Query(expr=of_job("gravac_compression_factor"), legend="CF (right)"),
            ],
            minimum=None,
            overrides=[
                {
                    "matcher": {"id": "byName", "options": "CF (right)"},
                    "properties": [{"id": "custom.axisPlacement", "value": "right"}],
                }
            ],
        ),
    ],
)
TIME = Row(
    title="Where does step time go?",
    panels=[
        Panel(
            title="A step, by phase",
            kind="timeseries",
            about="Mean step of each window, averaged over ranks. Work hidden behind backward counts as compute. The "
            "dashed line is the dense step of the warm-up.",
            queries=[
                Query(expr=of_job("gravac_step_phase_seconds"), legend="{{phase}}"),
                Query(expr=of_job("gravac_baseline_step_seconds"), legend="dense step"),
            ],
            width=16,
            height=9,
            unit="s",
            custom={"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 60, "lineWidth": 1},
            overrides=[
                {
                    "matcher": {"id": "byName", "options": "dense step"},
                    "properties": [
                        {"id": "custom.stacking", "value": {"mode": "none", "group": "B"}},
                        {"id": "custom.fillOpacity", "value": 0},
                        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
                    ],
                }
            ],
        ),
        Panel(
            title="Waiting for the network",
            kind="timeseries",
            about="Share of the step time.",
            queries=[Query(expr=of_job("job_name:gravac_network_wait:ratio"), legend="waiting")],
            height=9,
            unit="percentunit",
        ),
    ],
)
WORTH = Row(
    title="Is compression worth it at all?",
    panels=[
        stat(
            "Headroom",
            "Share of a dense step that waits for the network: the most that compression can save.",
            of_job("job_name:gravac_headroom:ratio"),
            unit="percentunit",
            width=12,
            no_value="no dense baseline yet",
        ),
        stat(
            "Headroom achieved",
            "Share of that wait that is saved now.",
            f"({of_job('gravac_baseline_step_seconds')} - {of_job('gravac_step_seconds')})"
            f" / ({of_job('gravac_baseline_exposed_seconds')} > 0)",
            unit="percentunit",
            width=12,
            minimum=None,
            thresholds=[(None, "red"), (0, "green")],
            no_value="no dense baseline yet",
        ),
        Panel(
            title="Samples per second",
            kind="timeseries",
            about="All samples (T_sys); weighted by the statistical efficiency, the useful throughput (T_sys · η); and "
            "weighted by the gain (GraVAC's T_comp).",
            queries=[
                Query(expr=of_job("gravac_samples_per_second"), legend="samples/s"),
                Query(expr=of_job("gravac_useful_samples_per_second"), legend="useful samples/s"),
                Query(
                    expr=f"{of_job('gravac_samples_per_second')} * {of_job('gravac_gain_ratio')}",
                    legend="T_comp",
                ),
            ],
            width=12,
        ),
        Panel(
            title="Step time relative to dense",
            kind="timeseries",
            about="1 is as fast as dense; less is faster.",
            queries=[
                Query(expr=of_job("job_name:gravac_step_per_baseline:ratio"), legend="step per dense step")
            ],
            width=12,
            thresholds=[(None, "green"), (1, "red")],
            custom={"thresholdsStyle": {"mode": "dashed"}},
        ),
    ],
)
ROWS = (RISK, TIME, WORTH)
