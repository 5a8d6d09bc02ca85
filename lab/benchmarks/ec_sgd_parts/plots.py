"""Curves of a result as SVG, if matplotlib is installed; nothing here needs it otherwise."""

from pathlib import Path

from ec_sgd_parts.experiments import Result


def available() -> bool:
    """Whether matplotlib can be imported."""
    try:
        import matplotlib  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        return False
    return True


def plot(result: Result, folder: Path) -> Path:
    """One figure: the gap over steps, and over bits sent by all workers, positions counted. Returns its file."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # type: ignore[import-not-found,unused-ignore]
    from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]

    figure = Figure(figsize=(10, 5), layout="constrained")
    FigureCanvasSVG(figure)
    for axes, field, label in zip(
        figure.subplots(1, 2, sharey=True),
        ("step", "bits"),
        ("steps", "bits sent, positions counted"),
        strict=True,
    ):
        for run in result.runs:
            points = [point for point in run.points if getattr(point, field) > 0]
            name = f"{run.estimator}, {run.compressor}, {run.problem}, γ={run.step_size:.3g}"
            axes.plot([getattr(p, field) for p in points], [p.gap for p in points], label=name, linewidth=1)
        axes.set(xlabel=label, yscale="log", xscale="log" if field == "bits" else "linear")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("(f(x) − f*) / (f(x0) − f*)")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small"
    )
    figure.suptitle(f"{result.experiment}, {result.problem}-like")
    path = folder / f"{result.experiment}-{result.problem}-{result.seed}.svg"
    figure.savefig(path)
    return path
