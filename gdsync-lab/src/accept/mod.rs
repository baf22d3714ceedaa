//! `gdsync accept`: a card is tried step by step, in the order in which things break, and compared with the software card.
//! The result is one file, without anything that identifies the host.

mod compare;
mod figures;
mod file;
mod masks;
mod page;
mod private;
mod probe;
mod process;
mod record;
mod report;
mod steps;

pub(crate) use process::run_step;

use gdsync::Device;
use gdsync::verbs::LinkLayer;
use gdsync_cli::cli::AcceptOptions;
use gdsync_cli::destination::Destination;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use gdsync_cli::{interrupt, progress, text};
use probe::Assignment;
use process::{Side, start};
use report::{Report, StepReport};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;
use steps::Step;

/// Tries a card, or shows the file of one.
///
/// # Errors
/// No card, no software card beside it, or a file that cannot be read or written.
pub(crate) fn run(options: &AcceptOptions) -> Result<ExitCode, Failure> {
    if let Some(path) = &options.show {
        let report = file::read(path)?;
        text::print(options.json, &report, || report.text())?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.server {
        figures::serve(options)?;
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = chosen(options)?;
    let now = SystemTime::now();
    let path = options.output.clone().unwrap_or_else(|| file_name(now));
    // Before anything runs: a ladder must not be lost for want of a place.
    let destination = Destination::new(&path)?;
    let (card, link) = card_of(options)?;
    let options = &AcceptOptions { hca: Some(card), ..options.clone() };
    let mut report = Report::new(now, options.quick, link);
    climb(options, &chosen, &mut report)?;
    figures::measure(options, &mut report)?;
    let report = report.without_secrets(&private::Secrets::of_host(Path::new("/")))?;
    file::write(&destination, &report)?;
    text::print(options.json, &report, || format!("{}\n{}\n", report.text(), where_to(&path)))?;
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn file_name(now: SystemTime) -> PathBuf {
    let day = gdsync_cli::json::time(now);
    format!("accept-{}.tar.zst", day.split('T').next().unwrap_or(&day)).into()
}

fn where_to(path: &Path) -> String {
    format!(
        "{} has all of it, and nothing that identifies this host: docs/accept.md says where to send it",
        path.display()
    )
}

/// Opens the card once, which also finds a wrong name. Returns its name, which commands need that would take the software
/// card, and its link layer.
fn card_of(options: &AcceptOptions) -> Result<(Hca, LinkLayer), Failure> {
    let (api, name, port) = hca::system(options.hca.as_ref())?;
    let none = |error: gdsync::Error| -> Failure {
        format!(
            "{error}. Without a card, `gdsync soft -- gdsync accept` tries the ladder on the software card"
        )
        .into()
    };
    let device = Device::open(api, name).map_err(none)?;
    Ok((hca::parse(&format!("{}:{port}", device.name()))?, device.port(port)?.link))
}

/// Returns the steps that the options ask for.
fn chosen(options: &AcceptOptions) -> Result<Vec<&'static Step>, Failure> {
    if options.steps.is_empty() {
        return Ok(steps::all().filter(|step| !(options.quick && step.is_slow)).collect());
    }
    let named = |name: &String| {
        steps::named(name).ok_or_else(|| {
            let names: Vec<_> = steps::all().map(|step| step.name).collect();
            format!("there is no step {name}. The steps are {}", names.join(", ")).into()
        })
    };
    options.steps.iter().map(named).collect()
}

/// Performs steps until the user interrupts.
fn climb(options: &AcceptOptions, all: &[&'static Step], report: &mut Report) -> Result<(), Failure> {
    for (number, step) in interrupt::rounds(all.iter().enumerate()) {
        progress::show(options.json, format!("{}/{} {}", number + 1, all.len(), step.name));
        report.steps.push(attempt(options, step, report.link())?);
    }
    progress::clear();
    Ok(())
}

/// Runs a step on the card and on the software card at once.
fn attempt(options: &AcceptOptions, step: &'static Step, link: LinkLayer) -> Result<StepReport, Failure> {
    if step.needs_gpu && options.gpu.is_none() {
        return Ok(StepReport::without_gpu(step));
    }
    let assignment = |hca| Assignment { step: step.name.to_owned(), hca, gpu: options.gpu };
    let card = start(step, Side::Card, &assignment(options.hca.clone()))?;
    let model = start(step, Side::Model(link), &assignment(None))?;
    Ok(StepReport::new(step, card.record()?, model.record()?))
}
