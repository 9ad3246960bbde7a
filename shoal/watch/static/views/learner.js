// One learner of a run: its curves among the others', its hyperparameters, its world, its films.

import { get, query } from "../api.js";
import { lineChart } from "../charts/lines.js";
import { h, setText } from "../dom.js";
import { number, whole } from "../format.js";
import { asLines, metricGroup, withoutReturn } from "./curves.js";
import { filmsCard } from "./films.js";

export function learnerView(root, id, text) {
  const learner = Number(text);
  const title = h("h1", {}, `Learner ${learner}`);
  const back = h("a", { href: `#/run/${id}` }, "the run");
  const ways = h("p", {}, back, " ");
  const main = lineChart({ height: 300 });
  const facts = h("dl", { class: "facts" });
  const films = filmsCard(id, (name) => new RegExp(`learner_${learner}\\.`).test(name));
  const groups = h("div");
  root.append(
    ways,
    title,
    facts,
    h("section", { class: "card" }, h("h2", {}, "Return"), main.node),
    films.node,
    groups,
  );
  let run = null;
  let opened = [];
  let drawn = null;
  let told = {};

  function showRun() {
    document.title = `Learner ${learner} of ${run.name} – Shoal`;
    setText(back, run.name);
    const near = [learner - 1, learner + 1].filter((other) => other >= 0 && other < run.learners);
    ways.replaceChildren(
      back,
      ...near.flatMap((other) => [
        " · ",
        h("a", { href: `#/run/${id}/learner/${other}` }, `learner ${other}`),
      ]),
    );
    films.update(run.films);
    if (opened.length) return;
    opened = Object.entries(run.metrics).map(([name, metrics]) =>
      metricGroup(id, name, withoutReturn(metrics), name === "Losses" || name === "Score", learner),
    );
    groups.replaceChildren(...opened.map((group) => group.node));
  }

  async function about(part) {
    if (!run[part]) return;
    try {
      told[part] = await get(`/api/runs/${id}/${part}`);
    } catch (error) {
      if (error.status !== 422) throw error;
    }
  }

  function showFacts(curve) {
    const rows = [];
    const last = curve?.line?.filter((value) => value !== null).at(-1);
    if (last !== undefined) rows.push(["return", number(last)]);
    if (told.lineage) {
      const { hypers, replaced } = told.lineage;
      for (const [name, values] of Object.entries(hypers)) rows.push([name, number(values.at(-1)[learner])]);
      const copied = replaced.filter((one) => one.learner === learner).at(-1);
      if (copied) rows.push(["copied from", `learner ${copied.parent} at step ${whole(copied.step)}`]);
    }
    if (told.graph) {
      const links = told.graph.graphs.flatMap((graph) => graph.links ?? []);
      const from = links.filter(([to]) => to === learner).map(([, sender]) => sender);
      if (from.length && from.length <= 12)
        rows.push(["receives from", from.sort((a, b) => a - b).join(", ")]);
      if (told.graph.graphs.some((graph) => learner >= run.learners - graph.attackers))
        rows.push(["role", "attacker"]);
    }
    for (const [name, values] of Object.entries(told.worlds?.worlds ?? {}))
      rows.push([`world: ${name.replaceAll("_", " ")}`, number(values[learner])]);
    facts.replaceChildren(
      ...rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
    );
  }

  return {
    async refresh() {
      const fresh = await get(`/api/runs/${id}`);
      if (fresh !== run) {
        run = fresh;
        showRun();
        if (learner >= run.learners)
          setText(title, `There is no learner ${learner}: this run has ${run.learners}`);
        await Promise.all(["lineage", "graph", "worlds"].map(about));
      }
      const [curve] = await get(`/api/runs/${id}/curves?${query({ metric: "return_mean", learner })}`);
      if (curve && curve !== drawn) {
        drawn = curve;
        main.update(asLines(curve, learner));
        showFacts(curve);
      }
      await Promise.all(opened.map((group) => group.refresh(null)));
    },
  };
}
