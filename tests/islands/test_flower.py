"""A federation by Flower: SuperLink and SuperNodes as processes on loopback, with TLS and keys."""

import csv
import json
import runpy
from pathlib import Path

import pytest

import shoal

pytest.importorskip("flwr")
LOCAL = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "flower" / "local.py"))
SHORT = "shoal.local_updates=1 eval-every=1 eval-episodes=2 wait=120.0 shoal.env='CartPole-v1' "
SHORT += "settings='num_envs=2 num_steps=8 num_minibatches=2 update_epochs=1 hidden=8'"


@pytest.mark.slow
def test_a_federation_trains_loses_an_organisation_and_goes_on(tmp_path):
    with LOCAL["Deployment"](tmp_path / "f", {"north": None, "south": None}) as deployment:
        server = deployment.folder / "server"
        deployment.run(f"shoal.steps=32 {SHORT}")
        LOCAL["wait_for_file"](server / "evaluation.json", 300)
        assert [one["came"] for one in meetings(server)] == ["2", "2"]
        evaluation = json.loads((server / "evaluation.json").read_text())
        assert {*evaluation["organisations"]} == {"north", "south"}
        (server / "evaluation.json").unlink()
        deployment.kill("south")
        deployment.run(f"shoal.steps=48 {SHORT}".replace("wait=120.0", "wait=20.0"))  # a meeting more
        LOCAL["wait_for_file"](server / "evaluation.json", 400)
        assert [one["round"] for one in meetings(server)] == ["1", "2", "3"]
        assert meetings(server)[2]["came"] == "1"
    run = shoal.load(server)
    assert run.step == 48
    assert run.evaluate(episodes=2)[0].episodes == 2
    assert not (server / "islands").exists()  # organisations keep their own
    assert list((deployment.folder / "north").glob("*/islands/000-000/*.safetensors"))


def meetings(server):
    """The rows of islands.csv."""
    with (server / "islands.csv").open() as file:
        return list(csv.DictReader(file))
