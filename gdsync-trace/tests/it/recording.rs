//! A process's records are in its part, however its threads and the process end.

use gdsync_test_support::folder::Folder;
use gdsync_test_support::process::{again, role};
use gdsync_trace::{EventKind, Span, Summary, TRACE_VARIABLE, enabled, event, merge, now, parts_in, span};
use std::process::ExitStatus;

/// Events that fill a thread's buffer.
const MANY: u64 = 5000;

fn record(count: u64) {
    assert!(enabled() && now() > 0);
    (0..count).for_each(|number| event(EventKind::Polled, || [0x41, number, 0]));
}

/// Runs the calling test again with a trace, and merges the records.
fn traced(test: &str) -> (ExitStatus, Summary, String) {
    let folder = Folder::new(test);
    let mut value = folder.path().as_os_str().to_owned();
    value.push("/");
    let output = again(module_path!(), test, "records").env(TRACE_VARIABLE, value).output().unwrap();
    let out = folder.path().join("t.json");
    let parts = parts_in(folder.path()).unwrap();
    assert_eq!(parts.len(), 1, "{parts:?}: {}", String::from_utf8_lossy(&output.stdout));
    let summary = merge(&parts, &out).unwrap();
    (output.status, summary, std::fs::read_to_string(out).unwrap())
}

#[test]
fn without_the_variable_nothing_is_recorded() {
    assert!(role().is_some() || std::env::var_os(TRACE_VARIABLE).is_none(), "these tests run without it");
    let never = || panic!("no words are asked for");
    event(EventKind::Polled, never);
    drop((span(EventKind::Kernel, never), Span::none()));
    assert!(!enabled() && now() == 0);
}

#[test]
fn threads_that_end_and_threads_that_do_not_are_written() {
    if role().is_some() {
        let ended = std::thread::Builder::new().name("ends".to_owned()).spawn(|| record(MANY)).unwrap();
        ended.join().unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            gdsync_trace::name_thread(|| "stays".to_owned());
            record(10);
            done.send(()).unwrap();
            loop {
                std::thread::park();
            }
        });
        is_done.recv().unwrap();
        drop(span(EventKind::Kernel, || [0; 3]));
        return;
    }
    let (status, summary, trace) = traced("threads_that_end_and_threads_that_do_not_are_written");
    assert!(status.success());
    assert_eq!((summary.events, summary.dropped, summary.cut_off), (MANY + 10 + 1, 0, 0));
    assert!(trace.contains("{\"name\":\"ends\"}") && trace.contains("{\"name\":\"stays\"}"));
}

#[test]
fn the_child_of_a_fork_records_nothing() {
    if role().is_some() {
        record(1);
        // SAFETY: the child only calls this crate, which loads a word, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            event(EventKind::Polled, || [0; 3]);
            // SAFETY: the exit handlers are this crate's and the standard library's.
            unsafe { libc::exit(i32::from(enabled())) };
        }
        let mut status = 0;
        // SAFETY: the pointer is valid.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "it ended with 0: nothing was recorded there");
        record(1);
        return;
    }
    let (status, summary, _) = traced("the_child_of_a_fork_records_nothing");
    assert!(status.success());
    assert_eq!((summary.events, summary.processes, summary.cut_off), (2, 1, 0));
}

#[test]
fn a_process_that_is_killed_has_all_but_its_newest_events() {
    if role().is_some() {
        record(MANY);
        // SAFETY: no memory is involved.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    let (status, summary, _) = traced("a_process_that_is_killed_has_all_but_its_newest_events");
    assert!(!status.success());
    assert_eq!(summary.cut_off, 1);
    assert!(summary.events > 0 && summary.events < MANY, "{summary:?}");
}
