//! The report as one HTML page, without scripts and external resources.

use super::report::{FigureResult, Report, StepReport, escaped};
use crate::html;

/// Returns the page.
pub(super) fn page(report: &Report) -> String {
    let mut body = format!(
        "<h1>gdsync accept</h1>\n<p class=\"faint\">gdsync {}, {}, {}</p>\n<p>{}</p>\n",
        escaped(&report.version),
        escaped(&report.time),
        escaped(&report.link),
        escaped(&report.summary()),
    );
    body += "<h2>Steps</h2>\n<div class=\"wide\"><table class=\"facts\">\n<tr><th>step</th><th>card</th><th>differences</th><th></th></tr>\n";
    report.steps.iter().for_each(|step| body += &row(step));
    body += "</table></div>\n<h2>Figures</h2>\n";
    for figure in &report.figures {
        let said = match &figure.result {
            FigureResult::Rows(rows) => rows.iter().map(|row| escaped(&row.to_string()) + "\n").collect(),
            FigureResult::Text(text) => escaped(text),
            FigureResult::Error(error) => format!("<span class=\"fail\">{}</span>", escaped(error)),
        };
        body += &format!("<h3>{}</h3>\n<pre class=\"wide\">{said}</pre>\n", escaped(&figure.command));
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
    let mut more = escaped(&step.about);
    if !outcome.reason().is_empty() {
        more += &format!("<br>{}", escaped(&outcome.reason()));
    }
    if !outcome.is_good() {
        more += &format!("<br>{}", escaped(&step.advice));
    }
    for one in &step.differences {
        let class = if one.explained.is_some() { "faint" } else { "fail" };
        let why = one.explained.as_ref().unwrap_or(&one.rule);
        more += &format!(
            "<br><span class=\"{class}\">{}: card <code>{}</code>, software card <code>{}</code> ({})</span>",
            escaped(&one.fact),
            escaped(&one.card),
            escaped(&one.model),
            escaped(why),
        );
    }
    let differences = match step.differences.len() {
        0 => String::new(),
        all => format!("{} of {all} unexplained", step.unexplained().count()),
    };
    format!(
        "<tr><td>{}</td><td class=\"{class}\">{}</td><td>{differences}</td><td>{more}</td></tr>\n",
        escaped(&step.step),
        outcome.word(),
    )
}
