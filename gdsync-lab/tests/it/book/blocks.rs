//! Blocks of commands, and their requirements.

use super::page::{Fence, Page};

/// A block's requirements, by the word in its fence, and the reason for skipping it.
const NEEDS: [(&str, Needs, &str); 12] = [
    ("needs-root", Needs::Root, "need root and namespaces"),
    ("needs-rdma", Needs::Rdma, "need rdma-core, perftest and librdmacm's programs"),
    ("needs-gpu", Needs::Elsewhere, "need an NVIDIA GPU"),
    ("needs-card", Needs::Elsewhere, "need an mlx5 card"),
    ("needs-hosts", Needs::Elsewhere, "need several hosts; tests/it/hosts has network namespaces"),
    ("needs-mpi", Needs::Elsewhere, "need an MPI; bindings/mpi, bindings/c and .ci/run run such programs"),
    ("needs-python", Needs::Elsewhere, "need the Python package; .ci/run runs its tests and examples"),
    ("needs-containers", Needs::Elsewhere, "need a container engine"),
    ("needs-kubernetes", Needs::Elsewhere, "need Kubernetes"),
    ("needs-slurm", Needs::Elsewhere, "need Slurm"),
    ("install", Needs::Elsewhere, "install or build for minutes; .ci/run does the same"),
    ("template", Needs::Elsewhere, "name files of the reader's"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Runs anywhere.
    Nothing,
    /// Namespaces, which only root may create.
    Root,
    /// Programs of Debian packages.
    Rdma,
    /// Not available to any test of the book.
    Elsewhere,
}

/// Commands that run one after the other, and their output.
#[derive(Debug)]
pub(super) struct Unit<'a> {
    pub(super) line: usize,
    pub(super) commands: String,
    /// The output on the page; empty for a script.
    pub(super) shown: &'a [String],
}

#[derive(Debug)]
pub(super) struct Block<'a> {
    pub(super) line: usize,
    pub(super) needs: Needs,
    pub(super) reason: &'static str,
    /// True if the output is that of the machine on which it was recorded, and not compared.
    pub(super) is_recorded: bool,
    /// True if figures of the output must equal the page's.
    pub(super) is_exact: bool,
    /// True if exit status 1 is a finding.
    pub(super) may_find: bool,
    pub(super) units: Vec<Unit<'a>>,
}

/// Returns the blocks of a page, or an error in one of them.
pub(super) fn of(page: &Page) -> Result<Vec<Block<'_>>, String> {
    let fences = page.fences();
    let blocks = fences.into_iter().filter_map(|fence| block(fence).transpose());
    blocks.collect::<Result<_, String>>().map_err(|wrong| format!("{}:{wrong}", page.name))
}

/// Returns the text after the prompt, if the line has one: `$ ` or `host-a$ `.
fn typed(line: &str) -> Option<&str> {
    let (prompt, typed) = line.split_once("$ ")?;
    let is_host = prompt.strip_prefix("host-").is_some_and(|name| name.len() == 1);
    (prompt.is_empty() || is_host).then_some(typed)
}

fn block(fence: Fence<'_>) -> Result<Option<Block<'_>>, String> {
    let mut words = fence.info.split(',').map(str::trim);
    let language = words.next().unwrap_or_default();
    let has_prompts = fence.lines.iter().any(|line| typed(line).is_some());
    let units = match language {
        "sh" if has_prompts => return Err(format!("{}: a block with prompts is `console`", fence.line)),
        "sh" => vec![Unit { line: fence.line + 1, commands: fence.lines.join("\n"), shown: &[] }],
        "console" => session(&fence)?,
        "" | "text" if has_prompts => {
            return Err(format!("{}: a block with prompts is `console`", fence.line));
        }
        _ => return Ok(None),
    };
    let mut block = Block {
        line: fence.line,
        needs: Needs::Nothing,
        reason: "",
        is_recorded: false,
        is_exact: false,
        may_find: false,
        units,
    };
    for word in words {
        match NEEDS.iter().find(|(name, ..)| *name == word) {
            Some((_, needs, reason)) => (block.needs, block.reason) = (*needs, reason),
            None if word == "recorded" => block.is_recorded = true,
            None if word == "exact" => block.is_exact = true,
            None if word == "may-find" => block.may_find = true,
            None => return Err(format!("{}: `{word}` in the fence means nothing", fence.line)),
        }
    }
    Ok(Some(block))
}

/// Returns a command for each prompt.
fn session<'a>(fence: &Fence<'a>) -> Result<Vec<Unit<'a>>, String> {
    let prompts: Vec<usize> =
        (0..fence.lines.len()).filter(|index| typed(&fence.lines[*index]).is_some()).collect();
    if prompts.first() != Some(&0) {
        return Err(format!("{}: a `console` block begins with a prompt", fence.line));
    }
    let ends = prompts.iter().skip(1).copied().chain([fence.lines.len()]);
    let unit = |(begin, end): (&usize, usize)| Unit {
        line: fence.line + 1 + begin,
        commands: typed(&fence.lines[*begin]).unwrap_or_default().to_owned(),
        shown: &fence.lines[begin + 1..end],
    };
    Ok(prompts.iter().zip(ends).map(unit).collect())
}

#[test]
fn blocks_are_read_as_they_are_meant() {
    let text = "```console,exact\n$ a | b\nout\n\n$ c\n```\n```sh,needs-gpu,may-find\nd \\\n  e\n```\n```rust\n$ f\n```\n```\nplain\n```\n";
    let page = Page::of("p", text);
    let blocks = of(&page).unwrap();
    assert_eq!(blocks.len(), 2);
    let units: Vec<_> =
        blocks[0].units.iter().map(|unit| (unit.line, unit.commands.as_str(), unit.shown.len())).collect();
    assert_eq!(units, [(2, "a | b", 2), (5, "c", 0)]);
    assert!(blocks[0].is_exact && blocks[0].needs == Needs::Nothing);
    assert_eq!((blocks[1].needs, blocks[1].may_find, blocks[1].line), (Needs::Elsewhere, true, 7));
    assert_eq!(blocks[1].units[0].commands, "d \\\n  e");
}

#[test]
fn blocks_that_no_test_would_run_are_refused() {
    for (text, said) in [
        ("```\n$ a\n```", "p:1: a block with prompts is `console`"),
        ("\n```text\nhost-a$ a\n```", "p:2: a block with prompts is `console`"),
        ("```sh\n$ a\n```", "p:1: a block with prompts is `console`"),
        ("```console\nout\n$ a\n```", "p:1: a `console` block begins with a prompt"),
        ("```console\n```", "p:1: a `console` block begins with a prompt"),
        ("```sh,need-gpu\na\n```", "p:1: `need-gpu` in the fence means nothing"),
    ] {
        assert_eq!(of(&Page::of("p", text)).unwrap_err(), said, "{text}");
    }
}
