//! `gdsync doctor`: what of a machine works for GPUDirect Async, what does not, and what to do
//! about it.
//!
//! A check never guesses: what cannot be read is skipped, with the reason. Nothing is changed, and
//! no GPU memory is taken.

mod check;
mod driver;
mod libraries;
mod machine;
mod parse;
mod peers;
mod platform;
mod process;
mod rdma;
mod registration;
mod report;
mod services;
mod source;
mod topology;

pub use check::{Check, Status};
pub use report::Family;

use crate::cli::DoctorOptions;
use crate::failure::Failure;
use crate::text;
use libraries::Libraries;
use machine::Machine;
use report::Report;
use source::Tree;
use std::path::Path;
use std::process::ExitCode;

pub fn run(options: &DoctorOptions) -> Result<ExitCode, Failure> {
    let (tree, libraries) = match &options.root {
        Some(root) => {
            if !root.is_dir() {
                return Err(format!("{} is no folder", root.display()).into());
            }
            let tree = Tree::new(root);
            let libraries = Libraries::recorded(&tree)?;
            (tree, libraries)
        }
        None => (Tree::new(Path::new("/")), Libraries::ask()),
    };
    let report = examine(&tree, &libraries);
    text::print(options.json, &report, || if options.fix { report.script() } else { report.text() })?;
    Ok(if report.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What the doctor sees of this machine.
pub fn families() -> Vec<Family> {
    examine(&Tree::new(Path::new("/")), &Libraries::ask()).families
}

fn examine(tree: &Tree, libraries: &Libraries) -> Report {
    let machine = Machine::survey(tree, libraries);
    let (paths, pairs) = (topology::paths(&machine), peers::pairs(&machine));
    let family = |family, checks| Family { family, checks };
    let families = [
        family("GPU", driver::checks(&machine)),
        family("Process", vec![process::channels(&machine), process::container(&machine)]),
        family("GPU memory", registration::checks(&machine)),
        family(
            "Cards",
            [rdma::checks(&machine), vec![services::check(&machine)], rdma::waits(&machine)].concat(),
        ),
        family(
            "PCI Express",
            [platform::checks(&machine, &paths), topology::checks(&machine, &paths), peers::nodes(&machine)]
                .concat(),
        ),
        family("Between GPUs", peers::checks(&pairs)),
    ];
    Report::new(families.into_iter().filter(|family| !family.checks.is_empty()).collect(), paths, pairs)
}

/// A library's error without the remedy that follows it: the check words its own remedy.
fn without_remedy(error: &str) -> String {
    error.split(": install").next().unwrap_or(error).to_owned()
}

fn yes_or_no(has: bool) -> &'static str {
    if has { "yes" } else { "no" }
}
