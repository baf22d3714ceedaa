use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// One end of an in-memory connection, which transfers a few bytes at a time.
#[derive(Default)]
struct End {
    incoming: VecDeque<u8>,
    outgoing: Vec<u8>,
    /// Most bytes of a read or a write.
    at_most: usize,
    closed: bool,
}

impl Read for End {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.incoming.is_empty() {
            return if self.closed { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        let count = bytes.len().min(self.at_most).min(self.incoming.len());
        self.incoming.drain(..count).zip(bytes).for_each(|(from, to)| *to = from);
        Ok(count)
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.at_most);
        self.outgoing.extend(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn end(at_most: usize) -> End {
    End { at_most, ..End::default() }
}

fn key(byte: u8) -> Key {
    Key::new(&[byte; 32]).unwrap()
}

/// A bit of one side's bytes: sender, byte, bit.
type Flip = (bool, usize, u32);

/// Runs an exchange to its end, optionally flipping a bit on the way. Returns for each side whether it accepted the
/// proof.
fn meet(near: &mut Exchange, far: &mut Exchange, at_most: usize, flip: Option<Flip>) -> [bool; 2] {
    let (mut one, mut other) = (end(at_most), end(at_most));
    let mut sent = [0usize; 2];
    let mut outcome = [None, None];
    for _ in 0..2000 {
        for (i, exchange, own) in [(0, &mut *near, &mut one), (1, &mut *far, &mut other)] {
            if outcome[i].is_none() {
                outcome[i] = match exchange.advance(own) {
                    Ok(true) => Some(true),
                    Ok(false) => None,
                    Err(_) => Some(false),
                };
            }
        }
        for (side, from, to) in
            [(0, &mut one.outgoing, &mut other.incoming), (1, &mut other.outgoing, &mut one.incoming)]
        {
            for mut byte in from.drain(..) {
                let is_meant = |(far, at, _): &Flip| usize::from(*far) == side && *at == sent[side];
                if let Some((_, _, bit)) = flip.filter(is_meant) {
                    byte ^= 1 << bit;
                }
                sent[side] += 1;
                to.push_back(byte);
            }
        }
        // A finished side closes the connection, like its process.
        other.closed |= outcome[0] == Some(false);
        one.closed |= outcome[1] == Some(false);
    }
    outcome.map(|side| side == Some(true))
}

fn pair(context: [&[u8]; 2], keys: [u8; 2]) -> [Exchange; 2] {
    [
        Exchange::connecting(&key(keys[0]), context[0]).unwrap(),
        Exchange::accepting(&key(keys[1]), context[1]).unwrap(),
    ]
}

#[test]
fn both_sides_prove_the_key_and_leave_what_follows() {
    for at_most in [1, 7, 100] {
        let [mut near, mut far] = pair([b"a", b"a"], [1, 1]);
        assert_eq!(meet(&mut near, &mut far, at_most, None), [true, true], "{at_most}");
    }
    // Data after the connector's proof stays in the connection.
    let [mut near, mut far] = pair([b"a", b"a"], [1, 1]);
    let (mut one, mut other) = (end(100), end(100));
    assert!(!near.advance(&mut one).unwrap());
    other.incoming.extend(one.outgoing.drain(..));
    assert!(!far.advance(&mut other).unwrap());
    one.incoming.extend(other.outgoing.drain(..));
    assert!(near.advance(&mut one).unwrap());
    one.write_all(b"what follows").unwrap();
    other.incoming.extend(one.outgoing.drain(..));
    assert!(far.advance(&mut other).unwrap());
    assert_eq!(other.incoming, b"what follows");
}

#[test]
fn another_key_or_context_is_refused_by_the_connector_first() {
    for (contexts, keys) in [([&b"a"[..], b"a"], [1, 2]), ([b"a", b"b"], [1, 1]), ([b"", b"a"], [1, 1])] {
        let [mut near, mut far] = pair(contexts, keys);
        let (mut one, mut other) = (end(100), end(100));
        assert!(!near.advance(&mut one).unwrap());
        other.incoming.extend(one.outgoing.drain(..));
        assert!(!far.advance(&mut other).unwrap());
        one.incoming.extend(other.outgoing.drain(..));
        assert!(matches!(near.advance(&mut one), Err(ExchangeError::OtherKey)));
        assert!(one.outgoing.is_empty(), "it gives no proof to a listener without the key");
        other.closed = true;
        assert!(matches!(far.advance(&mut other), Err(ExchangeError::Closed)));
    }
}

#[test]
fn reflected_and_recorded_messages_prove_nothing() {
    // The connector receives its own bytes.
    let mut near = Exchange::connecting(&key(1), b"a").unwrap();
    let mut echo = end(1000);
    assert!(!near.advance(&mut echo).unwrap());
    let mut hello: Vec<u8> = echo.outgoing.drain(..).collect();
    hello.extend([0; CODE_BYTES]);
    echo.incoming.extend(hello);
    assert!(matches!(near.advance(&mut echo), Err(ExchangeError::OtherKey)));

    // Two connectors of one process are connected: both would need the same role.
    let mut other = Exchange::connecting(&key(1), b"a").unwrap();
    let mut near = Exchange::connecting(&key(1), b"a").unwrap();
    assert_eq!(meet(&mut near, &mut other, 100, None), [false, false]);

    // A recorded hello and proof do not match the listener's next random number.
    let [mut near, mut far] = pair([b"a", b"a"], [1, 1]);
    let (mut one, mut other) = (end(1000), end(1000));
    near.advance(&mut one).unwrap();
    let mut recorded = one.outgoing.clone();
    other.incoming.extend(one.outgoing.drain(..));
    far.advance(&mut other).unwrap();
    one.incoming.extend(other.outgoing.drain(..));
    assert!(near.advance(&mut one).unwrap());
    recorded.extend(&one.outgoing);
    other.incoming.extend(one.outgoing.drain(..));
    assert!(far.advance(&mut other).unwrap());
    let mut again = end(1000);
    again.incoming.extend(recorded);
    let mut far = Exchange::accepting(&key(1), b"a").unwrap();
    assert!(matches!(far.advance(&mut again), Err(ExchangeError::OtherKey)));
}

#[test]
fn a_stranger_is_refused_at_its_first_wrong_byte_and_an_end_is_said() {
    for said in [&b"G"[..], b"gdsauth\x02", b"gdsauth\x01GET"] {
        let mut far = Exchange::accepting(&key(1), b"a").unwrap();
        let mut other = end(1000);
        other.incoming.extend(said);
        let is_wrong = said[..said.len().min(8)] != MAGIC[..said.len().min(8)];
        match far.advance(&mut other) {
            Err(ExchangeError::Stranger) => assert!(is_wrong),
            Ok(false) => assert!(!is_wrong && other.outgoing.is_empty(), "it is told nothing"),
            outcome => panic!("{said:?}: {outcome:?}"),
        }
        other.closed = true;
        assert!(far.advance(&mut other).is_err());
    }
}

proptest! {
    #[test]
    fn no_bytes_of_a_stranger_prove_anything(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300), magic in 0usize..9, at_most in 1usize..120,
        connecting: bool,
    ) {
        for (to, from) in bytes.iter_mut().zip(MAGIC).take(magic) {
            *to = from;
        }
        let (mut end, length) = (end(at_most), bytes.len());
        end.incoming.extend(bytes);
        let mut exchange = match connecting {
            true => Exchange::connecting(&key(1), b"a").unwrap(),
            false => Exchange::accepting(&key(1), b"a").unwrap(),
        };
        let outcome = exchange.advance(&mut end);
        prop_assert!(!matches!(outcome, Ok(true)));
        // It reads only its messages.
        prop_assert!(length - end.incoming.len() <= OPENING_BYTES + CODE_BYTES);
    }

    #[test]
    fn no_changed_bit_goes_unnoticed_by_the_side_that_reads_it(
        far: bool, at in 0usize..OPENING_BYTES + CODE_BYTES, bit in 0u32..8, at_most in 1usize..120,
    ) {
        let [mut near, mut listener] = pair([b"a", b"a"], [1, 1]);
        let [connected, accepted] = meet(&mut near, &mut listener, at_most, Some((far, at, bit)));
        prop_assert!(!accepted, "the listener holds nothing for proven");
        // The connector's proof is its last message, so it does not notice a change of it.
        prop_assert!(!connected || !far && at >= OPENING_BYTES);
    }
}
