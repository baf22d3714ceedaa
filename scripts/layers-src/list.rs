//! The layers file, a subset of TOML, and what each Cargo.toml depends on.

use std::fs;
use std::path::{Path, PathBuf};

/// A string of an array, and the line it stands on.
pub struct Entry {
    pub name: String,
    pub line: usize,
}

pub struct Crate {
    pub name: String,
    /// The folder of its `lib.rs` or `main.rs`, from the root.
    pub path: String,
    /// From the layer that imports none of the others to the one that may import them all.
    pub layers: Vec<Entry>,
}

pub struct List {
    pub crates: Vec<Crate>,
    /// The workspace's crates; each may depend on those before it.
    pub order: Vec<Entry>,
}

pub fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

/// One `key = value` of the layers file; a lone string counts as an array of one.
struct Setting {
    section: String,
    key: String,
    strings: Vec<Entry>,
    array: bool,
    line: usize,
}

pub fn list(file: &Path) -> Result<List, String> {
    let text = read(file)?;
    let place = |line: usize| format!("{}:{line}", file.display());
    let mut list = List { crates: Vec::new(), order: Vec::new() };
    for setting in settings(&text).map_err(|(line, what)| format!("{}: {what}", place(line)))? {
        let at = place(setting.line);
        let Setting { section, key, strings, array, line: _ } = setting;
        for (index, entry) in strings.iter().enumerate() {
            if strings[..index].iter().any(|before| before.name == entry.name) {
                return Err(format!("{}: {} is listed twice: keep one", place(entry.line), entry.name));
            }
        }
        let name = section.strip_prefix("crate.").unwrap_or("");
        let known = list.crates.iter().position(|known| known.name == name);
        match (section.as_str(), key.as_str(), array) {
            ("workspace", "crates", true) if list.order.is_empty() => list.order = strings,
            (_, "path" | "layers", _) if !name.is_empty() => {
                let index = known.unwrap_or(list.crates.len());
                if known.is_none() {
                    list.crates.push(Crate { name: name.into(), path: String::new(), layers: Vec::new() });
                }
                let into = &mut list.crates[index];
                match (key.as_str(), array) {
                    ("path", false) if into.path.is_empty() => into.path.clone_from(&strings[0].name),
                    ("layers", true) if into.layers.is_empty() => into.layers = strings,
                    _ => return Err(format!("{at}: {key} of {name} is given twice, or {}", shape(&key))),
                }
            }
            _ => {
                let known = "`crates` of [workspace], `path` and `layers` of [crate.NAME], each once";
                return Err(format!("{at}: {key} of [{section}] is unknown: write {known}"));
            }
        }
    }
    match list.crates.iter().find(|each| each.path.is_empty() || each.layers.is_empty()) {
        Some(lacks) => {
            let key = if lacks.path.is_empty() { "path" } else { "layers" };
            let (file, name) = (file.display(), &lacks.name);
            Err(format!("{file}: [crate.{name}] has no {key}, or an empty one: {}", shape(key)))
        }
        None if list.crates.is_empty() => {
            Err(format!("{}: no crate is listed: add a [crate.NAME]", file.display()))
        }
        None => Ok(list),
    }
}

fn shape(key: &str) -> &'static str {
    if key == "path" { "write path = \"folder/src\"" } else { "write layers = [\"first\", \"second\"]" }
}

fn settings(text: &str) -> Result<Vec<Setting>, (usize, String)> {
    let mut section = String::new();
    let mut settings: Vec<Setting> = Vec::new();
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let wrong = |what: &str| (line_number, format!("{what}: {}", line.trim()));
        let line = without_comment(line).trim();
        let mut rest = line;
        if !open && let Some(header) = line.strip_prefix('[') {
            section = header.strip_suffix(']').ok_or(wrong("a section's name ends with ]"))?.into();
            continue;
        }
        if !open && !line.is_empty() {
            let (key, value) = line.split_once('=').ok_or(wrong("neither [section] nor key = value"))?;
            let value = value.trim();
            open = value.starts_with('[');
            rest = value.strip_prefix('[').unwrap_or(value);
            let (section, key) = (section.clone(), key.trim().to_string());
            settings.push(Setting { section, key, strings: Vec::new(), array: open, line: line_number });
        }
        let Some(setting) = settings.last_mut() else { continue };
        while !rest.is_empty() {
            if open && let Some(after) = rest.strip_prefix(']') {
                (rest, open) = (after.trim(), false);
                if !rest.is_empty() {
                    return Err(wrong("nothing may follow an array's end"));
                }
                break;
            }
            let string = rest.strip_prefix('"').and_then(|rest| rest.split_once('"'));
            let (name, after) = string.ok_or(wrong("a value is a \"string\" or an array of them"))?;
            setting.strings.push(Entry { name: name.into(), line: line_number });
            rest = after.trim();
            match rest.strip_prefix(',') {
                Some(after) if open => rest = after.trim(),
                _ if rest.is_empty() || (open && rest.starts_with(']')) => {}
                _ => return Err(wrong("a comma separates an array's strings")),
            }
        }
        if !open && !setting.array && setting.strings.len() != 1 {
            return Err(wrong("a value is a \"string\" or an array of them"));
        }
    }
    let unclosed = settings.last().filter(|_| open);
    unclosed
        .map_or(Ok(()), |last| Err((last.line, format!("the array of {} has no end: add ]", last.key))))?;
    Ok(settings)
}

fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    let end = line.find(|character| {
        quoted ^= character == '"';
        character == '#' && !quoted
    });
    &line[..end.unwrap_or(line.len())]
}

/// What the guard reads of a Cargo.toml.
pub struct Manifest {
    pub file: PathBuf,
    pub name: Option<String>,
    pub members: Vec<String>,
    /// Normal and build dependencies, for any target.
    pub dependencies: Vec<Entry>,
}

pub fn manifest(root: &Path, folder: &str) -> Result<Manifest, String> {
    let file = Path::new(folder).join("Cargo.toml");
    let text = read(&root.join(&file))?;
    let mut manifest = Manifest { file, name: None, members: Vec::new(), dependencies: Vec::new() };
    let (mut section, mut key, mut depth) = (String::new(), String::new(), 0);
    for (index, line) in text.lines().enumerate() {
        let line = without_comment(line).trim();
        if depth == 0 && line.starts_with('[') {
            section = line.trim_matches(['[', ']']).into();
            if let Some((table, name)) = section.rsplit_once('.')
                && is_dependencies(table)
            {
                manifest.dependencies.push(Entry { name: name.trim_matches('"').into(), line: index + 1 });
            }
            continue;
        }
        let opens_key = depth == 0 && line.contains('=');
        if opens_key {
            key = line.split(['=', '.', ' ']).next().unwrap_or("").trim_matches('"').into();
        }
        depth += line.matches(['[', '{']).count();
        depth = depth.saturating_sub(line.matches([']', '}']).count());
        let strings = || line.split('"').skip(1).step_by(2).map(String::from);
        match (section.as_str(), key.as_str()) {
            ("package", "name") if opens_key => manifest.name = strings().next(),
            ("workspace", "members") => manifest.members.extend(strings()),
            (table, _) if is_dependencies(table) && opens_key => {
                manifest
                    .dependencies
                    .push(Entry { name: renamed(line).unwrap_or(&key).into(), line: index + 1 });
            }
            (table, "package") if table.rsplit_once('.').is_some_and(|(table, _)| is_dependencies(table)) => {
                if let (Some(last), Some(name)) = (manifest.dependencies.last_mut(), strings().next()) {
                    last.name = name;
                }
            }
            _ => {}
        }
    }
    Ok(manifest)
}

fn is_dependencies(table: &str) -> bool {
    let (target, table) = table.rsplit_once('.').unwrap_or(("target.", table));
    target.starts_with("target.") && matches!(table, "dependencies" | "build-dependencies")
}

/// The package of `alias = { package = "name" }`.
fn renamed(line: &str) -> Option<&str> {
    let (_, after) = line.split_once("package")?;
    after.trim_start().strip_prefix('=')?.split('"').nth(1)
}
