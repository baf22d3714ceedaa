//! `gdsync soak`: random work on many queue pairs between several processes, with random faults; every byte and every
//! completion is accounted for.

mod atomics;
mod end;
mod gpu;
mod kernels;
pub(crate) mod ledger;
mod peers;
pub(crate) mod plan;
mod queues;
mod region;
mod reliable;
mod tally;
mod traffic;
mod unreliable;
mod wire;
mod worker;

use gdsync_cli::child::{self, Guarded};
use gdsync_cli::cli::{NO_FAULTS, Process, SoakOptions};
use gdsync_cli::failure::Failure;
use gdsync_cli::progress::Progress;
use gdsync_cli::{hca, interrupt, log, text};
use peers::{Incoming, Outgoing};
use serde::{Deserialize, Serialize};
use softhca::liberties::{LIBERTIES_VARIABLE, Liberties};
use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tally::{RuleTally, Tally};

/// Time limit for workers to end after one has failed: they notice it at once.
const LAST: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

#[derive(Serialize, Deserialize)]
struct Assignment {
    options: SoakOptions,
    /// The fault plan of all cards; each process uses a different seed.
    plan: String,
    rank: usize,
}

#[derive(Serialize)]
struct Report<'a> {
    seed: u64,
    minutes: f64,
    procs: u32,
    queue_pairs: u32,
    /// The GPU that drives links, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<u32>,
    faults: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    liberties: Option<&'a str>,
    /// Seconds until the user's interrupt.
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted_s: Option<f64>,
    /// None if the cards do not report it, such as the system's.
    injected: Option<u64>,
    #[serde(flatten)]
    tally: &'a Tally,
}

/// Runs workers, and prints their counts.
pub(crate) fn run(options: &SoakOptions) -> Result<(), Failure> {
    if hca::is_software(options.hca.as_ref()) {
        // Checked once here, or each worker would report it.
        softhca::environment::check()?;
    }
    if let Some(ordinal) = options.gpu {
        gpu::check(ordinal, options.links, options.procs)?;
    }
    // A faulty card is reported once, before workers would report it.
    drop(hca::open(options.hca.as_ref())?);
    let plan = options.faults.clone().unwrap_or_else(|| plan::faults_of_seed(options.seed));
    if !options.json {
        // Printed before the run, so that a hanging one can be repeated.
        let SoakOptions { seed, minutes, procs, links, .. } = options;
        let mut out = io::stdout().lock();
        writeln!(out, "seed {seed}, {} queue pairs, {procs} processes, {minutes} min", 2 * links)?;
        writeln!(out, "faults: {plan}")?;
        if let Some(liberties) = &options.liberties {
            writeln!(out, "liberties: {liberties}")?;
        }
    }
    let (mut workers, mut inputs, start) = (Vec::new(), Vec::new(), Instant::now());
    for rank in 0..options.procs as usize {
        let (worker, input) =
            Worker::start(&Assignment { options: options.clone(), plan: plan.clone(), rank })?;
        workers.push(worker);
        inputs.push(Mutex::new(input));
    }
    let progress = Progress::new(options.json, (options.minutes * 60.0).ceil() as u64, "seconds");
    let (all, errors) = finish(workers, &Arc::new(inputs), progress)?;
    let injected = if plan == NO_FAULTS { Some(0) } else { all.injected() };
    let SoakOptions { seed, minutes, procs, links, gpu, .. } = *options;
    let liberties = options.liberties.as_deref();
    let interrupted_s = interrupt::requested().then(|| start.elapsed().as_secs_f64());
    let report = Report {
        seed,
        minutes,
        procs,
        queue_pairs: 2 * links,
        gpu,
        faults: &plan,
        liberties,
        interrupted_s,
        injected,
        tally: &all,
    };
    text::print(options.json, &report, || {
        let early =
            interrupted_s.map_or_else(String::new, |seconds| format!("INTERRUPTED after {seconds:.1} s\n"));
        early + &summary(&all, injected)
    })?;
    for text in &all.problems {
        writeln!(io::stderr(), "{text}")?;
    }
    // The loss of another process is only a consequence of that one's failure.
    match errors.iter().find(|error| !error.ends_with(worker::GONE)).or(errors.first()) {
        Some(error) => Err(format!("{} of {} processes failed: {error}", errors.len(), options.procs).into()),
        None if !all.is_clean() => {
            Err("something was lost, duplicated, wrong, unaccounted for or hung".into())
        }
        None => Ok(()),
    }
}

fn summary(tally: &Tally, injected: Option<u64>) -> String {
    let Tally { operations, bytes, sent, received, reads, atomics, checked, .. } = tally;
    let Tally { loose_sent, loose_received, dropped, atomics_failed, atomics_executed, .. } = tally;
    let Tally { triggered, collected, failures, aborted, reset, replaced, flushed, events, .. } = tally;
    let Tally { lost, duplicated, wrong, unaccounted, hung, .. } = tally;
    let many = |(number, what): (&u64, &str)| text::count(*number, what);
    let injected = injected.map_or_else(|| "unknown".to_owned(), |injected| injected.to_string());
    let rule = |rule: &RuleTally| format!("  {}: {} of {}\n", rule.rule, rule.injected, rule.matched);
    let rules: String = tally.rules.iter().map(rule).collect();
    let by_gpu = match (tally.by_cuda, tally.by_kernels) {
        (0, 0) => String::new(),
        (streams, kernels) => {
            format!("posted by streams: {streams}, by kernels or in their place: {kernels}\n")
        }
    };
    let errors: String = tally.errors.iter().map(|(error, count)| format!("  {error}: {count}\n")).collect();
    let [operations, bytes] = [(operations, "operation"), (bytes, "byte")].map(many);
    let [sent, loose_sent] = [(sent, "message"), (loose_sent, "message")].map(many);
    let [reads, atomics, atomics_failed] =
        [(reads, "read"), (atomics, "atomic operation"), (atomics_failed, "atomic operation")].map(many);
    let [checked, triggered, flushed] =
        [(checked, "checked wait"), (triggered, "work request"), (flushed, "work request")].map(many);
    let [collected, aborted, failures, events] =
        [(collected, "completion"), (aborted, "queue pair"), (failures, "failure"), (events, "event")]
            .map(many);
    format!(
        "{operations}, {bytes}, {sent} sent, {received} received
{reads}, {atomics}, {checked}
by the card's waits: {triggered} released, {collected} collected
unreliable: {loose_sent} sent, {loose_received} received, {dropped} dropped
{by_gpu}faults injected: {injected}; {aborted} aborted, {failures} noticed
{rules}recoveries: {reset} by reset, {replaced} with a new queue pair; {events}
{flushed} failed, {atomics_failed}, of which {atomics_executed} executed
{errors}lost {lost}, duplicated {duplicated}, wrong {wrong}, unaccounted {unaccounted}, hung {hung}
"
    )
}

/// Returns the counts of all workers, and their errors in the order in which they ended. After one has failed, the
/// others have [`LAST`] to end, as a stopped one would not. After an interrupt they are asked to end.
fn finish(
    mut workers: Vec<Worker>,
    inputs: &Inputs,
    mut progress: Progress,
) -> Result<(Tally, Vec<String>), Failure> {
    let (sender, ended) = channel();
    for (rank, worker) in workers.iter_mut().enumerate() {
        worker.listen(rank, inputs.clone(), sender.clone())?;
    }
    let mut all = Tally::default();
    let mut errors = Vec::new();
    let mut deadline: Option<Instant> = None;
    let (start, mut shown, mut asked, mut left) = (Instant::now(), 0, false, workers.len());
    while left > 0 {
        if let Ok((rank, line)) = ended.recv_timeout(LOOK) {
            left -= 1;
            let (tally, error) = workers[rank].finish(&line)?;
            all.add(&tally);
            if error.is_some() {
                deadline.get_or_insert(Instant::now() + LAST);
            }
            errors.extend(error.map(|error| format!("worker {rank} {error}")));
        } else if deadline.is_some_and(|at| Instant::now() > at) {
            let many = text::count(left as u64, "worker");
            errors.push(format!("{many} did not end within {LAST:?} of the first that failed"));
            break;
        }
        if interrupt::requested() && !asked {
            asked = true;
            inputs.iter().for_each(|input| tell(input, ""));
        }
        let seconds = start.elapsed().as_secs();
        progress.advance(seconds - shown);
        shown = seconds;
    }
    Ok((all, errors))
}

type Inputs = Arc<Vec<Mutex<ChildStdin>>>;

/// Writes a line to a worker. A worker that has ended does not receive it.
fn tell(input: &Mutex<ChildStdin>, line: &str) {
    let _ = writeln!(input.lock().unwrap_or_else(PoisonError::into_inner), "{line}");
}

struct Worker(Guarded);

#[derive(Serialize, Deserialize)]
struct Outcome {
    tally: Tally,
    error: Option<String>,
}

impl Worker {
    fn start(assignment: &Assignment) -> Result<(Self, ChildStdin), Failure> {
        let mut command = child::of(Process::SoakWorker)?;
        command.stdout(Stdio::piped());
        if std::env::var_os(log::VARIABLE).is_none() {
            // Failures are expected, so only errors are logged.
            command.env(log::VARIABLE, "error");
        }
        child::for_cuda(&mut command);
        plan::set_faults(&mut command, &assignment.plan, assignment.rank)?;
        take_liberties(&mut command, assignment)?;
        let (worker, stdin) = child::start(command, "a worker", assignment)?;
        Ok((Worker(worker), stdin))
    }

    /// Starts a thread that passes on the worker's messages to others, and reports its end. `ended` gets the worker's
    /// last line, which is for no other worker; an empty one if there is none.
    fn listen(&mut self, rank: usize, inputs: Inputs, ended: Sender<(usize, String)>) -> Result<(), Failure> {
        let stdout = self.0.0.stdout.take().ok_or("a worker has no stdout")?;
        let others = (0..inputs.len()).filter(move |to| *to != rank);
        let pass_on = move |to: usize, message| {
            let heard = serde_json::to_string(&Incoming { from: rank, message });
            if let (Ok(line), Some(input)) = (heard, inputs.get(to)) {
                tell(input, &line);
            }
        };
        std::thread::Builder::new().name("soak-worker".to_owned()).spawn(move || {
            let mut last = String::new();
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(Outgoing { to, message }) => pass_on(to, Some(message)),
                    Err(_) => last = line,
                }
            }
            others.for_each(|to| pass_on(to, None));
            let _ = ended.send((rank, last));
        })?;
        Ok(())
    }

    /// Returns its counts as far as it came, and its error, from its last line.
    fn finish(&mut self, line: &str) -> Result<(Tally, Option<String>), Failure> {
        let status = self.0.0.wait()?;
        Ok(match serde_json::from_str(line) {
            Ok(Outcome { tally, error: Some(error) }) => (tally, Some(format!("failed: {error}"))),
            Ok(Outcome { tally, error: None }) if status.success() => (tally, None),
            Ok(Outcome { tally, .. }) => (tally, Some(format!("ended with {status}"))),
            Err(_) => {
                (Tally::default(), Some(format!("ended with {status}, and counted nothing: {}", line.trim())))
            }
        })
    }
}

/// Sets the liberties of a process's cards, with a separate seed: otherwise all cards would draw the same.
fn take_liberties(command: &mut Command, assignment: &Assignment) -> Result<(), Failure> {
    if let Some(text) = &assignment.options.liberties {
        let mut liberties: Liberties = text.parse()?;
        liberties.seed = liberties.seed.wrapping_add(assignment.rank as u64);
        command.env(LIBERTIES_VARIABLE, liberties.to_string());
    }
    Ok(())
}

/// A worker, which writes its counts to stdout.
pub(crate) fn run_worker() -> Result<(), Failure> {
    let assignment: Assignment = child::options()?;
    let mut tally = Tally::default();
    let error = worker::work(&assignment, &mut tally).err().map(|error| error.to_string());
    writeln!(io::stdout(), "{}", serde_json::to_string(&Outcome { tally, error })?)?;
    Ok(())
}
