//! The file of `--hosts`: hosts and how many ranks each takes, as mpirun reads them.

use crate::failure::Failure;
use std::ops::Range;
use std::path::Path;

/// Most slots of a line; a run has fewer ranks.
const MAX_SLOTS: u32 = 1 << 16;

/// A host, and the ranks that start there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) ranks: Vec<Range<u32>>,
}

/// Reads the file and places so many ranks on its hosts, in the order of its lines.
pub(super) fn placed(path: &Path, ranks: u32) -> Result<Vec<Host>, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("the file of --hosts, {shown}, cannot be read: {error}"))?;
    place(&text, ranks).map_err(|problem| format!("{shown}{problem}").into())
}

/// # Errors
/// `:LINE: problem` or `: problem`.
fn place(text: &str, ranks: u32) -> Result<Vec<Host>, String> {
    let (mut hosts, mut begin) = (Vec::<Host>::new(), 0_u32);
    for (number, line) in (1..).zip(text.lines()) {
        let Some((name, slots)) = parse(line).map_err(|problem| format!(":{number}: {problem}"))? else {
            continue;
        };
        let own = begin..begin.saturating_add(slots);
        begin = own.end;
        match hosts.iter_mut().find(|host| host.name == name) {
            Some(host) => host.ranks.push(own),
            None => hosts.push(Host { name: name.to_owned(), ranks: vec![own] }),
        }
    }
    if begin < ranks {
        return Err(format!(
            " has {begin} slots, and -n {ranks} needs {ranks}: list more hosts, or write `slots=N` behind a host"
        ));
    }
    for host in &mut hosts {
        for own in &mut host.ranks {
            *own = own.start.min(ranks)..own.end.min(ranks);
        }
        host.ranks.retain(|own| !own.is_empty());
    }
    hosts.retain(|host| !host.ranks.is_empty());
    Ok(hosts)
}

/// Returns a line's host and its slots, if it has a host.
fn parse(line: &str) -> Result<Option<(&str, u32)>, String> {
    let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
    let Some(name) = words.next() else { return Ok(None) };
    // A name that begins with `-` would be an option of the remote shell.
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:@%".contains(&byte);
    if name.starts_with('-') || !name.bytes().all(is_name) {
        return Err(format!(
            "`{name}` is no host: a line is `HOST slots=N`, HOST being a name or an address, such as node7 or user@192.0.2.7"
        ));
    }
    let mut slots = None;
    for word in words {
        let value = word.strip_prefix("slots=").filter(|_| slots.is_none()).ok_or_else(|| {
            format!("`{word}` is not understood: a line is `HOST slots=N`, such as `{name} slots=4`")
        })?;
        let number = value.parse().ok().filter(|slots| (1..=MAX_SLOTS).contains(slots));
        slots = Some(number.ok_or_else(|| {
            format!(
                "slots is `{value}`, and must be a number from 1 to {MAX_SLOTS}, such as `{name} slots=4`"
            )
        })?);
    }
    Ok(Some((name, slots.unwrap_or(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, ranks: &[(u32, u32)]) -> Host {
        Host { name: name.to_owned(), ranks: ranks.iter().map(|(begin, end)| *begin..*end).collect() }
    }

    #[test]
    fn ranks_fill_the_slots_of_hosts_in_order() {
        let text = "# two racks\n a slots=2 # first\n\nroot@b\na slots=9\nc slots=4\n";
        let expected = |a: &[(u32, u32)], rest: &[Host]| [&[host("a", a)], rest].concat();
        let b = host("root@b", &[(2, 3)]);
        assert_eq!(place(text, 1).unwrap(), expected(&[(0, 1)], &[]));
        assert_eq!(place(text, 3).unwrap(), expected(&[(0, 2)], std::slice::from_ref(&b)));
        assert_eq!(place(text, 5).unwrap(), expected(&[(0, 2), (3, 5)], std::slice::from_ref(&b)));
        assert_eq!(place(text, 16).unwrap(), expected(&[(0, 2), (3, 12)], &[b, host("c", &[(12, 16)])]));
    }

    #[test]
    fn mistakes_are_told_with_line_and_value() {
        for (text, told) in [
            ("a slots=2\nb", " has 3 slots, and -n 4 needs 4"),
            ("", " has 0 slots"),
            (
                "a\nb slots=four",
                ":2: slots is `four`, and must be a number from 1 to 65536, such as `b slots=4`",
            ),
            ("a slots=0", ":1: slots is `0`"),
            ("a slots=65537", ":1: slots is `65537`"),
            ("a slots=", ":1: slots is ``"),
            ("a slots=2 slots=2", ":1: `slots=2` is not understood"),
            ("# x\n\na 4", ":3: `4` is not understood: a line is `HOST slots=N`, such as `a slots=4`"),
            ("-oProxyCommand=x", ":1: `-oProxyCommand=x` is no host"),
            ("a;b", ":1: `a;b` is no host"),
        ] {
            let problem = place(text, 4).unwrap_err();
            assert!(problem.starts_with(told), "{text}: {problem}");
        }
    }
}
