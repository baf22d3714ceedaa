//! The manager's files: readiness, waiting, duplicates, forks, identifiers that move.

use super::*;
use std::time::Instant;

#[test]
fn the_file_is_a_character_device_that_is_readable_with_events() {
    let cm = Cm::open();
    // SAFETY: all-zero bytes are a valid value of this plain C structure.
    let mut found: [libc::stat; 2] = unsafe { std::mem::zeroed() };
    // SAFETY: valid places and a C string.
    let results = unsafe {
        let path = c"/dev/infiniband/rdma_cm";
        [hooks::files::fstat(cm.0, &mut found[0]), hooks::files::stat(path.as_ptr(), &mut found[1])]
    };
    assert_eq!((results[0], found[0].st_mode & libc::S_IFMT), (0, libc::S_IFCHR));
    // Without `gdsync soft` there is no stand-in for the path.
    assert!(results[1] != 0 || found[0].st_rdev == found[1].st_rdev);
    assert!(!cm.is_readable(Duration::ZERO));
    let id = cm.create(1);
    cm.resolve(id, &ipv4([127, 0, 0, 1], 9)).unwrap();
    assert!(cm.is_readable(Duration::ZERO));
    cm.event().unwrap();
    assert!(!cm.is_readable(Duration::ZERO));
    assert_eq!(cm.event().err(), Some(libc::EAGAIN));
    cm.resolve_route(id).unwrap();
    cm.destroy(id).unwrap();
    assert!(!cm.is_readable(Duration::ZERO), "the event has gone with its identifier");
}

#[test]
fn a_blocking_call_waits_for_its_event() {
    let cm = Cm::with(0);
    let id = cm.create(1);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| cm.event().unwrap().event);
        std::thread::sleep(Duration::from_millis(10));
        assert!(!waits.is_finished());
        cm.resolve(id, &ipv4([127, 0, 0, 1], 9)).unwrap();
        assert_eq!(waits.join().unwrap(), ADDR_RESOLVED);
    });
}

#[test]
fn two_threads_that_wait_get_an_event_each() {
    let cm = Cm::with(0);
    let id = cm.create(1);
    std::thread::scope(|scope| {
        let waits: Vec<_> = (0..2).map(|_| scope.spawn(|| cm.event().unwrap().event)).collect();
        cm.resolve(id, &ipv4([127, 0, 0, 1], 9)).unwrap();
        cm.resolve_route(id).unwrap();
        let mut got: Vec<u32> = waits.into_iter().map(|wait| wait.join().unwrap()).collect();
        got.sort_unstable();
        assert_eq!(got, [ADDR_RESOLVED, ROUTE_RESOLVED]);
    });
}

#[test]
fn a_thread_that_waits_is_not_disturbed_by_a_close() {
    let cm = Cm::with(0);
    let (_, port) = cm.listener(space::TCP, 3, 0);
    let fd = cm.0;
    std::thread::scope(|scope| {
        // Not closed a second time.
        let waits = scope.spawn(move || std::mem::ManuallyDrop::new(Cm(fd)).event().unwrap());
        std::thread::sleep(Duration::from_millis(20));
        drop(cm);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished(), "the call keeps the file, as in the kernel");
        // The file's listener continues, and its events arrive.
        let other = Cm::open();
        let asking = other.routed(space::TCP, 4, port);
        other.connect(asking, param(1, b"")).unwrap();
        let event = waits.join().unwrap();
        assert_eq!((event.event, event.uid), (CONNECT_REQUEST, 3));
        // The file has ended with the call, and with it its listener.
        other.expect(REJECTED);
    });
}

extern "C" fn ignore(_signal: i32) {}

#[test]
fn a_signal_ends_a_wait_as_the_program_has_asked_for() {
    // SAFETY: all-zero bytes are a valid value of this plain C structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore as extern "C" fn(i32) as usize;
    // SAFETY: a valid action, whose handler does nothing; no other test uses the signal.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()) }, 0);
    let cm = Cm::with(0);
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let cm = &cm;
        let waits = scope.spawn(move || {
            // SAFETY: the call has no preconditions.
            tell.send(unsafe { libc::pthread_self() }).unwrap();
            cm.event().err()
        });
        let thread = told.recv().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while !waits.is_finished() {
            assert!(Instant::now() < end);
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(waits.join().unwrap(), Some(libc::EINTR));
    });
}

#[test]
fn a_duplicate_is_the_same_file() {
    let cm = Cm::open();
    // SAFETY: the calls access no memory.
    let other = Cm(unsafe { hooks::duplicates::dup(cm.0) });
    let id = cm.create(1);
    assert_eq!(other.resolve(id, &ipv4([127, 0, 0, 1], 9)), Ok(()));
    assert!(cm.is_readable(Duration::ZERO) && other.is_readable(Duration::ZERO));
    drop(cm);
    other.expect(ADDR_RESOLVED);
    assert_eq!(other.destroy(id), Ok(1));
}

#[test]
fn another_files_identifiers_are_invalid_until_they_move() {
    let (first, second) = (Cm::open(), Cm::open());
    let id = first.create(1);
    first.resolve(id, &ipv4([127, 0, 0, 1], 9)).unwrap();
    assert_eq!(second.destroy(id), Err(libc::EINVAL));
    assert_eq!(second.resolve_route(id), Err(libc::EINVAL));
    first.expect(ADDR_RESOLVED);
    first.resolve_route(id).unwrap();
    let migrate = |to: &Cm, from: i32, id| {
        to.ask::<u32, _>(command::MIGRATE_ID, |response| MigrateId { response, id, fd: from as u32 })
    };
    assert_eq!(migrate(&second, -1, id), Err(libc::ENOENT));
    assert_eq!(migrate(&second, second.0, id), Err(libc::EINVAL));
    assert_eq!(migrate(&second, first.0, 999), Err(libc::ENOENT));
    assert_eq!(migrate(&second, first.0, id), Ok(1), "one event was reported");
    assert!(!first.is_readable(Duration::ZERO));
    assert_eq!(second.expect(ROUTE_RESOLVED).id, id);
    assert_eq!(migrate(&second, second.0, id), Ok(2), "it stays");
    assert_eq!(second.destroy(id), Ok(2));
    // A listener moves with its pending requests.
    let (listener, port) = first.listener(space::TCP, 3, 0);
    let asking = second.routed(space::TCP, 4, port);
    second.connect(asking, param(1, b"")).unwrap();
    first.wait();
    let third = Cm::open();
    assert_eq!(migrate(&third, first.0, listener), Ok(0));
    let request = third.expect(CONNECT_REQUEST);
    assert_eq!(third.reject(request.id, b""), Ok(()));
    second.expect(REJECTED);
}

#[test]
fn the_child_of_a_fork_cannot_use_its_parents_file() {
    let cm = Cm::open();
    let id = cm.create(1);
    // SAFETY: the child uses only the library, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = cm.resolve_route(id) == Err(libc::EBADF);
        let own = Cm::open();
        let has_its_own = own.bind(own.create(2), &ipv4([0; 4], 0)).is_ok();
        // SAFETY: the call ends the child immediately.
        unsafe { libc::_exit(if refused && has_its_own { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place; `fork` has returned the child's id.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    cm.resolve(id, &ipv4([127, 0, 0, 1], 9)).unwrap();
    cm.expect(ADDR_RESOLVED);
}
