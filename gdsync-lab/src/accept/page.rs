//! The report as one HTML page, without scripts and external resources.

use super::report::{FigureResult, Report, StepReport};
use crate::html;
use gdsync_cli::text::escape;

/// Returns the page.
pub(super) fn page(report: &Report) -> String {
    let mut body = format!(
        "<h1>gdsync accept</h1>\n<p class=\"faint\">gdsync {}, {}, {}</p>\n<p>{}</p>\n",
        escape(&report.version),
        escape(&report.time),
        escape(&report.link),
        escape(&report.summary()),
    );
    body += "<h2>Steps</h2>\n<div class=\"wide\"><table class=\"facts\">\n<tr><th>step</th><th>card</th><th>differences</th><th></th></tr>\n";
    report.steps.iter().for_each(|step| body += &row(step));
    body += "</table></div>\n<h2>Figures</h2>\n";
    for figure in &report.figures {
        let said = match &figure.result {
            FigureResult::Rows(rows) => rows.iter().map(|row| escape(&row.to_string()) + "\n").collect(),
            FigureResult::Text(text) => escape(text),
            FigureResult::Error(error) => format!("<span class=\"fail\">{}</span>", escape(error)),
        };
        body += &format!("<h3>{}</h3>\n<pre class=\"wide\">{said}</pre>\n", escape(&figure.command));
    }
    html::page("gdsync accept", &body)
}

fn row(step: &StepReport) -> String {
    let outcome = &step.card.outcome;
    let class = match outcome.word() {
        "passed" => "pass",
        "skipped" => "warn",
        _ => "fail",
    };
    let mut more = escape(&step.about);
    if !outcome.reason().is_empty() {
        more += &format!("<br>{}", escape(&outcome.reason()));
    }
    if !outcome.is_good() {
        more += &format!("<br>{}", escape(&step.advice));
    }
    for one in &step.differences {
        let class = if one.explained.is_some() { "faint" } else { "fail" };
        let why = one.explained.as_ref().unwrap_or(&one.rule);
        more += &format!(
            "<br><span class=\"{class}\">{}: card <code>{}</code>, software card <code>{}</code> ({})</span>",
            escape(&one.fact),
            escape(&one.card),
            escape(&one.model),
            escape(why),
        );
    }
    let differences = match step.differences.len() {
        0 => String::new(),
        all => format!("{} of {all} unexplained", step.unexplained().count()),
    };
    format!(
        "<tr><td>{}</td><td class=\"{class}\">{}</td><td>{differences}</td><td>{more}</td></tr>\n",
        escape(&step.step),
        outcome.word(),
    )
}
