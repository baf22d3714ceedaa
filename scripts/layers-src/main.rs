//! `scripts/layers`: reads the layers of each crate in `layers.toml`, and the code's imports, and reports each import of a
//! layer that stands below. It reads what is written: a method on a type of an upper layer that a lower module adds by an
//! `impl` block of its own is no import, and nor are the imports that a macro's expansion makes up.

mod check;
mod lex;
mod list;
mod parse;
mod resolve;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: scripts/layers [--layers FILE] [ROOT]
ROOT is the repository to check (default: this one), FILE the list of its layers (default: ROOT/layers.toml).";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    // The wrapper names its own repository first.
    let default = arguments.next().unwrap_or_else(|| ".".into());
    let (mut root, mut file) = (None, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            "--layers" if file.is_none() => match arguments.next() {
                Some(path) => file = Some(PathBuf::from(path)),
                None => return refuse(&format!("--layers wants a file\n{USAGE}")),
            },
            path if root.is_none() && !path.starts_with('-') => root = Some(PathBuf::from(path)),
            other => return refuse(&format!("{other} is no argument here\n{USAGE}")),
        }
    }
    let root = root.unwrap_or_else(|| default.into());
    let file = file.unwrap_or_else(|| root.join("layers.toml"));
    match check(&root, &file) {
        Ok((lines, violations)) if violations.is_empty() => {
            println!("{}", lines.join("\n"));
            ExitCode::SUCCESS
        }
        Ok((_, violations)) => {
            for (file, line, text) in &violations {
                println!("{}:{line}: {text}", file.display());
            }
            eprintln!("layers: {} violations", violations.len());
            ExitCode::FAILURE
        }
        Err(text) => refuse(&text),
    }
}

fn refuse(text: &str) -> ExitCode {
    eprintln!("layers: {text}");
    ExitCode::from(2)
}

fn check(root: &Path, file: &Path) -> Result<(Vec<String>, Vec<check::Violation>), String> {
    let list = list::list(file)?;
    let shown = file.strip_prefix(root).unwrap_or(file);
    let (mut lines, mut violations) = (Vec::new(), Vec::new());
    for each in &list.crates {
        lines.push(check::check_crate(root, each, shown, &mut violations)?);
    }
    if !list.order.is_empty() {
        lines.push(check::check_workspace(root, &list, shown, &mut violations)?);
        let listed = |name: &String| list.crates.iter().any(|each| each.name == *name);
        let open = list.order.iter().map(|entry| &entry.name).filter(|name| !listed(name));
        lines.extend(open.map(|name| format!("{name}: no layers listed")));
    }
    violations.sort();
    violations.dedup();
    Ok((lines, violations))
}
