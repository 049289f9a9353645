/* Profiles: the number of runs of each pattern of input shapes. */
page.section("profiles", (element, data) => {
  if (!data.patterns.length) return;
  const slot = page.el("div", { class: "chart-slot" });
  element.append(slot);
  const bars = [...data.patterns].sort((a, b) => b[1] - a[1]).slice(0, 40).map(([label, value]) => ({ label, value }));
  page.charts.bars(slot, bars, { title: "Profiled runs by types and shapes of inputs" });
});
