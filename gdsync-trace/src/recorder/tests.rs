use super::*;

#[test]
fn a_thread_that_ends_is_in_the_list_until_its_buffer_is_written() {
    let own = ThreadBuffer::new();
    let buffer = own.buffer.clone();
    let is_listed = || ALL_BUFFERS.lock().iter().any(|other| Arc::ptr_eq(other, &buffer));
    // The thread must wait where it writes.
    let part = PART.lock();
    let ends = std::thread::spawn(move || drop(own));
    while buffer.records.try_lock().is_some() {
        std::thread::yield_now();
    }
    assert!(is_listed(), "the end of the process would not write it");
    drop(part);
    ends.join().unwrap();
    assert!(!is_listed() && buffer.records.lock().is_empty());
}
