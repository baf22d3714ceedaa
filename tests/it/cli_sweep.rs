//! Pingpongs with several sizes, and with a duration.

use gdsync_test_support::command::{json, rows, run, succeeds, text};

#[test]
fn a_sweep_has_a_row_for_each_size() {
    let table = succeeds(&["pingpong", "--sizes", "0,8,4K", "--iters", "20", "--warmup", "0"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 5 && lines[0].contains("every byte verified"), "{table}");
    for (line, size) in lines[2..].iter().zip(["0 B ", "8 B ", "4 KiB "]) {
        assert!(line.starts_with(size), "{table}");
    }
    let reports = rows(&["pingpong", "--sizes", "8..64", "--iters", "20", "--procs", "1", "--json"]);
    let sizes: Vec<u64> = reports.iter().map(|report| report["size_bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [8, 16, 32, 64]);
    for report in reports {
        assert_eq!((&report["verified"], &report["iterations"]), (&true.into(), &20.into()), "{report}");
        let times =
            ["min_us", "p50_us", "p90_us", "p99_us", "p999_us"].map(|name| report[name].as_f64().unwrap());
        assert!(times.is_sorted(), "{report}");
    }
}

#[test]
fn values_separated_by_commas_are_for_programs() {
    let csv = succeeds(&["pingpong", "--sizes", "8,1000", "--iters", "20", "--csv"]);
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!((lines.len(), lines[0][0], lines[1][0], lines[2][0]), (3, "size_bytes", "8", "1000"), "{csv}");
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{csv}");
    assert!(lines[1].iter().all(|value| value.parse::<f64>().is_ok()), "{csv}");
}

#[test]
fn a_run_for_a_time_counts_what_it_made() {
    for (trigger, op) in [("stream", "send"), ("cpu", "write")] {
        let arguments = ["pingpong", "--duration", "200ms", "--trigger", trigger, "--op", op, "--json"];
        let report = json(&arguments);
        assert!(report["iterations"].as_u64().unwrap() > 0 && report["verified"] == true, "{report}");
        assert!(
            report["wall_s"].as_f64().unwrap() >= 0.2 && report.get("interrupted_of").is_none(),
            "{report}"
        );
    }
}

#[test]
fn a_sweep_that_fails_prints_what_it_has() {
    let output = run(&["pingpong", "--transport", "ud", "--sizes", "4K,8K", "--iters", "20", "--csv"]);
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(out.lines().count() == 2 && out.contains("\n4096,"), "{out}");
    assert!(said.lines().count() == 1 && said.contains("8192 bytes"), "{said}");
}
