/*
 * The graphs of the payload with the relations that the page queries: producers and readers of values, edges between
 * nodes, and the tree of scopes. Columns of the payload stay as they are; relations are typed arrays.
 */
(() => {
  const GRAPH_INPUT = -2;
  const DOMINANT = 0.8; // share of nodes above which a scope is opened at first
  const VALUE_KINDS = ["value", "input", "initializer", "output"];
  const FATES = ["unchanged", "made", "folded", "removed", "absorbed"];

  /** The last components of paths in `labels`, as many as tell them apart. */
  function shortened(labels) {
    const paths = labels.map((label) => label.split(/[\\/]/));
    const longest = Math.max(...paths.map((path) => path.length));
    for (let kept = 1; kept < longest; kept += 1) {
      const found = paths.map((path) => path.slice(-kept).join("/"));
      if (new Set(found).size === found.length) return found;
    }
    return labels;
  }

  class GraphIndex {
    constructor(data, position) {
      this.data = data;
      this.position = position; // in payload.graphs
      this.label = data.label;
      this.shortLabel = shortened(page.payload.graphs.map((graph) => graph.label))[position];
      this.size = data.nodes.op.length;
      this.relate();
      this.nest();
    }

    /** Producers and readers of values, and the edges from node to node. */
    relate() {
      const { nodes, values } = this.data;
      const count = values.name.length;
      this.producer = new Int32Array(count).fill(-1);
      for (let value = 0; value < count; value++) if (values.kind[value] === 1) this.producer[value] = GRAPH_INPUT;
      const reads = new Int32Array(count + 1);
      for (let node = 0; node < this.size; node++) {
        for (const value of nodes.outputs[node]) if (value >= 0) this.producer[value] = node;
        for (const value of nodes.inputs[node]) if (value >= 0) reads[value + 1] += 1;
      }
      for (let value = 0; value < count; value++) reads[value + 1] += reads[value];
      this.readStart = reads;
      this.readNodes = new Int32Array(reads[count]);
      const next = reads.slice();
      for (let node = 0; node < this.size; node++) {
        for (const value of nodes.inputs[node]) if (value >= 0) this.readNodes[next[value]++] = node;
      }
      const [from, to, carried] = [[], [], []];
      for (let node = 0; node < this.size; node++) {
        for (const value of nodes.inputs[node]) {
          if (value < 0 || this.producer[value] < 0) continue;
          from.push(this.producer[value]);
          to.push(node);
          carried.push(value);
        }
      }
      this.edges = { from: Int32Array.from(from), to: Int32Array.from(to), value: Int32Array.from(carried) };
      this.inputs = [];
      this.outputs = [];
      values.kind.forEach((kind, value) => {
        if (kind === 1) this.inputs.push(value);
        else if (kind === 3) this.outputs.push(value);
      });
    }

    /** The nodes in the order of the scopes: those of a scope, with its inner scopes, are a range. */
    nest() {
      const { scopes } = this.data;
      this.order = [];
      this.scopeRange = scopes.map(() => [0, 0]);
      const stack = [[0, 0]];
      if (!scopes.length) return;
      while (stack.length) {
        const frame = stack.at(-1);
        const [scope, next] = frame;
        if (next === 0) this.scopeRange[scope][0] = this.order.length;
        const children = scopes[scope].layout.child;
        if (next === children.length) {
          this.scopeRange[scope][1] = this.order.length;
          stack.pop();
          continue;
        }
        frame[1] += 1;
        if (children[next] >= 0) this.order.push(children[next]);
        else stack.push([-children[next], 0]);
      }
    }

    /** Scopes around a node, from the whole graph inwards. */
    scopesOf(node) {
      return this.scopePath(this.data.nodes.scope[node]);
    }

    scopePath(scope) {
      const path = [];
      for (let current = scope; current !== undefined && current >= 0; current = this.data.scopes[current].parent) path.unshift(current);
      return path;
    }

    /** The innermost child behind chains of scopes that have one child each: `-scope` or a node, and the joined name. */
    merged(scope) {
      const names = [this.data.scopes[scope].name];
      let child = -scope;
      while (child < 0) {
        const only = this.data.scopes[-child].layout.child;
        if (only.length !== 1) break;
        child = only[0];
        if (child < 0) names.push(this.data.scopes[-child].name);
      }
      return { child, name: names.join(" / ") };
    }

    scopeName(scope) {
      return this.data.scopes[scope].name;
    }

    nodesOf(scope) {
      const [first, last] = this.scopeRange[scope];
      return this.order.slice(first, last);
    }

    readersOf(value) {
      return this.readNodes.subarray(this.readStart[value], this.readStart[value + 1]);
    }

    op(node) {
      return this.data.ops[this.data.nodes.op[node]];
    }

    /** The scopes that contain most of the nodes of the scope around them, from outside, which a first view opens. */
    dominantScopes() {
      const found = new Set();
      for (let scope = 0; ;) {
        const share = this.nodesOf(scope).length * DOMINANT;
        const inner = this.data.scopes[scope].layout.child.filter((child) => child < 0).map((child) => -child);
        const next = inner.find((child) => this.nodesOf(child).length > share);
        if (next === undefined) return found;
        found.add(next);
        scope = next;
      }
    }

    /** The operator without its domain. */
    shortOp(node) {
      return this.op(node).split("::").at(-1);
    }

    nodeName(node) {
      return this.data.nodes.name[node] || `${this.op(node)} ${node}`;
    }

    /** The last component of a node's name, or nothing where it only repeats the operator. */
    shortName(node) {
      const name = this.data.nodes.name[node] || "";
      if (name.endsWith(")")) return name; // an operator and its first output, for a node without a name
      return name.split(/[/.]/).filter(Boolean).at(-1) || "";
    }

    valueName(value) {
      return this.data.values.name[value];
    }

    valueType(value) {
      return this.data.values.type[value] || "";
    }

    maker(node) {
      const maker = this.data.nodes.by[node];
      return maker >= 0 ? page.payload.makers[maker] : null;
    }

    initializersOf(node) {
      return this.data.nodes.inputs[node].filter((value) => value >= 0 && this.data.values.kind[value] === 2);
    }

    nodeByName(name) {
      if (!this.byName) this.byName = new Map(this.data.nodes.name.map((text, node) => [text, node]));
      return this.byName.has(name) ? this.byName.get(name) : -1;
    }

    /** Nodes that feed a node (`back`) or read its outputs, each once, in the order of inputs or outputs. */
    neighbours(node, back) {
      const { inputs, outputs } = this.data.nodes;
      const found = back
        ? inputs[node].filter((value) => value >= 0 && this.producer[value] >= 0).map((value) => this.producer[value])
        : outputs[node].flatMap((value) => (value >= 0 ? [...this.readersOf(value)] : []));
      return [...new Set(found)];
    }
  }

  page.graphs = (page.payload.graphs || []).map((data, position) => new GraphIndex(data, position));
  page.nodeByName = (graph, name) => page.graphs[graph].nodeByName(name);
  page.fates = FATES;
  page.valueKinds = VALUE_KINDS;
})();
