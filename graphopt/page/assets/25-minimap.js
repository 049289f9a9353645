/* The whole graph in a corner of its view, with the visible part as a rectangle that the pointer moves. */
(() => {
  const BOX = page.BOX;
  const SIZE = [150, 190]; // maximum width and height, in pixels

  class Minimap {
    constructor(view) {
      this.view = view;
      this.canvas = page.el("canvas", { class: "minimap", "aria-hidden": "true" });
      this.picture = document.createElement("canvas");
      const move = (event) => {
        const bounds = this.canvas.getBoundingClientRect();
        const [x, y] = [(event.clientX - bounds.left) / this.factor[0], (event.clientY - bounds.top) / this.factor[1]];
        const { layout } = view;
        view.offset = [view.width / 2 - (x + layout.bounds.x) * view.scale, view.height / 2 - (y + layout.bounds.y) * view.scale];
        view.moving();
      };
      this.canvas.addEventListener("pointerdown", (event) => {
        this.canvas.setPointerCapture(event.pointerId);
        move(event);
      });
      this.canvas.addEventListener("pointermove", (event) => {
        if (event.buttons) move(event);
      });
    }

    invalidate() {
      this.stale = true;
    }

    /** Draw all boxes once; later frames copy the picture. */
    render() {
      const { layout, colors } = this.view;
      const { bounds } = layout;
      const ratio = window.devicePixelRatio || 1;
      const uniform = Math.min(SIZE[0] / bounds.width, SIZE[1] / bounds.height);
      // A long, narrow graph is stretched: it would be a line otherwise.
      const width = Math.max(40, Math.round(bounds.width * uniform));
      const height = Math.max(40, Math.round(bounds.height * uniform));
      this.factor = [width / bounds.width, height / bounds.height];
      this.ratio = ratio;
      for (const canvas of [this.canvas, this.picture]) [canvas.width, canvas.height] = [width * ratio, height * ratio];
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
      const context = this.picture.getContext("2d");
      context.scale(ratio, ratio);
      const neutral = page.color("edge");
      layout.boxes.forEach((box, index) => {
        if (box.kind === BOX.frame) return;
        const color = Array.isArray(colors[index]) ? colors[index][0][0] : colors[index];
        context.fillStyle = color || neutral;
        context.fillRect(
          (box.x - bounds.x) * this.factor[0], (box.y - bounds.y) * this.factor[1],
          Math.max(0.8, box.w * this.factor[0]), Math.max(0.5, box.h * this.factor[1]));
      });
      this.stale = false;
    }

    paint() {
      const { view } = this;
      const { bounds } = view.layout;
      const [left, top, right, bottom] = view.visible();
      const covered = left <= bounds.x && top <= bounds.y && right >= bounds.x + bounds.width && bottom >= bounds.y + bounds.height;
      this.canvas.hidden = covered || view.width < 360;
      if (this.canvas.hidden) return;
      if (this.stale) this.render();
      const context = this.canvas.getContext("2d");
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.clearRect(0, 0, this.canvas.width, this.canvas.height);
      context.drawImage(this.picture, 0, 0);
      context.scale(this.ratio, this.ratio);
      context.strokeStyle = page.color("accent");
      context.lineWidth = 1.5;
      const [x, y] = [(left - bounds.x) * this.factor[0], (top - bounds.y) * this.factor[1]];
      context.strokeRect(x, y, Math.max(3, (right - left) * this.factor[0]), Math.max(3, (bottom - top) * this.factor[1]));
    }
  }

  page.Minimap = Minimap;
})();
