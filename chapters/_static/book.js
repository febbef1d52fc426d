// Boxes that scroll can be reached and scrolled by keyboard; a link that is a formula has a name; on paper,
// nothing stays folded.
(() => {
  const kinds = {
    'div.math mjx-container[display="true"]': "formula",
    ".bd-article div.highlight > pre, .bd-article .cell_output pre": "code",
    ".bd-article .pst-scrollable-table-container": "table",
  };
  const reachable = () => {
    for (const [selector, name] of Object.entries(kinds)) {
      for (const box of document.querySelectorAll(selector)) {
        if (box.scrollWidth > box.clientWidth) {
          box.tabIndex = 0;
          box.setAttribute("role", "region");
          box.setAttribute("aria-label", `wide ${name}`);
        } else if (box.getAttribute("aria-label") === `wide ${name}`) {
          for (const attribute of ["tabindex", "role", "aria-label"]) box.removeAttribute(attribute);
        }
      }
    }
  };
  const named = () => {
    for (const link of document.querySelectorAll(".bd-article a:has(mjx-container)")) {
      link.setAttribute("aria-label", link.textContent.trim());
    }
  };
  addEventListener("load", () => {
    const typeset = window.MathJax && MathJax.startup && MathJax.startup.promise;
    (typeset || Promise.resolve()).then(reachable).then(named);
  });
  addEventListener("resize", reachable);
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll(".bd-article details:not([open])")) fold.open = true;
    for (const fold of document.querySelectorAll(".bd-article .toggle-hidden")) fold.classList.remove("toggle-hidden");
  });
})();
