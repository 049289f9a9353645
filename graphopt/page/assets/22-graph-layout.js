/*
 * Positions in pixels of the boxes of a graph, for any choice of expanded scopes.
 *
 * Each layout of the payload assigns to its children a layer and an x coordinate in units of boxes. A layer is as high
 * as its tallest child; an expanded scope is a frame around its own layout. Children of a layer move apart as far as
 * their widths require: their positions minimize the squared distances to the desired ones, in the given order
 * (isotonic regression by pooling adjacent violators).
 */
(() => {
  const KIND = { node: 0, scope: 1, frame: 2, input: 3, output: 4 };
  const UNIT = 148; // pixels of one unit of x
  const GAP = 20; // between neighbours of a layer
  const LAYER_GAP = 44;
  const PADDING = 16; // inside frames
  const HEADER = 26; // of frames
  const HEIGHT = { 0: 40, 1: 52, 3: 30, 4: 30 };
  const WIDTH = [72, 200]; // of boxes: minimum and maximum
  const FONT = '"Segoe UI", system-ui, -apple-system, "Liberation Sans", Roboto, sans-serif';
  const HEAD = `600 12.5px ${FONT}`; // of the first line of a box
  const LINE = `10.5px ${FONT}`; // of its second line
  const rulers = new Map(); // font → {context, widths of texts}

  /** The width of a text in pixels at scale 1. */
  function textWidth(font, text) {
    if (!rulers.has(font)) {
      const context = document.createElement("canvas").getContext("2d");
      context.font = font;
      rulers.set(font, { context, widths: new Map() });
    }
    const { context, widths } = rulers.get(font);
    if (!widths.has(text)) widths.set(text, context.measureText(text).width);
    return widths.get(text);
  }

  function boxWidth(head, line = "") {
    const longest = Math.max(textWidth(HEAD, head.slice(0, 40)), textWidth(LINE, line));
    return Math.min(WIDTH[1], Math.max(WIDTH[0], 26 + longest));
  }

  /** Centres that keep the order and the distances of boxes of the given widths, close to `desired`. */
  function spread(desired, widths) {
    const blocks = []; // [sum of desired positions without offsets, number of boxes]
    const offsets = [];
    let offset = 0;
    desired.forEach((position, index) => {
      if (index) offset += (widths[index - 1] + widths[index]) / 2 + GAP;
      offsets.push(offset);
      blocks.push([position - offset, 1]);
      while (blocks.length > 1 && blocks.at(-2)[0] / blocks.at(-2)[1] >= blocks.at(-1)[0] / blocks.at(-1)[1]) {
        const [sum, count] = blocks.pop();
        blocks.at(-1)[0] += sum;
        blocks.at(-1)[1] += count;
      }
    });
    const result = [];
    for (const [sum, count] of blocks) for (let index = 0; index < count; index++) result.push(sum / count + offsets[result.length]);
    return result;
  }

  class GraphLayout {
    /** `expanded` is the set of expanded scopes, or null for the flat layout without scopes. */
    constructor(graph, expanded) {
      this.graph = graph;
      this.expanded = expanded;
      this.boxes = []; // frames precede their contents
      this.boxOfNode = new Int32Array(graph.size).fill(-1);
      this.boxOfScope = new Map();
      this.boxOfInput = new Map();
      this.boxOfOutput = new Map();
      const root = expanded ? graph.data.scopes[0].layout : graph.data.flat;
      const contents = this.contents(root, true);
      this.rows = [];
      this.place(contents, 0, 0, -1);
      this.assignNodes();
      this.bounds = { x: contents.left - 30, y: -30, width: contents.width + 60, height: contents.height + 60 };
    }

    /** The children of a layout with sizes, in layers, and the size of the whole. */
    contents(layout, isRoot) {
      const items = layout.child.map((child, index) => this.item(child, layout.layer[index], layout.x[index]));
      if (isRoot) this.addEnds(items);
      const layers = new Map();
      for (const item of items) {
        if (!layers.has(item.layer)) layers.set(item.layer, []);
        layers.get(item.layer).push(item);
      }
      const rows = [...layers.keys()].sort((a, b) => a - b).map((layer) => ({ layer, items: layers.get(layer) }));
      let [left, right, y] = [Infinity, -Infinity, 0];
      for (const row of rows) {
        row.items.sort((a, b) => a.x - b.x || a.sequence - b.sequence);
        const centres = spread(row.items.map((item) => item.x * UNIT), row.items.map((item) => item.width));
        row.items.forEach((item, index) => { item.centre = centres[index]; });
        row.height = Math.max(...row.items.map((item) => item.height));
        row.y = y;
        y += row.height + LAYER_GAP;
        left = Math.min(left, row.items[0].centre - row.items[0].width / 2);
        right = Math.max(right, row.items.at(-1).centre + row.items.at(-1).width / 2);
      }
      if (!rows.length) [left, right] = [0, 0];
      return { rows, left, width: right - left, height: Math.max(0, y - LAYER_GAP) };
    }

    item(child, layer, x) {
      const { graph } = this;
      let name = null;
      if (child < 0) ({ child, name } = graph.merged(-child));
      if (child >= 0) {
        const mark = graph.data.nodes.fate[child] ? "  +" : ""; // room for the mark on both sides
        const width = boxWidth(`${mark}${graph.shortOp(child)}${mark}`, graph.shortName(child).slice(0, 26));
        return { kind: KIND.node, id: child, layer, x, sequence: child, width, height: HEIGHT[0] };
      }
      const scope = -child;
      const nodes = graph.scopeRange[scope][1] - graph.scopeRange[scope][0];
      const item = { kind: KIND.scope, id: scope, layer, x, name, nodes, sequence: graph.size + scope };
      if (this.expanded.has(scope)) {
        item.inner = this.contents(graph.data.scopes[scope].layout, false);
        const width = Math.max(item.inner.width + 2 * PADDING, Math.min(360, 44 + textWidth(HEAD, name.slice(0, 60))));
        return Object.assign(item, { kind: KIND.frame, width, height: item.inner.height + HEADER + 2 * PADDING });
      }
      return Object.assign(item, { width: boxWidth(`▸ ${name}`, `${page.format.count(nodes)} nodes, ${page.format.count(nodes)} changed`), height: HEIGHT[1] });
    }

    /** Add boxes of the inputs, in the layer above their first reader, and of the outputs, below their producer. */
    addEnds(items) {
      const { graph } = this;
      const home = new Int32Array(graph.size).fill(-1); // node → item of the outermost layout
      items.forEach((item, index) => {
        if (item.kind === KIND.node) home[item.id] = index;
        else for (const node of graph.nodesOf(item.id)) home[node] = index;
      });
      const children = items.length;
      const last = items.reduce((max, item) => Math.max(max, item.layer), 0);
      const name = (value) => graph.valueName(value);
      graph.inputs.forEach((value, index) => {
        let [layer, x] = [0, index];
        let found = false;
        for (const node of graph.readersOf(value)) {
          const item = items[home[node]];
          if (item && (!found || item.layer < layer)) [layer, x, found] = [item.layer, item.x, true];
        }
        items.push({ kind: KIND.input, id: value, layer: layer - 1, x, sequence: index - graph.inputs.length, width: boxWidth(name(value)), height: HEIGHT[3] });
      });
      graph.outputs.forEach((value, index) => {
        const producer = graph.producer[value];
        const item = producer >= 0 && home[producer] >= 0 ? items[home[producer]] : null;
        const [layer, x] = item ? [item.layer + 1, item.x] : [last + 1, index];
        items.push({ kind: KIND.output, id: value, layer, x, sequence: 2 * children + graph.size + index, width: boxWidth(name(value)), height: HEIGHT[4] });
      });
    }

    /** Create the boxes of a layout whose upper edge is at y, and whose x coordinates are shifted by `shift`. */
    place(contents, shift, y, parent) {
      for (const row of contents.rows) {
        const placed = { top: y + row.y, bottom: y + row.y + row.height, layer: row.layer, boxes: [] };
        for (const item of row.items) {
          const box = {
            kind: item.kind, id: item.id, name: item.name || null, nodes: item.nodes || 1, parent, row: this.rows.length,
            x: shift + item.centre - item.width / 2, y: placed.top + (row.height - item.height) / 2, w: item.width, h: item.height,
          };
          const index = this.boxes.push(box) - 1;
          placed.boxes.push(index);
          if (item.kind === KIND.node) this.boxOfNode[item.id] = index;
          else if (item.kind === KIND.input) this.boxOfInput.set(item.id, index);
          else if (item.kind === KIND.output) this.boxOfOutput.set(item.id, index);
          else this.boxOfScope.set(item.id, index);
        }
        this.rows.push(placed);
        for (let position = 0; position < row.items.length; position++) {
          const item = row.items[position];
          if (!item.inner) continue;
          const index = placed.boxes[position];
          const box = this.boxes[index];
          const centred = box.x + (box.w - item.inner.width) / 2 - item.inner.left;
          box.firstRow = this.rows.length;
          this.place(item.inner, centred, box.y + HEADER + PADDING, index);
        }
      }
    }

    /** Nodes in collapsed scopes belong to the box of the scope. */
    assignNodes() {
      for (const [scope, index] of this.boxOfScope) {
        if (this.boxes[index].kind === KIND.scope) for (const node of this.graph.nodesOf(scope)) this.boxOfNode[node] = index;
      }
    }

    /** Boxes from the outermost frame to the box itself. */
    chain(index) {
      const result = [];
      for (let current = index; current >= 0; current = this.boxes[current].parent) result.unshift(current);
      return result;
    }

    /** The nodes of a box. */
    nodesOf(box) {
      if (box.kind === KIND.node) return [box.id];
      return box.kind === KIND.scope || box.kind === KIND.frame ? this.graph.nodesOf(box.id) : [];
    }
  }

  page.canvasFonts = { family: FONT, head: HEAD, line: LINE };
  page.GraphLayout = GraphLayout;
  page.BOX = KIND;
  page.spread = spread;
})();
