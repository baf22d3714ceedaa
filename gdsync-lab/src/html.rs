//! The frame of HTML pages without scripts and external resources.

use gdsync_cli::text::escape;

const STYLE: &str = "\
:root{color-scheme:light dark;--ground:#fff;--ink:#1b1f24;--faint:#5a626c;--line:#d5d9df;--good:#0c7660;--poor:#8a5a00;--bad:#bc1c2c}\
@media(prefers-color-scheme:dark){:root{--ground:#14171c;--ink:#e6e8ec;--faint:#a0a8b2;--line:#3a4048;--good:#52d6b4;--poor:#ffc46b;--bad:#ff8287}}\
body{margin:2rem auto;padding:0 1rem;max-width:60rem;background:var(--ground);color:var(--ink);font:15px/1.5 sans-serif}\
h1{font-size:1.7rem}h2{margin-top:2.5rem;font-size:1.25rem;border-bottom:1px solid var(--line);padding-bottom:.2rem}\
h3{font-size:1rem;margin:1rem 0 .3rem}p{margin:.4rem 0}a{color:inherit}nav a{margin-right:.8rem}\
.faint{color:var(--faint)}.pass{color:var(--good)}.warn{color:var(--poor)}.fail,.error{color:var(--bad)}\
code{font:13px/1.4 monospace;overflow-wrap:anywhere}figure{margin:1rem 0}svg{max-width:100%;height:auto}\
.wide{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse;font-size:13px}\
th,td{text-align:right;padding:.2rem .7rem;border-bottom:1px solid var(--line);font-variant-numeric:tabular-nums;white-space:nowrap}\
th{color:var(--faint);font-weight:600}th:first-child,td:first-child,.facts td{text-align:left}\
.facts td{white-space:normal;vertical-align:top}.facts td:nth-child(-n+2){white-space:nowrap}";

/// Returns a page. The title is text, the body HTML.
pub(crate) fn page(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(title)
    )
}
