"use strict";
// Sorting by the buttons of the heads; what a point says; details opened for paper. The page reads without any of it.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    button.addEventListener("click", () => {
      const first = head.dataset.first || "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const turn = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((h) => h.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", turn);
      const sign = turn === "ascending" ? 1 : -1;
      const value = (row) => row.cells[column].dataset.sort;
      const rows = [...table.tBodies[0].rows];
      const numeric = rows.every((row) => value(row) === "" || !Number.isNaN(Number(value(row))));
      rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        return sign * (numeric ? Number(x) - Number(y) : x.localeCompare(y));
      });
      table.tBodies[0].append(...rows);
    });
  });
}
const said = document.getElementById("said");
for (const point of document.querySelectorAll(".point")) {
  const row = document.getElementById(point.dataset.row);
  const tell = () => {
    said.textContent = point.getAttribute("aria-label");
    row.classList.add("picked");
  };
  const leave = () => row.classList.remove("picked");
  point.addEventListener("mouseenter", tell);
  point.addEventListener("focus", tell);
  point.addEventListener("mouseleave", leave);
  point.addEventListener("blur", leave);
}
window.addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details")) one.open = true;
});
