"""Predicted against measured: a time model fitted on one network and some CFs, compared with others on the testbed.

    python lab/benchmarks/predict.py                  fits on one link, predicts ten others; needs root, ip and tc
    python lab/benchmarks/predict.py --keep FOLDER    stores the journals; --from FOLDER compares them again

Every CF is a separate job (two ranks, each with a core and a host with a link). The jobs take turns on every link.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from predict_parts.measured import Measured, MeasuredPlan, read_again, run

from gravac.collectives import Network
from gravac.predict import Prediction, Predictor, Recording, Scenario
from gravac_lab.bench.network import parse_rate

FITTED, LINKS = "1gbit", "30mbit 40mbit 50mbit 75mbit 100mbit 150mbit 200mbit 300mbit 500mbit 750mbit"
FITTED_CFS, CFS = "1 10 100 1000", "1 4 10 30 100 300 1000"
LATENCY_SECONDS = 1e-4
"""Of a message between two hosts of the testbed, about."""
TITLE = "    link    CF  measured     ± predicted            range   error   gain  pred."
WANTED_ERROR, WANTED_LOSS = 0.10, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", default=FITTED, help="the link to fit on")
    parser.add_argument("--fit-cf", default=FITTED_CFS, help="CFs to fit on, separated by spaces")
    parser.add_argument("--links", default=LINKS, help="links to predict")
    parser.add_argument("--cf", default=CFS, help="CFs to predict")
    parser.add_argument("--codec", default="topk+bf16")
    parser.add_argument("--width", type=int, default=448, help="of the LSTM; 448: 1.05 M parameters")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=5, help="windows before it begins")
    parser.add_argument("--block", type=int, default=12, help="steps of a window")
    parser.add_argument("--keep", type=Path, help="folder for the journals, not there yet")
    parser.add_argument("--from", dest="again", type=Path, help="compare with stored journals")
    given = parser.parse_args()
    if given.keep is not None and given.keep.exists():
        parser.error(f"--keep {given.keep}: is there already; name a folder that is not")
    fitted = [float(cf) for cf in given.fit_cf.split()]
    cfs = sorted({*fitted, *(float(cf) for cf in given.cf.split())})
    links = [link for link in given.links.split() if link != given.fit]
    plan = MeasuredPlan(
        codec=given.codec,
        fit_link=given.fit,
        links=links,
        cfs=cfs,
        passes=given.passes,
        warmup=given.warmup,
        block=given.block,
        width=given.width,
        hosts=2,
    )
    if given.again is not None:
        measured = read_again(given.again)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            folder = given.keep or Path(scratch) / "journals"
            folder.mkdir(parents=True)
            measured = run(plan, folder, lambda line: print(line, file=sys.stderr, flush=True))
    judge(measured, given.fit, links, fitted, cfs)


def judge(measured: Measured, fit_link: str, links: list[str], fitted: list[float], cfs: list[float]) -> None:
    """Print the tables and whether what is wanted holds; exit code 1 if not."""
    predictor = Predictor([(recording(measured, fit_link, fitted), network(fit_link))])
    print("model fitted on", fit_link, "at CF", fitted, predictor.fit.model)
    print(
        "spread",
        f"{predictor.fit.spread:.1%}",
        "error",
        f"{predictor.error:.1%}",
        *predictor.fit.unknown,
        sep="\n  ",
    )
    errors: dict[str, list[float]] = {"seen CFs": [], "other CFs": []}
    inside = right = 0
    print(TITLE)
    for link in links:
        scenario = Scenario(
            network=network(link), ranks=measured.spec.world_size, compressor=measured.spec.compressor
        )
        predictions = [predictor.predict(scenario, cf) for cf in cfs]
        useful: dict[float, float] = {}
        for predicted in predictions:
            seconds, gain = measured.step_seconds(link, predicted.cf), measured.gain(predicted.cf, [link])
            useful[predicted.cf] = gain / seconds
            error = predicted.step.seconds / seconds - 1
            errors["seen CFs" if predicted.cf in fitted else "other CFs"].append(abs(error))
            inside += predicted.low <= seconds <= predicted.high
            print(
                f"{link:>8} {predicted.cf:>5g} {seconds * 1e3:>7.1f}ms {measured.spread(link, predicted.cf):>5.0%} "
                f"{predicted.step.seconds * 1e3:>7.1f}ms {predicted.low * 1e3:>6.0f} –{predicted.high * 1e3:>5.0f}ms "
                f"{error:>+7.1%} {gain:>6.3f} {predicted.gain.likely or 0:>6.3f}"
            )
        right += _chosen(link, predictions, useful)
    every = [error for some in errors.values() for error in some]
    for name, some in errors.items():
        if some:
            print(f"{name}: median error of {len(some)} step times {median(some):.1%}, worst {max(some):.1%}")
    print(f"all: median error {median(every):.1%} (wanted: at most {WANTED_ERROR:.0%})")
    print(f"{inside} of {len(every)} within the prediction interval")
    print(
        f"best CF right, or within {WANTED_LOSS:.0%} of the best T_comp: {right} of {len(links)} (wanted: 9 of 10)"
    )
    sys.exit(0 if median(every) <= WANTED_ERROR and right >= 0.9 * len(links) else 1)


def _chosen(link: str, predictions: list[Prediction], useful: dict[float, float]) -> bool:
    predicted = max(predictions, key=lambda each: each.compression_throughput or 0.0)
    true = max(useful, key=useful.__getitem__)
    loss = 1 - useful[predicted.cf] / useful[true]
    print(
        f"{link:>8} best CF: predicted {predicted.cf:g}, measured {true:g}; its T_comp is {loss:.1%} below the best"
    )
    return loss <= WANTED_LOSS


def recording(measured: Measured, link: str, cfs: list[float]) -> Recording:
    """What a trace of these windows would hold."""
    found = Recording(measured.spec)
    for cf in cfs:
        for report in measured.windows[link, cf]:
            found.add(report)
    return found


def network(link: str) -> Network:
    """The testbed's, by the link's nominal rate."""
    bits = parse_rate(link)
    assert bits is not None
    return Network(latency_seconds=LATENCY_SECONDS, bytes_per_second=bits / 8)


if __name__ == "__main__":
    main()
