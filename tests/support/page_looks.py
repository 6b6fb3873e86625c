"""How a page looks in a browser: what does not fit, words that are broken, colours that cannot be read."""

from collections.abc import Sequence

from browser import Page

LOOKS: dict[str, dict[str, object]] = {
    "phone": {"width": 390},
    "phone-dark": {"width": 390, "scheme": "dark"},
    "tablet": {"width": 768},
    "wide": {"width": 1280},
    "wide-dark": {"width": 1280, "scheme": "dark"},
    "print": {"width": 718, "media": "print"},  # A4 within usual margins
}

MIN_CONTRAST = 4.5
"""WCAG 2 AA, for text of the usual size."""

_VISIBLE = "element => element.checkVisibility() && element.getClientRects().length > 0"

_OUTSIDE = f"""
(() => {{
  const wide = document.scrollingElement.clientWidth + 0.5;
  const seen = [...document.body.querySelectorAll("*")].filter({_VISIBLE});
  const outside = seen.filter(element => {{
    const box = element.getBoundingClientRect();
    return box.right > wide || box.left < -0.5;
  }});
  const clipped = seen.filter(element => !(element instanceof SVGElement)
    && getComputedStyle(element).overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1);
  return [...outside, ...clipped].map(element => `${{element.tagName}}: ${{element.textContent.slice(0, 60)}}`);
}})()
"""
"""Elements that reach beyond the window, and those whose content they do not show."""

_TEXTS = f"""
const texts = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {{
  const node = walker.currentNode;
  if (node.textContent.trim() && ({_VISIBLE})(node.parentElement)) texts.push(node);
}}
"""

_BROKEN = f"""
(() => {{
  {_TEXTS}
  const broken = [], word = /[\\p{{L}}\\p{{N}}]+(?:[,'][\\p{{L}}\\p{{N}}]+)*/gu;
  for (const node of texts) for (const found of node.textContent.matchAll(word)) {{
    if (found[0].length > 30 || node.parentElement.closest("td details")) continue; // hashes, and logs
    const range = document.createRange();
    range.setStart(node, found.index);
    range.setEnd(node, found.index + found[0].length);
    const boxes = [...range.getClientRects()].filter(box => box.width > 0.5);
    if (new Set(boxes.map(box => Math.round(box.top))).size > 1) broken.push(found[0]);
  }}
  return broken;
}})()
"""
"""Words of up to 30 letters that stand on two lines, but for those in the logs of failed trials."""

_OVERLAPPING = """
[...document.querySelectorAll('.plot [aria-label$="tick label"]')].flatMap(axis => {
  const boxes = [...axis.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
  return boxes.filter(([, one], index) => boxes.some(([, other], place) => place > index
    && one.left < other.right + 3 && other.left < one.right + 3 && one.top < other.bottom && other.top < one.bottom
  )).map(([name]) => name);
})
"""
"""Labels of an axis that overlap another one of it, or touch it."""

_CONTRASTS = f"""
(() => {{
  {_TEXTS}
  const parts = color => (color.match(/[\\d.]+/g) ?? []).map(Number);
  const light = color => {{
    const [r, g, b] = parts(color).slice(0, 3).map(value => value / 255)
      .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }};
  const behind = element => {{
    for (let at = element; at; at = at.parentElement) {{
      const color = getComputedStyle(at).backgroundColor, [, , , alpha = 1] = parts(color);
      if (alpha > 0) return color;
    }}
    return "rgb(255, 255, 255)";
  }};
  return texts.map(node => {{
    const element = node.parentElement, style = getComputedStyle(element);
    const [low, high] = [light(element instanceof SVGElement ? style.fill : style.color), light(behind(element))]
      .sort((a, b) => a - b);
    return [(high + 0.05) / (low + 0.05), node.textContent.trim().slice(0, 40)];
  }});
}})()
"""
"""The contrast of each text with what is behind it, as WCAG 2 has it: 1 to 21."""


def faults(tab: Page) -> dict[str, Sequence[object]]:
    """Return what a reader would complain about, by kind; empty if nothing."""
    inside = tab.value("document.scrollingElement.scrollWidth <= innerWidth")
    contrasts = tab.value(_CONTRASTS)
    sizes = tab.value(
        "[...document.querySelectorAll('.plot text')].map(text => parseFloat(getComputedStyle(text).fontSize))"
    )
    found = {
        "the page is wider than the window": []
        if inside
        else [tab.value("document.scrollingElement.scrollWidth")],
        "outside or clipped": tab.value(_OUTSIDE),
        "broken words": tab.value(_BROKEN),
        "overlapping labels": tab.value(_OVERLAPPING),
        "hard to read": [pair for pair in contrasts if not pair[0] >= MIN_CONTRAST],
        "small labels": [size for size in sizes if size < 11],
        "complaints": tab.complaints,
    }
    return {kind: items for kind, items in found.items() if items}
