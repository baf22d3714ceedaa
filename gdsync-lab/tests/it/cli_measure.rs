//! Measurements and checks of the command: soaks, benchmarks, copies.

use gdsync_test_support::command::{json, rows, run, succeeds, text};

/// Returns the counts of a soak that must have lost nothing.
fn soak(arguments: &[&str]) -> serde_json::Value {
    let fixed = ["soak", "--links", "8", "--seed", "7", "--json"];
    let counts = json(&[&fixed, arguments].concat());
    for name in ["lost", "duplicated", "wrong", "unaccounted", "hung"] {
        assert_eq!(counts[name], 0, "{name}: {counts}");
    }
    for name in
        ["bytes", "received", "reads", "atomics", "loose_received", "checked", "triggered", "collected"]
    {
        assert!(counts[name].as_u64().unwrap() > 0, "{name}: {counts}");
    }
    let count = |name: &str| counts[name].as_u64().unwrap();
    assert_eq!(count("posted"), count("operations") + count("flushed") + count("silent"), "{counts}");
    assert!(count("sent") >= count("received"), "{counts}");
    counts
}

#[test]
fn a_soak_without_faults_fails_at_nothing() {
    let counts = soak(&["--minutes", "0.02", "--procs", "2", "--faults", "none"]);
    for name in ["injected", "failures", "aborted", "reset", "replaced", "events"] {
        assert_eq!(counts[name], 0, "{name}: {counts}");
    }
    assert_eq!((&counts["faults"], &counts["sent"]), (&"none".into(), &counts["received"]));
}

/// Faults of memory also fail masters of triggers, with all queue pairs whose sends they hold.
#[test]
fn a_soak_accounts_for_everything_through_faults_and_recoveries() {
    let plan = "seed=3; drop every=1500; duplicate every=400; hold=3 every=300; rnr every=500; late=1ms every=400; \
                gone every=1000 access=local; fail=remote-access every=1200; fail=remote-operation every=1500 dir=in";
    let counts = soak(&["--minutes", "0.05", "--procs", "3", "--faults", plan]);
    assert_eq!(counts["faults"], plan, "what was injected can be injected again");
    let rules = counts["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 8);
    let injected: u64 = rules.iter().map(|rule| rule["injected"].as_u64().unwrap()).sum();
    assert!(injected > 0 && counts["injected"] == injected, "{counts}");
    assert!(counts["reset"].as_u64().unwrap() + counts["replaced"].as_u64().unwrap() > 0, "{counts}");
    assert!(counts["errors"]["RemoteAccess"].as_u64().unwrap() > 0, "{counts}");
}

/// Streams, and threads instead of kernels, with messages in memory that is filled and read by copies, as a GPU's.
#[test]
fn a_soak_on_the_stand_in_for_a_gpu_accounts_for_everything() {
    let plan =
        "seed=5; drop every=1500; duplicate every=400; fail=remote-access every=900; fail=flush every=1000";
    let counts = soak(&["--minutes", "0.05", "--procs", "2", "--stand-in", "--faults", plan]);
    for name in ["by_cuda", "by_kernels", "reset", "injected"] {
        assert!(counts[name].as_u64().unwrap() > 0, "{name}: {counts}");
    }
    let without = soak(&["--minutes", "0.02", "--procs", "2", "--faults", "none"]);
    assert!(without.get("by_cuda").is_none() && without.get("by_kernels").is_none(), "{without}");
}

#[test]
fn a_soak_tells_its_faults_before_it_begins() {
    let text = succeeds(&["soak", "--minutes", "0.005", "--links", "1", "--procs", "2", "--seed", "3"]);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("seed 3, 2 queue pairs, 2 processes, 0.005 min"));
    assert!(lines.next().unwrap().starts_with("faults: seed=3; drop p=0."), "{text}");
    assert_eq!(lines.last(), Some("lost 0, duplicated 0, wrong 0, unaccounted 0, hung 0"));
}

#[test]
fn the_bench_relates_the_card_to_memcpy() {
    let results = json(&["bench", "--json"]);
    for name in ["write_8b_us", "write_1mib_bytes_per_s", "memcpy_1mib_bytes_per_s", "ratio"] {
        assert!(results[name].as_f64().unwrap() > 0.0, "{results}");
    }
}

#[test]
fn a_checked_wait_is_measured_beside_a_plain_one() {
    let results = rows(&["bench", "checked", "--json"]);
    let software = &results[0];
    assert_eq!(software["what"], "a software stream");
    assert!(
        ["gdsync_us", "reference_us", "ratio"]
            .iter()
            .all(|field| software[field].as_f64().is_some_and(|us| us > 0.0))
    );
}

/// The benchmark itself checks every message of every variant.
#[test]
fn an_exchange_is_measured_beside_the_same_operations_by_hand() {
    let rows = rows(&["bench", "exchange", "--rounds", "5", "--json"]);
    for row in &rows {
        assert_eq!((&row["on"], &row["verified"]), (&"a software stream".into(), &true.into()));
    }
    let kinds: Vec<_> =
        rows.iter().map(|row| (row["processes"].as_u64().unwrap(), row["shape"].as_str().unwrap())).collect();
    let shapes = ["calls", "prepared", "batch"];
    assert_eq!(kinds, [1, 2].map(|processes| shapes.map(|shape| (processes, shape))).concat());
    for row in rows {
        for name in ["rust_us", "by_hand_us", "rust_posting_us", "by_hand_posting_us"] {
            assert!(row[name].as_f64().unwrap() > 0.0, "{name}: {row}");
        }
        let ratio = |name: &str| row["rust_ratio"][name].as_f64().unwrap();
        let [least, median, most] = ["least", "median", "most"].map(ratio);
        assert!(0.0 < least && least <= median && median <= most, "{row}");
        // By hand means the same: a doorbell of two writes, two waits, and a write after each or both.
        let operations = if row["shape"] == "batch" { 5.0 } else { 6.0 };
        assert_eq!(
            (&row["rust_operations"], &row["by_hand_operations"]),
            (&operations.into(), &operations.into())
        );
    }
}

#[test]
fn an_exchange_without_the_gpu_that_is_asked_for_measures_nothing() {
    for (arguments, code) in [(["--gpu", "4000000000"], 1), (["--processes", "3"], 2), (["--rounds", "0"], 2)]
    {
        let output = run(&[&["bench", "exchange"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn first_posts_of_every_kind_are_measured_beside_later_ones() {
    let mut rows = rows(&["bench", "first", "--json"]);
    rows.retain(|row| row["on"] == "a software stream");
    // The very first post of a process, the kinds, and one by the stream's own call.
    assert_eq!(rows.len(), 1 + 17, "{rows:?}");
    for row in &rows {
        assert_eq!(row["values_checked"], 17 * 10 * 110, "every post of every run: {row}");
        let number = |name: &str| row[name].as_f64().unwrap();
        assert!(number("first_us") > 0.0 && number("hundredth_us") > 0.0, "{row}");
        assert!(number("least_ratio") <= number("ratio") && number("ratio") <= number("most_ratio"), "{row}");
    }
    let mut names: Vec<_> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), rows.len(), "{names:?}");
}

#[test]
fn teams_that_grow_are_measured_beside_one_of_eight() {
    let rows = rows(&["bench", "scale", "--ranks", "16", "--rounds", "3", "--json"]);
    for (row, ranks) in rows.iter().zip([2u64, 4, 8, 16]) {
        assert_eq!(row["ranks"], ranks);
        // Both variants, with the warm-up rounds.
        assert_eq!(row["bytes_checked"], 2 * (3 + 1) * ranks * (ranks - 1) * 64, "{row}");
        for name in ["connect_s", "connected_kib", "used_kib", "writes_us", "collective_us", "writes_ratio"] {
            assert!(row[name].as_f64().unwrap() > 0.0, "{name} of {row}");
        }
        let operations = row["writes_operations"].as_f64().unwrap();
        assert!(operations >= (ranks - 1) as f64, "a wait for each message: {row}");
    }
    assert_eq!((rows.len(), &rows[2]["writes_ratio"]), (4, &1.0.into()));
    let dynamic = succeeds(&["bench", "scale", "--ranks", "3", "--rounds", "1", "--connections", "dynamic"]);
    assert!(dynamic.starts_with("RANKS, 64 BYTES TO EACH, VERIFIED"), "{dynamic}");
    assert_eq!(dynamic.lines().count(), 2, "there is no team of 4: {dynamic}");
    let refused = run(&["bench", "alltoall", "--ranks", "257"]);
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("257") && said.contains("256"), "{said}");
}

#[test]
fn copies_are_measured_on_a_stand_in_and_say_so() {
    for (command, sizes) in [("copylat", [4, 64]), ("copybw", [64, 128])] {
        let largest = sizes[1].to_string();
        let rows = rows(&[command, "--stand-in", "--json", "--max-size", &largest]);
        assert!(rows.iter().all(|row| row["on"].as_str().unwrap().contains("no GPU")), "{rows:?}");
        for (direction, kernel) in
            [("write", "volatile"), ("write", "memcpy"), ("read", "volatile"), ("read", "memcpy")]
        {
            let row =
                rows.iter().find(|row| row["direction"] == direction && row["kernel"] == kernel).unwrap();
            let cells = row["cells"].as_array().unwrap();
            assert_eq!(
                (&cells[0]["size_bytes"], &cells[cells.len() - 1]["size_bytes"]),
                (&sizes[0].into(), &sizes[1].into())
            );
            assert!(cells.iter().all(|cell| cell["us"].as_f64().unwrap() > 0.0), "{row}");
            assert!(row["over_memcpy"].as_f64().unwrap() > 0.0 && row["over_cuda"].is_null(), "{row}");
        }
        let table = succeeds(&[command, "--stand-in", "--max-size", &largest]);
        assert!(table.contains("no GPU") && table.contains("volatile"), "{table}");
    }
}

#[test]
fn sanity_checks_a_stand_in_and_names_what_it_cannot() {
    let lines = rows(&["sanity", "--stand-in", "--json"]);
    let count = |result: &str| lines.iter().filter(|line| line["result"] == result).count();
    assert_eq!((count("PASS"), count("SKIP"), count("FAIL")), (7, 3, 0), "{lines:?}");
    assert!(lines.iter().all(|line| (line["result"] == "SKIP") == line["reason"].is_string()), "{lines:?}");
    assert!(succeeds(&["sanity", "--stand-in"]).contains("PASS  stand-in  unaligned copies"));
}

#[test]
fn without_the_gpu_that_is_asked_for_nothing_is_mapped() {
    for command in ["sanity", "copybw", "copylat"] {
        let output = run(&[command, "--gpu", "4000000000"]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        let said = text(&output.stderr);
        assert!(
            said.contains("--stand-in") && said.lines().count() == 1 && output.stdout.is_empty(),
            "{said}"
        );
    }
    for arguments in [
        ["copybw", "--max-size", "63"],
        ["copylat", "--max-size", "257MiB"],
        ["sanity", "--backend", "mmap"],
        ["sanity", "--gpu", "-1"],
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).starts_with("error: invalid value"), "{arguments:?}");
    }
}
