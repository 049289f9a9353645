/* Training: the loss over steps, and over time. */
page.section("training", (element, data) => {
  const label = data.mean_of > 1 ? `loss, mean of ${data.mean_of} steps` : "loss";
  const curves = [
    ["Loss by step", "step", data.step, page.format.count],
    ["Loss by time", "time", data.seconds, page.format.seconds],
  ];
  for (const [title, xLabel, x, xFormat] of curves) {
    const slot = page.el("div", { class: "chart-slot" });
    element.append(slot);
    page.charts.lines(slot, [{ label, points: data.loss.map((loss, index) => [x[index], loss]) }], {
      title, xLabel, yLabel: "loss", xFormat: (value) => xFormat(title === "Loss by step" ? Math.round(value) : value), zero: false,
    });
  }
});
