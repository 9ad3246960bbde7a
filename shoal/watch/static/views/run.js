// One run: how far, how good, every metric, its learners, what they do together, films, settings.

import { get } from "../api.js";
import { breakable, h, setText } from "../dom.js";
import { duration, number, score, whole } from "../format.js";
import { mainChart, metricGroup, withoutReturn } from "./curves.js";
import { filmsCard } from "./films.js";
import { meaning } from "./overview.js";
import { settingsCard } from "./settings.js";
import { togetherCards } from "./together.js";

const OPEN = ["Score", "Losses", "Teams and agents", "Learning together", "Evaluation"];
const LISTED = 10;

function attendance({ meeting, learners }) {
  return meeting ? `${whole(meeting.came)} of ${whole(learners)} learners, meeting ${whole(meeting.round)}` : "";
}

export function runView(root, id) {
  const state = h("span", { class: "state" });
  const title = h("h1");
  const progress = h("progress", { max: 1, value: 0, "aria-label": "progress" });
  const facts = h("dl", { class: "facts" });
  const notes = h("div");
  const select = h("select", { "aria-label": "Metric", onchange: () => refresh().catch(() => {}) });
  const main = mainChart(id);
  const learners = h("div");
  const chart = h("section", { class: "card" }, h("div", { class: "bar" }, select), main.node, learners);
  const together = togetherCards(id);
  const groups = h("div");
  const films = filmsCard(id);
  const settings = settingsCard();
  root.append(
    h("p", {}, h("a", { href: "#/" }, "All runs")),
    title,
    h("div", { class: "bar" }, state, progress),
    facts,
    notes,
    chart,
    together.node,
    films.node,
    groups,
    settings.node,
  );
  let data = null;
  let shownMetrics = "";
  let opened = [];

  function fact(name, value) {
    return value === "–" || value === "" ? [] : [h("div", {}, h("dt", {}, name), h("dd", {}, value))];
  }

  function showHead() {
    document.title = `${data.name} – Shoal`;
    if (title.textContent !== data.name) title.replaceChildren(...breakable(data.name));
    setText(state, data.state);
    state.className = `state ${data.state}`;
    state.title = meaning(data.state);
    progress.value = data.steps ? data.step / data.steps : 0;
    facts.replaceChildren(
      ...fact("steps per learner", data.steps ? `${number(data.step, 3)} of ${number(data.steps, 3)}` : ""),
      ...fact("time left", data.left ? duration(data.left) : ""),
      ...fact("trained for", data.seconds ? duration(data.seconds) : ""),
      ...fact(data.learners > 1 ? "mean return" : "return", score(data.mean)),
      ...(data.learners > 1 ? fact("best return", score(data.best)) : []),
      ...fact(data.learners > 1 ? "steps/s of all" : "steps/s", number(data.speed, 3)),
      ...fact("learners", data.learners > 1 ? whole(data.learners) : ""),
      ...fact("last meeting", attendance(data)),
      ...fact("environment", data.env),
      ...fact("algorithm", data.algo),
    );
    const warnings = [...new Set([data.error, ...data.notes].filter(Boolean))];
    notes.replaceChildren(...warnings.map((text) => h("p", { class: "note" }, text)));
  }

  function showMetrics() {
    const text = JSON.stringify(data.metrics);
    if (text === shownMetrics) return;
    shownMetrics = text;
    const before = select.value || "return_mean";
    select.replaceChildren(
      ...Object.entries(data.metrics).map(([group, metrics]) =>
        h(
          "optgroup",
          { label: group },
          metrics.map(({ name, label }) => h("option", { value: name }, label)),
        ),
      ),
    );
    select.value = before;
    if (!select.value) select.selectedIndex = 0;
    const wasOpen = new Map(opened.map((group) => [group.title, group.node.open]));
    opened = Object.entries(data.metrics).map(([name, metrics]) => ({
      title: name,
      ...metricGroup(id, name, withoutReturn(metrics), wasOpen.get(name) ?? OPEN.includes(name)),
    }));
    groups.replaceChildren(...opened.map((group) => group.node));
    chart.hidden = !opened.length;
  }

  function showLearners(curve) {
    if (!curve || curve.learners < 2 || learners.dataset.of === JSON.stringify(curve.heat?.order)) return;
    learners.dataset.of = JSON.stringify(curve.heat?.order);
    const order = curve.heat?.order ?? [];
    const link = (learner) => h("a", { href: `#/run/${id}/learner/${learner}` }, String(learner));
    const listed = (part) => part.flatMap((learner, index) => [index ? ", " : "", link(learner)]);
    const many = order.length > 2 * LISTED;
    const number = h("input", {
      type: "number",
      min: 0,
      max: curve.learners - 1,
      "aria-label": "Number of a learner",
      placeholder: `0 to ${curve.learners - 1}`,
    });
    const go = (event) => {
      event.preventDefault();
      if (number.value !== "") location.hash = `#/run/${id}/learner/${number.value}`;
    };
    learners.replaceChildren(
      h(
        "p",
        { class: "soft" },
        many ? "Highest learners: " : "Learners, the highest first: ",
        listed(many ? order.slice(0, LISTED) : order),
      ),
      many ? h("p", { class: "soft" }, "Lowest learners: ", listed(order.slice(-LISTED))) : "",
      many ? h("form", { class: "bar", onsubmit: go }, number, h("button", {}, "Open this learner")) : "",
    );
  }

  async function refresh() {
    const fresh = await get(`/api/runs/${id}`);
    if (fresh !== data) {
      data = fresh;
      showHead();
      showMetrics();
      films.update(data.films);
      settings.update(data);
    }
    if (!opened.length) {
      notes.replaceChildren(
        ...(data.notes.length || data.error
          ? [...notes.children]
          : [h("p", { class: "note" }, "No report yet: the program is compiled first.")]),
      );
      return;
    }
    showLearners(await main.refresh(select.value, data.bestLearner));
    await Promise.all([together.refresh(data), ...opened.map((group) => group.refresh(data.bestLearner))]);
  }

  return { refresh };
}
