"""MLflow, in a run of its own and in one of the program."""

from pathlib import Path

import pytest

from tests.agent.sinks.test_base import expected, train

pytestmark = [
    pytest.mark.usefixtures("world_of_one"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.mark.parametrize("own", [False, True])
def test_mlflow(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(Path("mlruns").absolute().as_uri())
    client = mlflow.MlflowClient()
    if own:
        with mlflow.start_run() as run:
            windows, decisions = train(run)
            assert client.get_run(run.info.run_id).info.status == "RUNNING"
    else:
        windows, decisions = train("mlflow:experiment=mine")
        (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
        assert (run.info.run_name, run.info.status) == ("job", "FINISHED")
    found = client.get_metric_history(run.info.run_id, "gravac/loss")
    assert [(each.step, each.value) for each in found] == expected(windows, "gravac/loss")
    assert client.get_run(run.info.run_id).data.tags["gravac.decision"] == decisions[-1].reason
    text = mlflow.artifacts.load_text(f"runs:/{run.info.run_id}/gravac/decisions.txt")
    assert text.splitlines()[-1] == f"step 12, {decisions[-1].rule}: {decisions[-1].reason}"
