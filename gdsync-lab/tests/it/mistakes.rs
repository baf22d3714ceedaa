//! Errors of wrong usage, and of missing requirements: each is reported once, with the remedy.

use gdsync_test_support::command::{error_in, gdsync, object, rows_in, run, text};
use gdsync_test_support::skipped_on_system;

/// A command line, and the begin of its error, which clap continues with the usage.
const WRONG_USAGE: [(&[&str], &str); 53] = [
    (
        &["pingpong", "--size", "-1"],
        "invalid value '-1' for '--size <BYTES>': `-1` is not a size: give bytes, or a number with K, KiB,",
    ),
    (
        &["pingpong", "--size", "2TiB"],
        "invalid value '2TiB' for '--size <BYTES>': 2TiB is more than the 1 GiB that",
    ),
    (
        &["pingpong", "--iters", "0"],
        "invalid value '0' for '--iters <ITERS>': 0 is not a whole number of 1 or more",
    ),
    (
        &["pingpong", "--warmup", "x"],
        "invalid value 'x' for '--warmup <WARMUP>': x is not a whole number of 0 or more",
    ),
    (&["pingpong", "--procs", "3"], "invalid value '3' for '--procs <PROCS>': 3 is neither 1 nor 2"),
    (
        &["pingpong", "--mtu", "1500"],
        "invalid value '1500' for '--mtu <BYTES>': 1500 is none of 256, 512, 1024,",
    ),
    (
        &["pingpong", "--op", "fetch"],
        "invalid value 'fetch' for '--op <OP>'\n  [possible values: send, write, write-imm]",
    ),
    (
        &["pingpong", "--hca", ":1"],
        "invalid value ':1' for '--hca <NAME[:PORT]>': :1 is no NAME or NAME:PORT, such as",
    ),
    (
        &["pingpong", "--gpu", "0", "--trigger", "cpu"],
        "--gpu is for streams: with --trigger cpu, no GPU has a part in it",
    ),
    (&["pingpong", "--gpu", "0", "--batch", "1024"], "--batch 1024 is more than the 120 that --gpu allows"),
    (
        &["pingpong", "--gpu", "first"],
        "invalid value 'first' for '--gpu <N[,M]>': first is not the number of a GPU",
    ),
    (
        &["pingpong", "--transport", "ud", "--op", "write"],
        "--op write is not for --transport ud, which only sends",
    ),
    (&["pingpong", "--cq", "gpu"], "--cq gpu needs --gpu N, which says whose memory"),
    (
        &["pingpong", "--sise", "8"],
        "unexpected argument '--sise' found\n\n  tip: a similar argument exists: '--size'",
    ),
    (
        &["pingpong", "here:x"],
        "invalid value 'here:x' for '[HOST[:PORT]]': the port of here:x is not a number up to",
    ),
    (
        &["bench", "memops", "--gpu", "0,1"],
        "--gpu 0,1 is for `card`, `exchange` and `turnaround`, which measure between GPUs:",
    ),
    (
        &["bench", "exchange", "--gpu", "0", "--sizes", "8"],
        "--sizes is for `card --gpu`, whose writes it names",
    ),
    (
        &["bench", "card", "--gpu", "0", "--sizes", "0,8"],
        "invalid value '0,8' for '--sizes <LIST>': 0,8 has a write of 0 bytes, which copies nothing:",
    ),
    (
        &["bench", "net", "--mode", "latency", "--qps", "2"],
        "--qps 2 is not for --mode latency, which has one message under way: give --mode rate or bandwidth",
    ),
    (
        &["bench", "net", "--plot", "x.svg"],
        "--plot draws a bandwidth by size, and there is one size: give --sizes or -a",
    ),
    (&["bench", "--iters", "5", "net"], "invalid value 'net' for '[WHAT]'\n  [possible values: card,"),
    (
        &["bench", "all", "--plot", "x.svg"],
        "--plot is for one benchmark: for `all`, --html FILE has the pictures of each",
    ),
    (
        &["bench", "device", "--plot", "x.svg"],
        "--plot is not for `device`: its cycles, factors, times and rates",
    ),
    (
        &["bench", "flood"],
        "invalid value 'flood' for '[WHAT]'\n  [possible values: card, checked, cq, post, first, memops,",
    ),
    (&["bench", "--iters", "0"], "invalid value '0' for '--iters <N>': 0 is not a whole number of 1 or more"),
    (&["bench", "alltoall", "--ranks", "1"], "invalid value '1' for '--ranks <N>': 1 is not in 2..=1024"),
    (
        &["soak", "--minutes", "0"],
        "invalid value '0' for '--minutes <MINUTES>': 0 is no number of minutes above 0,",
    ),
    (
        &["simulate", "--seeds", "9..3"],
        "invalid value '9..3' for '--seeds <A..B>': 9..3 is no range of seeds such as 1..100",
    ),
    (&["simulate", "--jobs", "0"], "invalid value '0' for '--jobs <N>': 0 is not in 1..=1024"),
    (&["soak", "--procs", "65"], "invalid value '65' for '--procs <N>': 65 is not in 2..=64"),
    (
        &["soak", "--faults", "drop nth=0"],
        "invalid value 'drop nth=0' for '--faults <PLAN>': fault plan, line 1, column 6,",
    ),
    (
        &["soak", "--faults", "die nth=9"],
        "invalid value 'die nth=9' for '--faults <PLAN>': a card that dies for good ends",
    ),
    (&["soak", "--gpu", "0", "--stand-in"], "the argument '--gpu <N>' cannot be used with '--stand-in'"),
    (
        &["copybw", "--max-size", "63"],
        "invalid value '63' for '--max-size <BYTES>': 63 is no size from 64 bytes to 256MiB",
    ),
    (
        &["copylat", "--max-size", "big"],
        "invalid value 'big' for '--max-size <BYTES>': `big` is not a size: give bytes,",
    ),
    (&["sanity", "--backend", "mmap"], "invalid value 'mmap' for '--backend <NAME>': "),
    (
        &["explain", "--example", "ring"],
        "invalid value 'ring' for '--example <EXAMPLE>'\n  [possible values: halo,",
    ),
    (&["explain", "--collect-from", "0"], "invalid value '0' for '--collect-from <N>': 0 is not in 1.."),
    (&["soft"], "the following required arguments were not provided:\n  <COMMAND>..."),
    (&["run", "-n", "2"], "the following required arguments were not provided:\n  <PROGRAM>..."),
    (&["run", "--", "true"], "the following required arguments were not provided:\n  --ranks <N>"),
    (&["run", "-n", "257", "--", "true"], "invalid value '257' for '--ranks <N>': 257 is not in 1..=256"),
    (&["trace"], "the following required arguments were not provided:\n  <COMMAND>..."),
    (
        &["trace", "--merge", "x", "--", "true"],
        "the argument '--merge <PATH>...' cannot be used with '[COMMAND]...'",
    ),
    (
        &["soft", "--devices", "9", "--", "true"],
        "invalid value '9' for '--devices <LIST>': 9 is neither a number from 1 to 8",
    ),
    (&["doctor", "--fix", "--json"], "the argument '--fix' cannot be used with '--json'"),
    (&["top", "--json"], "the following required arguments were not provided:\n  --once"),
    (
        &["top", "--interval", "5ms"],
        "invalid value '5ms' for '--interval <TIME>': 5ms is less than the 100ms",
    ),
    (&["devices", "mlx5_0"], "unexpected argument 'mlx5_0' found"),
    (
        &["completions", "sh"],
        "invalid value 'sh' for '<SHELL>'\n  [possible values: bash, elvish, fish, powershell, zsh]",
    ),
    (&["completions"], "the following required arguments were not provided:\n  <SHELL>"),
    (&["pingpng"], "unrecognized subcommand 'pingpng'\n\n  tip: a similar subcommand exists: 'pingpong'"),
    (
        &["soak-workers"],
        "unrecognized subcommand 'soak-workers'\n\n  tip: a similar subcommand exists: 'soak'",
    ),
];

#[test]
fn wrong_usage_is_said_with_what_would_be_right() {
    for (arguments, begins) in WRONG_USAGE {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.starts_with(&format!("error: {begins}")), "{arguments:?}: {said}");
        assert!(said.ends_with("For more information, try '--help'.\n"), "{arguments:?}: {said}");
        assert_eq!(said.matches("error: ").count(), 1, "{arguments:?}: {said}");
        match arguments.contains(&"--json") {
            true => assert!(begins.starts_with(&error_in(&output.stdout)), "{arguments:?}"),
            false => assert!(output.stdout.is_empty()),
        }
    }
}

#[test]
fn errors_are_json_where_it_is_asked_for() {
    for (arguments, code, said) in [
        (
            &["pingpong", "--json", "--size", "-1"][..],
            2,
            "invalid value '-1' for '--size <BYTES>': `-1` is not a size",
        ),
        (&["bench", "net", "--json", "--plot", "x.svg"], 2, "--plot draws a bandwidth by size"),
        (&["bench", "flood", "--json"], 2, "invalid value 'flood' for '[WHAT]'"),
        (&["explain", "--json", "/nowhere/at/all"], 1, "/nowhere/at/all: No such file"),
        (&["explain", "--json", "Cargo.toml"], 2, "line 1, column 1"),
        (&["bench", "card", "--json", "--hca", "mlx5_77"], 1, ""),
        (&["bench", "first", "--json", "--hca", "softhca7"], 1, ""),
        (&["bench", "memops", "--json", "--gpu", "4000000000"], 1, ""),
        (&["copybw", "--json", "--gpu", "4000000000"], 1, ""),
        (&["doctor", "--json", "--root", "/nowhere/at/all"], 1, "/nowhere/at/all is no folder"),
    ] {
        let output = run(arguments);
        let (said_in_json, on_stderr) = (error_in(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {on_stderr}");
        assert!(said_in_json.starts_with(said) && !said_in_json.is_empty(), "{arguments:?}: {said_in_json}");
        // If a child process has reported the error, the words are on standard error.
        let elsewhere = said_in_json == "standard error has the cause";
        assert!(elsewhere || on_stderr.contains(&said_in_json), "{arguments:?}: {on_stderr}");
        assert_eq!(object(&output.stdout)["command"].as_array().unwrap()[1..], *arguments);
    }
}

#[test]
fn what_a_failed_sweep_has_measured_stands_beside_its_error() {
    let output = run(&["pingpong", "--transport", "ud", "--sizes", "8,8K", "--iters", "20", "--json"]);
    let object = object(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((object["rows"].as_array().unwrap().len(), &object["rows"][0]["size_bytes"]), (1, &8.into()));
    assert!(text(&output.stderr).contains(object["error"]["message"].as_str().unwrap()), "{object}");
}

/// The whole error, in one line, for arguments that a command itself refuses.
#[test]
fn a_page_that_is_not_there_is_said_with_those_that_are() {
    let output = run(&["man", "flood"]);
    let expected = "gdsync: flood is no command: there are doctor, devices, pingpong, bench, bench-net, run, soft, top, trace, explain, accept, sanity, copybw, copylat, lab, lab-bench, lab-soak, lab-simulate, completions, man\n";
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(2), expected));
    let output = run(&["man", "--all", "/nowhere/at/all"]);
    let expected =
        "gdsync: /nowhere/at/all/gdsync.1 cannot be written: No such file or directory (os error 2)\n";
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(1), expected));
}

/// Checks that a command fails with one line of error that contains these words: the cause, and the remedy.
fn fails(arguments: &[&str], words: [&str; 2]) {
    let output = run(arguments);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{arguments:?}: {said}");
    assert!(said.starts_with("gdsync: ") && said.lines().count() == 1, "{arguments:?}: {said}");
    assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
}

#[test]
fn what_is_not_there_is_said_once_with_the_remedy() {
    if skipped_on_system("what_is_not_there_is_said_once_with_the_remedy") {
        return;
    }
    let card = ["no device named softhca7", "the software provider has softhca0"];
    for command in [
        &["pingpong"][..],
        &["pingpong", "--procs", "1"],
        &["soak"],
        &["bench", "net"],
        &["bench", "net", "--procs", "1"],
        &["bench", "card"],
        &["bench", "first"],
        &["bench", "scale"],
        &["bench", "exchange"],
        &["bench", "alltoall"],
        &["bench", "persistent"],
    ] {
        fails(&[command, &["--hca", "softhca7"]].concat(), card);
    }
    fails(
        &["bench", "post", "--hca", "softhca0"],
        ["softhca0 is a software card", "name one of the system's"],
    );
    fails(&["explain", "/nowhere/at/all"], ["/nowhere/at/all", "No such file"]);
}

/// On a machine without a system card. `gdsync soft` provides one.
#[test]
fn a_missing_card_is_said_once_with_the_remedy() {
    if skipped_on_system("a_missing_card_is_said_once_with_the_remedy") {
        return;
    }
    let mut missing = gdsync(&["devices", "--json"]);
    let devices = rows_in(&missing.output().unwrap().stdout);
    if devices.iter().any(|device| device["provider"] == "system") {
        return gdsync_test_support::skipped(
            "a_missing_card_is_said_once_with_the_remedy",
            "there is a card",
        );
    }
    // Without libraries, kernel modules or a card: each has its own remedy.
    let remedy = |said: &str| ["install", "modprobe", "provider has"].iter().any(|word| said.contains(word));
    for arguments in [
        &["bench", "post"][..],
        &["pingpong", "--hca", "mlx5_0"],
        &["soak", "--hca", "mlx5_0"],
        &["bench", "card", "--hca", "mlx5_0"],
        &["bench", "exchange", "--hca", "mlx5_0"],
    ] {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{arguments:?}: {said}");
        assert!(said.starts_with("gdsync: ") && said.lines().count() == 1, "{arguments:?}: {said}");
        assert!(remedy(&said) && !said.contains("not implemented"), "{arguments:?}: {said}");
    }
    assert!(text(&run(&["bench", "post"]).stderr).contains("`gdsync soft -- gdsync bench post`"));
}

#[test]
fn a_missing_gpu_is_said_once() {
    for arguments in [
        &["pingpong"][..],
        &["soak"],
        &["sanity"],
        &["copybw"],
        &["copylat"],
        &["bench", "net"],
        &["bench", "memops"],
        &["bench", "batch"],
        &["bench", "cq"],
        &["bench", "device"],
        &["bench", "exchange"],
        &["bench", "graph"],
        &["bench", "overlap"],
        &["bench", "quiet"],
        &["bench", "turnaround"],
    ] {
        let output = run(&[arguments, &["--gpu", "4000000000"]].concat());
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{arguments:?}: {said}");
        assert!(said.starts_with("gdsync: ") && said.lines().count() == 1, "{arguments:?}: {said}");
        assert!(said.contains("no CUDA driver") || said.contains("no GPU"), "{arguments:?}: {said}");
    }
}
