//! Views of made-up answers, and the screen that shows them.

use crate::keys::Key;
use crate::sampler::Sampler;
use crate::screen::{KeyAction, Screen};
use crate::table::{LineStyle, Order, lines, to_text};
use crate::view::View;
use gdsync_status::{Card, Peer, Process, QueuePair, Status, Survey, Traffic, Wait, WireError};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};
use std::time::Duration;

fn pair(number: u32, peer: (u64, u32), wait: Option<Wait>) -> QueuePair {
    let peer = Some(Peer { node: peer.0, queue_pair: peer.1, pid: 0 });
    QueuePair {
        number,
        transport: "Rc".to_owned(),
        state: "Rts".to_owned(),
        peer,
        wait,
        ..QueuePair::default()
    }
}

fn card(node: u16, packets: u64, queue_pairs: Vec<QueuePair>) -> Card {
    let sent = Traffic { packets, bytes: packets * 1000 };
    let queue_pair_count = queue_pairs.len() as u32;
    Card { lid: node, node: node.into(), sent, queue_pairs, queue_pair_count, ..Card::default() }
}

fn answer(pid: u32, at_s: u64, cards: Vec<Card>) -> Process {
    let status =
        Status { at_ns: at_s * 1_000_000_000, card_count: cards.len() as u32, cards, ..Status::default() };
    Process { pid, name: format!("program {pid}"), status: Ok(status) }
}

fn wait(what: &str, mark: u64, time: Option<Duration>, queue_pairs: Vec<u32>) -> Wait {
    Wait { what: what.to_owned(), mark, time, queue_pairs }
}

/// Returns the view of two processes, each with a card, after two seconds; a queue pair and a stream of the first
/// wait for the second.
fn view(sampler: &mut Sampler, mark: u64) -> View {
    let mut last = View::default();
    for (at, packets) in [(10, 100), (12, 2100)] {
        let held = wait("WAIT for entry 7", 7, Some(Duration::from_secs(90)), Vec::new());
        let mut first = answer(1, at, vec![card(5, packets, vec![pair(0x40, (6, 0x41), Some(held))])]);
        if let Ok(status) = &mut first.status {
            status.add_wait(3, wait("completion 9 of queue 0x44", at.min(11) * mark, None, vec![0x40]));
            status.stream_count = 2;
        }
        let second = answer(2, at, vec![card(6, 100, vec![pair(0x41, (5, 0x40), None)])]);
        last = sampler.view(&Survey::of(vec![first, second]));
    }
    last
}

#[test]
fn two_looks_give_rates_and_the_time_of_waits_and_who_is_waited_for() {
    let view = view(&mut Sampler::default(), 0);
    assert_eq!(view.interval_s, 2.0);
    let [first, second] = &view.processes[..] else { panic!("{view:?}") };
    let sent = first.cards[0].sent;
    assert_eq!((sent.packets_per_s, sent.payload_bytes_per_s), (Some(1000.0), Some(1e6)));
    assert_eq!(second.cards[0].sent.packets_per_s, Some(0.0));
    let held = first.cards[0].queue_pairs[0].wait.as_ref().unwrap();
    assert_eq!((held.waited_ms, held.is_at_least, held.peers[0].pid), (90_000.0, false, Some(2)));
    let stream = &first.streams[0];
    assert_eq!((stream.wait.waited_ms, stream.wait.is_at_least), (2000.0, true));
    assert_eq!(stream.wait.peers[0].address, "queue pair 0x41");
    assert_eq!((stream.wait.peers[0].pid, first.streams_left_out), (Some(2), 1));
    let text = to_text(&view);
    assert!(text.contains("1.00 kpkt/s, 1.00 MB/s"), "{text}");
    let expected = ">2.0 s  completion 9 of queue 0x44: queue pair 0x40 waits for WAIT for entry 7, for 90.0 s, peer queue pair 0x41 (pid 2)";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("2 min   WAIT for entry 7, peer queue pair 0x41 (pid 2)"), "{text}");
    assert!(text.contains("1 program 1: 1 waiting stream more"), "{text}");
}

#[test]
fn a_wait_that_is_another_one_begins_anew() {
    // The mark differs between the two looks.
    let view = view(&mut Sampler::default(), 1);
    assert_eq!(view.processes[0].streams[0].wait.waited_ms, 0.0);
}

#[test]
fn a_process_that_does_not_answer_is_said_with_its_reason() {
    let first = answer(1, 20, vec![card(5, 0, vec![pair(0x40, (6, 0x41), None)])]);
    let silent = Process { pid: 2, name: "program 2".to_owned(), status: Err(WireError::Other.into()) };
    let view = Sampler::default().view(&Survey::of(vec![first, silent]));
    assert_eq!(view.processes[0].cards[0].queue_pairs[0].peer.as_ref().unwrap().pid, None);
    let last = lines(&view, Order::Process, None).pop().unwrap();
    let said = "2 program 2: it answers with something else than the status of gdsync";
    assert_eq!(last, (LineStyle::Alarm, said.to_owned()));
}

#[test]
fn rows_are_sorted_by_what_is_asked_for() {
    let view = view(&mut Sampler::default(), 0);
    let first = |order| {
        let lines = lines(&view, order, None);
        let header = lines.iter().position(|(_, line)| line.contains("QUEUE PAIR ")).unwrap();
        lines[header + 1].1.split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!([Order::Process, Order::Rate, Order::Wait].map(first), ["1", "1", "1"]);
    let mut other = view.clone();
    other.processes.reverse();
    let first = |order| {
        let lines = lines(&other, order, None);
        (lines[1].1.clone(), lines.iter().find(|(_, line)| line.contains("0x4")).unwrap().1.clone())
    };
    assert!(first(Order::Process).0.starts_with("2 "));
    assert!(first(Order::Rate).0.starts_with("1 "));
    assert!(first(Order::Wait).0.starts_with("1 ") && first(Order::Wait).1.starts_with("1 "));
}

#[test]
fn nothing_at_all_is_said() {
    assert!(to_text(&View::default()).starts_with("no process of this user has a software card"));
}

/// The lines of a screen of so many columns and lines.
fn drawn(screen: &mut Screen, (width, height): (u16, u16)) -> (Vec<String>, ratatui::buffer::Buffer) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    ((0..height).map(line).collect(), buffer)
}

#[test]
fn the_screen_scrolls_pauses_sorts_and_quits() {
    let mut screen = Screen::new(view(&mut Sampler::default(), 0), Duration::from_secs(1), true);
    let (lines, _) = drawn(&mut screen, (80, 6));
    assert!(
        lines[0].starts_with("gdsync top: 2 processes, 2 cards, 2 queue pairs; every 1s, by process"),
        "{lines:?}"
    );
    assert!(lines[1].starts_with("PID") && lines[5].starts_with("q quit"), "{lines:?}");
    let (narrow, _) = drawn(&mut screen, (60, 6));
    assert!(!narrow[1].contains("FAULTS") && narrow[1].contains("SENT"), "{narrow:?}");
    screen.press(Key::Wide);
    for (key, first) in [
        (Key::Down, "1    program 1"),
        (Key::PageDown, "PID  QUEUE PAIR"),
        (Key::Up, "     "),
        (Key::Home, "PID  PROCESS"),
        (Key::Up, "PID  PROCESS"),
        (Key::Right, "CESS"),
        (Key::Left, "PID  PROCESS"),
    ] {
        assert_eq!(screen.press(key), KeyAction::Continue);
        let (lines, _) = drawn(&mut screen, (80, 6));
        assert!(lines[1].starts_with(first), "{key:?}: {lines:?}");
    }
    screen.press(Key::End);
    let (lines, _) = drawn(&mut screen, (80, 6));
    assert!(lines[4].starts_with("1 program 1: 1 waiting stream more"), "{lines:?}");
    // A screen without room for anything.
    drawn(&mut screen, (3, 1));

    screen.press(Key::Pause);
    screen.take(View::default());
    screen.press(Key::Sort);
    let (lines, _) = drawn(&mut screen, (80, 6));
    assert!(lines[0].contains("2 processes") && lines[0].contains("by rate, PAUSED"), "{lines:?}");
    screen.press(Key::Pause);
    screen.take(View::default());
    let (lines, _) = drawn(&mut screen, (80, 6));
    assert!(lines[0].starts_with("gdsync top: 0 processes"), "{lines:?}");
    assert_eq!(screen.press(Key::Quit), KeyAction::Quit);
}

#[test]
fn long_waits_are_red_unless_colors_are_off() {
    for (has_colors, color) in [(true, Color::Red), (false, Color::Reset)] {
        let mut screen = Screen::new(view(&mut Sampler::default(), 0), Duration::from_secs(1), has_colors);
        let (lines, buffer) = drawn(&mut screen, (160, 20));
        let row = lines.iter().position(|line| line.contains("WAIT for entry 7")).unwrap() as u16;
        let cell = &buffer[(0, row)];
        assert_eq!((cell.fg, cell.bg), (color, Color::Reset));
        assert!(cell.modifier.contains(Modifier::BOLD));
    }
}
