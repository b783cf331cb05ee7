//! Compares the programs in the README of the recipes with the examples that are built here; only the paths of the files differ.

#[test]
fn the_programs_of_the_readme_are_the_examples() {
    let mut programs = include_str!("../../README.md").split("```rust\n").skip(1);
    for example in [include_str!("../examples/serve.rs"), include_str!("../examples/quota.rs")] {
        let (program, _) = programs.next().and_then(|rest| rest.split_once("```")).expect("a program");
        let example: String = example
            .lines()
            .skip(2)
            .filter(|line| !line.starts_with("#[path") && !line.starts_with("#[allow"))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(program, example);
    }
    assert_eq!(programs.next(), None);
}
