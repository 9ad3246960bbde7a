"""What each address answers: the page's own files, data of runs as JSON, films."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from shoal.errors import ShoalError
from shoal.islands.attendance import MEETINGS
from shoal.watch.colours import colours
from shoal.watch.curves import compared, metric_curves
from shoal.watch.numbers import as_json
from shoal.watch.overview import SWEEP, overview
from shoal.watch.run import FILMS, films, run_page
from shoal.watch.shelf import Entry, Shelf
from shoal.watch.sweeps import sweep_page
from shoal.watch.together import graph_page, lineage_page, worlds_page

KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
KEPT = 128
"""Answers that are kept until the files behind them change."""
TOO_LONG = 2_000
"""The most characters of an address."""


class Answer(NamedTuple):
    """A body with its kind; the tag changes with the body."""

    body: bytes
    kind: str
    status: int = 200
    tag: str = ""


JSON = "application/json"
NOT_FOUND = Answer(as_json({"error": "there is no such page"}), JSON, 404)
GONE = Answer(as_json({"error": "this run is gone: its folder was removed or renamed"}), JSON, 404)


class Answers:
    """Finds what an address asks for; nothing in an address is ever used as a path."""

    def __init__(self, shelf: Shelf):
        self.shelf = shelf
        self._static = dict(_static_files(files("shoal.watch").joinpath("static"), "/static"))
        self._static["/static/colours.css"] = _tagged(colours().encode(), "text/css")
        self._kept: OrderedDict[str, tuple[Any, Answer]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, address: str) -> Answer:
        """The answer to a GET of this address."""
        if len(address) > TOO_LONG:
            return NOT_FOUND
        path, query = urlsplit(address).path, parse_qs(urlsplit(address).query)
        if path == "/":
            return self._static["/static/index.html"]
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["static", *_]:
                return self._static.get(path, NOT_FOUND)
            case ["api", "runs"]:
                runs, sweeps = self.shelf.runs().items(), self.shelf.sweeps().items()
                stamp = [(id, one.stamp("checkpoints")) for id, one in runs]
                stamp += [(id, one.stamp(*SWEEP)) for id, one in sweeps]
                return self._made(address, stamp, lambda: overview(self.shelf))
            case ["api", "runs", id, *what]:
                entry = self.shelf.runs().get(id)
                return self._of_run(address, entry, what, query) if entry else GONE
            case ["api", "sweeps", id]:
                entry = self.shelf.sweeps().get(id)
                stamp = entry and entry.stamp("sweep.yaml", "trials.csv", "programs")
                return self._made(address, stamp, lambda: sweep_page(entry, self.shelf)) if entry else GONE
            case ["api", "compare"]:
                return self._compared(address, query)
            case ["films", id, name]:
                return self._film(self.shelf.runs().get(id), name)
        return NOT_FOUND

    def _of_run(
        self, address: str, entry: Entry, what: list[str], query: Mapping[str, Sequence[str]]
    ) -> Answer:
        learner = int(text) if (text := query.get("learner", [""])[0]).isdecimal() else None
        curves = lambda: metric_curves(entry, query.get("metric", ["return_mean"]), learner, "heat" in query)
        pages: dict[str, Callable[[], Any]] = {
            "": lambda: run_page(entry),
            "curves": curves,
            "lineage": lambda: lineage_page(entry),
            "graph": lambda: graph_page(entry),
            "worlds": lambda: worlds_page(entry),
        }
        name = "/".join(what)
        stamp = entry.stamp("checkpoints", "videos", "lineage.csv", *(() if name else (MEETINGS,)))
        return self._made(address, stamp, pages[name]) if name in pages else NOT_FOUND

    def _compared(self, address: str, query: Mapping[str, Sequence[str]]) -> Answer:
        known = self.shelf.runs()
        chosen = [known[id] for id in query.get("run", []) if id in known]
        metric = query.get("metric", ["return_mean"])[0]
        stamp = [(one.id, one.stamp()) for one in chosen]
        return self._made(address, stamp, lambda: compared(chosen, metric)) if chosen else GONE

    def _film(self, entry: Entry | None, name: str) -> Answer:
        for film in films(entry.folder) if entry else ():
            if film.name == name:
                try:
                    return _tagged(film.read_bytes(), FILMS[film.suffix.lower()])
                except OSError:
                    return NOT_FOUND
        return NOT_FOUND

    def _made(self, address: str, stamp: Any, make: Callable[[], Any]) -> Answer:
        """The data as JSON, made again only when its stamp has changed; what cannot be read says why."""
        with self._lock:
            kept = self._kept.get(address)
        if kept and kept[0] == stamp:
            return kept[1]
        try:
            answer = _tagged(as_json(make()), JSON)
        except Exception as error:  # whatever the files of a damaged run raise
            text = " ".join(str(error).split()) or type(error).__name__
            reason = text if isinstance(error, ShoalError) else f"these files cannot be read: {text}"
            answer = Answer(as_json({"error": reason}), JSON, 422)
        with self._lock:
            self._kept[address] = (stamp, answer)
            self._kept.move_to_end(address)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return answer


def _static_files(folder: Traversable, path: str):
    """The page's own files by their addresses."""
    for item in folder.iterdir():
        if item.is_dir():
            yield from _static_files(item, f"{path}/{item.name}")
        elif kind := KINDS.get(f".{item.name.rpartition('.')[2]}"):
            yield f"{path}/{item.name}", _tagged(item.read_bytes(), kind)


def _tagged(body: bytes, kind: str) -> Answer:
    return Answer(body, kind, tag=f'"{hashlib.sha256(body).hexdigest()[:20]}"')
