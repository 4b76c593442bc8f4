"""The style sheet of the page: one column, light and dark, for screens, phones and paper."""

CSS = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff;
  --card: #f6f8fa; --line: #d0d7de; --good: #116329; --part: #7d4e00; --bad: #a40e26;
  --none: #57606a; --link: #0550ae; }
@media screen and (prefers-color-scheme: dark) { :root {
  --ink: #e6edf3; --soft: #9ea7b3; --paper: #0d1117;
  --card: #161b22; --line: #30363d; --good: #56d364; --part: #e3b341; --bad: #ff8182;
  --none: #9ea7b3; --link: #79c0ff; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 2.5rem 0 .5rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; }
a { color: var(--link); }
.soft { color: var(--soft); }
.small { font-size: .875rem; }
.scroll { overflow-x: auto; max-width: 100%; }
.scroll:focus { outline: 2px solid var(--link); }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0;
  border-bottom: 1px solid var(--line); }
.numbers td, .numbers tbody th { white-space: nowrap; }
.claims td { min-width: 8.5rem; }
.claims .verdict { white-space: normal; }
.claims td:first-child { min-width: 6.5rem; }
.claims td:nth-child(2) { min-width: 14rem; }
.claims tbody th { padding-top: .8rem; }
.claim { background: var(--card); border: 1px solid var(--line); border-left-width: 4px;
  border-radius: 6px; padding: .6rem .9rem; margin: .6rem 0; break-inside: avoid; }
.claim p { margin: 0 0 .35rem; }
.claim dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem .8rem; margin: 0;
  font-size: .875rem; }
.claim dt { color: var(--soft); }
.claim dd { margin: 0; min-width: 0; }
.verdict { font-weight: 700; white-space: nowrap; }
.holds { color: var(--good); border-left-color: var(--good); }
.smaller { color: var(--part); border-left-color: var(--part); }
.fails { color: var(--bad); border-left-color: var(--bad); }
.untested { color: var(--none); border-left-color: var(--none); }
.claim.holds, .claim.smaller, .claim.fails, .claim.untested { color: var(--ink); }
figure { margin: 1rem 0; break-inside: avoid; }
figure .scroll { background: #ffffff; border: 1px solid var(--line); border-radius: 6px;
  padding: .5rem; }
figure svg { display: block; height: auto; margin: 0 auto; }
figure svg.wide { width: 100%; min-width: 34rem; max-width: 52rem; }
figure svg.narrow { width: 100%; min-width: 18rem; max-width: 28rem; }
figcaption { font-size: .875rem; margin-top: .35rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .6rem; font-size: .75rem; overflow-x: auto; overflow-wrap: normal; }
summary { cursor: pointer; }
ul.facts { padding-left: 1.1rem; margin: .5rem 0; }
@media print { :root { --paper: #ffffff; --ink: #000000; --card: #ffffff; --soft: #444444; }
  body { max-width: none; padding: 0; font-size: 10pt; } .scroll { overflow: visible; }
  figure svg.wide, figure svg.narrow { min-width: 0; max-width: 100%; } nav { display: none; }
  h2 { break-after: avoid; } a { color: inherit; text-decoration: none; } }
"""
