use super::*;
use crate::cli::{BenchOptions, Between, Cli, Command, Invocation, NetOptions};
use crate::sides::{Channel, Other};
use std::io::pipe;

type Change = fn(&mut Net) -> Result<(), Failure>;

/// Moves the messages of a measurement between two threads. `before` and `after` change the sides, by their ranks. How each
/// side's check ends.
fn outcomes(words: &str, before: [Change; 2], after: [Change; 2]) -> [Result<(), String>; 2] {
    let words = format!("gdsync bench net --iters 100 --qps 2 {words}");
    let options = match Cli::parse_words(words.split_whitespace()).unwrap() {
        Invocation::Command(Command::Bench(BenchOptions { between: Some(Between::Net(net)), .. })) => *net,
        other => panic!("{other:?}"),
    };
    let ((first_in, second_out), (second_in, first_out)) = (pipe().unwrap(), pipe().unwrap());
    let play = |options: &NetOptions, rank: u64, mut channel: Channel| {
        let mut side = Net::new(options, rank, Other::Beside, &mut channel)?;
        side.fill(MEASURED)?;
        before[rank as usize](&mut side)?;
        side.side.meet(&mut channel, None)?;
        let phase = side.measured();
        side.exchange(&mut channel, phase)?;
        side.side.meet(&mut channel, None)?;
        after[rank as usize](&mut side)?;
        let outcome = side.verify().map_err(|error| error.to_string());
        // Neither side's memory goes before the other has looked at its own.
        side.side.meet(&mut channel, None)?;
        Ok::<_, Failure>(outcome)
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| play(&options, 1, Channel::new(second_in, second_out)).unwrap());
        let first = play(&options, 0, Channel::new(first_in, first_out)).unwrap();
        [first, second.join().unwrap()]
    })
}

const NOTHING: [Change; 2] = [|_| Ok(()), |_| Ok(())];

#[test]
fn what_has_arrived_is_what_was_sent() {
    for operation in ["send", "write", "read", "fetch-add", "compare-swap"] {
        let ended = outcomes(&format!("--operation {operation} --bidirectional"), NOTHING, NOTHING);
        assert_eq!(ended, [Ok(()), Ok(())], "{operation}");
    }
}

#[test]
fn wrong_messages_are_found_where_they_arrive() {
    let wrong: Change = |side| side.fill(7);
    for (operation, sender, finder) in [("send", 0, 1), ("write", 0, 1), ("read", 1, 0)] {
        let mut before = NOTHING;
        before[sender] = wrong;
        let ended = outcomes(&format!("--operation {operation}"), before, NOTHING);
        assert_eq!(ended[finder], Err("message 1 is wrong at byte 0".to_owned()), "{operation}");
        assert_eq!(ended[1 - finder], Ok(()), "{operation}");
        let unchecked = outcomes(&format!("--operation {operation} --check=false"), before, NOTHING);
        assert_eq!(unchecked, [Ok(()), Ok(())], "{operation}");
    }
}

fn set_counter(side: &Net, queue_pair: usize, value: u64) -> Result<(), Failure> {
    side.side.connection.words.word64(queue_pair * WORD)?.store(value);
    Ok(())
}

#[test]
fn a_counter_that_has_counted_wrong_is_named() {
    let count: Change = |side| set_counter(side, 1, 51);
    for operation in ["fetch-add", "compare-swap"] {
        let ended = outcomes(&format!("--operation {operation}"), NOTHING, [|_| Ok(()), count]);
        let said = "the counter of queue pair 1 is 51 after 50 operations of the other side";
        assert_eq!(ended, [Ok(()), Err(said.to_owned())], "{operation}");
        let begun = [(|_| Ok(())) as Change, |side| set_counter(side, 0, 1000)];
        let said = ended_of(operation, begun);
        assert!(said[0].contains(" of queue pair 0 has found "), "{said:?}");
        assert!(said[1].contains("the counter of queue pair 0 is "), "{said:?}");
    }
}

/// The errors of both sides, where the counters begin as `begun` has them.
fn ended_of(operation: &str, begun: [Change; 2]) -> [String; 2] {
    outcomes(&format!("--operation {operation}"), begun, NOTHING).map(Result::unwrap_err)
}
