"""The style sheet of a report: light and dark, desktop and phone."""

STYLE = """
:root { color-scheme: light dark; --ink: #2b3038; --grey: #5c6570; --pale: #e4e7ec; --paper: #fff; --page: #f4f5f7;
  --shadow: #0003; --good: #3d8b57; --care: #b07c12; --bad: #b5483f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --grey: #a4acb7; --pale: #363c45; --paper: #1d2127; --page: #14171b; --shadow: #fff3; }
  .pictures img { filter: invert(0.885) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 16px 40px; }
header h1 { margin: 0; font-size: 30px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
header p { margin: 2px 0 20px; color: var(--grey); overflow-wrap: anywhere; }
section { background: var(--paper); border: 1px solid var(--pale); border-radius: 10px; padding: 18px 20px;
  margin: 0 0 16px; }
section.answer { border-left: 8px solid var(--good); }
section.answer.care { border-left-color: var(--care); }
section.answer.bad { border-left-color: var(--bad); }
.answer h2 { font-size: 22px; color: var(--good); }
.answer.care h2 { color: var(--care); }
.answer.bad h2 { color: var(--bad); }
h2 { margin: 0 0 10px; font-size: 18px; }
h3 { margin: 12px 0 4px; font-size: 15px; }
section p, section ul { margin: 0 0 12px; max-width: 85ch; overflow-wrap: anywhere; }
section p:last-child, section ul:last-child { margin-bottom: 0; }
section ul { padding-left: 20px; }
.note { color: var(--grey); font-size: 14px; }
details { margin: 10px 0 4px; }
summary { cursor: pointer; color: var(--grey); font-size: 14px; }
details[open] summary { margin-bottom: 10px; }
td details { margin: 0; }
td summary { color: inherit; }
td details[open] summary { margin-bottom: 2px; }
.scroll { overflow-x: auto; margin-bottom: 14px; background: linear-gradient(to right, var(--paper) 40%, #0000) 0 0,
  linear-gradient(to left, var(--paper) 40%, #0000) 100% 0, linear-gradient(to right, var(--shadow), #0000) 0 0,
  linear-gradient(to left, var(--shadow), #0000) 100% 0; background-size: 40px 100%, 40px 100%, 12px 100%, 12px 100%;
  background-repeat: no-repeat; background-attachment: local, local, scroll, scroll; } /* a shadow: more is there */
table { border-collapse: collapse; font-size: 14px; min-width: 100%; }
th { color: var(--grey); font-weight: 500; border-bottom: 2px solid var(--pale); }
td { border-bottom: 1px solid var(--pale); }
th, td { padding: 6px 24px 6px 0; text-align: left; vertical-align: top; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.t { white-space: nowrap; }
td.w { min-width: 14em; overflow-wrap: anywhere; }
.judged { display: flex; justify-content: space-between; align-items: center; gap: 14px; }
.badge { color: #fff; border-radius: 20px; padding: 1px 10px; font-size: 12.5px; white-space: nowrap; }
.pictures { display: grid; gap: 14px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); }
.beside { display: grid; gap: 0 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.pictures.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 310px), 1fr)); }
.pictures + .pictures { margin-top: 14px; }
.pictures + .note { margin-top: 8px; }
.pictures img { width: 100%; height: auto; display: block; }
footer { color: var(--grey); font-size: 13px; text-align: center; }
@media (max-width: 600px) {
  main { padding: 16px 10px 28px; }
  header h1 { font-size: 24px; }
  section { padding: 14px 12px; }
  table { font-size: 13px; }
  th, td { padding-right: 10px; }
  .judged { display: block; }
  .badge { font-size: 11px; padding: 1px 8px; display: block; width: fit-content; }
}
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""
