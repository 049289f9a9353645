/*
 * One graph on a canvas: its layout for the expanded scopes, the camera, and the selection.
 *
 * World coordinates are those of the layout; a point of the canvas is `world * scale + offset`.
 */
(() => {
  const BOX = page.BOX;
  const SCALE = [0.002, 4];
  const READABLE = 0.75; // scale at which a box is shown that was requested
  const FLAT_LIMIT = 300; // nodes up to which a graph is first shown without scopes
  const DURATION = 180; // of movements, in milliseconds

  class GraphView {
    /** `hooks` are functions {select(item), label(text)}; an item is {node}, {value}, {scope} or null. */
    constructor(graph, hooks) {
      this.graph = graph;
      this.hooks = hooks;
      this.canvas = page.el("canvas", {
        class: "graph-canvas", tabindex: "0", role: "application", "aria-roledescription": "graph",
        "aria-label": `Graph: ${graph.label}. Arrow keys follow edges, Enter expands, plus and minus zoom, 0 fits.`,
      });
      this.minimap = new page.Minimap(this);
      this.element = page.el("div", { class: "graph-view" }, [
        page.el("div", { class: "graph-label" }, [
          page.el("strong", { text: graph.shortLabel }), page.el("span", { text: ` ${page.format.count(graph.size)} nodes` }),
        ]),
        this.canvas, this.minimap.canvas,
      ]);
      this.context = this.canvas.getContext("2d");
      this.scale = 1;
      this.offset = [0, 0];
      this.selection = null;
      this.highlights = new Map(); // class name → set of nodes
      this.dimmed = false;
      this.flat = graph.size <= FLAT_LIMIT || graph.data.scopes.length < 2;
      this.expanded = this.flat ? new Set() : graph.dominantScopes();
      this.hasBeenFitted = false;
      this.relayout();
      page.attachInput(this);
      new ResizeObserver(() => this.resize()).observe(this.element);
      page.on("theme", () => this.recolor());
      page.on("print", () => this.recolor());
    }

    relayout() {
      this.layout = new page.GraphLayout(this.graph, this.flat ? null : this.expanded);
      this.edges = new page.GraphEdges(this.layout);
      this.grids = page.gridsOf(this.layout, this.edges);
      this.recolor();
      this.minimap.invalidate();
    }

    /** Colours of boxes, for the current colouring and theme. */
    recolor() {
      const { layout, graph } = this;
      const color = (node) => page.currentColoring.color(graph.position, node);
      this.colors = layout.boxes.map((box) => {
        if (box.kind === BOX.node) return page.resolve(color(box.id) || "") || null;
        if (box.kind !== BOX.scope) return null;
        const shares = new Map();
        for (const node of graph.nodesOf(box.id)) {
          const css = page.resolve(color(node) || "") || "";
          shares.set(css, (shares.get(css) || 0) + 1);
        }
        return [...shares].sort((a, b) => (a[0] === "") - (b[0] === "") || b[1] - a[1]).map(([css, count]) => [css, count / box.nodes]);
      });
      this.changed = layout.boxes.map((box) => (box.kind === BOX.scope ? graph.nodesOf(box.id).filter((node) => graph.data.nodes.fate[node] !== 0).length : 0));
      this.minimap.invalidate();
      this.draw();
    }

    resize() {
      const { clientWidth: width, clientHeight: height } = this.element;
      if (!width || !height) return;
      const ratio = window.devicePixelRatio || 1;
      [this.width, this.height] = [width, height];
      [this.canvas.width, this.canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
      if (!this.hasBeenFitted) this.start();
      this.paint();
    }

    /** The first view: the whole graph if its texts remain readable, otherwise its first layers. */
    start() {
      this.hasBeenFitted = true;
      const { bounds } = this.layout;
      const whole = Math.min(this.width / bounds.width, this.height / bounds.height);
      if (whole >= 0.5) this.fit(false);
      else {
        this.scale = Math.max(0.5, Math.min(0.9, this.width / bounds.width));
        const [input] = this.layout.boxOfInput.values();
        const top = this.layout.boxes[input ?? this.layout.rows[0]?.boxes[0]] || { x: 0, w: 0 };
        const middle = this.width / bounds.width >= this.scale ? bounds.x + bounds.width / 2 : top.x + top.w / 2;
        this.offset = [this.width / 2 - middle * this.scale, 40 - bounds.y * this.scale];
      }
      if (this.pending) this.reveal(...this.pending);
      this.pending = null;
    }

    fit(animate = true) {
      const { bounds } = this.layout;
      const scale = Math.min(1.1, this.width / bounds.width, (this.height - 34) / bounds.height);
      this.moveTo(scale, [
        this.width / 2 - (bounds.x + bounds.width / 2) * scale, this.height / 2 + 14 - (bounds.y + bounds.height / 2) * scale,
      ], animate);
    }

    limit(scale) {
      const { bounds } = this.layout;
      const whole = Math.min(this.width / bounds.width, this.height / bounds.height) * 0.8;
      return Math.min(SCALE[1], Math.max(Math.min(whole, 0.5), SCALE[0], scale));
    }

    /** Zoom by a factor; the point of the canvas remains in place. */
    zoom(factor, point = [this.width / 2, this.height / 2]) {
      const scale = this.limit(this.scale * factor);
      this.offset = this.offset.map((offset, axis) => point[axis] - ((point[axis] - offset) / this.scale) * scale);
      this.scale = scale;
      this.moving();
    }

    pan(dx, dy) {
      this.offset = [this.offset[0] + dx, this.offset[1] + dy];
      this.moving();
    }

    moveTo(scale, offset, animate = true) {
      cancelAnimationFrame(this.animation);
      if (!animate || matchMedia("(prefers-reduced-motion: reduce)").matches) {
        [this.scale, this.offset] = [scale, offset];
        this.draw();
        return;
      }
      const [from, start] = [{ scale: this.scale, offset: this.offset }, performance.now()];
      const step = (now) => {
        const time = Math.min(1, Math.max(0, (now - start) / DURATION));
        const eased = time * (2 - time);
        this.scale = from.scale + (scale - from.scale) * eased;
        this.offset = from.offset.map((value, axis) => value + (offset[axis] - value) * eased);
        this.paint();
        if (time < 1) this.animation = requestAnimationFrame(step);
      };
      this.animation = requestAnimationFrame(step);
    }

    /** Draw with fewer details while the camera moves, and completely afterwards. */
    moving() {
      cancelAnimationFrame(this.animation);
      this.inMotion = true;
      clearTimeout(this.rest);
      this.rest = setTimeout(() => {
        this.inMotion = false;
        this.draw();
      }, 140);
      this.draw();
    }

    draw() {
      if (this.scheduled) return;
      this.scheduled = true;
      requestAnimationFrame(() => {
        this.scheduled = false;
        this.paint();
      });
    }

    paint() {
      if (!this.width) return;
      page.paintGraph(this);
      this.minimap.paint();
    }

    toWorld(x, y) {
      return [(x - this.offset[0]) / this.scale, (y - this.offset[1]) / this.scale];
    }

    /** The visible rectangle in world coordinates: left, top, right, bottom. */
    visible() {
      return [...this.toWorld(0, 0), ...this.toWorld(this.width, this.height)];
    }

    /** The index of the box of an item, or -1. */
    boxOf(item) {
      const { layout, graph } = this;
      if (!item) return -1;
      if (item.node !== undefined) return layout.boxOfNode[item.node];
      if (item.scope !== undefined) return layout.boxOfScope.get(item.scope) ?? -1;
      if (layout.boxOfInput.has(item.value)) return layout.boxOfInput.get(item.value);
      if (layout.boxOfOutput.has(item.value)) return layout.boxOfOutput.get(item.value);
      return graph.producer[item.value] >= 0 ? layout.boxOfNode[graph.producer[item.value]] : -1;
    }

    /** The item of a box. */
    itemOf(box) {
      if (box.kind === BOX.node) return { node: box.id };
      return box.kind === BOX.input || box.kind === BOX.output ? { value: box.id } : { scope: box.id };
    }

    /** Bring a box into view; `force` centres it even if it is visible. */
    reveal(index, force = false) {
      if (index < 0) return;
      if (!this.width) {
        this.pending = [index, force];
        return;
      }
      const box = this.layout.boxes[index];
      const [left, top, right, bottom] = this.visible();
      const height = box.kind === BOX.frame ? Math.min(box.h, (bottom - top) / 2) : box.h;
      const margin = 30 / this.scale;
      const inside = box.x >= left + margin && box.x + box.w <= right - margin && box.y >= top + margin && box.y + height <= bottom - margin;
      const scale = this.scale < READABLE * 0.7 ? READABLE : this.scale;
      if (inside && !force && scale === this.scale) return;
      this.moveTo(scale, [this.width / 2 - (box.x + box.w / 2) * scale, this.height * 0.45 - (box.y + height / 2) * scale]);
    }

    /** Bring one of the boxes of nodes into view, unless one is visible. */
    revealAny(nodes) {
      const boxes = nodes.map((node) => this.boxOf({ node })).filter((index) => index >= 0);
      const [left, top, right, bottom] = this.width ? this.visible() : [0, 0, 0, 0];
      const isVisible = (index) => {
        const box = this.layout.boxes[index];
        return box.x < right && box.x + box.w > left && box.y < bottom && box.y + box.h > top;
      };
      if (boxes.length && !boxes.some(isVisible)) this.reveal(boxes[0]);
    }

    /** Expand the scopes around a node or value, such that it has a box of its own. */
    expandTo(item) {
      if (this.flat) return;
      const node = item.node ?? (item.value !== undefined ? this.graph.producer[item.value] : -1);
      const path = item.scope !== undefined ? this.graph.scopePath(item.scope).slice(0, -1) : node >= 0 ? this.graph.scopesOf(node) : [];
      const closed = path.filter((scope) => scope > 0 && !this.expanded.has(scope));
      if (!closed.length) return;
      closed.forEach((scope) => this.expanded.add(scope));
      this.relayout();
    }

    /** Expand or collapse a scope; its upper edge remains in place. */
    toggle(scope) {
      const before = this.layout.boxes[this.layout.boxOfScope.get(scope)];
      if (!before) return;
      const anchor = [before.x + before.w / 2, before.y];
      if (this.expanded.has(scope)) for (const inner of this.expanded) { if (this.graph.scopePath(inner).includes(scope)) this.expanded.delete(inner); }
      else this.expanded.add(scope);
      this.relayout();
      const after = this.layout.boxes[this.layout.boxOfScope.get(scope)];
      this.offset = [this.offset[0] + (anchor[0] - after.x - after.w / 2) * this.scale, this.offset[1] + (anchor[1] - after.y) * this.scale];
      this.draw();
    }

    /** Show all nodes without scopes, or the scopes in `expanded`. */
    structure({ flat, expanded }) {
      this.flat = flat;
      this.expanded = new Set(expanded || []);
      this.relayout();
      if (!this.width) return;
      this.start();
      if (this.selection) this.reveal(this.boxOf(this.selection), true);
      this.draw();
    }

    highlight(nodes, className) {
      if (nodes.length) this.highlights.set(className, new Set(nodes));
      else this.highlights.delete(className);
      this.draw();
    }
  }

  page.GraphView = GraphView;
})();
