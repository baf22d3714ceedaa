use super::super::{BenchOptions, Between, Cli, Command, Invocation};
use super::*;

fn parse(arguments: &[&str]) -> Result<NetOptions, String> {
    match Cli::parse_words(["gdsync", "bench", "net"].iter().chain(arguments)) {
        Ok(Invocation::Command(Command::Bench(BenchOptions {
            between: Some(Between::Net(net)), ..
        }))) => Ok(*net),
        Ok(other) => Err(format!("{other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn what_is_not_given_follows_from_what_is() {
    let of = |arguments: &[&str]| {
        let net = parse(arguments).unwrap();
        (net.size(), net.window(), net.batch())
    };
    assert_eq!(of(&[]), (LARGE, 64, 16));
    assert_eq!(of(&["--mode", "rate"]), (8, 64, 16));
    assert_eq!(of(&["--mode", "latency"]), (8, 64, 16));
    assert_eq!(of(&["--op", "fetch-add"]), (8, 64, 16));
    assert_eq!(of(&["--window", "4"]), (LARGE, 4, 4));
    assert_eq!(of(&["--batch", "100"]), (LARGE, 100, 100));
    assert_eq!(of(&["--size", "1k", "--window", "8", "--batch", "2"]), (1024, 8, 2));
}

#[test]
fn options_that_do_not_go_together_are_refused_with_the_reason() {
    for (arguments, said) in [
        (&["--mode", "latency", "--qps", "2"][..], "--qps 2 is not for --mode latency"),
        (&["--mode", "latency", "--window", "8"], "--window 8 is not for --mode latency"),
        (&["--mode", "latency", "--bidirectional"], "--bidirectional is not for --mode latency"),
        (&["--operation", "fetch-add", "--size", "16"], "--operation fetch-add changes 8 bytes"),
        (&["--operation", "compare-swap", "-a"], "--operation compare-swap changes 8 bytes"),
        (&["--batch", "9", "--window", "8"], "--batch 9 is more than the --window 8"),
        (&["--qps", "256", "--size", "32M"], "--qps 256 with messages of 32 MiB need more than 4 GiB"),
        (&["--qps", "8", "--sizes", "8,1G"], "--qps 8 with messages of 1 GiB need more than 4 GiB"),
        (&["--plot", "x.svg"], "--plot draws a bandwidth by size"),
        (&["--mode", "rate", "--plot", "x.svg"], "--plot draws a rate by size"),
        (&["--warmup", "281474976710656"], "more than the 281474976710656 messages"),
        (&["--gpu", "0", "--trigger", "cpu"], "--gpu is for streams"),
        (&["--gpu", "0", "--batch", "121"], "more than the 120 that --gpu allows"),
        (&["--doorbells", "card", "--batch", "513"], "more than the 512 that --doorbells card allows"),
        (&["--qps", "257"], "257 is not in 1..=256"),
        (&["--window", "1025"], "1025 is more than the 1024 that fit a queue"),
        (&["--server", "--qps", "2"], "'--server' cannot be used with '--qps <N>'"),
        (&["--server", "--plot", "x.svg"], "'--server' cannot be used with '--plot <FILE>'"),
        (&["node7", "--procs", "1"], "cannot be used with"),
        (&["--duration", "1s", "--iters", "5"], "cannot be used with"),
    ] {
        let message = parse(arguments).unwrap_err();
        assert!(message.contains(said), "{arguments:?}: {message}");
    }
    assert!(parse(&["--mode", "latency", "--plot", "x.svg"]).is_ok());
    assert!(parse(&["--operation", "fetch-add", "--size", "8"]).is_ok());
}

#[test]
fn a_refusal_names_its_own_command() {
    let message = parse(&["--plot", "x.svg"]).unwrap_err();
    assert!(message.contains("Usage: gdsync bench net"), "{message}");
}

#[test]
fn values_of_another_host_are_checked_here() {
    let options = parse(&[]).unwrap();
    assert_eq!(options.refusal(), None);
    for (wrong, said) in [
        (
            NetOptions { size: Some(MAX_SIZE + 1), ..options.clone() },
            "1073741825 bytes of a message are not from 0",
        ),
        (NetOptions { qps: 0, ..options.clone() }, "0 queue pairs are not from 1 to 256"),
        (NetOptions { window: Some(0), ..options.clone() }, "0 messages under way are not from 1 to 1024"),
        (NetOptions { batch: Some(5000), ..options.clone() }, "5000 messages under way are not"),
        (NetOptions { batch: Some(9), window: Some(8), ..options.clone() }, "--batch 9 is more than"),
    ] {
        assert!(wrong.refusal().unwrap().contains(said), "{:?}", wrong.refusal());
    }
    let mut none = options;
    none.sides.iters = 0;
    assert!(none.refusal().unwrap().contains("0 messages to measure are not from 1"));
}
