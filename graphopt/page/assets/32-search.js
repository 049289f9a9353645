/*
 * Search in both graphs: all words of the query must occur, in names and operators of nodes, names of their values,
 * or rules. A word such as `op:Conv`, `name:`, `value:`, `rule:` or `type:` is limited to this field.
 */
(() => {
  const LISTED = 200;
  const FIELDS = ["name", "op", "value", "rule", "type"];

  function fieldsOf(graph, node) {
    const { inputs, outputs } = graph.data.nodes;
    const values = [...inputs[node], ...outputs[node]].filter((value) => value >= 0);
    return {
      name: graph.nodeName(node), op: graph.op(node), rule: graph.maker(node) || "",
      value: values.map((value) => graph.valueName(value)).join("\n"), type: values.map((value) => graph.valueType(value)).join("\n"),
    };
  }

  /** Lower-case texts of all nodes of a graph, built by the first search. */
  function textsOf(graph) {
    graph.searchTexts ||= Array.from({ length: graph.size }, (_, node) => {
      const fields = fieldsOf(graph, node);
      for (const field of FIELDS) fields[field] = fields[field].toLowerCase();
      fields.any = [fields.name, fields.op, fields.value, fields.rule].join("\n");
      return fields;
    });
    return graph.searchTexts;
  }

  function wordsOf(query) {
    return query.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
      const [field, ...rest] = word.split(":");
      return rest.length && FIELDS.includes(field) ? [field, rest.join(":")] : ["any", word];
    });
  }

  /** The nodes that match: per graph, their indexes; exact names first. */
  page.search = (query) => {
    const words = wordsOf(query);
    return page.graphs.map((graph) => {
      if (!words.length) return [];
      const texts = textsOf(graph);
      const found = [];
      for (let node = 0; node < graph.size; node++) if (words.every(([field, word]) => texts[node][field].includes(word))) found.push(node);
      const exact = (node) => words.some(([, word]) => texts[node].name === word || texts[node].op === word);
      return [...found.filter(exact), ...found.filter((node) => !exact(node))];
    });
  };

  /** The field and the list of matches; `select(graph, node)` is called for the chosen one. */
  page.searchPanel = ({ select, highlight }) => {
    const input = page.el("input", {
      type: "search", class: "search", placeholder: "Search nodes, values, rules  ( / )", "aria-label": "Search nodes, operators, values and rules",
      role: "combobox", "aria-expanded": "false", "aria-controls": "search-results", autocomplete: "off", spellcheck: "false",
    });
    const count = page.el("p", { class: "search-count", role: "status" });
    const list = page.el("ul", { id: "search-results", class: "results", role: "listbox", "aria-label": "Matches" });
    const help = page.el("p", { class: "hint", text: "Search: all words must match. Limit a word to a field by name: op: value: rule: or type:, for example op:conv rule:fuse." });
    let active = -1;

    function run() {
      const found = page.search(input.value);
      const total = found.reduce((sum, nodes) => sum + nodes.length, 0);
      help.hidden = total > 0;
      input.setAttribute("aria-expanded", String(total > 0));
      const rows = [];
      const each = Math.ceil(LISTED / Math.max(1, found.filter((nodes) => nodes.length).length));
      found.forEach((nodes, position) => {
        const graph = page.graphs[position];
        for (const node of nodes.slice(0, each)) {
          rows.push(page.el("li", {
            role: "option", id: `match-${rows.length}`, "aria-selected": "false", onclick: () => select(position, node), title: graph.nodeName(node),
          }, [
            page.el("span", { class: "result-op", text: graph.op(node) }), page.el("span", { class: "result-name", text: graph.nodeName(node) }),
            page.graphs.length > 1 ? page.el("span", { class: "result-graph", text: graph.data.id === "original" ? "original" : "result" }) : null,
          ]));
        }
      });
      list.replaceChildren(...rows);
      active = -1;
      count.textContent = !input.value.trim() ? "" : total === 0 ? "No node matches." : `${page.format.count(total)} ${total === 1 ? "node matches" : "nodes match"}${total > rows.length ? `, ${rows.length} listed` : ""}.`;
      highlight(found);
    }

    function activate(index) {
      const rows = [...list.children];
      if (!rows.length) return;
      active = Math.max(0, Math.min(index, rows.length - 1));
      rows.forEach((row, position) => row.setAttribute("aria-selected", String(position === active)));
      rows[active].scrollIntoView({ block: "nearest" });
      input.setAttribute("aria-activedescendant", rows[active].id);
    }

    let timer = null;
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(run, 60);
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") activate(active + 1);
      else if (event.key === "ArrowUp") activate(active - 1);
      else if (event.key === "Enter") {
        clearTimeout(timer);
        const chosen = list.children[Math.max(active, 0)];
        if (active < 0) run();
        (chosen?.isConnected ? chosen : list.children[0])?.click();
        return;
      } else if (event.key === "Escape") {
        input.value = "";
        run();
        return;
      } else return;
      event.preventDefault();
    });
    return { input, element: page.el("div", { class: "search-panel" }, [count, help, list]), run };
  };
})();
