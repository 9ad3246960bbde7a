// The settings of a run, those that differ from the preset first, and the command that trains it again.

import { h, setText } from "../dom.js";

export function settingsCard() {
  const command = h("pre", { class: "command", tabindex: 0, "aria-label": "Command" });
  const copy = h("button", { type: "button", onclick: copyCommand }, "Copy");
  const differing = h("tbody");
  const others = h("tbody");
  const table = (body) =>
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "setting"), h("th", { scope: "col" }, "value"))),
        body,
      ),
    );
  const none = h("p", { class: "soft" }, "All settings are the preset's.");
  const folder = h("p", { class: "soft" });
  const node = h(
    "section",
    { class: "card", hidden: true },
    h("h2", {}, "Settings"),
    h("p", { class: "soft" }, "This command trains such a run:"),
    command,
    copy,
    h("h3", {}, "What differs from the preset"),
    none,
    table(differing),
    h("details", {}, h("summary", {}, "All settings"), table(others)),
    folder,
  );
  let shown = "";

  async function copyCommand() {
    try {
      await navigator.clipboard.writeText(command.textContent);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(command);
      copy.textContent = "Selected: press Ctrl-C";
    }
    setTimeout(() => (copy.textContent = "Copy"), 2000);
  }

  return {
    node,
    update(run) {
      const text = JSON.stringify([run.settings, run.command]);
      if (text === shown) return;
      shown = text;
      const row = ({ name, value, differs }) =>
        h("tr", { class: differs ? "marked" : "" }, h("td", {}, name), h("td", { class: "name" }, value));
      const own = run.settings.filter((one) => one.differs);
      node.hidden = !run.settings.length;
      setText(command, run.command);
      setText(folder, `Files: ${run.folder}`);
      none.hidden = own.length > 0;
      differing.parentNode.parentNode.hidden = !own.length;
      differing.replaceChildren(...own.map(row));
      others.replaceChildren(...run.settings.map(row));
    },
  };
}
