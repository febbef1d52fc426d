// Boxes that scroll can be reached and scrolled by keyboard; on paper, nothing stays folded.
(() => {
  const reachable = () => {
    for (const box of document.querySelectorAll("div.math, .bd-article pre, .bd-article table, .cell_output .output")) {
      if (box.scrollWidth > box.clientWidth + 1) {
        box.tabIndex = 0;
        if (!box.hasAttribute("role") && box.tagName !== "TABLE") {
          box.setAttribute("role", "group");
          box.setAttribute("aria-label", box.matches("div.math") ? "wide formula" : "wide text");
        }
      } else if (box.getAttribute("tabindex") === "0") {
        box.removeAttribute("tabindex");
      }
    }
  };
  addEventListener("load", () => {
    const typeset = window.MathJax && MathJax.startup && MathJax.startup.promise;
    (typeset || Promise.resolve()).then(reachable);
  });
  addEventListener("resize", reachable);
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details:not([open])")) fold.open = true;
  });
})();
