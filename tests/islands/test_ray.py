"""Islands on a Ray cluster of several nodes on this machine: nodes die and join, a run grows and shrinks."""

import csv
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

from crowds import config_with  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

import shoal  # noqa: E402
from shoal.islands.launch import train_islands  # noqa: E402
from shoal.islands.options import Islands  # noqa: E402


@pytest.fixture
def cluster():
    """A head without room for islands, and two nodes with room for one each."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    found.nodes = [found.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=found.address, log_to_driver=False, logging_level="error")
    yield found
    ray.shutdown()
    found.shutdown()


def test_an_island_whose_node_dies_is_absent_until_another_node_has_it(cluster, tmp_path):
    config = config_with(exchange="average", steps=16 * 4 * 2_500, learners=4)

    def fail():
        path = tmp_path / "islands.csv"
        while not path.exists() or path.read_text().count("\n") < 50:
            time.sleep(0.1)
        cluster.remove_node(cluster.nodes[0], allow_graceful=False)
        time.sleep(2)
        cluster.add_node(num_cpus=1)

    thread = threading.Thread(target=fail)
    thread.start()
    summary = train_islands(config, Islands("2", engine="ray", wait=5.0), tmp_path)[1]
    thread.join()
    with (tmp_path / "islands.csv").open() as file:
        held = list(csv.DictReader(file))
    absent = [row["absent"] for row in held]
    assert any("lost" in why for why in absent)
    assert {row["came"] for row in held} == {"2", "4"}
    assert absent[-1] == ""
    assert summary["islands"]["restarts"] >= 1
    assert shoal.load(tmp_path).step == 16 * 4 * 2_500


def test_a_run_grows_and_shrinks_with_its_cluster_and_leaves_no_files_on_the_nodes(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr("shoal.islands.driver.REGROUP_SECONDS", 0.5)
    before, counts, third = left_on_nodes(), [], []

    def show(progress):
        counts.append(progress.islands)
        if len(counts) == 10:
            third.append(cluster.add_node(num_cpus=1))
        if counts.count(3) == 10:
            cluster.remove_node(third[0], allow_graceful=False)
        if 3 in counts and progress.islands == 2 and not progress.absent:
            signal.raise_signal(signal.SIGINT)  # add_node takes SIGTERM for itself

    config = config_with(exchange="average", steps=16 * 4 * 10**6, learners=4)
    summary = train_islands(config, Islands("2..3", engine="ray", wait=5.0), tmp_path, show=show)[1]
    assert summary["interrupted"]
    assert sorted({*counts}) == [2, 3]
    assert shoal.load(tmp_path).step == summary["steps"] == 16 * 4 * len(counts)
    assert left_on_nodes() <= before


def left_on_nodes():
    """The folders of islands in the nodes' temporary folder."""
    return {*Path(tempfile.gettempdir()).glob("shoal-island-*")}
