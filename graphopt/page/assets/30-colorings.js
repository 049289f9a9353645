/*
 * Colourings of the nodes: functions from nodes to colours with a legend. Sections add their own by
 * `page.addColoring({name, label, color(graph, node) → CSS colour or null, legend() → [[label, color]]})`.
 */
(() => {
  const NAMED = 7; // entries of a legend with a colour of their own
  const colorings = new Map();

  /** The colouring by a column of indexes: the most frequent entries have colours, the others share grey. */
  function byColumn(name, label, column, text) {
    let colors = null; // per graph: index → colour
    let entries = null;
    function rank() {
      const counts = new Map();
      for (const graph of page.graphs) {
        for (const index of graph.data.nodes[column]) {
          if (index >= 0) counts.set(text(graph, index), (counts.get(text(graph, index)) || 0) + 1);
        }
      }
      const ranked = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
      const palette = new Map(ranked.slice(0, NAMED).map(([entry], index) => [entry, page.category(index)]));
      colors = page.graphs.map(() => new Map());
      entries = ranked.slice(0, NAMED).map(([entry]) => [entry, palette.get(entry)]);
      if (ranked.length > NAMED) entries.push([`${ranked.length - NAMED} others`, "var(--category-other)"]);
      return palette;
    }
    let palette = null;
    return {
      name, label,
      color(position, node) {
        palette ||= rank();
        const graph = page.graphs[position];
        const index = graph.data.nodes[column][node];
        if (index < 0) return null;
        const known = colors[position];
        if (!known.has(index)) known.set(index, palette.get(text(graph, index)) || "var(--category-other)");
        return known.get(index);
      },
      legend() {
        palette ||= rank();
        return entries;
      },
      empty: () => page.graphs.every((graph) => graph.data.nodes[column].every((index) => index < 0)),
    };
  }

  const FATE_COLORS = [null, "var(--fate-made)", "var(--fate-folded)", "var(--fate-removed)", "var(--fate-absorbed)"];
  const FATE_LABELS = ["", "made or replaced", "folded into a constant", "removed", "absorbed by another node"];

  const builtIn = [
    {
      name: "fate", label: "change",
      color: (position, node) => FATE_COLORS[page.graphs[position].data.nodes.fate[node]],
      legend() {
        const present = new Set(page.graphs.flatMap((graph) => graph.data.nodes.fate));
        return FATE_LABELS.map((label, fate) => [`${page.fateMarks[fate]} ${label}`, FATE_COLORS[fate], fate]).filter(([, , fate]) => fate && present.has(fate));
      },
      empty: () => page.graphs.every((graph) => graph.data.nodes.fate.every((fate) => fate === 0)),
    },
    byColumn("maker", "rule or pass", "by", (graph, index) => page.payload.makers[index]),
    byColumn("operator", "operator", "op", (graph, index) => graph.data.ops[index]),
    byColumn("group", "group", "group", (graph, index) => graph.data.groups[index].name),
    byColumn("kind", "kind of group", "group", (graph, index) => graph.data.groups[index].kind),
    byColumn("device", "device", "device", (graph, index) => graph.data.devices[index]),
    { name: "none", label: "none", color: () => null, legend: () => [] },
  ];

  page.addColoring = (coloring) => {
    colorings.set(coloring.name, coloring);
    page.emit("colorings");
  };

  /** Colour the nodes of both graphs; an unknown name is an error. */
  page.colorBy = (name) => {
    if (!colorings.has(name)) throw new Error(`no colouring has the name ${name}`);
    page.currentColoring = colorings.get(name);
    page.emit("coloring", name);
  };

  builtIn.filter((coloring) => !coloring.empty || !coloring.empty()).forEach(page.addColoring);
  page.colorings = colorings;
  page.currentColoring = colorings.get(["fate", "maker", "operator", "none"].find((name) => colorings.has(name)));
})();
