//! Byte counts in human form, parsed and printed: `64KiB`, and `64 KiB`.

/// Units in lower case, and their bytes. As with GNU's tools, a letter alone is binary, as is `iB`; a letter with `B`
/// is decimal.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// Parses a number of bytes: a whole number and a unit of any case, with or without a space between them. `64K`, `64k`
/// and `64KiB` are 65536 bytes, `64kB` is 64000.
///
/// # Errors
/// The text, and the expected form.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.strip_prefix(' ').unwrap_or(unit).to_ascii_lowercase();
    let found = UNITS.iter().find(|(name, _)| *name == unit).filter(|_| !number.is_empty());
    let Some((_, unit)) = found else {
        return Err(format!(
            "`{text}` is not a size: give bytes, or a number with K, KiB, M, MiB, G or GiB (1024 each), or kB, MB or GB (1000 each)"
        ));
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*unit));
    bytes.ok_or_else(|| format!("`{text}` is more bytes than 64 bits count"))
}

/// Formats a number of bytes with the largest binary unit that leaves it whole.
pub fn text(count: u64) -> String {
    match count {
        0 => "0 B".to_owned(),
        _ if count.is_multiple_of(1 << 30) => format!("{} GiB", count >> 30),
        _ if count.is_multiple_of(1 << 20) => format!("{} MiB", count >> 20),
        _ if count.is_multiple_of(1 << 10) => format!("{} KiB", count >> 10),
        _ => format!("{count} B"),
    }
}

/// Formats the message sizes of several runs.
pub fn each(sizes: &[u64]) -> String {
    match sizes {
        [size] => format!("{} each", text(*size)),
        sizes => format!("{} sizes", sizes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_of_every_spelling_are_understood() {
        for text in ["64K", "64k", "64KiB", "64kib", "64KIB", "64 KiB", "65536", "65536B", "65536 b"] {
            assert_eq!(parse(text), Ok(64 << 10), "{text}");
        }
        for (text, bytes) in
            [("1M", 1 << 20), ("1MiB", 1 << 20), ("1g", 1 << 30), ("2TiB", 2 << 40), ("0", 0)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for (text, bytes) in [("1kB", 1000), ("1KB", 1000), ("1MB", 1_000_000), ("3gb", 3_000_000_000)] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_named_with_what_is() {
        for text in ["", "K", "-1", "1e3", "1.5K", "1 K B", "1Kib/s", "0x10", "1  K", "٣"] {
            let said = parse(text).unwrap_err();
            assert!(said.starts_with(&format!("`{text}` is not a size")) && said.contains("1024"), "{said}");
        }
        for text in ["18446744073709551616", "18446744073709551615K", "16777216T"] {
            assert!(parse(text).unwrap_err().contains("more bytes than 64 bits"), "{text}");
        }
    }

    #[test]
    fn units_are_chosen() {
        assert_eq!(
            [text(0), text(8), text(4096), text(64 << 20), text(1 << 30), text(1025)],
            ["0 B", "8 B", "4 KiB", "64 MiB", "1 GiB", "1025 B"]
        );
    }

    #[test]
    fn one_size_is_named_and_several_are_counted() {
        assert_eq!([each(&[4096]), each(&[8, 16])], ["4 KiB each", "2 sizes"]);
    }

    proptest! {
        #[test]
        fn what_is_printed_is_parsed_back(count: u64, shift in 0u32..64) {
            // Multiples of the units, too, which random numbers rarely are.
            for count in [count, count << shift, count >> shift] {
                prop_assert_eq!(parse(&text(count)), Ok(count));
                prop_assert_eq!(parse(&text(count).replace(' ', "").to_lowercase()), Ok(count));
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
