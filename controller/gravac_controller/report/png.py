"""The same picture as pixels, through matplotlib, which the extra ``gravac[plots]`` brings."""

from collections.abc import Sequence
from pathlib import Path

from gravac_controller.extras import needs
from gravac_controller.report.figure import factors, named, style
from gravac_controller.report.lines import Lines

DOTS_PER_INCH = 200


def write_png(jobs: Sequence[Lines], path: Path) -> None:
    """CF (logarithmic) above gain over steps. Raises MissingExtra without matplotlib, ValueError without a window."""
    if not any(job.steps for job in jobs):
        raise ValueError("there is no window to draw")
    with needs("plots", "matplotlib"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(7.2, 5.2), dpi=DOTS_PER_INCH, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for number, job in enumerate(jobs):
        colour, dashes = style(number)
        look = {"color": colour, "linestyle": (0, tuple(map(float, dashes.split()))) if dashes else "-"}
        corners = job.held()
        above.plot(
            [x for x, _ in corners], [y for _, y in corners], label=_plain(job.name), linewidth=1.3, **look
        )
        for piece in job.known_gains():
            below.plot([x for x, _ in piece], [y for _, y in piece], linewidth=1.3, **look)
    highest = 1.15 * max(10.0, *(cf for job in jobs for cf in job.cfs))
    above.set(yscale="log", ylim=(0.9, highest), ylabel="Compression factor")
    above.set_yticks(factors(highest), [named(one) for one in factors(highest)])
    above.minorticks_off()
    below.set(ylim=(0, 1.03), ylabel="Gain", xlabel="Step")
    for axes in (above, below):
        axes.grid(color="#e3e7eb")
    if len(jobs) > 1:
        above.legend(fontsize=8)
    figure.savefig(path, format="png")


def _plain(text: str) -> str:
    """``$`` begins a formula there, and a leading ``_`` hides a line from the legend."""
    return " " * text.startswith("_") + text.replace("$", r"\$")
