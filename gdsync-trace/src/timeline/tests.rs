//! Tests of the timeline, through its text.

use crate::record::{EventKind, ReadPart, Record, text_words};
use crate::testing::record;
use gdsync_sys::prm::doorbell::Doorbell;
use serde_json::Value;

const REGISTER: u64 = 0x7000_0800;

fn part(pid: u32, rank: Option<u32>, records: Vec<Record>) -> ReadPart {
    ReadPart { pid, rank, name: "program".to_owned(), records, dropped: 1, is_whole: true }
}

fn written(parts: Vec<ReadPart>) -> (Value, crate::Summary) {
    let mut bytes = Vec::new();
    let summary = super::write(parts, &mut bytes).unwrap();
    (serde_json::from_slice(&bytes).unwrap(), summary)
}

fn of_phase<'a>(trace: &'a Value, phase: &str) -> Vec<&'a Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase).collect()
}

#[test]
fn a_message_is_followed_from_its_post_to_another_process() {
    let (left, right) = (3 << 32 | 0x41, 4 << 32 | 0x41);
    let doorbell = Doorbell::without_record(7, 0x41).raw();
    let sender = part(
        100,
        Some(0),
        vec![
            record(EventKind::CardName, 0, {
                let [a, b] = text_words("softhca0");
                [3, a, b]
            }),
            record(EventKind::QueuePair, 1, [REGISTER & !0xfff, left, 0]),
            record(EventKind::Posted, 10, [1, 2, 0]),
            record(EventKind::PostedDoorbell, 12, [REGISTER, doorbell, 0]),
            record(EventKind::Stored, 30, [REGISTER, doorbell, 64]),
            record(EventKind::Sent, 40, [left, 9 << 32 | 64, 4 << 32 | 0x0a << 16 | 7]),
        ],
    );
    let receiver = part(
        200,
        Some(1),
        vec![
            record(EventKind::Arrived, 60, [right, 9 << 32 | 64, left]),
            // A message sent before the trace began.
            record(EventKind::Arrived, 61, [right, 8 << 32 | 64, left]),
        ],
    );
    let (trace, summary) = written(vec![receiver, sender]);
    assert_eq!((summary.processes, summary.messages, summary.dropped, summary.cut_off), (2, 1, 2, 0));
    let at = |phase: &str| {
        let events = of_phase(&trace, phase);
        events
            .iter()
            .map(|event| (event["pid"].as_u64().unwrap(), event["ts"].as_f64().unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(at("s"), [(100, 0.012)]);
    assert_eq!(at("t"), [(100, 0.030), (100, 0.040)]);
    assert_eq!(at("f"), [(200, 0.060)]);
    let names: Vec<&str> =
        of_phase(&trace, "M").iter().filter_map(|event| event["args"]["name"].as_str()).collect();
    for name in ["rank 0: program", "rank 1: program", "queue pair 0x41 of softhca0 (node 3)"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let sent = of_phase(&trace, "X").into_iter().find(|event| event["cat"] == "sent").unwrap();
    assert_eq!((&sent["args"]["opcode"], &sent["args"]["bytes"]), (&"Send".into(), &64.into()));
}

#[test]
fn what_a_gpu_performs_is_a_row_of_its_stream_that_arrows_pass() {
    let (left, right) = (3 << 32 | 0x41, 4 << 32 | 0x41);
    let doorbell = |index| Doorbell::without_record(index, 0x41).raw();
    let performed =
        |at, until, number| Record { until, ..record(EventKind::Performed, at, [0x5000, 2, number]) };
    let records = vec![
        record(EventKind::QueuePair, 1, [REGISTER & !0xfff, left, 0]),
        record(EventKind::Posted, 10, [0x5000, 2, 1]),
        record(EventKind::PostedDoorbell, 12, [REGISTER, doorbell(7), 1]),
        record(EventKind::Posted, 14, [0x5000, 2, 2]),
        record(EventKind::PostedDoorbell, 15, [REGISTER, doorbell(8), 2]),
        performed(20, 30, 1),
        // A new relation of the clocks places its begin before the previous end.
        performed(28, 50, 2),
        record(EventKind::Sent, 40, [left, 9 << 32 | 64, 4 << 32 | 0x0a << 16 | 7]),
        // The card is faster than the rest of the submission.
        record(EventKind::Sent, 45, [left, 10 << 32 | 64, 4 << 32 | 0x0a << 16 | 8]),
        record(EventKind::Arrived, 60, [right, 9 << 32 | 64, left]),
        record(EventKind::Arrived, 61, [right, 10 << 32 | 64, left]),
    ];
    let (trace, _) = written(vec![part(1, None, records)]);
    let slices: Vec<_> =
        of_phase(&trace, "X").into_iter().filter(|each| each["cat"] == "performed").collect();
    let lasts = |each: &Value| (each["ts"].as_f64().unwrap(), each["dur"].as_f64().unwrap());
    assert_eq!(slices.iter().map(|each| lasts(each)).collect::<Vec<_>>(), [(0.019, 0.010), (0.029, 0.020)]);
    assert_eq!(slices[1]["args"], serde_json::json!({"operations": 2, "submission": 2}));
    let row = &slices[0]["tid"];
    let points: Vec<_> = of_phase(&trace, "t").into_iter().filter(|point| &point["tid"] == row).collect();
    assert_eq!(points.iter().map(|point| point["ts"].as_f64().unwrap()).collect::<Vec<_>>(), [0.029, 0.044]);
    let is_named = |event: &&Value| event["name"] == "thread_name" && &event["tid"] == row;
    let name = of_phase(&trace, "M").into_iter().find(is_named).unwrap();
    assert_eq!(name["args"]["name"], "CUDA stream 20480");
}

#[test]
fn waits_are_balanced_also_where_a_part_begins_or_ends_within_one() {
    let wait = |kind, at| record(kind, at, [0x1000, 1, 32]);
    let records = vec![
        wait(EventKind::WaitEnd, 1),
        wait(EventKind::WaitBegin, 2),
        wait(EventKind::WaitEnd, 5),
        wait(EventKind::WaitBegin, 7),
        record(EventKind::Polled, 20, [1, 2, 0]),
    ];
    let (trace, _) = written(vec![part(1, None, records)]);
    let (begins, ends) = (of_phase(&trace, "B"), of_phase(&trace, "E"));
    assert_eq!((begins.len(), ends.len()), (2, 2));
    assert_eq!((&ends[1]["args"]["unfinished"], ends[1]["ts"].as_f64()), (&true.into(), Some(0.029)));
}

#[test]
fn a_name_that_was_given_to_a_thread_counts() {
    let named = |at, name, given| {
        let [first, second] = text_words(name);
        record(EventKind::ThreadName, at, [first, second, given])
    };
    let records = vec![named(1, "gdsync-stream", 0), named(2, "stream 1", 1), named(3, "gdsync-stream", 0)];
    let (trace, summary) = written(vec![part(1, None, records)]);
    let names: Vec<&str> = of_phase(&trace, "M")
        .into_iter()
        .filter(|event| event["name"] == "thread_name")
        .filter_map(|event| event["args"]["name"].as_str())
        .collect();
    assert_eq!((names, summary.events), (vec!["stream 1"], 0));
}

#[test]
fn numbers_that_make_no_sense_do_no_harm() {
    let strange = (1..=22).map(|kind| Record {
        at: u64::MAX - u64::from(kind),
        until: 5,
        kind,
        thread: u32::MAX,
        words: [u64::MAX; 3],
    });
    let (trace, _) = written(vec![part(1, Some(7), strange.collect())]);
    assert!(trace["traceEvents"].is_array());
}
