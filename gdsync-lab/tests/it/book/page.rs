//! A page of Markdown: its fenced blocks, headings and links.

use std::path::{Path, PathBuf};

pub(super) struct Page {
    pub(super) path: PathBuf,
    /// Its path in the repository, for messages.
    pub(super) name: String,
    lines: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fence<'a> {
    /// The line of its fence, counted from 1.
    pub(super) line: usize,
    /// The words after the fence's backquotes.
    pub(super) info: &'a str,
    pub(super) lines: &'a [String],
}

/// A link of a page, or a file that it includes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) line: usize,
    pub(super) target: String,
}

impl Page {
    pub(super) fn read(root: &Path, path: &Path) -> Page {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.strip_prefix(root).unwrap().display().to_string();
        Page { path: path.to_owned(), name, lines: text.lines().map(str::to_owned).collect() }
    }

    pub(super) fn of(name: &str, text: &str) -> Page {
        Page { path: name.into(), name: name.into(), lines: text.lines().map(str::to_owned).collect() }
    }

    /// Returns its fenced blocks.
    ///
    /// # Panics
    /// A block has no end.
    pub(super) fn fences(&self) -> Vec<Fence<'_>> {
        let mut fences = Vec::new();
        let mut begun: Option<(usize, &str)> = None;
        for (index, line) in self.lines.iter().enumerate() {
            let Some(info) = line.trim_start().strip_prefix("```") else { continue };
            begun = match begun {
                None => Some((index, info.trim())),
                Some((begin, info)) => {
                    fences.push(Fence { line: begin + 1, info, lines: &self.lines[begin + 1..index] });
                    None
                }
            };
        }
        assert!(begun.is_none(), "{}: the block at line {} has no end", self.name, begun.unwrap().0 + 1);
        fences
    }

    /// Returns lines outside of blocks, with their numbers.
    fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut is_in_block = false;
        self.lines.iter().enumerate().filter_map(move |(index, line)| {
            let is_fence = line.trim_start().starts_with("```");
            is_in_block ^= is_fence;
            (!is_fence && !is_in_block).then_some((index + 1, line.as_str()))
        })
    }

    /// Returns the anchors of its headings, as GitHub and mdBook name them.
    pub(super) fn anchors(&self) -> Vec<String> {
        let mut anchors: Vec<String> = Vec::new();
        for (_, line) in self.prose() {
            let Some(heading) = line.strip_prefix('#').map(|rest| rest.trim_start_matches('#')) else {
                continue;
            };
            let Some(heading) = heading.strip_prefix(' ') else { continue };
            let slug = slug(&text_of(heading));
            let same = |number: usize| if number == 0 { slug.clone() } else { format!("{slug}-{number}") };
            let free = (0..).map(same).find(|one| !anchors.contains(one)).unwrap();
            anchors.push(free);
        }
        anchors
    }

    /// Returns its links and pictures that point to files or anchors, and the files that it includes.
    pub(super) fn links(&self) -> Vec<Link> {
        let mut links = Vec::new();
        for (line, text) in self.prose() {
            let text = without_code(text);
            let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            links.extend(
                targets
                    .filter(|target| !target.contains("://"))
                    .map(|target| Link { line, target: target.into() }),
            );
        }
        for (index, text) in self.lines.iter().enumerate() {
            let included = text.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}"));
            let file = included.and_then(|file| file.split(':').next());
            links.extend(file.map(|file| Link { line: index + 1, target: file.into() }));
        }
        links
    }
}

/// Removes code between backquotes from a line.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// Returns the words of a heading, with links replaced by their text.
fn text_of(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        text += &before.replacen('[', "", 1);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text + rest
}

fn slug(text: &str) -> String {
    let kept = |letter: char| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    };
    text.trim().to_lowercase().chars().filter_map(kept).collect()
}

#[test]
fn headings_have_the_anchors_of_github() {
    let page =
        Page::of("p", "# `MPIX_*` of [a](b.md), and 1.5 µs\n```\n# no heading\n```\n## A b\n## A b\n#no\n");
    assert_eq!(page.anchors(), ["mpix_-of-a-and-15-µs", "a-b", "a-b-1"]);
}

#[test]
fn links_are_found_in_prose_only() {
    let text = "[`a`](b.md#c), `[x](no.md)` ![p](q.svg)\n```sh\n[y](no.md)\n{{#include ../z.rs:3:}}\n```\n<https://x> [w](https://x)\n";
    let links = Page::of("p", text).links();
    let found: Vec<_> = links.iter().map(|link| (link.line, link.target.as_str())).collect();
    assert_eq!(found, [(1, "b.md#c"), (1, "q.svg"), (4, "../z.rs")]);
}
