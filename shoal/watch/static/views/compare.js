// Several runs on one chart, with the interval of each; runs that differ in the seed alone are one curve.

import { get, query } from "../api.js";
import { lineChart } from "../charts/lines.js";
import { breakable, colour, h } from "../dom.js";
import { number } from "../format.js";

export function compareView(root, params) {
  document.title = "Comparison – Shoal";
  const runs = params.getAll("run");
  const select = h(
    "select",
    { "aria-label": "Metric", onchange: () => refresh().catch(() => {}) },
    h("option", { value: "return_mean" }, "episode return"),
  );
  const chart = lineChart({ height: 380 });
  const rows = h("tbody");
  const note = h("p", { class: "note", hidden: true });
  const head = ["curve", "runs", "learners", "last mean"].map((name, index) =>
    h("th", { scope: "col", class: index ? "number" : "" }, name),
  );
  root.append(
    h("p", {}, h("a", { href: "#/" }, "All runs")),
    h("h1", {}, "Comparison"),
    h("div", { class: "bar" }, select),
    note,
    h(
      "section",
      { class: "card" },
      chart.node,
      h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head)), rows)),
    ),
  );
  let drawn = null;
  let filled = false;

  async function fillMetrics() {
    filled = true;
    const { metrics } = await get(`/api/runs/${runs[0]}`);
    const groups = Object.entries(metrics).map(([group, list]) =>
      h(
        "optgroup",
        { label: group },
        list.map(({ name, label }) => h("option", { value: name }, label)),
      ),
    );
    if (groups.length) select.replaceChildren(...groups);
    select.value = "return_mean";
  }

  async function refresh() {
    if (!filled) await fillMetrics();
    const data = await get(
      `/api/compare?${query([["metric", select.value], ...runs.map((run) => ["run", run])])}`,
    );
    if (data === drawn) return;
    drawn = data;
    note.hidden = !data.missing.length;
    note.textContent = `Without this metric: ${data.missing.join(", ")}`;
    const names = data.curves.map((curve) => curve.label);
    chart.update({
      x: [],
      title: data.label,
      xLabel: "steps per learner",
      caption: "Lines: means of the learners; bands: their 95 % bootstrap intervals.",
      bands: data.curves.flatMap((curve, index) =>
        Array.isArray(curve.band)
          ? [{ x: curve.x, low: curve.band[0], high: curve.band[1], colour: colour(index) }]
          : [],
      ),
      series: data.curves.map((curve, index) => ({
        x: curve.x,
        name: names[index],
        values: curve.mean,
        colour: colour(index),
        width: 2,
        dashed: index > 6,
        label: number(curve.last),
      })),
    });
    rows.replaceChildren(
      ...data.curves.map((curve, index) => {
        const swatch = h("span", { class: "swatch", "aria-hidden": "true" });
        swatch.style.background = colour(index);
        return h(
          "tr",
          {},
          h("td", { class: "name" }, swatch, breakable(curve.label)),
          ...[curve.runs, curve.learners].map((count) => h("td", { class: "number" }, count)),
          h("td", { class: "number" }, number(curve.last)),
        );
      }),
    );
  }

  return { refresh };
}
