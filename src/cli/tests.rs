use super::values::{batch, count, duration, positive, procs, sizes};
use super::*;
use proptest::prelude::*;

fn parse(arguments: &[&str]) -> Result<PingpongOptions, String> {
    let words = ["gdsync", "pingpong"].iter().chain(arguments);
    match Cli::parse_words(words) {
        Ok(Invocation::Command(Command::Pingpong(options))) => Ok(options),
        Ok(other) => Err(format!("{other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn sizes_have_suffixes_and_a_limit() {
    for (text, bytes) in
        [("0", 0), ("8", 8), ("4k", 4096), ("64MiB", 64 << 20), ("1GiB", 1 << 30), ("1kB", 1000)]
    {
        assert_eq!(parse(&["--size", text]).unwrap().size, bytes, "{text}");
    }
    for (text, said) in [
        ("-1", "`-1` is not a size"),
        ("2TiB", "more than the 1 GiB"),
        ("1e3", "not a size"),
        ("", "not a size"),
    ] {
        let message = parse(&["--size", text]).unwrap_err();
        assert!(message.contains(said), "{text}: {message}");
    }
    assert!(parse(&["--size", "18446744073709551615GiB"]).is_err());
}

#[test]
fn counts_are_checked() {
    for (option, text, said) in [
        ("--iters", "0", "0 is not a whole number of 1 or more"),
        ("--iters", "-5", "-5 is not"),
        ("--warmup", "x", "0 or more"),
        ("--procs", "3", "neither 1 nor 2"),
        ("--batch", "1025", "more than the 1024"),
        ("--gpu", "-1", "-1 is not the number of a GPU"),
        ("--gpu", "0,x", "x is not the number of a GPU"),
        ("--gid-index", "-1", "-1 is not an index of a GID"),
        ("--mtu", "1500", "1500 is none of 256, 512"),
        ("--liberties", "-1", "it begins with a seed"),
        ("--liberties", "1 order", "`order` is none of its words"),
        ("--hca", "mlx5_0:0", "mlx5_0:0 is no NAME or NAME:PORT"),
        ("--doorbells", "loud", "[possible values: auto, direct, proxy, card]"),
        ("--queues", "mine", "[possible values: verbs, devx]"),
        ("--op", "fetch", "[possible values: send, write, write-imm]"),
        ("--check=maybe", "", "maybe"),
    ] {
        let message = if text.is_empty() { parse(&[option]) } else { parse(&[option, text]) }.unwrap_err();
        assert!(message.contains(said), "{option} {text}: {message}");
    }
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    for (arguments, said) in [
        (&["--gpu", "0", "--trigger", "cpu"][..], "--gpu is for streams"),
        (&["--doorbells", "card", "--trigger", "cpu"], "--doorbells card is for streams"),
        (&["--doorbells", "card", "--batch", "513"], "more than the 512 that --doorbells card allows"),
        (&["--cq", "gpu"], "--cq gpu needs --gpu N"),
        (&["--wq", "host", "--dbrec", "gpu"], "--dbrec gpu needs --gpu N"),
        (&["--gpu", "0", "--batch", "121"], "--batch 121 is more than the 120 that --gpu allows"),
        (&["--iters", "18446744073709551615"], "--iters 18446744073709551615 are together more than the"),
        (
            &["--warmup", "281474976710656"],
            "--warmup 281474976710656 and --iters 1000 are together more than",
        ),
        (&["--warmup", "18446744073709551615", "--iters", "18446744073709551615"], "give fewer"),
    ] {
        let message = parse(arguments).unwrap_err();
        assert!(message.contains(said), "{arguments:?}: {message}");
    }
    let options = parse(&["--gpu", "3", "--batch", "120", "--doorbells", "proxy"]).unwrap();
    assert_eq!((options.sides.gpu, options.sides.doorbells), (Some(3.into()), DoorbellChoice::Proxy));
    for list in ["all", "0,1", "0,0"] {
        assert_eq!(parse(&["--gpu", list]).unwrap().sides.gpu, Some(list.parse().unwrap()));
    }
    assert!(parse(&["--trigger", "cpu", "--batch", "1024"]).is_ok());
    let options = parse(&["--gpu", "2", "--cq", "gpu", "--wq", "stand-in"]).unwrap();
    let placement = options.sides.layout.placement(Some(2));
    let (gpu, stand_in) = (gdsync::cuda::Placement::Gpu(2), gdsync::cuda::Placement::StandIn);
    assert_eq!(placement, gdsync::cuda::QueuePlacement::HOST.completions(gpu).work(stand_in));
}

#[test]
fn posts_have_a_limit() {
    let posts = |text: &str| match Cli::parse_words(["gdsync", "bench", "post", "--iters", text]) {
        Ok(Invocation::Command(Command::Bench(options))) => Ok(options.posts()),
        Ok(other) => Err(format!("{other:?}")),
        Err(error) => Err(error.to_string()),
    };
    assert_eq!(posts("281474976710656"), Ok(MAX_EXCHANGES));
    for text in ["281474976710657", "18446744073709551615"] {
        let message = posts(text).unwrap_err();
        assert!(message.contains(&format!("{text} is more than the 281474976710656 posts")), "{message}");
    }
}

#[test]
fn old_spellings_of_options_are_hidden_but_known() {
    for (old, new) in [
        ("bench post --posts 7", "bench post --iters 7"),
        ("bench alltoall --rounds 7", "bench alltoall --iters 7"),
        ("bench exchange --processes 1", "bench exchange --procs 1"),
        ("bench net --operation send", "bench net --op send"),
        ("simulate --operations 1e3", "simulate --iters 1e3"),
    ] {
        let parsed = |line: &str| match Cli::parse_words(["gdsync"].into_iter().chain(line.split(' '))) {
            Ok(Invocation::Command(Command::Bench(options))) => match &options.between {
                Some(Between::Net(net)) => format!("{:?}", net.operation),
                None => format!("{} {} {:?}", options.posts(), options.rounds(), options.procs),
            },
            Ok(Invocation::Command(Command::Simulate(options))) => options.operations.to_string(),
            other => panic!("{line}: {other:?}"),
        };
        let counts = |line: &str| parsed(line).split(' ').next().map(str::to_owned);
        match old.contains("--rounds") {
            true => assert!(parsed(old).contains(" 7 ") && parsed(new).contains(" 7 "), "{old}"),
            false => assert_eq!(counts(old), counts(new), "{old}"),
        }
        let words: Vec<&str> = old.split(' ').collect();
        let verbs: Vec<&str> = words.iter().copied().take_while(|word| !word.starts_with('-')).collect();
        let verbs = if verbs.ends_with(&["net"]) { &verbs[..] } else { &verbs[..1] };
        let help = Cli::parse_words(["gdsync", "help"].iter().chain(verbs)).unwrap_err().to_string();
        let option = |line: &str| {
            line.split(' ').find(|word| word.starts_with("--")).map(|word| word.to_owned() + " ")
        };
        assert!(!help.contains(&option(old).unwrap()) && help.contains(&option(new).unwrap()), "{help}");
    }
}

#[test]
fn benchmarks_are_on_one_gpu_but_for_those_between_gpus() {
    let bench = |what: &str, list: &str| match Cli::parse_words(["gdsync", "bench", what, "--gpu", list]) {
        Ok(Invocation::Command(Command::Bench(options))) => Ok(options.gpu()),
        Ok(other) => Err(format!("{other:?}")),
        Err(error) => Err(error.to_string()),
    };
    assert_eq!((bench("memops", "3"), bench("exchange", "3")), (Ok(3), Ok(3)));
    for list in ["0,1", "0,0", "all"] {
        assert!(bench("exchange", list).is_ok() && bench("turnaround", list).is_ok());
        let message = bench("memops", list).unwrap_err();
        assert!(
            message.contains(&format!("--gpu {list} is for")) && message.contains("`memops`"),
            "{message}"
        );
    }
    assert!(bench("memops", "x").unwrap_err().contains("x is not the number of a GPU"));
}

#[test]
fn checking_is_on_unless_switched_off() {
    assert!(parse(&[]).unwrap().sides.check && parse(&["--check"]).unwrap().sides.check);
    assert!(!parse(&["--check=false"]).unwrap().sides.check);
}

#[test]
fn sweeps_have_lists_and_powers() {
    let swept = |arguments: &[&str]| parse(arguments).unwrap().sides.swept();
    assert_eq!(swept(&["--sizes", "8..64"]), Some(vec![8, 16, 32, 64]));
    assert_eq!(swept(&["--sizes", "3..13"]), Some(vec![3, 6, 12]));
    assert_eq!(swept(&["--sizes", "0,4K,1M"]), Some(vec![0, 4096, 1 << 20]));
    assert_eq!(swept(&["--sizes", "1KiB..1k"]), Some(vec![1024]));
    let all = swept(&["-a"]).unwrap();
    assert_eq!((all.len(), all[0], all[22]), (23, 2, 8 << 20));
    assert_eq!(swept(&["--size", "8"]), None);
    for (text, said) in [
        ("64..8", "64..8 ends before it begins"),
        ("0..8", "begins with 0"),
        ("8,,9", "`` is not a size"),
        ("8..2T", "more than the 1 GiB"),
        ("8..", "`` is not a size"),
    ] {
        let message = parse(&["--sizes", text]).unwrap_err();
        assert!(message.contains(said), "{text}: {message}");
    }
    assert!(parse(&["-a", "--size", "8"]).unwrap_err().contains("cannot be used with"));
    assert!(parse(&["--csv", "--json"]).unwrap_err().contains("cannot be used with"));
}

#[test]
fn durations_have_units() {
    for (text, ms) in [("10s", 10_000), ("500ms", 500), ("1.5s", 1500), ("2m", 120_000), ("24h", 86_400_000)]
    {
        let options = parse(&["--duration", text]).unwrap();
        assert_eq!(options.sides.duration, Some(std::time::Duration::from_millis(ms)), "{text}");
        assert_eq!(options.of_size(8).exchanges(), Some(MAX_EXCHANGES));
    }
    for text in ["0s", "10", "-1s", "s", "1e3s", "25h", "1.2.3s", ""] {
        let message = parse(&["--duration", text]).unwrap_err();
        assert!(message.contains("is no time above 0, up to 24h"), "{text}: {message}");
    }
    assert!(parse(&["--duration", "1s", "--iters", "5"]).unwrap_err().contains("cannot be used with"));
}

proptest! {
    #[test]
    fn no_text_makes_the_parsers_panic(text in ".{0,40}") {
        let _ = (count(&text), positive(&text), procs(&text), batch(&text), sizes(&text), duration(&text));
    }
}

#[test]
fn processes_of_commands_are_neither_suggested_nor_listed() {
    let mut help = Cli::command();
    let help = help.render_long_help().to_string();
    for process in Process::value_variants() {
        let name = word(process);
        let started = Cli::parse_words(["gdsync", &name]);
        assert!(matches!(started, Ok(Invocation::Process(ref started)) if started == process), "{started:?}");
        // Suggestions for a misspelt name contain user commands only.
        let said = Cli::parse_words(["gdsync", &format!("{name}s")]).unwrap_err().to_string();
        assert!(!said.contains(&format!("'{name}'")) && (name == "draw" || !help.contains(&name)), "{said}");
    }
    let watch = Cli::parse_words(["gdsync", "soft-watch", "/tmp/gdsync-run-1-0"]);
    assert!(matches!(watch, Ok(Invocation::Process(Process::SoftWatch))), "{watch:?}");
}

#[test]
fn a_server_refuses_what_its_client_decides() {
    for words in [
        "--iters 5",
        "--warmup 5",
        "--size 8",
        "--sizes 8,16",
        "-a",
        "--duration 1s",
        "--procs 2",
        "--trigger cpu",
        "--mtu 256",
        "--cq host",
        "--dbrec host",
        "--wq host",
        "--doorbells auto",
        "--queues verbs",
        "--check",
        "--csv",
        "--plot x.svg",
        "--transport rc",
        "--op send",
        "--batch 4",
    ] {
        let words: Vec<&str> = ["--server"].into_iter().chain(words.split(' ')).collect();
        let said = parse(&words).unwrap_err();
        assert!(said.contains("'--server' cannot be used with"), "{words:?}: {said}");
    }
    let own = "--server --listen ::1 --port 5 --hca mlx5_0 --gid-index 0 --gpu 0 --liberties 1 --json";
    assert!(parse(&own.split(' ').collect::<Vec<_>>()).unwrap().sides.hosts.server);
}

#[test]
fn a_run_on_a_server_is_the_clients_with_what_is_the_servers_own() {
    let own = parse(&["--server", "--hca", "mlx5_0", "--gpu", "1", "--json"]).unwrap().sides;
    let asked =
        parse(&["node7", "--iters", "7", "--hca", "softhca1", "--gid-index", "3", "--liberties", "1"])
            .unwrap();
    let run = asked.sides.on_server(&own).unwrap();
    assert_eq!((run.iters, run.gid_index, run.liberties, run.json), (7, None, None, true));
    assert_eq!((run.hca.unwrap().to_string().as_str(), run.gpu), ("mlx5_0:1", Some(1.into())));
}

#[test]
fn a_program_without_words_is_no_mistake() {
    assert!(matches!(Cli::parse_words(["gdsync"]), Ok(Invocation::Bare)));
    assert_eq!(BRIEF.lines().count(), 9);
    for line in BRIEF.lines().filter(|line| line.starts_with("  gdsync ")) {
        let words = line.split("  ").nth(1).unwrap().split_whitespace();
        assert!(matches!(Cli::parse_words(words), Ok(Invocation::Command(_))), "{line}");
    }
}

#[test]
fn options_of_a_search_belong_to_it() {
    let soft = |options: &str| {
        let words = ["gdsync", "soft"].into_iter().chain(options.split_whitespace()).chain(["--", "x"]);
        Cli::parse_words(words).map(drop).map_err(|error| error.to_string())
    };
    for right in [
        "--explore",
        "--explore --minutes 0.5 --runs 3 --kinds relaxed,pieces --expect x --json",
        "--schedule f",
    ] {
        assert_eq!(soft(right), Ok(()), "{right}");
    }
    for (options, said) in [
        ("--runs 3", "--explore"),
        ("--json", "--explore"),
        ("--explore --schedule f", "cannot be used with"),
        ("--explore --liberties 1", "cannot be used with"),
        ("--liberties 1 --schedule f", "cannot be used with"),
        ("--explore --kinds order", "`order` is none of its words"),
        ("--explore --minutes 0", "no number of minutes"),
    ] {
        let message = soft(options).unwrap_err();
        assert!(message.contains(said), "{options}: {message}");
    }
}
