//! A run as one HTML page, without scripts and external resources.

use super::table::{Outcome, Table};
use crate::{draw, html};
use gdsync_cli::cli::{self, Benchmark};
use gdsync_cli::doctor::{self, Check, Family};
use gdsync_cli::failure::Failure;
use gdsync_cli::json;
use gdsync_cli::text::escape;
use std::time::SystemTime;

/// Returns the page of benchmarks that this process has just run on this machine.
///
/// # Errors
/// A picture cannot be drawn.
pub(super) fn page(outcomes: &[(Benchmark, Result<Outcome, Failure>)]) -> Result<String, Failure> {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    render(outcomes, &doctor::families(), &words, SystemTime::now())
}

/// `words`: the command line after the program's name.
fn render(
    outcomes: &[(Benchmark, Result<Outcome, Failure>)],
    families: &[Family],
    words: &[String],
    now: SystemTime,
) -> Result<String, Failure> {
    let links: String = outcomes.iter().map(|(what, _)| cli::word(what)).map(link).collect();
    let mut body = format!(
        "<h1>gdsync bench</h1>\n<p class=\"faint\">gdsync {}, {}</p>\n<p><code>{}</code></p>\n<nav>{}{links}</nav>\n",
        env!("CARGO_PKG_VERSION"),
        date(now),
        escape(&command(words)),
        link("machine".to_owned()),
    );
    body += &machine(families);
    for (what, outcome) in outcomes {
        body += &section(*what, outcome, words)?;
    }
    Ok(html::page(&format!("gdsync bench, {}", date(now)), &body))
}

fn link(name: String) -> String {
    format!("<a href=\"#{name}\">{name}</a>")
}

fn section(what: Benchmark, outcome: &Result<Outcome, Failure>, words: &[String]) -> Result<String, Failure> {
    let name = cli::word(&what);
    let help = cli::help(&what);
    let mut section = format!(
        "<section id=\"{name}\">\n<h2>{name}</h2>\n<p>{}</p>\n<p><code>{}</code></p>\n",
        escape(&help),
        escape(&command(&of_one(words, &name))),
    );
    match outcome {
        Err(error) => section += &format!("<p class=\"error\">{}</p>\n", escape(&error.to_string())),
        Ok(outcome) => {
            if !outcome.charts.is_empty() {
                section += &format!("<figure>\n{}</figure>\n", draw::svg(&outcome.charts)?);
            }
            outcome.tables.iter().for_each(|one| section += &table(one));
            for note in &outcome.notes {
                section += &format!("<p>{}</p>\n", escape(note));
            }
        }
    }
    Ok(section + "</section>\n")
}

fn table(table: &Table) -> String {
    let line = |tag: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = table.rows.iter().map(|row| line("td", row)).collect();
    format!(
        "<div class=\"wide\"><table>\n<thead>{}</thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n",
        line("th", &table.header)
    )
}

fn machine(families: &[Family]) -> String {
    let mut section =
        "<section id=\"machine\">\n<h2>machine</h2>\n<p>What <code>gdsync doctor</code> sees.</p>\n"
            .to_owned();
    for Family { family, checks } in families {
        let row = |check: &Check| {
            format!(
                "<tr><td class=\"{status}\">{status}</td><td>{}</td><td>{}</td></tr>\n",
                escape(&check.name),
                escape(&check.seen),
                status = check.status.word(),
            )
        };
        let rows: String = checks.iter().map(row).collect();
        section += &format!(
            "<h3>{}</h3>\n<div class=\"wide\"><table class=\"facts\"><tbody>\n{rows}</tbody></table></div>\n",
            escape(family)
        );
    }
    section + "</section>\n"
}

fn command(words: &[String]) -> String {
    let is_plain =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "-_=.,:/+".contains(c));
    let quoted = |word: &String| match is_plain(word) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    std::iter::once("gdsync".to_owned()).chain(words.iter().map(quoted)).collect::<Vec<_>>().join(" ")
}

/// Returns the command line of one of all benchmarks: with its name, and without options for files.
fn of_one(words: &[String], name: &str) -> Vec<String> {
    let mut of_one = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--html" | "--plot" => drop(words.next()),
            word if word.starts_with("--html=") || word.starts_with("--plot=") => {}
            "all" => of_one.push(name.to_owned()),
            word => of_one.push(word.to_owned()),
        }
    }
    of_one
}

fn date(now: SystemTime) -> String {
    let time = json::time(now);
    format!("{} {} UTC", &time[..10], &time[11..16])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::table::Row;
    use gdsync_cli::doctor::Status;
    use std::time::Duration;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        // From `date -u -d @SECONDS`.
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (1_795_525_440, "2026-11-24 13:04 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn a_benchmark_has_its_own_command_line() {
        let all = words("bench all --html r.html --ranks 8");
        assert_eq!(command(&all), "gdsync bench all --html r.html --ranks 8");
        assert_eq!(of_one(&all, "scale"), words("bench scale --ranks 8"));
        assert_eq!(of_one(&words("bench plan --html=r.html"), "plan"), words("bench plan"));
        assert_eq!(command(&["it's".to_owned()]), "gdsync 'it'\\''s'");
    }

    #[test]
    fn everything_from_outside_is_escaped_and_an_error_takes_the_place_of_a_table() {
        let driver = Check {
            name: "driver".to_owned(),
            status: Status::Skip,
            seen: "<none> & why".to_owned(),
            why: "",
            remedy: None,
            commands: Vec::new(),
        };
        let families = [Family { family: "GPU", checks: vec![driver] }];
        let table = Table::new(&["A < B", "µs"], &[Row::default().text("<x>").text("1")]);
        let outcomes =
            [(Benchmark::Card, Ok(Outcome::new(1, [table]))), (Benchmark::Plan, Err("no <way>".into()))];
        let page = render(&outcomes, &families, &words("bench all"), SystemTime::UNIX_EPOCH).unwrap();
        for expected in [
            "<td>&lt;x&gt;</td><td>1</td>",
            "<th>A &lt; B</th>",
            "&lt;none&gt; &amp; why",
            "<p class=\"error\">no &lt;way&gt;</p>",
            "<code>gdsync bench plan</code>",
            "1970-01-01 00:00 UTC",
        ] {
            assert!(page.contains(expected), "{expected}: {page}");
        }
        assert!(!page.contains("<x>") && !page.contains("<script"), "{page}");
    }
}
