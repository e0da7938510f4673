// Before the first paint, so that no page flashes in the other theme. Not a module: modules run later.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("isoscale-theme");
  } catch {
    // No storage in this browser: the system's theme it is.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
