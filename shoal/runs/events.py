"""TensorBoard events of a run: scalars in groups, its settings, films of its learners."""

import os
import socket
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.runs.files import disk_errors, make_folder

MANY_LEARNERS = 32
"""With more learners, there are mean, min and max instead of every learner."""

OF_UPDATES = ["entropy", "approx_kl", "clip_fraction", "grad_norm", "explained_variance", "q_mean", "alpha"]
"""Metrics without a group that CleanRL has among the losses; the others are charts."""

_serial_numbers = count()


class EventFile:
    """A TensorBoard event file, written with TensorBoard's record writer; a context manager.

    Its EventFileWriter writes from a thread, where a full disk goes unnoticed, and imports TensorFlow where
    that is installed. `resume_step` is the step of the checkpoint the run continues from, None at its start.
    """

    def __init__(self, folder: Path, resume_step: int | None = None):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
        self._session = event_pb2.SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        self._summary = summary_pb2.Summary  # pyright: ignore[reportAttributeAccessIssue]
        self._metadata = summary_pb2.SummaryMetadata  # pyright: ignore[reportAttributeAccessIssue]
        unique = f"{socket.gethostname()}.{os.getpid()}.{next(_serial_numbers)}"
        self.path = make_folder(folder) / f"events.out.tfevents.{int(time.time()):010d}.{unique}"
        with disk_errors("write", self.path):
            self._records = RecordWriter(self.path.open("ab", buffering=0))
        self._write(file_version="brain.Event:2")
        if resume_step is not None:
            # Tells TensorBoard to ignore what the interrupted run wrote from this step on.
            self._write(step=resume_step + 1, session_log=self._session(status=self._session.START))

    def __enter__(self) -> "EventFile":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def add_scalars(self, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """The metrics of a report, one number per learner each."""
        tagged = (pair for name, array in arrays.items() for pair in tagged_values(name, array))
        self._add(step, *(self._summary.Value(tag=tag, simple_value=value) for tag, value in tagged))

    def add_settings(self, settings: Mapping[str, Any]) -> None:
        """The settings as a table in the text tab, and as hyperparameters of the run."""
        from tensorboard.compat.proto import tensor_pb2, types_pb2
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        kind = types_pb2.DT_STRING  # pyright: ignore[reportAttributeAccessIssue]
        tensor = tensor_pb2.TensorProto  # pyright: ignore[reportAttributeAccessIssue]
        text = self._summary.Value(
            tag="settings",
            metadata=self._metadata(plugin_data=self._metadata.PluginData(plugin_name="text")),
            tensor=tensor(dtype=kind, string_val=[as_table(settings).encode()]),
        )
        run = plugin_data_pb2.SessionStartInfo()  # pyright: ignore[reportAttributeAccessIssue]
        for name, value in settings.items():
            match value:
                case bool():
                    run.hparams[name].bool_value = value
                case int() | float():
                    run.hparams[name].number_value = value
                case str():
                    run.hparams[name].string_value = value
        data = plugin_data_pb2.HParamsPluginData(  # pyright: ignore[reportAttributeAccessIssue]
            session_start_info=run
        )
        hyperparameters = self._summary.Value(
            tag=metadata.SESSION_START_INFO_TAG,
            metadata=metadata.create_summary_metadata(data),
            tensor=metadata.NULL_TENSOR,
        )
        self._add(0, text, hyperparameters)

    def add_film(self, name: str, step: int, path: Path, shape: tuple[int, ...]) -> None:
        """A GIF with frames of this shape, (H, W, 3): TensorBoard shows it among the images, moving."""
        height, width, channels = shape
        with disk_errors("read", path):
            film = path.read_bytes()
        picture = self._summary.Image(
            height=height, width=width, colorspace=channels, encoded_image_string=film
        )
        self._add(step, self._summary.Value(tag=name, image=picture))

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _add(self, step: int, *values: Any) -> None:
        self._write(step=step, summary=self._summary(value=values))

    def _write(self, **content: Any) -> None:
        event = self._event(wall_time=time.time(), **content)
        with disk_errors("write", self.path):
            size = self.path.stat().st_size
            try:
                self._records.write(event.SerializeToString())
                self._records.flush()
            except OSError:  # half an event would hide those after it
                with suppress(OSError):
                    os.truncate(self.path, size)
                raise


def open_events(folder: Path, resume_step: int | None = None) -> EventFile | None:
    """A new event file in a folder; None, with a warning, without TensorBoard."""
    try:
        return EventFile(folder, resume_step)
    except ImportError as error:
        warnings.warn(f"no TensorBoard events: {error}", RuntimeWarning)
        return None


def record_film(run: Path, learner: int | str, step: int, path: Path, shape: tuple[int, ...]) -> None:
    """Add a GIF to the events of a run's videos/, with a warning where the run's folder cannot be written.

    They are apart from those that training may be writing now: TensorBoard stops reading an event file as
    soon as there is a newer one beside it.
    """
    if path.suffix.lower() != ".gif":
        return
    try:
        if events := open_events(run / "videos"):
            with events:
                events.add_film(f"film/learner_{learner}", step, path, shape)
    except ShoalError as error:
        warnings.warn(f"the film is not in TensorBoard: {error}", RuntimeWarning)


def tag_of(name: str) -> str:
    """The tag of a metric, in CleanRL's groups.

    >>> tag_of("return_mean"), tag_of("loss/policy"), tag_of("approx_kl"), tag_of("exchange/bytes")
    ('charts/return_mean', 'losses/policy', 'losses/approx_kl', 'exchange/bytes')
    """
    group, slash, last = name.partition("/")
    if not slash:
        return f"{'losses' if name in OF_UPDATES else 'charts'}/{name}"
    return f"losses/{last}" if group == "loss" else name


def tagged_values(name: str, array: np.ndarray) -> list[tuple[str, float]]:
    """The scalars of one metric: its tag has the mean over the learners that have it; each is apart."""
    tag, known = tag_of(name), array[~np.isnan(array)]
    if array.size == 1 or not known.size:
        return [(tag, float(value)) for value in known]
    with np.errstate(all="ignore"):
        mean = (tag, float(known.mean()))
    if array.size > MANY_LEARNERS:
        return [mean, (f"{tag}/min", float(known.min())), (f"{tag}/max", float(known.max()))]
    each = [(f"learners/{tag}/{i:03d}", float(x)) for i, x in enumerate(array) if not np.isnan(x)]
    return [mean, *each]


def as_table(settings: Mapping[str, Any]) -> str:
    """Settings as a table in Markdown.

    >>> print(as_table({"steps": 100, "hidden": (64, 64)}))
    | setting | value |
    |---|---|
    | steps | 100 |
    | hidden | (64, 64) |
    """
    escaped = ((name, str(value).replace("|", "\\|").replace("\n", " ")) for name, value in settings.items())
    return "\n".join(["| setting | value |", "|---|---|", *(f"| {name} | {x} |" for name, x in escaped)])
