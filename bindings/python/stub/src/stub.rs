//! The docstrings of a type stub in the form that `bindings/python/python/gdsync/__init__.pyi` has: one of `class`, `def` and a quote
//! begins a line, and members of classes are indented by four spaces.

use std::collections::BTreeMap;

const QUOTES: &str = "\"\"\"";

/// Returns the docstrings by name: of the module (an empty name), of `function`, `Class` and `Class.member`. The docstring of a class
/// includes that of its constructor, as Python shows one for both.
pub(crate) fn docstrings(stub: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let (mut class, mut name) = ("", Some(String::new()));
    let mut lines = stub.lines();
    while let Some(line) = lines.next() {
        let text = line.trim_start();
        let is_member = text.len() < line.len();
        if let Some(rest) = line.strip_prefix("class ") {
            class = identifier(rest);
            name = Some(class.to_owned());
        } else if let Some(rest) = text.strip_prefix("def ") {
            let function = identifier(rest);
            name = Some(if is_member { format!("{class}.{function}") } else { function.to_owned() });
        } else if let Some(rest) = text.strip_prefix(QUOTES) {
            let text = text_until_quotes(rest, &mut lines);
            if let Some(name) = name.take() {
                found.insert(name, text);
            }
        }
    }
    let constructors: Vec<_> = found
        .iter()
        .filter_map(|(name, text)| Some((name.strip_suffix(".__init__")?.to_owned(), text.clone())))
        .collect();
    for (class, text) in constructors {
        found.entry(class).and_modify(|whole| *whole = format!("{whole}\n\n{text}"));
    }
    found
}

fn identifier(text: &str) -> &str {
    text.split(|sign: char| !sign.is_alphanumeric() && sign != '_').next().unwrap_or_default()
}

/// Returns the text up to the closing quotes, without the lines' common indentation.
fn text_until_quotes<'a>(first: &'a str, rest: &mut impl Iterator<Item = &'a str>) -> String {
    if let Some((whole, _)) = first.split_once(QUOTES) {
        return whole.trim().to_owned();
    }
    let mut lines = Vec::new();
    for line in rest {
        if let Some((last, _)) = line.split_once(QUOTES) {
            lines.push(last);
            break;
        }
        lines.push(line);
    }
    let indented = lines.iter().filter(|line| !line.trim().is_empty());
    let indent = indented.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    let lines = lines.iter().map(|line| line.get(indent..).unwrap_or_default());
    std::iter::once(first).chain(lines).collect::<Vec<_>>().join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUB: &str = r#""""The module."""

class Team:
    """Ranks.

    They write.
    """

    def __init__(
        self, queues: int = 1
    ) -> None:
        """Connects.

        Later.
            More.
        """

    @property
    def rank(self) -> int: ...

    def flush(self) -> None:
        """Returns when
        all have arrived."""


def plan() -> None:
    """Creates a plan."""
"#;

    #[test]
    fn docstrings_have_the_names_of_what_they_describe() {
        let found = docstrings(STUB);
        let text = |name: &str| found.get(name).map(String::as_str);
        assert_eq!(text(""), Some("The module."));
        assert_eq!(text("Team"), Some("Ranks.\n\nThey write.\n\nConnects.\n\nLater.\n    More."));
        assert_eq!(text("Team.flush"), Some("Returns when\nall have arrived."));
        assert_eq!(text("plan"), Some("Creates a plan."));
        assert_eq!(text("Team.rank"), None);
    }
}
