// All runs: state, progress, score, speed; filtered, sorted, chosen for a comparison.

import { get } from "../api.js";
import { sparkline } from "../charts/spark.js";
import { breakable, h, setText } from "../dom.js";
import { ago, duration, number, plural, score } from "../format.js";

const COLUMNS = [
  ["", null],
  ["run", (run) => run.name],
  ["state", (run) => run.state],
  ["progress", (run) => run.step / (run.steps || 1)],
  ["mean return", (run) => run.mean ?? -Infinity],
  ["best", (run) => run.best ?? -Infinity],
  ["return over time", null],
  ["steps/s", (run) => run.speed ?? -Infinity],
  ["changed", (run) => run.changed],
];
const MEANING = {
  running: "is training now",
  done: "trained to its end",
  stopped: "was interrupted; the same command goes on",
  lost: "ended without saying so, as by a crash; the same command goes on",
  damaged: "has files that cannot be read",
};

export function overviewView(root) {
  document.title = "Shoal";
  const chosen = new Set();
  const rows = new Map(); // id -> {node, text}
  let data = null;
  let order = { column: "changed", down: true };

  const filter = h("input", {
    type: "search",
    placeholder: "Filter: name, state, setting",
    "aria-label": "Filter runs",
    oninput: show,
  });
  const compare = h("button", { type: "button", disabled: true, onclick: openComparison }, "Compare");
  const count = h("p", { class: "soft", role: "status" });
  const body = h("tbody");
  const head = h(
    "tr",
    {},
    COLUMNS.map(([name, by]) =>
      h(
        "th",
        { scope: "col" },
        by
          ? h("button", { type: "button", onclick: () => sortBy(name) }, name)
          : name || h("span", { class: "soft" }, "✓"),
      ),
    ),
  );
  const sort = h(
    "select", // a phone has no room for the head
    { class: "narrow", "aria-label": "Sort by", onchange: () => sortBy(sort.value) },
    COLUMNS.filter(([, by]) => by).map(([name]) => h("option", { selected: name === order.column }, name)),
  );
  const table = h("table", { class: "cards" }, h("thead", {}, head), body);
  const empty = h("p", { hidden: true });
  root.append(
    h("h1", {}, "Runs"),
    h("div", { class: "bar" }, filter, sort, compare),
    count,
    h("div", { class: "scroll" }, table),
    empty,
  );

  function sortBy(column) {
    order = { column, down: order.column === column ? !order.down : column !== "run" };
    show();
  }

  function openComparison() {
    location.hash = `#/compare?${[...chosen].map((id) => `run=${id}`).join("&")}`;
  }

  function choose(id, on) {
    on ? chosen.add(id) : chosen.delete(id);
    compare.disabled = chosen.size < 2;
    setText(compare, chosen.size ? `Compare ${chosen.size}` : "Compare");
  }

  function matches(run) {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = [run.name, run.state, run.env, run.algo, ...Object.entries(run.differs).flat()]
      .join(" ")
      .toLowerCase();
    return words.every((word) => text.includes(word));
  }

  function show() {
    if (!data) return;
    const by = COLUMNS.find(([name]) => name === order.column)[1];
    const sign = order.down ? -1 : 1;
    const all = [...data.runs, ...data.sweeps];
    const shown = all
      .filter(matches)
      .sort((a, b) => sign * (by(a) > by(b) ? 1 : by(a) < by(b) ? -1 : 0));
    [...head.children].forEach((cell, index) => {
      if (COLUMNS[index][0] === order.column)
        cell.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    const nodes = shown.map(rowOf);
    nodes.forEach(
      (node, index) => body.children[index] !== node && body.insertBefore(node, body.children[index] ?? null),
    );
    while (body.children.length > nodes.length) body.lastChild.remove();
    const kinds = [plural(data.runs.length, "run")];
    if (data.sweeps.length) kinds.push(plural(data.sweeps.length, "sweep"));
    const running = all.filter((run) => run.state === "running").length;
    setText(
      count,
      `${kinds.join(", ")}${running ? `, ${running} running` : ""}${shown.length < all.length ? `, ${shown.length} shown` : ""}`,
    );
    empty.hidden = all.length > 0;
    setText(
      empty,
      `There is no run below ${data.folders.join(" or ")} yet. shoal train CartPole-v1 begins one; it appears here.`,
    );
    table.hidden = !all.length;
  }

  function rowOf(run) {
    const text = JSON.stringify(run);
    const kept = rows.get(run.id);
    if (kept?.text === text) {
      setText(kept.changed, ago(run.changed));
      return kept.node;
    }
    const changed = h("span", {}, ago(run.changed));
    const cells = cellsOf(run, changed);
    const node = kept?.node ?? h("tr", { "data-run": run.id });
    const focused = kept && node.contains(document.activeElement) ? document.activeElement.tagName : null;
    node.replaceChildren(...cells);
    if (focused) node.querySelector(focused.toLowerCase())?.focus();
    rows.set(run.id, { node, text, changed });
    return node;
  }

  function cellsOf(run, changed) {
    const label = (name, ...children) => h("td", { class: "number", "data-label": name }, ...children);
    const differs = Object.entries(run.differs)
      .filter(([name]) => name !== "learners")
      .map(([name, value]) => `${name} ${value}`)
      .join(", ");
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Compare ${run.name}`,
      onchange: (event) => choose(run.id, event.target.checked),
    });
    box.checked = chosen.has(run.id);
    const share = run.steps ? run.step / run.steps : 0;
    const left = run.left ? `, ${duration(run.left)} left` : "";
    return [
      h("td", {}, run.state === "damaged" || run.programs ? "" : box),
      h(
        "td",
        { class: "name" },
        h("a", { href: `#/${run.programs ? "sweep" : "run"}/${run.id}` }, breakable(run.name)),
        h(
          "div",
          { class: "soft" },
          run.error ||
            [run.env, run.algo, counted(run), differs]
              .filter(Boolean)
              .join(", "),
        ),
      ),
      h("td", {}, h("span", { class: `state ${run.state}`, title: MEANING[run.state] }, run.state)),
      h(
        "td",
        { class: "progress" },
        run.state === "damaged"
          ? ""
          : [
              h("progress", { max: 1, value: share, "aria-label": `progress of ${run.name}` }),
              h("div", { class: "soft" }, `${number(run.step, 3)} of ${number(run.steps, 3)}${left}`),
            ],
      ),
      label("mean", score(run.mean)),
      label("best", score(run.best)),
      h("td", {}, run.spark.length ? sparkline(run.spark) : ""),
      label("steps/s", number(run.speed, 3)),
      label("", changed),
    ];
  }

  return {
    async refresh() {
      data = await get("/api/runs");
      show();
    },
  };
}

function counted(run) {
  if (run.programs) return `sweep of ${plural(run.programs, "program")}`;
  return run.learners > 1 ? plural(run.learners, "learner") : "";
}

export const meaning = (state) => MEANING[state];
