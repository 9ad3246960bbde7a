"""A federation by Flower: SuperLink and SuperNodes as processes on loopback, with TLS and keys."""

import csv
import json
import runpy
from pathlib import Path

import pytest

import shoal

pytest.importorskip("flwr")
LOCAL = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "flower" / "local.py"))
SHORT = "shoal.steps=48 shoal.local_updates=1 eval-every=1 eval-episodes=2 wait=120.0 "
SHORT += "settings='env=CartPole-v1 num_envs=2 num_steps=8 num_minibatches=2 update_epochs=1 hidden=8'"


@pytest.mark.slow
def test_a_federation_trains_and_a_killed_organisation_comes_back(tmp_path):
    with LOCAL["Deployment"](tmp_path / "f", {"north": None, "south": None}) as deployment:
        server = deployment.folder / "server"
        deployment.run(SHORT)
        LOCAL["wait_for_file"](server / "islands.csv", 120)
        deployment.kill("south")
        deployment.restart_node("south")
        LOCAL["wait_for_file"](server / "evaluation.json", 400)
        evaluation = json.loads((server / "evaluation.json").read_text())
        with (server / "islands.csv").open() as file:
            meetings = list(csv.DictReader(file))
    assert [one["round"] for one in meetings] == ["1", "2", "3"]
    assert all(one["came"] in ("1", "2") for one in meetings)
    assert {*evaluation["organisations"]} <= {"north", "south"}
    assert evaluation["step"] == 48
    run = shoal.load(server)
    assert run.step == 48
    assert run.evaluate(episodes=2)[0].episodes == 2
    assert not (server / "islands" / "000-000").exists()  # organisations keep their own
    assert list((deployment.folder / "north").glob("*/islands/000-000/*.safetensors"))
