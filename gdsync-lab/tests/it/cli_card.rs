//! Measurements of the card's waits.

use gdsync_test_support::command::{json, rows};

#[test]
fn a_word_and_doorbells_are_measured_in_turns() {
    let rows = rows(&["bench", "fanout", "--posts", "16", "--json"]);
    assert_eq!(rows.len(), 12, "{rows:?}");
    for row in rows {
        let count = |name: &str| row[name].as_u64().unwrap();
        let (peers, word) = (count("peers"), count("gdsync_operations"));
        let doorbells = count("reference_operations");
        // The stream waits for one queue; after waits it writes a point of its timeline.
        match row["what"].as_str().unwrap() {
            "sends" => assert_eq!((word, doorbells), (1, 2 * peers), "{row}"),
            "waits for completions that have come" => {
                assert!(word == 2 && (peers + 1..=peers + 3).contains(&doorbells), "{row}");
            }
            step => {
                assert!(step.starts_with("sends and waits"), "{row}");
                assert!(word == 3 && (3 * peers + 1..=3 * peers + 3).contains(&doorbells), "{row}");
            }
        }
        assert!(["gdsync_us", "reference_us"].iter().all(|name| row[*name].is_number()), "{row}");
    }
}

#[test]
fn eight_ranks_exchange_with_all_others_by_words_and_every_byte_is_checked() {
    let results = json(&["bench", "alltoall", "--ranks", "8", "--rounds", "100", "--json"]);
    assert_eq!(results["verified"], true, "{results}");
    assert_eq!(results["bytes_checked"], 8 * 7 * 100 * 256, "{results}");
    // The word, the wait, and a point of the timeline; two stores and a wait for each peer.
    assert_eq!(
        (&results["gdsync_operations"], &results["reference_operations"]),
        (&3.0.into(), &22.0.into())
    );
}

#[test]
fn persistent_requests_of_a_round_are_a_start_and_a_wait_and_every_byte_is_checked() {
    let rows = rows(&["bench", "persistent", "--rounds", "10", "--json"]);
    assert_eq!(rows.len(), 12);
    for row in rows {
        assert_eq!(row["verified"], true, "{row}");
        // Five variants, in ten runs, among 2, 4 and 8 ranks: all rows together.
        assert_eq!(row["bytes_checked"], 5 * 10 * 10 * (2 + 12 + 56) * 256, "{row}");
        let number = |name: &str| row[name].as_f64().unwrap();
        assert!(number("least_ratio") <= number("ratio") && number("ratio") <= number("most_ratio"), "{row}");
        let peers = number("ranks") - 1.0;
        // A doorbell, a wait and its reset.
        assert_eq!(number("reference_operations"), 4.0 * peers, "{row}");
        // A doorbell, whose record also announces the receive of the next round, and two waits; then a point of the
        // timeline.
        let together = (2.0 + 2.0) * peers + 1.0;
        match row["what"].as_str().unwrap() {
            // The first round of ten has no sends before it.
            "start_all, wait_all" | "start_all, wait_all, sends at once" => {
                // A wait for an earlier completion may take fewer operations.
                assert!((number("gdsync_operations") - together).abs() <= 1.5, "{row}");
            }
            "start_all, wait_all, trigger and collector" => {
                // A record except in the last of ten rounds; the trigger, a wait, and a point.
                assert!((number("gdsync_operations") - (0.9 * peers + 3.0)).abs() <= 1.5, "{row}");
            }
            singly => {
                assert_eq!(singly, "start, wait_on");
                assert!(number("gdsync_operations") > together - 1.5, "{row}");
            }
        }
    }
}
