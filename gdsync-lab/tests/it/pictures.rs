//! Pictures and pages of real measurements, checked as XML and in a browser.

use gdsync_test_support::command::{rows, rows_in, run, succeeds, text};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::skipped;
use roxmltree::Document;
use std::fs;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

/// Runs a command that draws into a file. Returns its output and the file's text.
fn drawn(arguments: &[&str], option: &str, name: &str) -> (String, String) {
    let folder = Folder::new("pictures");
    let file = folder.path().join(name);
    let printed = succeeds(&[arguments, &[option, file.to_str().unwrap()]].concat());
    let drawn = fs::read_to_string(&file).unwrap();
    assert_eq!(folder.content(), 1, "nothing is left beside the file");
    (printed, drawn)
}

fn plot(arguments: &[&str]) -> String {
    drawn(arguments, "--plot", "picture.svg").1
}

fn has_text(picture: &Document<'_>, expected: &str) -> bool {
    picture
        .descendants()
        .any(|node| node.has_tag_name("text") && node.text().is_some_and(|text| text.trim() == expected))
}

/// Counts the lines of series with `points` points.
fn lines(picture: &Document<'_>, points: usize) -> usize {
    let of = |node: &roxmltree::Node<'_, '_>| {
        node.attribute("points").is_some_and(|text| text.split_whitespace().count() == points)
            && node.attribute("stroke-width") == Some("2")
    };
    picture.descendants().filter(|node| node.has_tag_name("polyline") && of(node)).count()
}

#[test]
fn a_sweep_is_a_line_for_each_percentile_by_size() {
    let picture = plot(&["pingpong", "--sizes", "8..512", "--iters", "50", "--procs", "1"]);
    let picture = Document::parse(&picture).unwrap();
    // Six of latency, and one of bandwidth.
    assert_eq!(lines(&picture, 7), 7);
    for expected in
        ["P50", "P90", "P99", "P99.9", "MIN", "MAX", "8 B", "512 B", "Message", "Half round trip, µs"]
    {
        assert!(has_text(&picture, expected), "{expected}");
    }
    assert!(has_text(&picture, "Both directions together, MB/s"));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let foot = picture.descendants().rfind(|node| node.has_tag_name("text")).unwrap();
    let foot = foot.text().unwrap();
    assert!(foot.starts_with(host.trim()) && foot.contains(" CPU") && foot.contains("gdsync "), "{foot}");
}

#[test]
fn a_network_benchmark_is_drawn_by_size() {
    let sweep = ["bench", "net", "--sizes", "8..512", "--iters", "50", "--procs", "1"];
    let picture = plot(&[&sweep[..], &["--bidirectional"]].concat());
    let picture = Document::parse(&picture).unwrap();
    assert_eq!(lines(&picture, 7), 2, "bandwidth and rate");
    for expected in ["8 B", "512 B", "Bandwidth, MB/s", "Messages per second"] {
        assert!(has_text(&picture, expected), "{expected}");
    }
    let picture = plot(&[&sweep[..], &["--mode", "latency"]].concat());
    let picture = Document::parse(&picture).unwrap();
    assert_eq!(lines(&picture, 7), 6);
    assert!(has_text(&picture, "P99.9") && has_text(&picture, "From post until completion, µs"));
    let picture = plot(&["bench", "net", "--mode", "latency", "--operation", "read", "--iters", "200"]);
    let picture = Document::parse(&picture).unwrap();
    assert!(has_text(&picture, "From post until completion, µs"));
    let title = picture.descendants().find(|node| node.has_tag_name("title")).and_then(|node| node.text());
    assert!(title.unwrap().starts_with("Messages of 8 B, "), "{title:?}");
}

#[test]
fn a_run_of_one_size_is_a_histogram() {
    let (table, picture) = drawn(&["pingpong", "--iters", "300", "--size", "100"], "--plot", "p.svg");
    assert!(table.contains("every byte verified"), "the table is printed as without a picture: {table}");
    let picture = Document::parse(&picture).unwrap();
    // The background, and at least one bar.
    assert!(picture.descendants().filter(|node| node.has_tag_name("rect")).count() > 1);
    assert!(has_text(&picture, "Exchanges") && has_text(&picture, "Half round trip, µs"));
    let title = picture.descendants().find(|node| node.has_tag_name("title")).and_then(|node| node.text());
    assert!(title.unwrap().starts_with("Round trips of 100 B, "), "{title:?}");
}

#[test]
fn benchmarks_by_peers_and_by_ranks_are_lines() {
    let fanout = plot(&["bench", "fanout", "--posts", "512"]);
    let fanout = Document::parse(&fanout).unwrap();
    for expected in ["Peers", "Memory operations of a batch", "sends, word", "sends, doorbells", "256"] {
        assert!(has_text(&fanout, expected), "{expected}");
    }
    // Memory operations: three parts of two variants. Times may be below an empty batch's, and are then left out.
    assert!(lines(&fanout, 4) >= 6);
    let scale = plot(&["bench", "scale", "--ranks", "4", "--rounds", "2"]);
    let scale = Document::parse(&scale).unwrap();
    assert!(
        has_text(&scale, "Ranks") && has_text(&scale, "notified writes") && has_text(&scale, "collective")
    );
    let plan = plot(&["bench", "plan"]);
    let plan = Document::parse(&plan).unwrap();
    assert_eq!(lines(&plan, 4), 12, "three kinds of batches, merged and plain, and two quantities");
}

#[test]
fn copies_are_lines_by_size() {
    let picture = plot(&["copylat", "--stand-in", "--max-size", "64"]);
    let picture = Document::parse(&picture).unwrap();
    assert!(has_text(&picture, "Median time of a copy, µs") && has_text(&picture, "memcpy"));
    assert!(lines(&picture, 4) >= 2);
}

#[test]
fn comparisons_are_bars_with_their_values() {
    let (table, picture) = drawn(&["bench", "checked"], "--plot", "p.svg");
    let picture = Document::parse(&picture).unwrap();
    assert!(
        has_text(&picture, "a software stream")
            && has_text(&picture, "checked")
            && has_text(&picture, "plain")
    );
    assert!(table.contains("CHECKED µs"), "{table}");
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_before_anything_is_measured() {
    let folder = Folder::new("pictures-refused");
    let absent = folder.path().join("absent").join("x.svg");
    let (absent, folder) = (absent.to_str().unwrap(), folder.path().to_str().unwrap());
    for (arguments, why) in [
        (&["pingpong", "--iters", "1000000000", "--plot", absent][..], "No such file or directory"),
        (&["bench", "checked", "--plot", folder], "it is no regular file"),
        (&["bench", "all", "--html", absent], "No such file or directory"),
        (&["copybw", "--stand-in", "--plot", absent], "No such file or directory"),
    ] {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""), "{said}");
        let expected =
            said.contains("cannot be written") && said.contains(why) && said.contains("name a file in");
        assert!(expected && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn a_run_that_fails_leaves_the_file_as_it_was() {
    let folder = Folder::new("pictures-kept");
    let file = folder.path().join("x.svg");
    fs::write(&file, "before").unwrap();
    let output = run(&["bench", "memops", "--gpu", "77", "--plot", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((fs::read_to_string(&file).unwrap().as_str(), folder.content()), ("before", 1));
}

/// Small, as only the page is tested.
const ALL: [&str; 8] = ["bench", "all", "--ranks", "4", "--rounds", "2", "--posts", "128"];
const BENCHMARKS: [&str; 9] =
    ["card", "checked", "plan", "first", "exchange", "fanout", "persistent", "alltoall", "scale"];

#[test]
fn a_page_has_everything_in_itself_and_looks_right_in_a_browser() {
    let (printed, page) = drawn(&[&ALL[..], &["--json"]].concat(), "--html", "report.html");
    let results = rows_in(printed.as_bytes());
    let names: Vec<&str> = results.iter().map(|row| row["benchmark"].as_str().unwrap()).collect();
    assert_eq!(names, BENCHMARKS);
    assert!(results.iter().all(|row| row["results"].is_object() || row["results"].is_array()), "{results:?}");
    for name in BENCHMARKS {
        let section =
            page.split_once(&format!("<section id=\"{name}\">")).unwrap_or_else(|| panic!("{name}")).1;
        let section = section.split_once("</section>").unwrap().0;
        assert!(section.contains("<table>") && section.contains("<svg "), "{name}: {section}");
        assert!(section.contains(&format!("<code>gdsync bench {name} --ranks 4")), "{name}: {section}");
        let picture =
            format!("<svg {}", section.split_once("<svg ").unwrap().1.split_once("</svg>").unwrap().0);
        Document::parse(&(picture + "</svg>")).unwrap();
    }
    assert!(page.contains("<section id=\"machine\">") && page.contains("<h3>Process</h3>"), "{page}");
    // The SVG namespace is not an address that a browser loads.
    let outside = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for reference in ["http:", "https:", "src=", "url(", "@import", "<script", "<link", "<iframe", "<image"] {
        assert!(!outside.contains(reference), "{reference}");
    }
    assert!(outside.split("href=\"").skip(1).all(|rest| rest.starts_with('#')));
    look_at(&page);
}

/// Opens a page in Chromium, with light and dark colours, and checks the picture and the log.
fn look_at(page: &str) {
    let folder = Folder::new("pictures-browser");
    let empty = "<!DOCTYPE html><title>empty</title><style>:root{color-scheme:light dark}</style>";
    let [Some(light), Some(dark), Some(blank)] = [(page, true), (page, false), (empty, true)]
        .map(|(page, is_light)| screenshot(&folder, page, is_light))
    else {
        skipped(
            "pictures::a_page_has_everything_in_itself_and_looks_right_in_a_browser",
            "there is no chromium",
        );
        return;
    };
    // The compressed size reflects the amount of content.
    for shown in [&light, &dark] {
        assert!(
            shown.len() > 10 * blank.len(),
            "{} and {} bytes: the page is nearly blank",
            shown.len(),
            blank.len()
        );
    }
    assert_ne!(light, dark, "the page has the same colours on light and on dark ground");
}

/// Returns Chromium's rendering of a page as PNG; none without Chromium.
fn screenshot(folder: &Folder, page: &str, is_light: bool) -> Option<Vec<u8>> {
    let path = |name: &str| folder.path().join(name).display().to_string();
    let profile = Folder::new("pictures-profile");
    fs::write(path("page.html"), page).unwrap();
    let mut browser = Command::new("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
    browser.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    browser.args(["--hide-scrollbars", "--window-size=1000,8000", "--enable-logging=stderr"]);
    browser.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(is_light)));
    browser.arg(format!("--user-data-dir={}", profile.path().display()));
    browser.arg(format!("--screenshot={}", path("page.png")));
    browser.arg(format!("file://{}", path("page.html"))).stdin(Stdio::null());
    let output = match browser.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        output => output.unwrap(),
    };
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let reported: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(reported.is_empty(), "{reported:?}");
    Some(fs::read(path("page.png")).unwrap())
}

#[test]
fn the_table_and_the_objects_of_a_bench_are_the_same_with_a_page() {
    let (printed, page) = drawn(&["bench", "plan"], "--html", "plan.html");
    assert!(printed.starts_with("BATCH") && page.contains("<th>BATCH</th>"), "{printed}");
    assert!(page.contains("<code>gdsync bench plan</code>"));
    assert!(!rows(&["bench", "plan", "--json"]).is_empty());
}

#[test]
fn a_sweep_that_fails_draws_what_it_has() {
    let folder = Folder::new("pictures-part");
    let file = folder.path().join("x.svg");
    let arguments = ["pingpong", "--transport", "ud", "--sizes", "4K,8K", "--iters", "20", "--plot"];
    let output = run(&[&arguments[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(1));
    let picture = fs::read_to_string(&file).unwrap();
    assert!(has_text(&Document::parse(&picture).unwrap(), "4 KiB"), "{picture}");
}
