"""How the report of a fit looks."""

STYLE = """
:root { color-scheme: light; --ink: #2b3038; --grey: #5c6570; --pale: #e4e7ec; --blue: #2a6f97; }
* { box-sizing: border-box; }
body { margin: 0; background: #f4f5f7; color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 16px 40px; }
header h1 { margin: 0; font-size: 30px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
header p { margin: 2px 0 20px; color: var(--grey); overflow-wrap: anywhere; }
.cards { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); margin-bottom: 16px; }
.card { background: var(--ink); color: #fff; border-radius: 10px; padding: 14px 16px; }
.card p { margin: 0; font-size: 13px; color: #c6ccd5; }
.card strong { display: block; font-size: 18px; font-weight: 600; margin: 2px 0; font-variant-numeric: tabular-nums; }
section { background: #fff; border: 1px solid var(--pale); border-radius: 10px; padding: 18px 20px; margin: 0 0 16px; }
h2 { margin: 0 0 10px; font-size: 18px; }
section p, section ul { margin: 0 0 12px; max-width: 75ch; }
section ul { padding-left: 20px; }
.note { color: var(--grey); font-size: 14px; }
.scroll { overflow-x: auto; margin-bottom: 14px; background: linear-gradient(to right, #fff 40%, #fff0) 0 0,
  linear-gradient(to left, #fff 40%, #fff0) 100% 0, linear-gradient(to right, #0003, #0000) 0 0,
  linear-gradient(to left, #0003, #0000) 100% 0; background-size: 40px 100%, 40px 100%, 12px 100%, 12px 100%;
  background-repeat: no-repeat; background-attachment: local, local, scroll, scroll; } /* a shadow: it goes on there */
table { border-collapse: collapse; font-size: 14px; min-width: 100%; }
th { color: var(--grey); font-weight: 500; border-bottom: 2px solid var(--pale); }
td { border-bottom: 1px solid var(--pale); }
th, td { padding: 6px 24px 6px 0; text-align: left; vertical-align: top; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.t { white-space: nowrap; }
td.w { min-width: 12em; overflow-wrap: anywhere; }
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
  .cards { grid-template-columns: 1fr 1fr; gap: 8px; }
  .card { padding: 10px 12px; }
  .card.wide { grid-column: 1 / -1; }
  section { padding: 14px 12px; }
  table { font-size: 13px; }
  th, td { padding-right: 10px; }
  .judged { display: block; }
  .badge { font-size: 11px; padding: 1px 8px; display: block; width: fit-content; }
}
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""
