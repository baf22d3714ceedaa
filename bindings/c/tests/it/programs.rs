//! C programs on the library, compiled as C11, and in the headers' old dialect as C++17, and run on the software card with software streams.

use crate::support::{Language, OLD_DIALECT, build, root, works};
use gdsync_test_support::compiler::Program;
use gdsync_test_support::{on_system, skipped};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

fn run(test: &str, source: &str) -> Option<String> {
    run_in(test, source, &[])
}

fn run_in(test: &str, source: &str, environment: &[(&str, &str)]) -> Option<String> {
    let mut said = None;
    for (language, dialect) in [(Language::C, None), (Language::Cpp, Some(OLD_DIALECT))] {
        if let Some(compiler) = works(test, language) {
            said = Some(build(&compiler.options(dialect), source).succeed(environment));
        }
    }
    said
}

#[test]
fn streams_answer_each_other() {
    if let Some(said) = run("streams_answer_each_other", "pingpong.c") {
        assert_eq!(said, "pingpong ok\n");
    }
}

#[test]
fn descriptors_of_every_kind_are_performed() {
    if let Some(said) = run("descriptors_of_every_kind_are_performed", "descriptors.c") {
        assert_eq!(said, "descriptors ok\n");
    }
}

#[test]
fn requests_may_be_copied_and_thrown_away() {
    if let Some(said) = run("requests_may_be_copied_and_thrown_away", "requests.c") {
        assert_eq!(said, "requests ok\n");
    }
}

#[test]
fn persistent_requests_are_started_again_and_again() {
    if let Some(said) = run("persistent_requests_are_started_again_and_again", "persistent.c") {
        assert_eq!(said, "persistent ok\n");
    }
}

#[test]
fn waits_say_how_the_work_ended() {
    if let Some(said) = run("waits_say_how_the_work_ended", "checked.c") {
        assert_eq!(said, "checked ok\n");
    }
}

#[test]
fn registrations_are_kept() {
    if let Some(said) = run("registrations_are_kept", "cache.c") {
        assert_eq!(said, "cache ok\n");
    }
}

#[test]
fn one_word_releases_sends_of_several_queue_pairs() {
    if let Some(said) = run("one_word_releases_sends_of_several_queue_pairs", "trigger.c") {
        assert_eq!(said, "trigger ok\n");
    }
}

#[test]
fn one_word_starts_lists_whose_sends_wait_for_their_receives() {
    let test = "one_word_starts_lists_whose_sends_wait_for_their_receives";
    let environment = [("GDSYNC_POST_TIMEOUT_MS", "200")];
    if let Some(said) = run_in(test, "held.c", &environment) {
        assert_eq!(said, "held ok\n");
    }
}

#[test]
fn cards_that_do_not_wait_hold_nothing_back() {
    let environment = [("SOFTHCA_WAITS", "off")];
    if let Some(said) = run_in("cards_that_do_not_wait_hold_nothing_back", "held.c", &environment) {
        assert_eq!(said, "held: no waits ok\n");
    }
}

#[test]
fn teams_write_and_notify_by_streams_and_survive() {
    if let Some(said) = run("teams_write_and_notify_by_streams_and_survive", "teams.c") {
        assert_eq!(said, "teams ok\n");
    }
}

#[test]
fn lists_of_sends_keep_their_order_and_name_the_bad_one() {
    if let Some(said) = run("lists_of_sends_keep_their_order_and_name_the_bad_one", "lists.c") {
        assert_eq!(said, "lists ok\n");
    }
}

#[test]
fn files_of_both_dialects_share_a_queue_pair() {
    let test = "files_of_both_dialects_share_a_queue_pair";
    let Some(compiler) = works(test, Language::C) else { return };
    let old = compiler.clone().options([OLD_DIALECT, "-shared", "-fPIC"]);
    let old = build(&old, "dialect.c");
    assert_eq!(build(&compiler.libraries([old.path()]), "dialect.c").succeed(&[]), "dialects ok\n");
}

/// Runs a program of `examples/c` as so many processes. Returns the first rank's output; the others print nothing.
fn run_ranks(test: &str, program: &Program, size: usize) -> String {
    static JOBS: AtomicUsize = AtomicUsize::new(0);
    let job = format!("gdsync {test} {} {}", JOBS.fetch_add(1, Ordering::Relaxed), std::process::id());
    let rank = |rank: usize| {
        let (rank, size) = (rank.to_string(), size.to_string());
        let environment = [("GDSYNC_RANK", rank), ("GDSYNC_SIZE", size), ("GDSYNC_JOB", job.clone())];
        program.succeed(&environment.each_ref().map(|(name, value)| (*name, value.as_str())))
    };
    let mut said: Vec<String> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size).map(|number| scope.spawn(move || rank(number))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(said[1..].iter().all(String::is_empty), "{said:?}");
    said.remove(0)
}

/// Runs a program of `examples/c` with several numbers of ranks, and checks the first rank's output.
fn run_example(test: &str, source: &str, check: impl Fn(usize, &str)) {
    let example = root().join("../../examples/c").join(source);
    for language in [Language::C, Language::Cpp] {
        let Some(compiler) = works(test, language) else { continue };
        let program = compiler.build(&example);
        for size in [1, 2, 4] {
            check(size, &run_ranks(test, &program, size));
        }
    }
}

/// The example of docs/c-abi.md.
#[test]
fn a_transport_of_the_example_carries_every_byte() {
    run_example("a_transport_of_the_example_carries_every_byte", "transport.c", |size, said| {
        assert!(said.contains(&format!("{size} ranks, ")) && said.contains("every byte as sent"), "{said}");
    });
}

/// The example of docs/c.md, with the output that the page has.
#[test]
fn the_first_program_sends_in_the_order_of_its_stream() {
    let page = std::fs::read_to_string(root().join("../../docs/c.md")).unwrap();
    run_example("the_first_program_sends_in_the_order_of_its_stream", "ring.c", |size, said| {
        assert_eq!(said, format!("{size} ranks, 32 rounds, the last number is 32\n"));
        assert!(size != 2 || page.contains(said), "docs/c.md has another output");
    });
}

#[test]
fn sends_wait_for_other_streams_and_for_room() {
    let environment = [("GDSYNC_POST_TIMEOUT_MS", "20")];
    if let Some(said) = run_in("sends_wait_for_other_streams_and_for_room", "streams.c", &environment) {
        assert_eq!(said, "streams ok\n");
    }
}

#[test]
fn handles_of_what_is_gone_are_refused() {
    let test = "handles_of_what_is_gone_are_refused";
    let environment = [("GDSYNC_LOG", "off")];
    for (language, dialect) in [(Language::C, None), (Language::Cpp, Some(OLD_DIALECT))] {
        let Some(compiler) = works(test, language) else { continue };
        let program = build(&compiler.options(dialect), "stale.c");
        assert_eq!(program.succeed(&environment), "stale ok\n");
        match program.succeed_in_valgrind(&environment) {
            Some(said) => assert_eq!(said, "stale ok\n"),
            None => skipped(test, "valgrind is not installed"),
        }
    }
}

#[test]
fn threads_share_the_library_and_queue_pairs() {
    if let Some(said) = run("threads_share_the_library_and_queue_pairs", "threads.c") {
        assert_eq!(said, "threads ok\n");
    }
}

#[test]
fn cuda_streams_take_the_same_descriptors() {
    let test = "cuda_streams_take_the_same_descriptors";
    let Some(compiler) = works(test, Language::C) else { return };
    let program = build(&compiler.libraries(["-ldl"]), "cuda.c");
    let output = program.run(&[]);
    let (said, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    const NO_GPU: i32 = 77;
    match output.status.code() {
        Some(NO_GPU) => skipped(test, said.trim()),
        Some(0) => assert!(said.ends_with("cuda ok\n"), "{said}"),
        _ => panic!("{}\n{complaint}", output.status),
    }
}

#[test]
fn programs_of_libibverbs_have_gdsyncs_queues_beside_theirs() {
    let test = "programs_of_libibverbs_have_gdsyncs_queues_beside_theirs";
    if !on_system() {
        return skipped(test, "no card for libibverbs is promised here (scripts/test-system)");
    }
    for (language, dialect) in [(Language::C, None), (Language::Cpp, Some(OLD_DIALECT))] {
        if let Some(compiler) = works(test, language) {
            let compiler = compiler.options(dialect).libraries(["-libverbs"]);
            assert_eq!(build(&compiler, "verbs.c").succeed(&[]), "verbs ok\n");
        }
    }
}

/// Functions without an argument that could be bad.
const WITHOUT_ARGUMENTS: [&str; 3] =
    ["gdsync_error_text", "gdsync_soft_stream_create", "gdsync_trigger_word"];

#[test]
fn bad_arguments_are_refused_by_every_function() {
    let Some(said) = run("bad_arguments_are_refused_by_every_function", "arguments.c") else { return };
    let mut tried: BTreeSet<&str> = said.lines().collect();
    tried.extend(WITHOUT_ARGUMENTS);
    let declared = declared();
    let declared: BTreeSet<&str> = declared.iter().map(String::as_str).collect();
    assert_eq!(tried, declared, "functions of the headers that the program tries, and that there are");
}

/// Headers with functions.
const HEADERS: [&str; 6] = [
    "gdsync/core.h",
    "gdsync/tools.h",
    "gdsync/mlx5.h",
    "gdsync/ext.h",
    "gdsync/team.h",
    "infiniband/verbs_exp.h",
];

/// The functions that the headers declare.
fn declared() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for header in HEADERS {
        let text = std::fs::read_to_string(root().join("include").join(header)).unwrap();
        for line in text.lines().filter(|line| !line.starts_with([' ', '#', '/'])) {
            let Some((before, _)) = line.split_once('(') else { continue };
            let name = before.rsplit([' ', '*']).next().unwrap_or("");
            if name.starts_with("gds") {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

#[test]
fn errors_name_limits_missing_attributes_and_objects_that_are_left() {
    let test = "errors_name_limits_missing_attributes_and_objects_that_are_left";
    // Less than eight time-outs of 67 ms.
    let environment = [("GDSYNC_LOG", "off"), ("SOFTHCA_FAULTS", "delay=400ms kind=ack")];
    if let Some(said) = run_in(test, "explained.c", &environment) {
        assert_eq!(said, "explained ok\n");
    }
}

#[test]
fn errors_name_calls_of_c() {
    if let Some(said) = run_in("errors_name_calls_of_c", "words.c", &[("GDSYNC_LOG", "off")]) {
        assert_eq!(said, "words ok\n");
    }
}

#[test]
fn errors_are_said_on_stderr() {
    let Some(compiler) = works("errors_are_said_on_stderr", Language::C) else { return };
    let program = build(&compiler, "arguments.c");
    let said = |environment: &[(&str, &str)]| {
        let output = program.run(environment);
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let lines = said(&[]);
    assert!(lines.contains("gds_post_send") && lines.contains("the queue pair is a null pointer"), "{lines}");
    assert!(!lines.contains("within 1 ms"), "{lines}");
    // Each line says from which process it is, and of which rank.
    assert!(lines.lines().all(|line| line.contains("process ")), "{lines}");
    let ranked = said(&[("GDSYNC_RANK", "3")]);
    assert!(ranked.lines().all(|line| line.contains("Z rank 3, process ")), "{ranked}");
    assert!(said(&[("GDS_ENABLE_DEBUG", "1")]).contains("within 1 ms"));
    assert_eq!(said(&[("GDSYNC_LOG", "off")]), "");
    // libgdsync's switch that logs memory operations.
    let dumped = said(&[("GDS_ENABLE_DUMP_MEMOPS", "1")]);
    assert!(dumped.contains("Wait32") && dumped.contains("posted"), "{dumped}");
}
