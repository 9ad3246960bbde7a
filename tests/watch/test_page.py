"""The page in a real browser: live, quick, safe and usable by keyboard."""

import json
import os
import re
import shutil
import socket
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.runs.metrics import MetricsWriter
from tests.watch.folders import add_report, write_population, write_run, write_sweep
from tests.watch.serving import command, served

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
AXE = Path(os.environ.get("AXE", "node_modules/axe-core/axe.min.js"))
SOON = 4.0
"""Twice the seconds of a quiet machine (bench/watch.py): other work slows computing itself, too."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as found:
        yield found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def page(browser):
    """A page on which no error is logged and from which no request leaves the machine."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    opened, errors, asked = context.new_page(), [], []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    opened.on("request", lambda request: asked.append(request.url))
    opened.allowed = lambda text: False
    yield opened
    context.close()
    assert [text for text in errors if not opened.allowed(text)] == []
    assert all(url.startswith(("http://127.0.0.1:", "http://localhost:")) for url in asked)


def open_run(page, server, name):
    page.goto(server.url)
    page.get_by_role("link", name=name, exact=True).click()
    page.wait_for_selector("figure.chart svg path")


def test_a_run_appears_and_moves(page, tmp_path):
    with served(tmp_path) as server:
        page.goto(server.url)
        page.get_by_text("There is no run below").wait_for()
        folder = write_run(tmp_path / "mine", ended=False)
        page.get_by_role("link", name="mine").wait_for(timeout=2000)
        page.get_by_role("link", name="mine").click()
        page.wait_for_selector("figure.chart svg path")
        add_report(folder, 3)
        page.get_by_text("4096 of").wait_for(timeout=2000)
        assert "40" in page.locator("dl.facts").inner_text()


def test_the_page_recovers_when_the_server_does(page, tmp_path):
    folder = write_run(tmp_path / "mine", ended=False)
    page.allowed = lambda text: "ERR_CONNECTION" in text or "ERR_EMPTY" in text
    port = free_port()
    with command(tmp_path, port) as url:
        page.goto(url)
        page.get_by_role("link", name="mine").click()
        page.wait_for_selector("figure.chart svg path")
    page.get_by_text("No answer from shoal watch").wait_for()
    add_report(folder, 3)
    with command(tmp_path, port):
        page.get_by_text("4096 of").wait_for()
        playwright.expect(page.locator("#connection")).to_be_hidden()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_a_deleted_run_says_so(page, tmp_path):
    folder = write_run(tmp_path / "mine")
    page.allowed = lambda text: "404" in text
    with served(tmp_path) as server:
        open_run(page, server, "mine")
        shutil.rmtree(folder)
        page.get_by_text("this run is gone").wait_for(timeout=3000)
        assert page.locator("figure.chart svg path").count() > 0


def test_a_half_written_row_changes_nothing(page, tmp_path):
    folder = write_run(tmp_path / "mine", ended=False)
    with served(tmp_path) as server:
        open_run(page, server, "mine")
        with (folder / "metrics.csv").open("a") as file:
            file.write("4096,0,4")
        page.wait_for_timeout(1500)
        assert page.locator("#connection").is_hidden()
        assert page.locator(".note").count() == 0


def test_a_damaged_run_is_shown_as_such(page, tmp_path):
    folder = write_run(tmp_path / "mine")
    (folder / "config.yaml").write_text("env: [")
    with served(tmp_path) as server:
        open_run(page, server, "mine")
        assert "not yaml" in page.locator(".note").first.inner_text()


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=document.title='caught'>", "a&b 'c' \"d\"", "%2e%2e", "é ü"]
)
def test_names_are_text(page, tmp_path, name):
    write_run(tmp_path / name)
    videos = tmp_path / name / "videos"
    videos.mkdir()
    (videos / f"{name}.gif").write_bytes(Path("docs/images/group.gif").read_bytes())
    with served(tmp_path) as server:
        open_run(page, server, name)
        assert page.locator("h1").inner_text() == name
        assert page.locator("img[src=x]").count() == 0
        playwright.expect(page.locator(".films img")).to_have_js_property("complete", True)
        assert page.locator(".films img").evaluate("image => image.naturalWidth") > 0
        assert page.title().startswith(name)


def test_many_learners_are_bands_and_a_heatmap(page, tmp_path):
    """A click on the heatmap opens a learner."""
    write_run(tmp_path / "many", learners=500, reports=5)
    with served(tmp_path) as server:
        open_run(page, server, "many")
        page.wait_for_selector("canvas.heat")
        page.locator("canvas.heat").click(position={"x": 300, "y": 5})
        page.wait_for_url(re.compile(r"/learner/4\d\d$"))
        page.wait_for_selector("figure.chart svg path")


def test_many_runs_are_listed_soon_and_filtered(page, tmp_path):
    one = write_run(tmp_path / "run000", learners=4, reports=20)
    for index in range(1, 200):
        shutil.copytree(one, tmp_path / f"run{index:03d}")
    with served(tmp_path) as server:
        with at_most_computed(page, SOON):
            page.goto(server.url)
            playwright.expect(page.locator("tbody tr")).to_have_count(200, timeout=30_000)
        page.get_by_label("Filter runs").fill("run01")
        playwright.expect(page.locator("tbody tr")).to_have_count(10)


def test_thousands_of_learners_are_shown_soon(page, tmp_path):
    write_run(tmp_path / "thousands", learners=4096, reports=100)
    with served(tmp_path) as server, at_most_computed(page, SOON):
        (run,) = json.loads(server.answers.find("/api/runs").body)["runs"]
        page.goto(f"{server.url}/#/run/{run['id']}")
        page.wait_for_selector("canvas.heat")


@contextmanager
def at_most_computed(page, seconds):
    """The server, a thread of this process, and the browser compute no longer together."""
    session = page.context.browser.new_browser_cdp_session()
    spent = lambda: (
        time.process_time()
        + sum(one["cpuTime"] for one in session.send("SystemInfo.getProcessInfo")["processInfo"])
    )
    before = spent()
    yield
    assert spent() - before < seconds


def test_runs_are_sorted_chosen_and_compared(page, tmp_path):
    for name, learners in (("low", 1), ("high", 9)):
        write_run(tmp_path / name, learners=learners)
    with served(tmp_path) as server:
        page.goto(server.url)
        page.get_by_role("button", name="best").click()
        assert page.locator("tbody a").all_inner_texts() == ["high", "low"]
        page.get_by_role("button", name="best").click()
        assert page.locator("tbody a").all_inner_texts() == ["low", "high"]
        page.get_by_label("Compare low").check()
        page.get_by_label("Compare high").check()
        page.get_by_role("button", name="Compare 2").click()
        page.wait_for_selector("figure.chart svg path[fill-opacity]")
        assert page.locator("tbody tr").count() == 2


def test_a_phone_shows_and_sorts_the_runs(page, tmp_path):
    page.set_viewport_size({"width": 360, "height": 700})
    for name, learners in (("low", 1), ("high__of__a_very_long_name" * 4, 9)):
        write_run(tmp_path / name, learners=learners)
    with served(tmp_path) as server:
        page.goto(server.url)
        page.get_by_role("link", name="low").wait_for()
        page.get_by_label("Sort by").select_option("best")
        assert page.locator("tbody a").all_inner_texts()[1] == "low"
        page.get_by_role("link", name="high").click()
        page.wait_for_selector("figure.chart svg path")
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_keyboard_reads_a_chart_and_opens_a_learner(page, tmp_path):
    write_run(tmp_path / "mine", learners=3)
    with served(tmp_path) as server:
        open_run(page, server, "mine")
        page.locator("figure.chart .picture").first.focus()
        page.keyboard.press("ArrowDown")
        assert "learner 0: 30" in page.locator(".tip").first.inner_text()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowLeft")
        assert "learner 1: 21\nstep 2,048" in page.locator(".tip").first.inner_text()
        page.keyboard.press("Enter")
        page.wait_for_url("**/learner/1")


def test_a_learner_has_its_curves_world_and_films(page, tmp_path):
    folder = write_run(tmp_path / "ring", learners=4, exchange="gossip", topology="ring", env_spread=0.5)
    (folder / "videos").mkdir()
    for name in ("step_000001024_learner_2.gif", "learner_1.gif"):
        (folder / "videos" / name).write_bytes(Path("docs/images/group.gif").read_bytes())
    with served(tmp_path) as server:
        open_run(page, server, "ring")
        page.get_by_role("link", name="2", exact=True).click()
        playwright.expect(page.locator("details[open] figure.chart svg")).to_have_count(1)  # the loss
        page.wait_for_timeout(1200)  # the page has been read again
        assert page.locator("details h3").all_inner_texts() == ["total loss"]
        facts = page.locator("dl.facts")
        playwright.expect(facts).to_contain_text("receives from1, 3")
        playwright.expect(facts).to_contain_text("world: length")
        playwright.expect(page.locator(".films figure")).to_have_count(1)
        assert page.locator(".films figcaption").inner_text() == "learner 2 at step 1,024"
        page.goto(f"{server.url}/#/run/{page.url.split('/run/')[1].split('/')[0]}")
        captions = page.locator(".films figcaption")
        playwright.expect(captions).to_have_text(["learner 1", "learner 2 at step 1,024"])


def test_a_population_and_a_federation_are_drawn(page, tmp_path):
    write_population(tmp_path / "population")
    write_run(tmp_path / "ring", learners=4, exchange="gossip", topology="ring", env_spread=0.5)
    with served(tmp_path) as server:
        open_run(page, server, "population")
        tree = page.get_by_role("img", name="Lineage of 4 learners over 1 selections; the best is learner 3")
        tree.wait_for()
        page.get_by_text("Who was replaced").click()
        page.get_by_role("row", name="1,024 0 2").wait_for()
        page.goto(server.url)
        page.get_by_role("link", name="ring", exact=True).click()
        page.get_by_role("img", name="4 learners on a circle, 8 links").wait_for()
        page.get_by_role("img", name="return over length").wait_for()


def test_a_click_on_a_line_opens_its_learner(page, tmp_path):
    write_run(tmp_path / "mine", learners=3)
    with served(tmp_path) as server:
        open_run(page, server, "mine")
        line = page.locator("figure.chart").first.locator("svg path[stroke='var(--c2)']").bounding_box()
        page.mouse.move(line["x"], line["y"] + line["height"])
        page.mouse.click(line["x"], line["y"] + line["height"])
        page.wait_for_url(re.compile(r"/learner/2$"))


def test_trials_of_a_sweep_are_brushed(page, tmp_path):
    write_sweep(tmp_path / "sweep")
    with served(tmp_path) as server:
        page.goto(server.url)
        page.get_by_role("link", name="sweep", exact=True).click()
        rows = page.locator("tbody tr:visible")
        playwright.expect(rows).to_have_count(4)
        page.get_by_role("combobox", name="gamma").select_option("0.99")
        playwright.expect(rows).to_have_count(2)
        page.get_by_role("combobox", name="gamma").select_option("any")
        playwright.expect(rows).to_have_count(4)
        axis = page.locator("rect[data-axis='2']").bounding_box()
        middle = axis["x"] + axis["width"] / 2
        page.mouse.move(middle, axis["y"] + 1)
        page.mouse.down()
        page.mouse.move(middle, axis["y"] + axis["height"] / 2, steps=4)
        page.mouse.up()
        playwright.expect(rows).to_have_count(2)
        assert page.locator("tbody tr:visible td:first-child").all_inner_texts() == ["3", "2"]


def test_a_sweep_without_a_score_says_so(page, tmp_path):
    folder = write_sweep(tmp_path / "sweep")
    (folder / "trials.csv").unlink()
    with served(tmp_path) as server:
        page.goto(server.url)
        page.get_by_role("link", name="sweep", exact=True).click()
        page.get_by_text("No trial has a score yet").wait_for()
        assert page.locator("section.card:visible").count() == 0


def test_numbers_of_an_axis_differ(page, tmp_path):
    folder = write_run(tmp_path / "run", reports=1)
    with MetricsWriter(folder, None) as writer:
        for report in range(3):
            writer.write(1024 * (report + 1), 1.0 + report, {"return_mean": [-0.016101 - 1e-6 * report]})
    with served(tmp_path) as server:
        open_run(page, server, "run")
        texts = page.locator("figure.chart").first.locator("svg text[text-anchor='end']").all_text_contents()
        assert len(texts) == len(set(texts)) > 2
        assert min(box["x"] for box in boxes(page.locator("figure.chart").first.locator("svg text"))) > 0


def boxes(found):
    return [one.bounding_box() for one in found.all()]


def test_a_token_is_asked_once(page, tmp_path):
    write_run(tmp_path / "mine")
    with served(tmp_path, token="open-sesame") as server:
        page.goto(server.url)
        page.get_by_role("link", name="mine").wait_for()
        assert "token" not in page.url


@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: npm install axe-core, or AXE=FILE")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_in_the_way_of_anybody(browser, tmp_path, theme):
    """axe-core finds no serious or critical fault in any view."""
    write_population(tmp_path / "population")
    write_run(tmp_path / "ring", learners=4, exchange="gossip", topology="ring", env_spread=0.5)
    write_run(tmp_path / "many", learners=40)
    write_sweep(tmp_path / "sweep")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "metrics.csv").touch()
    context = browser.new_context(color_scheme=theme, bypass_csp=True)
    page = context.new_page()
    with served(tmp_path) as server:
        listed = json.loads(server.answers.find("/api/runs").body)
        ids = {run["name"]: run["id"] for run in listed["runs"]}
        places = [
            f"sweep/{listed['sweeps'][0]['id']}",
            "",
            *(f"run/{id}" for id in ids.values()),
            f"run/{ids['ring']}/learner/1",
        ]
        places.append(f"compare?run={ids['ring']}&run={ids['many']}")
        for place in places:
            page.goto(f"{server.url}/#/{place}")
            page.reload()
            page.wait_for_timeout(700)
            page.add_script_tag(path=AXE)
            found = page.evaluate("axe.run()")["violations"]
            serious = [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found
                       if one["impact"] in ("serious", "critical")]  # fmt: skip
            assert serious == [], place
    context.close()
