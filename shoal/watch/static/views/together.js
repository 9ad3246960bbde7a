// What learners do together: the lineage of a population, the graph of a federation, worlds and scores.

import { get } from "../api.js";
import { network } from "../charts/network.js";
import { scatter } from "../charts/scatter.js";
import { pathsChart, treeChart } from "../charts/tree.js";
import { h } from "../dom.js";
import { whole } from "../format.js";
import { openLearner } from "./curves.js";

const LATEST = 20;

export function togetherCards(id) {
  const parts = { lineage: lineageCard(id), graph: graphCard(id), worlds: worldsCard(id) };
  return {
    node: h(
      "div",
      {},
      Object.values(parts).map((part) => part.node),
    ),
    async refresh(run) {
      for (const [name, part] of Object.entries(parts)) {
        part.node.hidden = !run[name];
        if (!run[name]) continue;
        try {
          part.show(await get(`/api/runs/${id}/${name}`));
        } catch (error) {
          if (error.status !== 422) throw error;
          part.say(error.message);
        }
      }
    },
  };
}

function card(title, text) {
  const body = h("div");
  const said = h("p", { class: "soft" }, text);
  const node = h("section", { class: "card", hidden: true }, h("h2", {}, title), said, body);
  let drawn = null;
  return {
    node,
    body,
    say: (message) => (said.textContent = message),
    isNew: (data) => data !== drawn && ((drawn = data), true),
  };
}

function lineageCard(id) {
  const own = card(
    "Lineage",
    "Every learner is a line. A line that ends was replaced; where a line branches, a learner was copied. Orange: the ancestors of the best.",
  );
  const tree = treeChart(openLearner(id));
  const paths = new Map();
  const grid = h("div", { class: "grid" });
  const replaced = h("tbody");
  own.body.append(
    tree.node,
    h("h3", {}, "Hyperparameters"),
    grid,
    h(
      "details",
      {},
      h("summary", {}, "Who was replaced"),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          {},
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["step", "learner", "became a copy of"].map((name) => h("th", { scope: "col" }, name)),
            ),
          ),
          replaced,
        ),
      ),
    ),
  );
  return {
    ...own,
    show(data) {
      if (!own.isNew(data)) return;
      tree.update(data);
      for (const [name, values] of Object.entries(data.hypers)) {
        if (!paths.has(name)) {
          paths.set(name, pathsChart());
          grid.append(h("div", {}, h("h3", {}, name), paths.get(name).node));
        }
        paths.get(name).update({ ...data, name, values });
      }
      replaced.replaceChildren(
        ...data.replaced
          .slice(-LATEST)
          .reverse()
          .map((one) =>
            h("tr", {}, h("td", {}, whole(one.step)), h("td", {}, one.learner), h("td", {}, one.parent)),
          ),
      );
    },
  };
}

function graphCard(id) {
  const own = card("Who sends to whom", "");
  const drawing = network(openLearner(id));
  own.body.append(drawing.node);
  return {
    ...own,
    show(data) {
      if (!own.isNew(data)) return;
      const graph = data.graphs.find((one) => one.links) ?? data.graphs[0];
      const attackers = graph.attackers ? ` The last ${graph.attackers} learners attack.` : "";
      own.say(
        `${graph.links ? "The colour of a learner is its return." : `${graph.exchange}: every learner exchanges with all others, by way of a server or in changing pairs. The colour of a learner is its return.`}${attackers}`,
      );
      drawing.update({ ...data, ...graph });
    },
  };
}

function worldsCard(id) {
  const own = card("Worlds", "Each learner's return over what differs in its world.");
  const grid = h("div", { class: "grid" });
  const charts = new Map();
  own.body.append(grid);
  return {
    ...own,
    show(data) {
      if (!own.isNew(data)) return;
      for (const [name, values] of Object.entries(data.worlds)) {
        if (!charts.has(name)) {
          charts.set(name, scatter(openLearner(id)));
          grid.append(h("div", {}, h("h3", {}, name.replaceAll("_", " ")), charts.get(name).node));
        }
        charts
          .get(name)
          .update({ x: values, y: data.scores, xLabel: name.replaceAll("_", " "), title: "return" });
      }
    },
  };
}
