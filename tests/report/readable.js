// Least contrast of words and of labels in plots against the page, and the smallest letters.
() => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const channels = (colour) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3).map((x) => x / 255);
  };
  // Relative luminance and contrast as WCAG 2 defines them.
  const luminance = (colour) => {
    const [r, g, b] = channels(colour).map((x) =>
      x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const page = luminance(getComputedStyle(document.body).backgroundColor);
  const contrast = (colour) => {
    const own = luminance(colour);
    return (Math.max(own, page) + 0.05) / (Math.min(own, page) + 0.05);
  };
  const words = [...document.querySelectorAll("p, td, th, dt, dd, h1, h2, summary, nav a")];
  const seen = [...document.querySelectorAll("figure text")]
    .filter((e) => e.getBoundingClientRect().width);
  const labels = seen.filter((e) => !/on-(light|dark)/.test(e.getAttribute("style")));
  const letters = seen.map((e) => {
    const svg = e.ownerSVGElement;
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    return parseFloat(getComputedStyle(e).fontSize) * scale;
  });
  return {
    words: Math.min(...words.map((e) => contrast(getComputedStyle(e).color))),
    labels: Math.min(...labels.map((e) => contrast(getComputedStyle(e).fill))),
    letters: Math.min(...letters),
    count: seen.length,
  };
}
