use super::*;
use crate::bench::table::Row;
use gdsync_cli::doctor::Status;
use std::time::Duration;

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[test]
fn dates_are_those_of_the_calendar() {
    // By `date -u -d @SECONDS`.
    for (seconds, expected) in [
        (0, "1970-01-01 00:00 UTC"),
        (951_782_399, "2000-02-28 23:59 UTC"),
        (951_868_800, "2000-03-01 00:00 UTC"),
        (1_735_689_599, "2024-12-31 23:59 UTC"),
        (1_795_525_440, "2026-11-24 13:04 UTC"),
        (4_107_542_400, "2100-03-01 00:00 UTC"),
    ] {
        assert_eq!(date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), expected);
    }
}

#[test]
fn a_benchmark_has_its_own_command_line() {
    let all = words("bench all --html r.html --ranks 8");
    assert_eq!(command(&all), "gdsync bench all --html r.html --ranks 8");
    assert_eq!(of_one(&all, "scale"), words("bench scale --ranks 8"));
    assert_eq!(of_one(&words("bench plan --html=r.html"), "plan"), words("bench plan"));
    assert_eq!(command(&["it's".to_owned()]), "gdsync 'it'\\''s'");
}

#[test]
fn everything_from_outside_is_escaped_and_an_error_takes_the_place_of_a_table() {
    let driver = Check {
        name: "driver".to_owned(),
        status: Status::Skip,
        seen: "<none> & why".to_owned(),
        why: "",
        remedy: None,
        commands: Vec::new(),
    };
    let families = [Family { family: "GPU", checks: vec![driver] }];
    let table = Table::new(&["A < B", "µs"], &[Row::default().text("<x>").text("1")]);
    let outcomes =
        [(Benchmark::Card, Ok(Outcome::new(1, [table]))), (Benchmark::Plan, Err("no <way>".into()))];
    let page = render(&outcomes, &families, &words("bench all"), SystemTime::UNIX_EPOCH).unwrap();
    for expected in [
        "<td>&lt;x&gt;</td><td>1</td>",
        "<th>A &lt; B</th>",
        "&lt;none&gt; &amp; why",
        "<p class=\"error\">no &lt;way&gt;</p>",
        "<code>gdsync bench plan</code>",
        "1970-01-01 00:00 UTC",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    assert!(!page.contains("<x>") && !page.contains("<script"), "{page}");
}
