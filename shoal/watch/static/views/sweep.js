// A sweep: its trials as parallel coordinates, which settings matter, a table.

import { get } from "../api.js";
import { bars } from "../charts/bars.js";
import { parallel } from "../charts/parallel.js";
import { breakable, h, setText } from "../dom.js";
import { number, plural, score, whole } from "../format.js";

export function sweepView(root, id) {
  const title = h("h1");
  const said = h("p", { class: "soft" });
  const filters = h("div", { class: "bar" });
  const chart = parallel(showChosen);
  const importance = bars();
  const matter = h(
    "section",
    { class: "card" },
    h("h2", {}, "Importance"),
    h("p", { class: "soft" }, "The share of the trials' ranks that each setting explains on its own."),
    importance.node,
  );
  const rows = h("tbody");
  const head = h("tr");
  const programs = h("p", { class: "soft" });
  const trials = h(
    "div",
    { hidden: true },
    h("section", { class: "card" }, h("h2", {}, "Trials"), chart.node, filters),
    matter,
    h(
      "section",
      { class: "card" },
      h("div", { class: "scroll" }, h("table", {}, h("thead", {}, head), rows)),
    ),
  );
  root.append(
    h("p", {}, h("a", { href: "#/" }, "All runs")),
    title,
    said,
    trials,
    programs,
  );
  let data = null;

  function showChosen(chosen) {
    [...rows.children].forEach((row) => (row.hidden = !chosen.has(Number(row.dataset.trial))));
  }

  function show() {
    document.title = `${data.name} – Shoal`;
    if (title.textContent !== data.name) title.replaceChildren(...breakable(data.name));
    const scored = data.trials.filter((trial) => trial.mean !== null);
    setText(
      said,
      data.trials.length
        ? `${plural(data.trials.length, "trial")} by ${data.method} search, ${scored.length} with a score`
        : "No trial has a score yet.",
    );
    trials.hidden = !data.trials.length;
    chart.update(data);
    filters.replaceChildren(...chart.filters());
    matter.hidden = !Object.keys(data.importance).length;
    importance.update(data.importance);
    const names = ["trial", ...data.axes, "state", "steps", "mean return", "of each seed"];
    head.replaceChildren(...names.map((name) => h("th", { scope: "col" }, name.replaceAll("_", " "))));
    const numbered = new Map(data.trials.map((trial) => [trial.number, trial]));
    rows.replaceChildren(
      ...data.order.map((number) => numbered.get(number)).map((trial, rank) =>
        h(
          "tr",
          { "data-trial": trial.number, class: rank || trial.mean === null ? "" : "best" },
          h("td", {}, trial.number),
          trial.values.map((value) => h("td", {}, value)),
          h("td", {}, trial.state),
          h("td", { class: "number" }, whole(trial.steps)),
          h("td", { class: "number" }, score(trial.mean)),
          h("td", {}, trial.scores.map((one) => number(one)).join("  ")),
        ),
      ),
    );
    programs.replaceChildren(
      "Programs: ",
      ...data.programs.flatMap((one, index) => [
        index ? ", " : "",
        h("a", { href: `#/run/${one.id}` }, one.name.split("/").at(-1)),
      ]),
    );
  }

  return {
    async refresh() {
      const fresh = await get(`/api/sweeps/${id}`);
      if (fresh === data) return;
      data = fresh;
      show();
    },
  };
}
