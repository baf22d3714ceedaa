//! The rules: no import from a layer below, no circle of folders, no dependency on a crate below.

use crate::list::{Crate, Entry, List, manifest};
use crate::resolve::Import;
use crate::tree::{Id, ROOT, Tree};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

const FILE: &str = "layers.toml";

/// Sorts by file, then by line.
pub type Violation = (PathBuf, usize, String);

/// Checks one crate; returns the line that says how it stands.
pub fn check_crate(
    root: &Path,
    each: &Crate,
    list: &Path,
    violations: &mut Vec<Violation>,
) -> Result<String, String> {
    let mut tree = Tree::read(root, &each.path)?;
    violations.append(&mut tree.stray);
    let imports = tree.imports();
    let layers: Vec<_> =
        (0..tree.modules.len()).map(|id| layer(&each.layers, &tree.modules[id].path)).collect();

    for (id, module) in tree.modules.iter().enumerate().skip(1) {
        // An entry for the outermost module covers those inside.
        if layers[id].is_none() && module.parent == ROOT {
            let text =
                format!("{} stands in no layer: list it under [crate.{}] of {FILE}", module.path, each.name);
            violations.push((module.file.clone(), 1, text));
        }
    }
    for entry in &each.layers {
        if !tree.modules.iter().skip(1).any(|module| module.path == entry.name) {
            let text = format!("{} is no module of {}: correct or remove the entry", entry.name, each.name);
            violations.push((list.into(), entry.line, text));
        }
    }
    for Import { from, to, line, text } in &imports {
        let Some(own) = layers[*from] else { continue };
        let own_name = &each.layers[own].name;
        let said = match layers[*to] {
            None if *to == ROOT => {
                format!("{own_name} imports the crate's root ({text}): import it from where it is defined")
            }
            Some(other) if other > own => {
                let other = &each.layers[other].name;
                let remedy = "move the item up or the caller down";
                format!("{own_name} imports {other} ({text}), which stands below it in {FILE}: {remedy}")
            }
            _ => continue,
        };
        violations.push((tree.modules[*from].file.clone(), *line, said));
    }
    for parent in 0..tree.modules.len() {
        circles(&tree, parent, &imports, violations);
    }
    let arrows: BTreeSet<_> = imports.iter().map(|import| (import.from, import.to)).collect();
    let (layers, files) = (each.layers.len(), tree.files);
    Ok(format!("{}: {layers} layers, {files} files, {} imports, none upward", each.name, arrows.len()))
}

/// The index of the entry that covers a module.
fn layer(layers: &[Entry], mut module: &str) -> Option<usize> {
    loop {
        if let Some(found) = layers.iter().position(|entry| entry.name == module) {
            return Some(found);
        }
        module = module.rsplit_once("::")?.0;
    }
}

/// Reports each circle among a module's children that holds a folder. Files of one layer may import each other.
fn circles(tree: &Tree, parent: Id, imports: &[Import], violations: &mut Vec<Violation>) {
    let children = &tree.modules[parent].children;
    let child_of = |module: Id| children.iter().copied().find(|&child| tree.holds(child, module));
    let mut arrows: Arrows<'_> = BTreeMap::new();
    for import in imports {
        if let (Some(from), Some(to)) = (child_of(import.from), child_of(import.to))
            && from != to
        {
            arrows.entry(from).or_default().entry(to).or_insert(import);
        }
    }
    let is_folder = |id: Id| tree.modules[id].children.iter().any(|&child| tree.modules[child].own_file);
    let mut reported = BTreeSet::new();
    for &folder in children.iter().filter(|&&child| is_folder(child)) {
        if reported.contains(&folder) {
            continue;
        }
        let Some(circle) = path(folder, folder, &arrows) else { continue };
        let leads = |from: Id, to: Id| path(from, to, &arrows).is_some();
        let members: BTreeSet<Id> =
            children.iter().copied().filter(|&other| leads(folder, other) && leads(other, folder)).collect();
        let name = |id: &Id| tree.modules[*id].name().to_string();
        let steps: Vec<String> = circle
            .windows(2)
            .map(|step| {
                let import = arrows[&step[0]][&step[1]];
                let file = tree.modules[import.from].file.display();
                format!(
                    "{} imports {} ({} at {file}:{})",
                    name(&step[0]),
                    name(&step[1]),
                    import.text,
                    import.line
                )
            })
            .collect();
        let first = arrows[&circle[0]][&circle[1]];
        let text = format!(
            "a circle of {} modules ({}): {}: move what they share up, or one caller down",
            members.len(),
            members.iter().map(name).collect::<Vec<_>>().join(", "),
            steps.join(", ")
        );
        violations.push((tree.modules[first.from].file.clone(), first.line, text));
        reported.extend(members);
    }
}

type Arrows<'a> = BTreeMap<Id, BTreeMap<Id, &'a Import>>;

/// A shortest path of at least one step.
fn path(start: Id, end: Id, arrows: &Arrows<'_>) -> Option<Vec<Id>> {
    let mut before: BTreeMap<Id, Id> = BTreeMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(from) = waiting.pop_front() {
        for &to in arrows.get(&from).into_iter().flat_map(BTreeMap::keys) {
            if before.contains_key(&to) {
                continue;
            }
            before.insert(to, from);
            if to == end {
                let mut path = vec![end, from];
                while path[path.len() - 1] != start {
                    path.push(before[&path[path.len() - 1]]);
                }
                path.reverse();
                return Some(path);
            }
            waiting.push_back(to);
        }
    }
    None
}

/// Checks what the workspace's crates depend on; returns the line that says how they stand.
pub fn check_workspace(
    root: &Path,
    list: &List,
    file: &Path,
    violations: &mut Vec<Violation>,
) -> Result<String, String> {
    let top = manifest(root, "")?;
    let mut manifests = Vec::new();
    for member in &top.members {
        manifests.push(manifest(root, member)?);
    }
    manifests.push(top);
    let position = |name: &str| list.order.iter().position(|entry| entry.name == name);
    let mut count = 0;
    for manifest in &manifests {
        let Some(name) = &manifest.name else { continue };
        let Some(own) = position(name) else {
            let text =
                format!("{name} is not in the order of crates: list it in `crates` of [workspace] in {FILE}");
            violations.push((manifest.file.clone(), 1, text));
            continue;
        };
        for dependency in &manifest.dependencies {
            let Some(other) = position(&dependency.name) else { continue };
            count += 1;
            if other >= own {
                let remedy = "move what it needs to a crate above, or correct the order";
                let other = &dependency.name;
                let text = format!("{name} depends on {other}, which stands below it in {FILE}: {remedy}");
                violations.push((manifest.file.clone(), dependency.line, text));
            }
        }
    }
    for entry in &list.order {
        if !manifests.iter().any(|manifest| manifest.name.as_ref() == Some(&entry.name)) {
            let text = format!("{} is no crate of the workspace: correct or remove the entry", entry.name);
            violations.push((file.into(), entry.line, text));
        }
    }
    Ok(format!("workspace: {} crates, {count} dependencies, none upward", list.order.len()))
}
