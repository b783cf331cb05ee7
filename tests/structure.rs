//! The structure of the code, as the `use` declarations show it: layers of `src/` that use only layers below them, no circle in any
//! crate, no long file in `src/`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::{Item, UseTree};

/// The layers from top to bottom, by the folder or file under `src/`. A file may use files of its own layer and of those below it; the
/// pure core and the server do not know each other.
const LAYERS: [&str; 6] = ["commands", "commands/shared", "server", "queue", "sketch", "limiter"];

/// No file has more lines.
const MAX_LINES: usize = 450;

/// The folders of the crates: the module, its tests, and the tools that have several files.
const CRATES: [&str; 9] = [
    "src",
    "tests/core",
    "tests/histories",
    "tests/server",
    "tests/support/src",
    "tools/src/bin/bench",
    "tools/src/bin/demo",
    "tools/src/bin/differential",
    "tools/src/bin/plots",
];

/// A file of a crate.
#[derive(Default)]
struct File {
    lines: usize,
    /// The paths that it uses, as lists of names from the crate's root on.
    uses: BTreeSet<Vec<String>>,
    /// What other files can take from it by these names, if it re-exports something: the paths that the names stand for.
    exports: BTreeMap<String, Vec<String>>,
}

/// The files of a crate by their modules, such as `limiter/meter/grid`. The module of a `mod.rs` is its folder, and that of `lib.rs`
/// or `main.rs` the root.
fn files(of: &str) -> BTreeMap<String, File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(of);
    let (mut folders, mut files) = (vec![root.clone()], BTreeMap::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("text");
            let path = path.strip_prefix(&root).expect("a path under the root").with_extension("");
            let name = path.to_str().expect("a name");
            let module = name.strip_suffix("mod").map_or(name, |folder| folder.trim_end_matches('/'));
            let module = if ["lib", "main"].contains(&module) { "" } else { module };
            let mut file = File { lines: text.lines().count(), ..File::default() };
            read_items(&syn::parse_file(&text).expect("Rust").items, (&root, module), &mut file);
            files.insert(module.to_owned(), file);
        }
    }
    files
}

/// Notes the `use` declarations among `items`, and those in nested modules.
fn read_items(items: &[Item], (root, module): (&Path, &str), file: &mut File) {
    for item in items {
        match item {
            Item::Use(item) => read_use(&item.tree, &mut Vec::new(), (root, module), file),
            Item::Mod(item) if item.attrs.iter().all(|attribute| !attribute.path().is_ident("cfg")) => {
                let module = format!("{module}/{}", item.ident);
                item.content.iter().for_each(|(_, items)| read_items(items, (root, &module), file));
            }
            _ => {}
        }
    }
}

fn read_use(tree: &UseTree, path: &mut Vec<String>, at: (&Path, &str), file: &mut File) {
    let mut note = |mut path: Vec<String>, exported_as: String| {
        if path.last().is_some_and(|name| name == "self") {
            path.pop();
        }
        let Some(path) = from_root(&path, at) else { return };
        file.exports.insert(exported_as, path.clone());
        file.uses.insert(path);
    };
    match tree {
        UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            read_use(&tree.tree, path, at, file);
            path.pop();
        }
        UseTree::Group(tree) => tree.items.iter().for_each(|tree| read_use(tree, path, at, file)),
        UseTree::Name(tree) => note([&path[..], &[tree.ident.to_string()]].concat(), tree.ident.to_string()),
        UseTree::Rename(tree) => note([&path[..], &[tree.ident.to_string()]].concat(), tree.rename.to_string()),
        UseTree::Glob(_) => note(path.clone(), "*".to_owned()),
    }
}

/// The path from the crate's root on; `None` if it leads to another crate.
fn from_root(path: &[String], (root, module): (&Path, &str)) -> Option<Vec<String>> {
    let mut at: Vec<String> = module.split('/').filter(|name| !name.is_empty()).map(Into::into).collect();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => (at, rest) = (Vec::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                at.pop()?;
                rest = &rest[1..];
            }
        }
        // A module of this file, which its `mod` declares, or another crate.
        name => {
            let child = [&at[..], &[name.to_owned()]].concat().join("/");
            let folder = root.join(&child);
            if !folder.is_dir() && !folder.with_extension("rs").is_file() {
                return None;
            }
        }
    }
    Some([&at, rest].concat())
}

/// The file that a path leads to: the longest part of it that is a module, or what that module re-exports by the next name.
fn file_of(path: &[String], files: &BTreeMap<String, File>) -> String {
    for len in (0..=path.len()).rev() {
        let module = path[..len].join("/");
        let Some(file) = files.get(&module) else { continue };
        return match path.get(len).and_then(|name| file.exports.get(name)) {
            Some(target) if target != path => file_of(target, files),
            _ => module,
        };
    }
    unreachable!("the root is a module")
}

/// Which files use which. A `mod.rs` stands for its folder, so arrows between it and the files under it do not count.
fn arrows(files: &BTreeMap<String, File>) -> BTreeSet<(String, String)> {
    let under =
        |folder: &str, file: &str| file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/') || folder.is_empty());
    let mut arrows = BTreeSet::new();
    for (from, file) in files {
        for path in &file.uses {
            let to = file_of(path, files);
            if *from != to && !under(from, &to) && !under(&to, from) {
                arrows.insert((from.clone(), to));
            }
        }
    }
    arrows
}

/// The number of the layer of a file, from the top; `None` for `lib.rs`. The last layer that fits counts: `commands/shared` is within
/// `commands`.
fn layer(file: &str) -> Option<usize> {
    let is_in = |layer: &&str| file == *layer || file.strip_prefix(*layer).is_some_and(|rest| rest.starts_with('/'));
    LAYERS.iter().rposition(is_in)
}

#[test]
fn no_file_uses_a_layer_above_its_own() {
    let files = files("src");
    let mut up = Vec::new();
    for (from, to) in arrows(&files) {
        let (Some(above), Some(below)) = (layer(&from), layer(&to)) else { continue };
        let pure = |layer: usize| layer > 2;
        if above > below || LAYERS[above] == "server" && pure(below) {
            up.push(format!("{from} -> {to}"));
        }
    }
    assert!(up.is_empty(), "these arrows run up, or between the server and the pure core: {up:#?}");
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let mut circles = Vec::new();
    for of in CRATES {
        let arrows = arrows(&files(of));
        assert!(of != "src" || arrows.len() > 100, "the arrows were not found: {arrows:?}");
        let reaches = |from: &String, to: &String| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(file) = next.pop() {
                if seen.insert(file) {
                    next.extend(arrows.iter().filter(|(one, _)| one == file).map(|(_, other)| other));
                }
            }
            seen.contains(to)
        };
        let of_circles = arrows.iter().filter(|(from, to)| reaches(to, from));
        circles.extend(of_circles.map(|(from, to)| format!("{of}: {from} -> {to}")));
    }
    assert!(circles.is_empty(), "these arrows are parts of circles: {circles:#?}");
}

#[test]
fn no_file_is_long() {
    let long: Vec<_> = files("src").into_iter().filter(|(_, file)| file.lines > MAX_LINES).map(|(name, _)| name).collect();
    assert!(long.is_empty(), "these files have more than {MAX_LINES} lines: {long:?}");
}
