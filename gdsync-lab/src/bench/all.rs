//! `gdsync bench all`: every benchmark that needs nothing but this machine, one after the other.

use super::table::Outcome;
use super::{measured, page};
use gdsync_cli::cli::{self, BenchOptions, Benchmark};
use gdsync_cli::destination::Destination;
use gdsync_cli::failure::{AlreadySaid, Failure};
use gdsync_cli::{interrupt, json, text};
use serde_json::{Value, json};

/// In the order in which they run. The others need a GPU, or a card of the system's.
const ALL: [Benchmark; 9] = [
    Benchmark::Card,
    Benchmark::Checked,
    Benchmark::Plan,
    Benchmark::First,
    Benchmark::Exchange,
    Benchmark::Fanout,
    Benchmark::Persistent,
    Benchmark::Alltoall,
    Benchmark::Scale,
];

/// Runs them, prints each as it ends, and writes the page. One that fails is said and keeps no other from running.
pub(super) fn run(options: &BenchOptions, page: Option<Destination>) -> Result<(), Failure> {
    let mut outcomes = Vec::new();
    for what in interrupt::rounds(ALL) {
        let outcome = measured(what, options);
        match &outcome {
            Err(error) => text::complain(format_args!("bench {}: {error}", cli::word(&what))),
            Ok(outcome) if !options.json => {
                text::print_text(&format!("bench {}\n{}\n", cli::word(&what), outcome.text()))?;
            }
            Ok(_) => {}
        }
        outcomes.push((what, outcome));
    }
    if options.json {
        json::print(&rows(&outcomes))?;
    }
    if let Some(page) = page {
        page.write(&page::page(&outcomes)?)?;
    }
    match outcomes.iter().any(|(_, outcome)| outcome.is_err()) {
        true => Err(AlreadySaid.into()),
        false => Ok(()),
    }
}

/// For each benchmark its name, and its results or its error.
fn rows(outcomes: &[(Benchmark, Result<Outcome, Failure>)]) -> Vec<Value> {
    let row = |(what, outcome): &(Benchmark, Result<Outcome, Failure>)| match outcome {
        Ok(outcome) => json!({ "benchmark": cli::word(what), "results": outcome.json }),
        Err(error) => json!({ "benchmark": cli::word(what), "error": json::reason(error) }),
    };
    outcomes.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_benchmark_that_fails_is_there_with_its_error() {
        let outcomes =
            [(Benchmark::Card, Ok(Outcome::new(vec![1], []))), (Benchmark::Plan, Err("no".into()))];
        let card = json!({ "benchmark": "card", "results": [1] });
        assert_eq!(rows(&outcomes), [card, json!({ "benchmark": "plan", "error": { "message": "no" } })]);
    }
}
