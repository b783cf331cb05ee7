//! Compares the program in the README of the recipes with the example that is built here; only the path of the layer differs.

#[test]
fn the_program_of_the_readme_is_the_example() {
    let (readme, example) = (include_str!("../../README.md"), include_str!("../examples/serve.rs"));
    let (_, rest) = readme.split_once("```rust\n").expect("a program");
    let (program, _) = rest.split_once("```").expect("its end");
    let example: String = example
        .lines()
        .skip(2)
        .filter(|line| !line.starts_with("#[path") && !line.starts_with("#[allow"))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(program, example);
}
