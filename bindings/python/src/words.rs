//! The library's texts in the words of Python: they name calls of Rust, for programs in Rust.

/// Names of Rust in messages, and their replacements.
const NAMES: [(&str, &str); 16] = [
    ("a kernel panicked: ", "a function given to launch() has raised "),
    (
        "a stream of cudarc: make it by CudaStream::new",
        "a stream that gdsync has made, and Python has none: reduce in host memory, on a software stream",
    ),
    (" (os error ", " (errno "),
    ("Access::LOCAL_WRITE", "the right to write it"),
    ("Collectives::reduce_on", "plan(gpu=...)"),
    ("CompletionQueue::new", "CompletionQueue()"),
    ("ConnectionKind::Each", "connections=\"each\""),
    ("gdsync::cuda::enable_peer_access", "cuCtxEnablePeerAccess"),
    ("MasterConfig::sends", "Trigger(master=...)"),
    ("QueuePairConfig::trigger", "trigger=..."),
    ("Stream::capture", "gdsync.capture()"),
    ("Team::members", "Team.members"),
    ("Team::shrink", "Team.shrink()"),
    ("TeamConfig::queues", "Team(queues=...)"),
    ("Transport::Dc", "DC"),
    ("Transport::Rc", "RC"),
];

/// Replaces names of Rust by those of Python. A remark in brackets about a call that Python does not have is left out.
pub(crate) fn of_python(mut text: String) -> String {
    for (rust, python) in NAMES {
        text = text.replace(rust, python);
    }
    while let Some(name) = text.find("::") {
        let opening = text[..name].rfind(" (").filter(|at| !text[*at..name].contains(')'));
        let remark = opening.and_then(|from| Some(from..name + text[name..].find(')')? + 1));
        match remark {
            Some(remark) => text.replace_range(remark, ""),
            None => text.replace_range(name..name + 2, "."),
        }
    }
    text
}

/// [`of_python`], for tests.
#[pyo3::pyfunction]
pub(crate) fn _of_python(text: String) -> String {
    of_python(text)
}
