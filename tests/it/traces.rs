//! `gdsync trace` and GDSYNC_TRACE: traces of runs of several processes.

use gdsync_test_support::command::{self, gdsync, no_gpu, run, text};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::processes::signal;

use gdsync_test_support::skipped;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

type Row = (u64, u64);

fn events(trace: &Value) -> &[Value] {
    trace["traceEvents"].as_array().unwrap()
}

fn number(event: &Value, name: &str) -> u64 {
    event[name].as_u64().unwrap_or_else(|| panic!("{name} of {event}"))
}

fn row(event: &Value) -> Row {
    (number(event, "pid"), number(event, "tid"))
}

fn nanoseconds(event: &Value, name: &str) -> u64 {
    (event[name].as_f64().unwrap() * 1000.0).round() as u64
}

fn of<'a>(trace: &'a Value, phase: &'a str, category: &'a str) -> impl Iterator<Item = &'a Value> {
    events(trace).iter().filter(move |event| event["ph"] == phase && event["cat"] == category)
}

fn parse(path: &Path) -> Value {
    let trace = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    assert_well_formed(&trace);
    trace
}

/// Asserts the invariants of traces: rows have names, begins and ends are balanced, slices of a row nest, arrows have
/// both ends, in the order of time, within slices.
fn assert_well_formed(trace: &Value) {
    let mut named = BTreeSet::new();
    let mut open: BTreeMap<Row, i64> = BTreeMap::new();
    let mut slices: BTreeMap<Row, Vec<(u64, u64)>> = BTreeMap::new();
    let mut arrows: BTreeMap<u64, Vec<(&str, Row, u64)>> = BTreeMap::new();
    let mut used = BTreeSet::new();
    for event in events(trace) {
        let phase = event["ph"].as_str().unwrap();
        if phase == "M" {
            named.extend((event["name"] == "thread_name").then(|| row(event)));
            continue;
        }
        used.insert(row(event));
        let at = nanoseconds(event, "ts");
        match phase {
            "B" => *open.entry(row(event)).or_default() += 1,
            "E" => {
                let open = open.entry(row(event)).or_default();
                *open -= 1;
                assert!(*open >= 0, "an end without its begin: {event}");
            }
            "X" => slices.entry(row(event)).or_default().push((at, at + nanoseconds(event, "dur"))),
            "s" | "t" | "f" => arrows.entry(number(event, "id")).or_default().push((phase, row(event), at)),
            "i" => {}
            other => panic!("{other} is no phase of these traces"),
        }
    }
    assert!(open.values().all(|open| *open == 0), "begins without their ends: {open:?}");
    assert!(used.is_subset(&named), "rows without names: {:?}", used.difference(&named));
    for (id, points) in &arrows {
        let phases: Vec<&str> = points.iter().map(|(phase, _, _)| *phase).collect();
        assert_eq!((phases[0], phases[phases.len() - 1]), ("s", "f"), "arrow {id}: {phases:?}");
        assert!(phases[1..phases.len() - 1].iter().all(|phase| *phase == "t"), "arrow {id}: {phases:?}");
        assert!(points.is_sorted_by_key(|(_, _, at)| *at), "arrow {id} turns back: {points:?}");
        for (_, row, at) in points {
            let is_inside = slices[row].iter().any(|(begin, end)| (begin..=end).contains(&at));
            assert!(is_inside, "arrow {id} has a point outside of all slices of {row:?}");
        }
    }
    for (row, slices) in &mut slices {
        // Slices with the same begin: the longest comes first.
        slices.sort_by_key(|(begin, end)| (*begin, u64::MAX - end));
        let mut around: Vec<u64> = Vec::new();
        for (begin, end) in slices {
            around.retain(|outer| *outer > *begin);
            assert!(around.iter().all(|outer| *end <= *outer), "slices of {row:?} cross at {begin}");
            around.push(*end);
        }
    }
}

/// Runs `gdsync trace` of a pingpong, and reads the trace.
fn traced(folder: &Folder, pingpong: &[&str]) -> (Value, Output) {
    traced_with(folder, &[], pingpong)
}

/// Like [`traced`], with options of `gdsync trace`.
fn traced_with(folder: &Folder, options: &[&str], pingpong: &[&str]) -> (Value, Output) {
    let path = folder.path().join("t.json");
    let own = gdsync(&[]).get_program().to_owned();
    let mut command = gdsync(&["trace", "-o"]);
    command.arg(&path).args(options).arg("--").arg(own).args(gdsync(pingpong).get_args());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (parse(&path), output)
}

#[test]
fn a_pingpong_of_two_processes_is_followed_from_each_post_to_its_arrival() {
    for op in ["send", "write-imm"] {
        let folder = Folder::new("trace-pingpong");
        let arguments = ["pingpong", "--op", op, "--iters", "40", "--warmup", "10", "--json"];
        let (trace, output) = traced(&folder, &arguments);
        // The command's output is unchanged.
        let report: Value = command::row(&output.stdout);
        assert_eq!(report["iterations"], 40);

        let pids: BTreeSet<u64> = events(&trace).iter().map(|event| number(event, "pid")).collect();
        assert_eq!(pids.len(), 2);
        let names: Vec<&str> = events(&trace)
            .iter()
            .filter(|event| event["name"] == "process_name")
            .filter_map(|event| event["args"]["name"].as_str())
            .collect();
        assert!(names.contains(&"gdsync pingpong-peer"), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("gdsync pingpong --op")), "{names:?}");

        // Each side sends each of its messages once, and each arrives at the other side.
        for pid in &pids {
            let count = |phase, category| {
                of(&trace, phase, category).filter(|event| number(event, "pid") == *pid).count()
            };
            assert_eq!((count("X", "sent"), count("X", "arrived")), (50, 50), "{op}");
            assert!(
                count("B", "waited") >= 50 && count("X", "rung") >= 50 && count("X", "posted") > 0,
                "{op}"
            );
            assert!(count("i", "prepared") >= 100 && count("i", "completed") >= 50, "{op}");
            assert!(count("X", "polled") >= 50, "{op}");
        }
        let mut ways = BTreeMap::new();
        let mut ends: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
        for event in events(&trace).iter().filter(|event| event["cat"] == "message") {
            ends.entry(number(event, "id")).or_default().push(event);
        }
        assert_eq!(ends.len(), 100, "{op}");
        for points in ends.values() {
            // Post, the stream's doorbell, the card's packet, its arrival.
            assert_eq!(points.len(), 4, "{op}: {points:?}");
            let (from, to) = (number(points[0], "pid"), number(points[3], "pid"));
            assert_eq!((number(points[1], "pid"), number(points[2], "pid")), (from, from));
            *ways.entry((from, to)).or_insert(0) += 1;
        }
        assert_eq!(ways.len(), 2, "{ways:?}");
        assert!(ways.iter().all(|((from, to), count)| from != to && *count == 50), "{ways:?}");

        let said = text(&output.stderr);
        let events = &trace["otherData"]["events"];
        let expected = format!(" has {events} events of 2 processes and 100 messages, 0 dropped; ");
        assert!(said.contains(&expected) && !said.contains("lost"), "{said}");
    }
}

#[test]
fn a_pingpong_that_the_cpu_drives_shows_the_cpu() {
    let folder = Folder::new("trace-cpu");
    let arguments = ["pingpong", "--trigger", "cpu", "--iters", "20", "--warmup", "0"];
    let (trace, _) = traced(&folder, &arguments);
    let rings = of(&trace, "X", "rung").filter(|event| event["name"] == "ring").count();
    assert_eq!((rings, of(&trace, "X", "sent").count()), (40, 40));
    assert!(of(&trace, "X", "polled").count() >= 40);
    assert_eq!(of(&trace, "s", "message").count(), 40);
}

/// Largest difference between the GPU's and the host's times, in nanoseconds.
const CLOCKS: u64 = 20_000;

#[test]
fn gpu_times_stand_between_the_post_and_the_message() {
    if let Some(reason) = no_gpu() {
        return skipped("gpu_times_stand_between_the_post_and_the_message", &reason);
    }
    let folder = Folder::new("trace-gpu");
    let (trace, _) =
        traced_with(&folder, &["--gpu"], &["pingpong", "--gpu", "0", "--iters", "400", "--warmup", "100"]);
    let key = |event: &Value| (number(event, "pid"), number(&event["args"], "submission"));
    let posts: BTreeMap<_, _> =
        of(&trace, "X", "posted").map(|post| (key(post), nanoseconds(post, "ts"))).collect();
    let performed: Vec<_> = of(&trace, "X", "performed").collect();
    assert!(performed.len() * 10 >= posts.len() * 9, "{} of {}", performed.len(), posts.len());
    for slice in &performed {
        let (at, posted) = (nanoseconds(slice, "ts"), posts[&key(slice)]);
        assert!(at + CLOCKS >= posted, "performed before its post of {posted}: {slice}");
    }
    // An arrow starts at the post, and passes the GPU's stream and the card to the other side.
    let rows: BTreeSet<Row> = performed.iter().map(|slice| row(slice)).collect();
    let passes: BTreeMap<u64, u64> = of(&trace, "t", "message")
        .filter(|point| rows.contains(&row(point)))
        .map(|point| (number(point, "id"), nanoseconds(point, "ts")))
        .collect();
    let messages = of(&trace, "f", "message").count();
    assert!(messages == 1000 && passes.len() >= 900, "{} of {messages}", passes.len());
}

#[test]
fn gpu_times_are_recorded_where_they_are_asked_for() {
    if let Some(reason) = no_gpu() {
        return skipped("gpu_times_are_recorded_where_they_are_asked_for", &reason);
    }
    for (asked, is_there) in [(None, false), (Some("yes"), false), (Some("1"), true)] {
        let folder = Folder::new("trace-gpu-asked");
        let path = folder.path().join("t.json");
        let mut command =
            gdsync(&["pingpong", "--gpu", "0", "--iters", "10", "--warmup", "0", "--procs", "1"]);
        command.env("GDSYNC_TRACE", &path).envs(asked.map(|value| ("GDSYNC_TRACE_GPU", value)));
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.contains("neither 0 nor 1"), asked == Some("yes"), "{said}");
        let trace = parse(&path);
        assert_eq!(of(&trace, "X", "performed").count() > 0, is_there, "{asked:?}");
        assert!(of(&trace, "X", "posted").count() > 0);
    }
}

fn in_folder(folder: &Path, value: Option<&str>, arguments: &[&str]) -> Output {
    let mut command = gdsync(arguments);
    command.current_dir(folder);
    if let Some(value) = value {
        command.env("GDSYNC_TRACE", value);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

fn files_in(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

const SHORT: [&str; 5] = ["pingpong", "--iters", "5", "--procs", "1"];

#[test]
fn a_program_with_the_variable_writes_a_file_and_one_without_it_none() {
    let folder = Folder::new("trace-variable");
    in_folder(folder.path(), None, &SHORT);
    in_folder(folder.path(), Some(""), &SHORT);
    assert_eq!(files_in(folder.path()), [""; 0]);
    let output = in_folder(folder.path(), Some("t-%p.json"), &SHORT);
    assert_eq!(text(&output.stderr), "");
    // The preload library, if used, has its own file.
    let names = files_in(folder.path());
    let traces: Vec<Value> = names.iter().map(|name| parse(&folder.path().join(name))).collect();
    let pids: BTreeSet<u64> = traces.iter().flat_map(events).map(|event| number(event, "pid")).collect();
    let [pid] = pids.into_iter().collect::<Vec<_>>()[..] else { panic!("one process: {names:?}") };
    assert!(names.iter().all(|name| name.starts_with(&format!("t-{pid}.json"))), "{pid}: {names:?}");
    assert!(traces.iter().any(|trace| of(trace, "f", "message").count() >= 10));
    // A program that uses neither the library nor the card.
    let empty = Folder::new("trace-unused");
    in_folder(empty.path(), Some("t.json"), &["help"]);
    assert_eq!(files_in(empty.path()), [""; 0]);
}

#[test]
fn processes_at_one_time_have_files_of_their_own() {
    let folder = Folder::new("trace-two");
    in_folder(folder.path(), Some("t.json"), &["pingpong", "--iters", "5"]);
    let names = files_in(folder.path());
    assert!(names.len() >= 2 && names[0] == "t.json", "{names:?}");
    let sent = |name| of(&parse(&folder.path().join(name)), "X", "sent").count();
    assert!(names.iter().map(sent).sum::<usize>() >= 10, "{names:?}");
}

#[test]
fn a_trace_that_has_no_place_is_no_reason_to_fail() {
    let folder = Folder::new("trace-nowhere");
    let output = in_folder(folder.path(), Some("/nowhere/t.json"), &SHORT);
    let said = text(&output.stderr);
    assert!(said.contains("nothing is traced: /nowhere/t.json.part: No such file"), "{said}");
}

/// Records parts of a pingpong in a folder.
fn parts(folder: &Path) -> Vec<PathBuf> {
    in_folder(folder, Some("parts/"), &["pingpong", "--iters", "5"]);
    files_in(&folder.join("parts")).iter().map(|name| folder.join("parts").join(name)).collect()
}

fn merge(folder: &Path, named: &[&Path]) -> Output {
    let mut command = gdsync(&["trace", "-o"]);
    command.arg(folder.join("t.json")).arg("--merge").args(named).output().unwrap()
}

#[test]
fn parts_are_merged_whole_cut_off_and_never_if_they_are_none() {
    let folder = Folder::new("trace-merge");
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("parts")).unwrap();
    let parts = parts(folder.path());
    assert!(parts.len() >= 2, "{parts:?}");
    let output = merge(folder.path(), &[&at("parts")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let whole = of(&parse(&at("t.json")), "X", "sent").count();
    assert!(whole >= 10);

    // A killed process: its part ends in the middle of a record.
    let part = std::fs::OpenOptions::new().write(true).open(&parts[0]).unwrap();
    part.set_len(part.metadata().unwrap().len() / 2 + 1).unwrap();
    let output = merge(folder.path(), &[&at("parts")]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("gdsync: 1 end of a part is lost"), "{said}");
    let trace = parse(&at("t.json"));
    assert_eq!(trace["otherData"]["cut_off"], 1);

    // Files that are not parts or do not exist are named; the previous trace stays.
    std::fs::write(&parts[0], "no part").unwrap();
    std::fs::create_dir(at("empty")).unwrap();
    for (path, why) in [
        (&parts[0], "it is no part of a gdsync trace of this version"),
        (&at("nothing.part"), "No such file"),
        (&at("empty"), "has no parts of a trace"),
    ] {
        let output = merge(folder.path(), &[path]);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.contains(why)), (Some(1), true), "{said}");
        assert!(said.contains(&*path.to_string_lossy()), "{said}");
        assert_eq!(parse(&at("t.json")), trace);
    }
}

#[test]
fn the_status_is_the_commands() {
    let folder = Folder::new("trace-status");
    let status = |arguments: &[&str]| {
        let output = gdsync(arguments).current_dir(folder.path()).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(status(&["trace", "--", "sh", "-c", "exit 7"]), (Some(7), String::new()));
    assert_eq!(status(&["trace", "--", "sh", "-c", "kill -9 $$"]).0, Some(137));
    let (code, said) = status(&["trace", "--", "no-such-command"]);
    assert!(code == Some(127) && said.starts_with("gdsync: no-such-command: "), "{said}");
    let (code, said) = status(&["trace", "--", "true"]);
    let unused = "gdsync: there is no trace: no process of true uses gdsync or its software card\n";
    assert_eq!((code, &*said), (Some(1), unused));
    // The error precedes the run.
    let (code, said) = status(&["trace", "-o", "/nowhere/t.json", "--", "touch", "ran"]);
    assert!(code == Some(1) && said.contains("/nowhere/t.json cannot be written"), "{said}");
    assert_eq!(files_in(folder.path()), [""; 0]);
    for wrong in [&["trace"][..], &["trace", "--merge", "x", "--", "true"], &["trace", "--merge"]] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// Waits until a process has written a buffer of records to its part, below a folder for temporary files, and so has
/// been at work for a while. On a busy machine no fixed time guarantees that.
fn wait_for_records(temporary: &Path) {
    let files = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let has_records = |part: std::fs::DirEntry| part.metadata().is_ok_and(|part| part.len() > 64 << 10);
    let end = Instant::now() + Duration::from_secs(600);
    while !files(temporary).any(|folder| files(&folder.path()).any(has_records)) {
        assert!(Instant::now() < end, "nothing is recorded");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_interrupt_reaches_the_command_and_the_trace_is_written() {
    let (folder, temporary) = (Folder::new("trace-interrupt"), Folder::new("trace-interrupt-parts"));
    let path = folder.path().join("t.json");
    let own = gdsync(&[]).get_program().to_owned();
    let mut command = gdsync(&["trace", "-o"]);
    command.arg(&path).arg("--").arg(own).args([
        "pingpong",
        "--iters",
        "1000000000",
        "--warmup",
        "10",
        "--json",
    ]);
    let mut tracing = gdsync_test_support::processes::as_from_a_terminal(&mut command)
        .env("TMPDIR", temporary.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_records(temporary.path());
    signal(tracing.id(), libc::SIGINT);
    let status = tracing.wait().unwrap();
    let output = tracing.wait_with_output().unwrap();
    assert_eq!(status.code(), Some(130), "{}", text(&output.stderr));
    let report: Value = command::row(&output.stdout);
    assert!(report["interrupted_of"].is_u64(), "{report}");
    assert!(of(&parse(&path), "f", "message").count() > 0);
}
