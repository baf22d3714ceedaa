//! The result of a ladder: JSON of a documented shape (docs/accept.md), and its text.

use super::compare::{Difference, compare};
use super::private::Secrets;
use super::record::{Outcome, Record};
use super::steps::Step;
use gdsync::verbs::LinkLayer;
use gdsync_cli::failure::Failure;
use gdsync_cli::json;
use gdsync_cli::text::{BAD, GOOD, POOR, count, styled};
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// The version of the shape. New keys do not change it.
const SCHEMA: u32 = 1;
const ETHERNET: &str = "Ethernet";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) schema: u32,
    pub(super) version: String,
    pub(super) time: String,
    pub(super) quick: bool,
    pub(super) link: String,
    pub(super) steps: Vec<StepReport>,
    pub(super) figures: Vec<Figure>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StepReport {
    pub(super) step: String,
    pub(super) about: String,
    pub(super) advice: String,
    pub(super) card: Record,
    pub(super) model: Record,
    pub(super) differences: Vec<Difference>,
}

/// The output of a command that measures or examines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figure {
    /// The command line after `gdsync`, without names of this host.
    pub(super) command: String,
    #[serde(flatten)]
    pub(super) result: FigureResult,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FigureResult {
    /// The rows of its JSON.
    Rows(Vec<serde_json::Value>),
    /// Its text, of a program that prints no JSON.
    Text(String),
    Error(String),
}

impl StepReport {
    pub(super) fn new(step: &Step, card: Record, model: Record) -> Self {
        let differences = compare(step.name, &card, &model);
        let [about, advice] = [step.about, step.advice].map(str::to_owned);
        StepReport { step: step.name.to_owned(), about, advice, card, model, differences }
    }

    pub(super) fn without_gpu(step: &Step) -> Self {
        let (why, remedy) = ("no GPU is named".to_owned(), "--gpu N names one".to_owned());
        let record = Record { outcome: Outcome::Skipped { why, remedy }, facts: Vec::new() };
        Self::new(step, record.clone(), record)
    }

    /// The differences for which no reason is known.
    pub(super) fn unexplained(&self) -> impl Iterator<Item = &Difference> {
        self.differences.iter().filter(|one| one.explained.is_none())
    }

    fn is_good(&self) -> bool {
        self.card.outcome.is_good() && self.unexplained().next().is_none()
    }
}

impl Report {
    pub(super) fn new(now: SystemTime, quick: bool, link: LinkLayer) -> Self {
        let link = if link == LinkLayer::Ethernet { ETHERNET } else { "InfiniBand" };
        Report {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time: json::time(now),
            quick,
            link: link.to_owned(),
            steps: Vec::new(),
            figures: Vec::new(),
        }
    }

    pub(super) fn link(&self) -> LinkLayer {
        if self.link == ETHERNET { LinkLayer::Ethernet } else { LinkLayer::InfiniBand }
    }

    /// Returns whether every step passed or could not run, and each difference is explained.
    pub(super) fn is_good(&self) -> bool {
        self.steps.iter().all(StepReport::is_good)
    }

    /// Returns the report without what identifies the host.
    pub(super) fn without_secrets(&self, secrets: &Secrets) -> Result<Self, Failure> {
        let mut value = serde_json::to_value(self)?;
        secrets.remove_from(&mut value);
        Ok(serde_json::from_value(value)?)
    }

    /// Counts of the steps' outcomes on the card, and of differences.
    pub(super) fn summary(&self) -> String {
        let of = |word: &str| self.steps.iter().filter(|one| one.card.outcome.word() == word).count();
        let words = ["passed", "failed", "hung", "crashed", "skipped"];
        let outcomes: Vec<String> = words
            .iter()
            .map(|word| (word, of(word)))
            .filter(|(_, of)| *of > 0)
            .map(|(word, of)| format!("{of} {word}"))
            .collect();
        let all: usize = self.steps.iter().map(|one| one.differences.len()).sum();
        let unexplained: usize = self.steps.iter().map(|one| one.unexplained().count()).sum();
        format!(
            "{}: {}; {} from the software card, {unexplained} without a known reason",
            count(self.steps.len() as u64, "step"),
            outcomes.join(", "),
            count(all as u64, "difference"),
        )
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |text: String| out += &(text + "\n");
        for step in &self.steps {
            let outcome = &step.card.outcome;
            let style = match outcome {
                Outcome::Passed => GOOD,
                Outcome::Skipped { .. } => POOR,
                _ => BAD,
            };
            line(format!(
                "{}  {:24}  {}",
                styled(style, format!("{:7}", outcome.word())),
                step.step,
                step.about
            ));
            if !outcome.reason().is_empty() {
                line(format!("         {}", outcome.reason()));
            }
            if !outcome.is_good() {
                line(format!("         {}", step.advice));
            }
            for one in step.unexplained() {
                line(format!(
                    "         {}  {}: {}, the software card {}",
                    styled(BAD, "differs"),
                    one.fact,
                    one.card,
                    one.model
                ));
                line(format!("                  {}", one.rule));
            }
        }
        for figure in &self.figures {
            let said = match &figure.result {
                FigureResult::Rows(rows) => count(rows.len() as u64, "row"),
                FigureResult::Text(text) => text.lines().last().unwrap_or_default().to_owned(),
                FigureResult::Error(error) => error.clone(),
            };
            line(format!("figures  {:24}  {said}", figure.command));
        }
        line(String::new());
        line(self.summary());
        out
    }
}
