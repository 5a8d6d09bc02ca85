"""``gravac codecs --parameters``: bytes per rank of error memories, before a job runs."""

import json

import pytest
from click.testing import CliRunner

from gravac_controller.cli import main


def run(*words: str) -> dict[str, float]:
    done = CliRunner().invoke(main, ["codecs", *words, "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)["memories"]
    return {row["memory"]: row["memory_bytes"] for row in rows} | {"training": rows[0]["training_bytes"]}


def test_error_memories_are_not_sharded_and_conef_is_small() -> None:
    one, many = run("--parameters", "7b", "--ranks", "8"), run("--parameters", "7b", "--ranks", "64")
    assert one["training"] == 8 * many["training"] == 16 * 7e9 / 8
    assert one["residual"] == many["residual"] == 8 * 7e9
    assert one["residual-bf16"] == 4 * 7e9
    assert many["conef:bits=4"] < 0.2 * many["residual"]
    assert many["conef-sketch:size=0.1"] < 0.2 * many["residual"]
    assert many["conef"] == pytest.approx(2.03 * 7e9, rel=0.01)
    assert many["none"] == 0


def test_ddp_shards_nothing() -> None:
    found = run("conef", "--parameters", "350m", "--ranks", "8", "--ddp")
    assert found["training"] == 16 * 350e6
    assert run("--parameters", "350m", "--ranks", "8", "--ddp")["residual"] == 4 * 350e6
    narrow = run("residual-bf16", "--parameters", "350m", "--ranks", "8", "--ddp")
    assert narrow["residual-bf16"] == 2 * 350e6
    assert set(found) == {"conef", "training"}


def test_the_table_names_all_figures() -> None:
    done = CliRunner().invoke(main, ["codecs", "--parameters", "1.3B", "--ranks", "16"])
    assert done.exit_code == 0, done.output
    assert "residual" in done.output
    assert "10.4 GB" in done.output
    assert "under FSDP2" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--parameters", "seven", "--ranks", "8"), "350m or 7b"),
        (("--parameters", "7b", "--ranks", "8", "conf"), "conef"),
        (("--parameters", "7b"), "--parameters needs the number of ranks"),
        (("--ranks", "8"), "--ranks is for the bytes of error memories: add --parameters 7b"),
    ],
)
def test_wrong_words_are_named(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, ["codecs", *words])
    assert done.exit_code == 2
    assert said in done.output
