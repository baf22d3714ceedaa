//! Figures: commands that measure, each beside its reference of the same run, on the card.

use super::report::{Figure, FigureResult, Report};
use gdsync_cli::child::{self, Guarded};
use gdsync_cli::cli::AcceptOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::{interrupt, progress, tools};
use serde_json::Value;
use std::env;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time after which a command is ended.
const LIMIT: Duration = Duration::from_secs(120);

/// Commands on any machine.
const ALWAYS: [&str; 1] = ["doctor"];
/// Measurements without a GPU; the card is appended.
const ON_CARD: [&str; 4] = ["bench first", "bench fanout", "bench net --op write", "pingpong"];
/// Measurements of a GPU; the card and the GPU are appended.
const ON_GPU: [&str; 5] =
    ["bench memops", "bench turnaround", "bench exchange", "bench device", "pingpong --sizes 8,64K"];
/// Between two hosts: `gdsync accept --server` of the peer serves them, each at a port of its own.
const WITH_PEER: [&str; 2] = ["pingpong", "bench net --op write --sizes 8,64K,1M"];

/// Runs the commands that the options allow: those with a peer, and others unless single steps are asked for. A command
/// that fails is a figure, too.
pub(super) fn measure(options: &AcceptOptions, report: &mut Report) -> Result<(), Failure> {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    let mut add = |command: &str, more: Vec<String>| all.push((command.to_owned(), more));
    let is_whole = options.steps.is_empty();
    if is_whole {
        ALWAYS.iter().for_each(|command| add(command, Vec::new()));
    }
    if is_whole && !options.quick {
        ON_CARD.iter().for_each(|command| add(command, of_card(options)));
        if let Some(gpu) = options.gpu {
            let gpu = ["--gpu".to_owned(), gpu.to_string()];
            ON_GPU.iter().for_each(|command| add(command, [of_card(options), gpu.to_vec()].concat()));
        }
    }
    if let Some(peer) = &options.peer {
        for (command, port) in with_ports(options) {
            add(command, [of_card(options), port.to_vec(), vec![peer.clone()]].concat());
        }
    }
    for (command, more) in interrupt::rounds(all) {
        progress::show(options.json, command.clone());
        let result = match gdsync(&command, &more).and_then(|made| output(made, LIMIT)) {
            Ok(text) => rows(&text),
            Err(error) => FigureResult::Error(error.to_string()),
        };
        report.figures.push(Figure { command, result });
    }
    if is_whole && !options.quick {
        report.figures.extend(perftest(options));
    }
    progress::clear();
    Ok(())
}

fn of_card(options: &AcceptOptions) -> Vec<String> {
    options.hca.iter().flat_map(|hca| ["--hca".to_owned(), hca.to_string()]).collect()
}

/// Returns the commands between two hosts, with the option that names the port of each.
fn with_ports(options: &AcceptOptions) -> impl Iterator<Item = (&'static str, [String; 2])> {
    let port = |number: usize| ["--port".to_owned(), (usize::from(options.port) + number).to_string()];
    WITH_PEER.into_iter().enumerate().map(move |(number, command)| (command, port(number)))
}

/// Serves the peer's part of the commands between two hosts, and ends with the last one.
///
/// # Errors
/// A server cannot be started, or fails.
pub(super) fn serve(options: &AcceptOptions) -> Result<(), Failure> {
    let mut servers = Vec::new();
    for (command, port) in with_ports(options) {
        // The client decides all but the card.
        let verb = command.split(" --").next().unwrap_or(command);
        let more = [of_card(options), port.to_vec(), vec!["--server".to_owned()]].concat();
        servers.push((verb, Guarded(gdsync(verb, &more)?.spawn()?)));
    }
    for (verb, server) in &mut servers {
        let status = server.0.wait()?;
        if !status.success() {
            return Err(child::failure(format_args!("`gdsync {verb} --server`"), status));
        }
    }
    Ok(())
}

/// Returns a command line of gdsync's; the program finds the verb's own.
fn gdsync(command: &str, more: &[String]) -> Result<Command, Failure> {
    let mut made = Command::new(env::current_exe()?);
    made.args(command.split(' ')).args(more);
    if !more.iter().any(|word| word == "--server") {
        made.arg("--json");
    }
    child::dies_with_this_process(&mut made);
    Ok(made)
}

/// Returns what a command prints, if it ends well within the limit.
fn output(mut command: Command, limit: Duration) -> Result<String, Failure> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Guarded(command.spawn()?);
    let (mut out, mut err) =
        (process.0.stdout.take().ok_or("no output")?, process.0.stderr.take().ok_or("no output")?);
    let text = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).map(|_| text)
    });
    let complaint = std::thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).map(|_| text)
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = process.0.try_wait()? {
            break status;
        }
        if start.elapsed() > limit {
            return Err(format!("it did not end within {} s", limit.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let text = text.join().map_err(|_| "its output cannot be read")??;
    // A doctor that finds a failure ends with status 1, and prints its JSON.
    if status.success() || text.starts_with('{') {
        return Ok(text);
    }
    let complaint = complaint.join().map_err(|_| "its output cannot be read")??;
    Err(format!("{status}: {}", complaint.lines().last().unwrap_or_default()).into())
}

/// Returns the rows of a command's JSON, or its error.
fn rows(text: &str) -> FigureResult {
    let Ok(mut object) = serde_json::from_str::<Value>(text) else {
        return FigureResult::Error("its output is no JSON".to_owned());
    };
    match (object["rows"].take(), object["error"]["message"].take()) {
        (Value::Array(rows), _) => FigureResult::Rows(rows),
        (_, Value::String(message)) => FigureResult::Error(message),
        _ => FigureResult::Error("its output has no rows".to_owned()),
    }
}

/// Runs perftest's latency and bandwidth of writes on one host, if it is installed.
fn perftest(options: &AcceptOptions) -> Vec<Figure> {
    let device = options.hca.as_ref().map(|hca| hca.to_string());
    let device = device.as_ref().and_then(|hca| hca.split(':').next());
    let run = |name: &str| -> Result<String, Failure> {
        let mut made = [Command::new(name), Command::new(name)];
        for command in &mut made {
            command.args(["-n", "1000", "-F", "-p", "18599"]);
            device.map(|device| command.args(["-d", device]));
            child::dies_with_this_process(command);
        }
        let [mut server, mut client] = made;
        let _server =
            Guarded(server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        std::thread::sleep(Duration::from_millis(500));
        client.arg("localhost");
        output(client, LIMIT)
    };
    let figure = |name: &str| {
        let result = match run(name) {
            Ok(text) => FigureResult::Text(table_of(&text)),
            Err(error) => FigureResult::Error(error.to_string()),
        };
        Figure { command: name.to_owned(), result }
    };
    let installed = ["ib_write_lat", "ib_write_bw"].into_iter().filter(|name| tools::on_path(name).is_some());
    installed.take_while(|_| !interrupt::requested()).map(figure).collect()
}

/// Returns the table in a program's output: the header line that begins with `#`, and what follows. The rest has addresses.
fn table_of(text: &str) -> String {
    let from = text.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    from.take_while(|line| !line.starts_with("---")).map(|line| line.trim().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_errors_of_commands_are_figures() {
        assert_eq!(rows(r#"{"rows":[{"a":1}]}"#), FigureResult::Rows(vec![serde_json::json!({"a": 1})]));
        assert_eq!(rows(r#"{"error":{"message":"no GPU"}}"#), FigureResult::Error("no GPU".to_owned()));
        assert!(
            matches!(rows("{}"), FigureResult::Error(_)) && matches!(rows("text"), FigureResult::Error(_))
        );
    }

    #[test]
    fn only_the_table_of_another_program_is_kept() {
        let text = " local address: LID 0x01 QPN\n #bytes #iterations t_min\n 2 1000 1.05\n-------\nmore";
        assert_eq!(table_of(text), "#bytes #iterations t_min\n2 1000 1.05\n");
    }

    #[test]
    fn a_command_that_hangs_or_fails_says_so() {
        let mut sleep = Command::new("sleep");
        sleep.arg("30");
        assert!(output(sleep, Duration::from_millis(50)).unwrap_err().to_string().contains("did not end"));
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo cause >&2; exit 3"]);
        let said = output(failing, LIMIT).unwrap_err().to_string();
        assert!(said.contains('3') && said.contains("cause"), "{said}");
    }
}
