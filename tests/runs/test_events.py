"""TensorBoard's own reader finds the settings, the groups of scalars and the films of a run."""

from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from shoal.runs.events import EventFile, record_film, tag_of
from shoal.runs.metrics import MetricsWriter
from shoal.runs.video import write_video

SETTINGS = {"env": "CartPole-v1", "steps": 100, "gamma": 0.5, "anneal_lr": True, "hidden": (8,), "plan": None}


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder)).Reload()


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("return_mean", "charts/return_mean"),
        ("win_rate_team0", "charts/win_rate_team0"),
        ("learning_rate", "charts/learning_rate"),
        ("steps_per_second", "charts/steps_per_second"),
        ("loss/value", "losses/value"),
        ("approx_kl", "losses/approx_kl"),
        ("eval/return_mean", "eval/return_mean"),
        ("hypers/gamma", "hypers/gamma"),
        ("population/parent", "population/parent"),
        ("team0/loss/policy", "team0/loss/policy"),
    ],
)
def test_metrics_are_in_groups(name, tag):
    assert tag_of(name) == tag


def test_settings_are_a_table_and_hyperparameters(tmp_path):
    with MetricsWriter(tmp_path, None, SETTINGS) as writer:
        writer.write(1, 0.0, {"x": 1.0})
    events = read(tmp_path)
    (text,) = events.Tensors("settings")
    assert "| gamma | 0.5 |" in text.tensor_proto.string_val[0].decode().splitlines()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    found = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    kinds = {
        name: (value.WhichOneof("kind"), getattr(value, value.WhichOneof("kind")))
        for name, value in found.items()
    }
    assert kinds == {
        "env": ("string_value", "CartPole-v1"),
        "steps": ("number_value", 100),
        "gamma": ("number_value", 0.5),
        "anneal_lr": ("bool_value", True),
    }


def test_a_resumed_run_says_its_settings_once(tmp_path):
    for resume_step in (None, 1):
        with MetricsWriter(tmp_path, resume_step, SETTINGS) as writer:
            writer.write((resume_step or 0) + 1, 0.0, {"x": 1.0})
    assert len(read(tmp_path).Tensors("settings")) == 1


def film(folder: Path) -> Path:
    return write_video([np.full((6, 4, 3), 80 * i, np.uint8) for i in range(3)], folder / "film.gif", 10)


def test_a_film_is_an_image_apart_from_the_events_of_training(tmp_path):
    path = film(tmp_path)
    with EventFile(tmp_path) as training:
        record_film(tmp_path, 3, 512, path, (6, 4, 3))
        training.add_scalars(1024, {"x": np.ones(1)})
    (image,) = read(tmp_path / "videos").Images("film/learner_3")
    assert (image.step, image.height, image.width) == (512, 6, 4)
    assert image.encoded_image_string == path.read_bytes()
    assert [event.step for event in read(tmp_path).Scalars("charts/x")] == [1024]


def test_a_film_is_written_though_the_run_cannot_be(tmp_path):
    path = film(tmp_path)
    (tmp_path / "run").write_text("a file")
    with pytest.warns(RuntimeWarning, match="the film is not in TensorBoard"):
        record_film(tmp_path / "run", 0, 1, path, (6, 4, 3))
    record_film(tmp_path / "run", 0, 1, tmp_path / "film.mp4", (6, 4, 3))  # not for TensorBoard
