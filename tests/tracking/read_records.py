"""Prints what trackers hold, as JSON, by their own readers: `python -m tests.tracking.read_records wandb`.

A list of records, each with its name, its files, its settings, and the steps and values of its metrics.
"""

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path


def wandb_records() -> list[dict]:
    """What lies in the folder of offline runs, which `wandb sync` sends in this order."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, dict] = {}
    for path in sorted(Path(os.environ["WANDB_DIR"]).glob("wandb/offline-run-*/*.wandb")):
        records = [Record.FromString(content) for content in leveldb_log(path.read_bytes())]
        run = next(one.run for one in records if one.WhichOneof("record_type") == "run")
        kept = found.setdefault(run.run_id, {"id": run.run_id, "settings": {}, "metrics": {}, "files": []})
        kept |= {"name": run.display_name, "group": run.run_group, "kind": run.job_type}
        for one in records:
            match one.WhichOneof("record_type"):
                case "run":
                    pairs = one.run.config.update
                    kept["settings"] |= {pair.key: json.loads(pair.value_json) for pair in pairs}
                case "config":
                    pairs = one.config.update
                    kept["settings"] |= {pair.key: json.loads(pair.value_json) for pair in pairs}
                case "history":
                    row = {(x.key or x.nested_key[0]): json.loads(x.value_json) for x in one.history.item}
                    for name in row.keys() - {"_step", "_runtime", "_timestamp"}:
                        kept["metrics"].setdefault(name, []).append((row["_step"], row[name]))
                case "artifact":
                    kept["files"] += [entry.path for entry in one.artifact.manifest.contents]
                case "exit":
                    kept["exit"] = one.exit.exit_code
    return list(found.values())


def leveldb_log(content: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log behind W&B's header of 7 bytes."""
    place, parts, block = 7, [], 1 << 15
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        parts.append(content[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or last
            yield b"".join(parts)
            parts = []


def mlflow_records() -> list[dict]:
    """What the store has."""
    import mlflow

    client, found = mlflow.MlflowClient(), []
    experiment = client.get_experiment_by_name("shoal")
    for run in client.search_runs([experiment.experiment_id]):
        history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
        listed = [*client.list_artifacts(run.info.run_id)]
        inside = [file for folder in listed for file in client.list_artifacts(run.info.run_id, folder.path)]
        found.append(
            {
                "id": run.info.run_id,
                "name": run.info.run_name,
                "group": run.data.tags.get("mlflow.parentRunId"),
                "settings": run.data.params,
                "metrics": {name: [(one.step, one.value) for one in x] for name, x in history.items()},
                "files": [file.path for file in (*listed, *inside)],
                "exit": run.info.status,
            }
        )
    return found


def trackio_records() -> list[dict]:
    """What the database of the project has."""
    from trackio.sqlite_storage import SQLiteStorage

    found = []
    for run in SQLiteStorage.get_run_records("shoal"):
        settings = SQLiteStorage.get_run_config("shoal", run["name"]) or {}
        kept = {"id": run["name"], "name": run["name"], "group": settings["_Group"], "settings": settings}
        metrics: dict[str, list] = {}
        for row in SQLiteStorage.get_logs("shoal", run["name"]):
            for name in row.keys() - {"step", "timestamp"}:
                metrics.setdefault(name, []).append((row["step"], row[name]))
        files = []
        for artifact in SQLiteStorage.get_artifacts("shoal"):
            if artifact["name"].endswith(run["name"].rpartition("-")[2]):
                version = SQLiteStorage.get_artifact_manifest("shoal", artifact["name"], "latest")
                files = [entry["path"] for entry in version["manifest"]]
        found.append(kept | {"metrics": metrics, "files": files})
    return found


READERS = {"wandb": wandb_records, "mlflow": mlflow_records, "trackio": trackio_records}

if __name__ == "__main__":
    print(json.dumps(READERS[sys.argv[1]]()))
