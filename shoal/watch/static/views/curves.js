// A run's metrics as charts: what the lines of one learner, of a few and of many are.

import { get, query } from "../api.js";
import { heatmap } from "../charts/heatmap.js";
import { lineChart } from "../charts/lines.js";
import { colour, h } from "../dom.js";

const FEW = 7;

// What a line chart shows of one metric: `learner` is picked out, or else the `best` one.
export function asLines(curve, learner = null, best = null) {
  const shared = { x: curve.x, title: curve.label, xLabel: "steps per learner", bands: [] };
  const averaged = curve.perPoint > 1 ? ` Each point is the mean of ${curve.perPoint} reports.` : "";
  if (curve.learners === 1) {
    return { ...shared, series: [{ name: "", values: curve.mean, colour: colour(0) }], caption: averaged };
  }
  const mean = {
    name: `mean of ${curve.learners}`,
    values: curve.mean,
    colour: "var(--text)",
    width: 2,
    dashed: true,
  };
  const own =
    learner === null || !curve.line
      ? []
      : [
          {
            name: `learner ${learner}`,
            label: `learner ${learner}`,
            values: curve.line,
            colour: colour(1),
            width: 2.6,
          },
        ];
  if (!curve.lines) {
    const bands = [
      { low: curve.nine[0], high: curve.nine[1], colour: colour(0), opacity: 0.15 },
      { low: curve.half[0], high: curve.half[1], colour: colour(0), opacity: 0.3 },
    ];
    const caption = `Pale: nine of ten of ${curve.learners} learners; darker: the middle half; dashed: their mean.${averaged}`;
    return {
      ...shared,
      bands,
      series: [{ ...mean, colour: own.length ? "var(--soft)" : colour(0), label: "mean" }, ...own],
      caption,
    };
  }
  const few = curve.learners <= FEW && !own.length;
  const lines = curve.lines.map((values, index) => {
    const first = index === best && !own.length;
    return {
      name: `learner ${index}`,
      key: index,
      values,
      colour: colour(few ? index : first ? 1 : 0),
      width: few || first ? 1.8 : 1,
      opacity: few || first ? 1 : 0.45,
      label: few ? `learner ${index}` : first ? `best: ${index}` : null,
    };
  });
  const caption = `${few ? "A line" : "A thin line"} for each learner; dashed: their mean.${averaged}`;
  return { ...shared, series: [...lines, mean, ...own], caption };
}

// The large chart has the return.
export const withoutReturn = (metrics) => metrics.filter(({ name }) => name !== "return_mean");

export function openLearner(id) {
  return (learner) => (location.hash = `#/run/${id}/learner/${learner}`);
}

// A large chart of one metric, with a heatmap below it where learners are many.
export function mainChart(id) {
  const lines = lineChart({ height: 320, onPick: openLearner(id) });
  const heat = heatmap({ onPick: openLearner(id) });
  heat.node.hidden = true;
  const node = h("div", {}, lines.node, heat.node);
  let drawn = null;
  return {
    node,
    async refresh(metric, best) {
      const [curve] = await get(`/api/runs/${id}/curves?${query({ metric, heat: 1 })}`);
      if (curve === drawn) return curve;
      drawn = curve;
      heat.node.hidden = !curve?.heat || Boolean(curve.lines);
      lines.update(
        curve ? asLines(curve, null, best) : { x: [], series: [], bands: [], title: metric, xLabel: "steps" },
      );
      if (!heat.node.hidden) heat.update({ heat: curve.heat, x: curve.x, title: curve.label });
      return curve;
    },
  };
}

// Small charts of a group of metrics, read while the group is open.
export function metricGroup(id, title, metrics, open, learner = null) {
  const charts = new Map();
  const grid = h("div", { class: "grid" });
  const node = h("details", { class: "card", open, hidden: !metrics.length }, h("summary", {}, title), grid);
  node.addEventListener("toggle", () => refresh(best).catch(() => {}));
  let drawn = null;
  let best; // the best learner; not known before the first refresh of the whole page

  async function refresh(bestNow) {
    best = bestNow;
    if (!metrics.length || !node.open || best === undefined) return;
    const pairs = metrics.map(({ name }) => ["metric", name]);
    if (learner !== null) pairs.push(["learner", learner]);
    const curves = await get(`/api/runs/${id}/curves?${query(pairs)}`);
    if (curves === drawn) return;
    drawn = curves;
    for (const curve of curves) {
      if (!charts.has(curve.metric)) {
        const chart = lineChart({ height: 180, onPick: learner === null ? openLearner(id) : null });
        charts.set(curve.metric, chart);
        grid.append(h("div", {}, h("h3", {}, curve.label), chart.node));
      }
      const lines = asLines(curve, learner, best);
      const short = (one) => ({ ...one, label: one.label?.replace(/^learner /, "") });
      charts.get(curve.metric).update({ ...lines, series: lines.series.map(short), caption: "" });
    }
    if (!curves.length) grid.replaceChildren(h("p", { class: "soft" }, "No values yet."));
  }

  return { node, refresh };
}
