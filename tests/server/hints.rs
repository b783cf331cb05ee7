//! Each command takes exactly what `COMMAND DOCS` and `RL.HELP` describe, and redis-cli shows that as a hint.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::iter::{once, repeat_n};
use std::num::NonZeroU16;
use std::path::Path;
use std::process::Child;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pty_process::blocking::Pty;
use redis::{from_redis_value, Cmd, Connection, FromRedisValue, Value};
use support::{call, cli_program, error, Server};

/// An argument, as the server documents it.
#[derive(Clone, Debug, PartialEq)]
struct Argument {
    name: String,
    /// `key`, `integer`, `string` and `pure-token` are single words; `oneof` and `block` have parts.
    kind: String,
    token: Option<String>,
    optional: bool,
    multiple: bool,
    parts: Vec<Argument>,
}

type Fields = BTreeMap<String, Value>;

fn field<T: FromRedisValue>(fields: &Fields, name: &str) -> Option<T> {
    Some(from_redis_value(fields.get(name)?.clone()).unwrap_or_else(|error| panic!("{name}: {error}")))
}

impl Argument {
    fn all(fields: &Fields) -> Vec<Self> {
        field::<Vec<Fields>>(fields, "arguments").unwrap_or_default().iter().map(Self::read).collect()
    }

    fn read(fields: &Fields) -> Self {
        let text = |name| field(fields, name).unwrap_or_else(|| panic!("no {name} in {fields:?}"));
        let flags: BTreeSet<String> = field(fields, "flags").unwrap_or_default();
        let argument = Self {
            name: text("name"),
            kind: text("type"),
            token: field(fields, "token"),
            optional: flags.contains("optional"),
            multiple: flags.contains("multiple"),
            parts: Self::all(fields),
        };
        assert_eq!(argument.has_parts(), !argument.parts.is_empty(), "{argument:?}");
        assert!(!argument.has_parts() || argument.token.is_none(), "{argument:?}");
        argument
    }

    fn has_parts(&self) -> bool {
        ["oneof", "block"].contains(&&*self.kind)
    }

    /// The ways to give this argument, each as a list of single words.
    fn ways(&self) -> Vec<Vec<Self>> {
        branches(&[Self { optional: false, ..self.clone() }], 1)
    }

    /// The name that errors use for it.
    fn label(&self) -> &str {
        self.token.as_ref().unwrap_or(&self.name)
    }

    /// The argument as it appears in the syntax of a command.
    fn syntax(&self) -> String {
        let parts = |between| self.parts.iter().map(Self::syntax).collect::<Vec<_>>().join(between);
        let once = match (&*self.kind, &self.token) {
            ("oneof", _) if self.optional => parts(" | "),
            ("oneof", _) => format!("<{}>", parts(" | ")),
            ("block", _) => parts(" "),
            ("pure-token", Some(token)) => token.clone(),
            (_, Some(token)) => format!("{token} {}", self.name),
            (_, None) => self.name.clone(),
        };
        let again = if self.has_parts() { " [...]".into() } else { format!(" [{} ...]", self.name) };
        let text = if self.multiple { once + &again } else { once };
        if self.optional {
            format!("[{text}]")
        } else {
            text
        }
    }
}

/// What the server documents of a command.
struct Docs {
    /// The name in capitals.
    name: String,
    summary: String,
    arguments: Vec<Argument>,
}

/// Starts a server on which the commands for compatibility are enabled, too. It has a policy for RL.USE.
fn with_all_commands() -> Server {
    let (server, mut client) = Server::with(&["--rl.compat", "cl.throttle gcra"]).and_client();
    call::<()>(&mut client, &format!("RL.POLICY {POLICY} GCRA 1 60s"));
    server
}

/// The policy key in all calls of RL.USE. Its algorithm is GCRA.
const POLICY: &str = "key:policy";

/// The documentation of every command of the module.
fn all_docs(client: &mut Connection) -> Vec<Docs> {
    let names: Vec<String> = call(client, "COMMAND LIST FILTERBY MODULE rl");
    assert!(names.len() >= 14, "{names:?}");
    names.iter().map(|name| docs(client, name)).collect()
}

fn docs(client: &mut Connection, name: &str) -> Docs {
    let mut reported: BTreeMap<String, Fields> = call(client, &format!("COMMAND DOCS {name}"));
    let fields = reported.remove(name).unwrap_or_else(|| panic!("no docs of {name}"));
    for (about, wanted) in [("summary", ""), ("since", ""), ("complexity", "O("), ("group", "module"), ("module", "rl")] {
        let text: String = field(&fields, about).unwrap_or_else(|| panic!("{name} has no {about}"));
        assert!(!text.is_empty() && text.starts_with(wanted), "{name} has {about} {text:?}");
    }
    let summary = field(&fields, "summary").expect("a summary");
    Docs { name: name.to_uppercase(), summary, arguments: Argument::all(&fields) }
}

/// Every list that takes one item from each of these lists, in their order.
fn product<T: Clone>(lists: impl IntoIterator<Item = Vec<Vec<T>>>) -> Vec<Vec<T>> {
    lists.into_iter().fold(vec![Vec::new()], |heads, tails| {
        heads.iter().flat_map(|head| tails.iter().map(|tail| [&head[..], tail].concat())).collect()
    })
}

/// Resolves the choices that a call has to make: returns a list of arguments for each way to make them. All arguments that
/// are not optional are then single words. An argument that may be repeated is there so many times.
fn branches(arguments: &[Argument], times: usize) -> Vec<Vec<Argument>> {
    product(arguments.iter().flat_map(|argument| {
        let ways = match &*argument.kind {
            "oneof" if !argument.optional => {
                argument.parts.iter().flat_map(|part| branches(slice::from_ref(part), times)).collect()
            }
            "block" if !argument.optional => branches(&argument.parts, times),
            _ => vec![vec![argument.clone()]],
        };
        repeat_n(ways, if argument.multiple { times } else { 1 })
    }))
}

/// The branches in which arguments that may be repeated are there once, and those in which they are there twice.
fn all_branches(arguments: &[Argument]) -> Vec<Vec<Argument>> {
    let most = if arguments.iter().any(|argument| argument.multiple) { 2 } else { 1 };
    (1..=most).flat_map(|times| branches(arguments, times)).collect()
}

/// Every selection of the options, in every order and in every way to give them.
fn orders(options: &[Argument]) -> Vec<Vec<Argument>> {
    let begun = options.iter().enumerate().flat_map(|(index, option)| {
        let rest = [&options[..index], &options[index + 1..]].concat();
        product([option.ways(), orders(&rest)])
    });
    once(Vec::new()).chain(begun).collect()
}

/// Every call that a branch allows, except for the values.
fn calls(branch: &[Argument]) -> Vec<Vec<Argument>> {
    product(branch.chunk_by(|one, next| one.optional == next.optional).map(|run| {
        if run[0].optional {
            orders(run)
        } else {
            vec![run.to_vec()]
        }
    }))
}

/// The shortest call of a branch.
fn shortest(branch: &[Argument]) -> Vec<Argument> {
    branch.iter().filter(|argument| !argument.optional).cloned().collect()
}

/// The options of a branch.
fn options(branch: &[Argument]) -> Vec<Argument> {
    branch.iter().filter(|argument| argument.optional).cloned().collect()
}

/// Words for these arguments. All keys are new ones.
fn words(call: &[Argument]) -> Vec<String> {
    call.iter().flat_map(|argument| argument.token.clone().into_iter().chain(value(argument, call))).collect()
}

fn value(argument: &Argument, call: &[Argument]) -> Option<String> {
    static KEYS: AtomicUsize = AtomicUsize::new(0);
    Some(match (&*argument.kind, &*argument.name) {
        ("pure-token", _) => return None,
        ("key", "policy") => POLICY.into(),
        ("key", _) => format!("key:{}", KEYS.fetch_add(1, Ordering::Relaxed)),
        ("integer", "numpolicies") => call.iter().filter(|argument| argument.name == "policy").count().to_string(),
        ("integer", "numkeys") => call.iter().filter(|argument| argument.kind == "key").count().to_string(),
        ("integer", _) => "1".into(),
        ("string", "period" | "ttl") => "60s".into(),
        ("string", "id") => "an-id".into(),
        ("string", "offset" | "duration") => "1s".into(),
        ("string", "time") => "1.5".into(),
        ("string", "command") => "rl.gcra".into(),
        _ => panic!("no known value for {argument:?}"),
    })
}

/// How many of the words come before the argument at `place`.
fn words_before(call: &[Argument], place: usize) -> usize {
    let words = |argument: &Argument| usize::from(argument.token.is_some()) + usize::from(argument.kind != "pure-token");
    call[..place].iter().map(words).sum()
}

fn command(name: &str, words: &[String]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(words);
    command
}

fn assert_refused(client: &mut Connection, name: &str, words: &[String], beginning: &str) {
    let error = error(client, &command(name, words));
    assert!(error.starts_with("ERR ") && error.starts_with(beginning), "{name} {words:?}: {error}\nnot: {beginning}");
}

/// The words, and one more.
fn and(words: &[String], word: &str) -> Vec<String> {
    words.iter().cloned().chain(once(word.into())).collect()
}

/// The error, if these words exclude each other, or if one of them needs another one. COMMAND DOCS has no way to describe that.
fn conflict(name: &str, words: &[String]) -> Option<String> {
    const NOT_WITH: [(&str, &[&str]); 3] =
        [("ID", &["FORCE", "REFUND"]), ("RESERVE", &["UPTO", "FORCE", "REFUND"]), ("BLOCK", &["FORCE", "REFUND"])];
    let given = |keyword: &str| words.iter().any(|word| word == keyword);
    if name == "RL.USE" && given("RENEW") {
        return Some("ERR unknown option 'RENEW' for RL.GCRA".into());
    }
    if name == "RL.ALL" && given("LEASE") && !given("ID") {
        return Some("ERR LEASE needs an ID".into());
    }
    let pairs = NOT_WITH.into_iter().flat_map(|(other, amounts)| amounts.iter().map(move |amount| (other, amount)));
    let (other, amount) = pairs.into_iter().find(|(other, amount)| given(other) && given(amount))?;
    Some(format!("ERR {amount} and {other} can't be combined"))
}

#[test]
fn every_call_that_the_documentation_allows_is_accepted() {
    let (_server, mut client) = with_all_commands().and_client();
    for Docs { name, arguments, .. } in all_docs(&mut client) {
        let calls: Vec<_> =
            all_branches(&arguments).iter().flat_map(|branch| calls(branch)).map(|call| words(&call)).collect();
        for words in &calls {
            let command = command(&name, words);
            match conflict(&name, words) {
                Some(refusal) => assert_eq!(error(&mut client, &command), refusal, "{name} {words:?}"),
                None => command.exec(&mut client).unwrap_or_else(|error| panic!("{name} {words:?}: {error}")),
            }
        }

        let lengths: BTreeSet<_> = calls.iter().map(|words| words.len() as i64 + 1).collect();
        let least = *lengths.first().expect("a call");
        let info: Vec<Vec<Value>> = call(&mut client, &format!("COMMAND INFO {name}"));
        assert_eq!(
            info[0][1],
            Value::Int(if lengths.len() == 1 { least } else { -least }),
            "{name} has calls of {lengths:?} words"
        );
    }
}

/// `COMMAND DOCS` shows these options once, after the rules.
#[test]
fn the_options_that_follow_all_rules_stand_after_the_last_one() {
    let (_server, mut client) = with_all_commands().and_client();
    let all = docs(&mut client, "rl.all");
    let rule = all.arguments.iter().position(|argument| argument.multiple && argument.has_parts()).expect("a rule");
    let options = &all.arguments[rule + 1..];
    assert_eq!(options.iter().map(Argument::syntax).collect::<Vec<_>>(), ["[ID id]", "[BLOCK duration]"]);
    let mut calls = 0;
    for branch in branches(&all.arguments, 2) {
        let rules: Vec<_> =
            (0..branch.len()).filter(|&place| branch[place].kind == "pure-token" && !branch[place].optional).collect();
        let last = *rules.last().expect("two rules");
        for option in options.iter().flat_map(Argument::ways) {
            // After each argument of the first rule: before its options, between them and after them.
            for place in (rules[0] + 3)..=last {
                let call = [&branch[..place], &option, &branch[last..]].concat();
                let kept = call.into_iter().filter(|argument| !options.contains(argument));
                // An option that can be given in several ways is given in the first.
                let first =
                    |argument: Argument| if argument.optional { argument.ways().swap_remove(0) } else { vec![argument] };
                let call: Vec<_> = kept.flat_map(first).collect();
                let refusal = format!("ERR {} must follow the last rule", option[0].label());
                assert_refused(&mut client, &all.name, &words(&call), &refusal);
                calls += 1;
            }
        }
    }
    assert!(calls > 100, "{calls}");
}

#[test]
fn the_server_finds_the_documented_keys() {
    let (_server, mut client) = with_all_commands().and_client();
    for Docs { name, arguments, .. } in all_docs(&mut client) {
        for branch in all_branches(&arguments) {
            let words = words(&shortest(&branch));
            let mut ask = redis::cmd("COMMAND");
            ask.arg("GETKEYS").arg(&name).arg(&words);
            let keys: Vec<&String> = words.iter().filter(|word| word.starts_with("key:")).collect();
            // Without any, the command to get them is an error.
            let found: Vec<String> = ask.query(&mut client).unwrap_or_default();
            assert_eq!(found.iter().collect::<Vec<_>>(), keys, "{name} {words:?}");
        }
    }
}

/// Every word in capitals in the sources and the reference. Whatever keyword a command takes is among them.
fn candidates() -> BTreeSet<String> {
    fn collect(path: &Path, into: &mut BTreeSet<String>) {
        if path.is_dir() {
            std::fs::read_dir(path).expect("a folder").for_each(|entry| collect(&entry.expect("an entry").path(), into));
        } else {
            let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let words = text.split(|letter: char| !letter.is_ascii_alphabetic());
            into.extend(
                words.filter(|word| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase())).map(String::from),
            );
        }
    }
    let mut words = BTreeSet::new();
    for path in ["src", "docs/commands.md"] {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path), &mut words);
    }
    words
}

fn tokens(arguments: &[Argument]) -> BTreeSet<String> {
    arguments.iter().flat_map(|argument| argument.token.clone().into_iter().chain(tokens(&argument.parts))).collect()
}

/// The beginning of the error for one word too many, where only `options` may follow.
fn too_much(name: &str, options: &[Argument], word: &str) -> String {
    match options {
        [] => "ERR wrong number of arguments for".into(),
        _ => match options.iter().flat_map(Argument::ways).find(|way| way[0].token.is_none()) {
            Some(way) => must_be(name, &way[0]),
            None if name == "RL.USE" && word == "BURST" => "ERR BURST is part of the policy, not of a call of RL.USE".into(),
            // The errors of RL.USE are those of the policy's algorithm.
            None if name == "RL.USE" => format!("ERR unknown option '{word}' for RL.GCRA"),
            None => format!("ERR unknown option '{word}' for {name}"),
        },
    }
}

/// The beginning of the error for a missing value.
fn needs_value(name: &str, token: &str) -> String {
    if name == "GCRA" {
        return format!("ERR Missing {token} value");
    }
    format!("ERR {token} needs a value")
}

/// The beginning of the error for a wrong value. `GCRA` has the errors of the server's own command.
fn must_be(name: &str, argument: &Argument) -> String {
    if name == "GCRA" {
        return format!("ERR {} is not ", argument.label());
    }
    format!("ERR {} must be {}", argument.label(), if argument.kind == "integer" { "a whole number from" } else { "" })
}

#[test]
fn no_undocumented_keyword_is_accepted() {
    let (_server, mut client) = with_all_commands().and_client();
    let all = all_docs(&mut client);
    let mut candidates = candidates();
    candidates.extend(all.iter().flat_map(|docs| tokens(&docs.arguments)));
    assert!(["COST", "STEP", "RESET", "SET", "MULTI"].iter().all(|&word| candidates.contains(word)), "{candidates:?}");
    // RL.HELP takes the name of a command with its prefix, which is no word of the candidates, or without it.
    let names: BTreeSet<_> = all.iter().filter_map(|docs| Some(docs.name.split_once('.')?.1.to_string())).collect();
    for Docs { name, arguments, .. } in all {
        // The words that begin another one of an argument that may be repeated.
        let again = arguments.iter().filter(|argument| argument.multiple).flat_map(Argument::ways);
        let again: BTreeSet<_> = again.filter_map(|way| way[0].token.clone()).collect();
        for branch in branches(&arguments, 1) {
            let options = options(&branch);
            // Keywords of options, and of arguments that each call has.
            let required = branch.iter().filter(|argument| !argument.optional && argument.kind != "pure-token").cloned();
            let mut known = tokens(&options.iter().cloned().chain(required).collect::<Vec<_>>());
            if name == "RL.HELP" {
                known.extend(names.iter().cloned());
            }
            for word in candidates.difference(&known) {
                let refusal =
                    if again.contains(word) { "ERR more rules than keys".into() } else { too_much(&name, &options, word) };
                assert_refused(&mut client, &name, &and(&words(&shortest(&branch)), word), &refusal);
            }
        }
    }
}

#[test]
fn no_undocumented_algorithm_is_accepted() {
    let (_server, mut client) = with_all_commands().and_client();
    let mut choices = 0;
    for Docs { name, arguments, .. } in all_docs(&mut client) {
        let calls: Vec<_> = branches(&arguments, 1).iter().map(|branch| shortest(branch)).collect();
        for call in &calls {
            for place in (0..call.len()).filter(|&place| call[place].kind == "pure-token") {
                choices += 1;
                let reported: BTreeSet<_> = calls.iter().filter_map(|call| call.get(place)?.token.clone()).collect();
                for word in candidates().difference(&reported) {
                    let mut other = call.clone();
                    other[place].token = Some(word.clone());
                    assert_refused(&mut client, &name, &words(&other), &format!("ERR unknown algorithm '{word}'"));
                }
            }
        }
    }
    assert!(choices >= 8, "{choices}");
}

#[test]
fn missing_words_and_superfluous_words_are_errors() {
    let (_server, mut client) = with_all_commands().and_client();
    for Docs { name, arguments, .. } in all_docs(&mut client) {
        for branch in all_branches(&arguments) {
            let call = shortest(&branch);
            for place in 0..call.len() {
                let mut words = words(&call);
                words.drain(words_before(&call, place)..words_before(&call, place + 1));
                assert_refused(&mut client, &name, &words, "");
            }
        }
        for branch in branches(&arguments, 1) {
            let (call, options) = (words(&shortest(&branch)), options(&branch));
            let keywords = options.iter().flat_map(Argument::ways).all(|way| way[0].token.is_some());
            let left = if keywords { &options[..] } else { &[] };

            let longest = calls(&branch).into_iter().map(|call| words(&call));
            let longest = longest.filter(|words| conflict(&name, words).is_none());
            let longest = longest.max_by_key(Vec::len).expect("a call");
            assert_refused(&mut client, &name, &and(&longest, "1"), &too_much(&name, left, "1"));

            for ways in options.iter().map(Argument::ways) {
                for (one, other) in ways.iter().flat_map(|one| ways.iter().map(move |other| (one, other))) {
                    let refusal = match (one[0].label(), other[0].label()) {
                        _ if !keywords => too_much(&name, left, ""),
                        ("RENEW", _) if name == "RL.USE" => too_much(&name, left, "RENEW"),
                        (one, other) if one == other => format!("ERR {one} is given twice"),
                        (one, other) => format!("ERR {one} and {other} can't be combined"),
                    };
                    assert_refused(&mut client, &name, &[&call[..], &words(one), &words(other)].concat(), &refusal);
                }
            }
        }
    }
}

#[test]
fn every_value_is_required_and_of_the_documented_type() {
    let (_server, mut client) = with_all_commands().and_client();
    for Docs { name, arguments, .. } in all_docs(&mut client) {
        for branch in branches(&arguments, 1) {
            let shortest = shortest(&branch);
            let ways = options(&branch).iter().flat_map(Argument::ways).collect::<Vec<_>>();
            for call in once(shortest.clone()).chain(ways.iter().map(|way| [&shortest[..], way].concat())) {
                for (place, argument) in call.iter().enumerate() {
                    let mut words = words(&call);
                    let end = words_before(&call, place + 1);
                    if ["integer", "string"].contains(&&*argument.kind) {
                        // Any word is an id, but an id is not empty.
                        words[end - 1] = if argument.name == "id" { "" } else { "word" }.into();
                        assert_refused(&mut client, &name, &words, &must_be(&name, argument));
                        if let Some(token) = &argument.token {
                            // The server itself counts the words that each call needs.
                            let missing = "ERR wrong number of arguments".into();
                            let refusal = if place < shortest.len() { missing } else { needs_value(&name, token) };
                            assert_refused(&mut client, &name, &words[..end - 1], &refusal);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn the_help_is_the_documentation() {
    let (_server, mut client) = with_all_commands().and_client();
    let lines: Vec<String> = call(&mut client, "RL.HELP");
    let (reply, lines) = lines.split_at(2);
    for integer in ["granted", "limit", "remaining", "wait_ms", "reset_ms"] {
        assert!(reply.iter().any(|line| line.contains(integer)), "{integer}: {reply:?}");
    }
    let reported: BTreeMap<&str, &str> = lines.chunks(2).map(|pair| (&*pair[0], &*pair[1])).collect();
    let docs: BTreeMap<String, String> = all_docs(&mut client)
        .into_iter()
        .map(|docs| {
            let syntax = once(docs.name).chain(docs.arguments.iter().map(Argument::syntax)).collect::<Vec<_>>().join(" ");
            (syntax, format!("    {}", docs.summary))
        })
        .collect();
    assert_eq!(reported, docs.iter().map(|(syntax, summary)| (&**syntax, &**summary)).collect());
    assert_eq!(lines.len(), 2 * docs.len());

    // For one command: its two lines, an example that runs, and its reply.
    for pair in lines.chunks(2) {
        let name = pair[0].split(' ').next().expect("a name");
        let long: Vec<String> = call(&mut client, &format!("RL.HELP {name}"));
        // `GCRA` can also mean RL.GCRA, which comes first.
        let start = long.iter().position(|line| *line == pair[0]).expect("its syntax");
        let long = &long[start..];
        assert_eq!(&long[..2], pair);
        let example = long[2].strip_prefix("    Example: ").unwrap_or_else(|| panic!("{long:?}"));
        assert!(example.split(' ').next() == Some(name), "{example}");
        call::<()>(&mut client, "FLUSHALL");
        call::<()>(&mut client, "RL.POLICY policy:api GCRA 200 1s");
        call::<Value>(&mut client, example);
        assert!(long.len() > 3 && long[3..].iter().all(|line| line.starts_with("    ")), "{long:?}");
        let limiter = ["RL.FIXED", "RL.SLIDE", "RL.GCRA", "RL.BUCKET", "RL.LEASE", "RL.PEEK", "RL.USE"].contains(&name);
        let explained = reply.iter().zip(&long[3..]).filter(|(line, other)| other.trim_start() == **line).count();
        assert_eq!(explained, if limiter { 2 } else { 0 }, "{long:?}");
    }
    // Without the prefix, and in any letter case.
    let short: Vec<String> = call(&mut client, "RL.HELP fixed");
    assert_eq!(short, call::<Vec<String>>(&mut client, "RL.HELP RL.FIXED"));
    assert_eq!(call::<Vec<String>>(&mut client, "RL.HELP gcra").iter().filter(|line| line.contains("Example:")).count(), 2);
    let unknown = error(&mut client, redis::cmd("RL.HELP").arg(b"RL.\xff\n"));
    assert_eq!(unknown, "ERR command must be one that RL.HELP lists, not 'RL.\\xff\\n'");
}

/// redis-cli in a terminal, as a person uses it.
struct Terminal {
    pty: Arc<Pty>,
    cli: Child,
    output: Receiver<Vec<u8>>,
    parser: vt100::Parser,
}

impl Terminal {
    /// The terminal is wide enough for the longest hint, because redis-cli cuts hints off.
    const SIZE: (u16, u16) = (100, 1_000);

    fn open(server: &Server) -> Self {
        let (pty, pts) = pty_process::blocking::open().expect("a terminal");
        let (rows, columns) = Self::SIZE;
        pty.resize(pty_process::Size::new(rows, columns)).expect("a size");
        let cli = pty_process::blocking::Command::new(cli_program())
            .arg("-s")
            .arg(server.socket())
            // Keeps redis-cli from using the user's own history and preferences.
            .env("HOME", server.dir())
            .env_remove("REDISCLI_HISTFILE")
            .env_remove("REDISCLI_RCFILE")
            .env("TERM", "xterm")
            .spawn(pts)
            .unwrap_or_else(|error| panic!("{} does not run: {error}", cli_program()));
        let pty = Arc::new(pty);
        let (sender, output) = channel();
        let reader = Arc::clone(&pty);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails when redis-cli has closed the terminal.
            while let Ok(length @ 1..) = (&*reader).read(&mut bytes) {
                if sender.send(bytes[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        let [rows, columns] = [rows, columns].map(|size| NonZeroU16::new(size).expect("a size"));
        Self { pty, cli, output, parser: vt100::Parser::new(rows, columns, 0) }
    }

    fn enter(&mut self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).expect("a terminal");
    }

    /// Waits until the screen is as expected.
    fn wait_for(&mut self, what: &str, done: impl Fn(&vt100::Screen) -> bool) {
        const DEADLINE: Duration = Duration::from_secs(20);
        let start = Instant::now();
        while !done(self.parser.screen()) {
            let bytes = self.output.recv_timeout(DEADLINE.saturating_sub(start.elapsed()));
            let bytes =
                bytes.unwrap_or_else(|_| panic!("{what:?} is not on the screen:\n{}", self.parser.screen().contents()));
            self.parser.process(&bytes);
        }
    }

    /// Types words, and waits for this hint.
    fn assert_hint(&mut self, typed: &str, hint: &str) {
        self.enter(typed);
        // Some versions of redis-cli put a choice in brackets.
        self.wait_for(hint, |screen| {
            line(screen).ends_with(&format!("> {typed}")) && hint_on(screen).replace(['<', '>'], "") == hint
        });
        // Clears the line.
        self.enter("\x15");
        self.wait_for("a prompt", at_prompt);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.cli.kill();
        let _ = self.cli.wait();
    }
}

/// The text before the cursor.
fn line(screen: &vt100::Screen) -> String {
    let (row, column) = screen.cursor_position();
    // `contents` cuts rows after their last letter, but the cursor may be behind a space.
    (0..column).map(|column| letter(screen, row, column)).collect()
}

/// The text behind the cursor, in grey.
fn hint_on(screen: &vt100::Screen) -> String {
    const GREY: vt100::Color = vt100::Color::Idx(8);
    let (row, column) = screen.cursor_position();
    let grey = |&column: &u16| screen.cell(row, column).is_some_and(|cell| cell.has_contents() && cell.fgcolor() == GREY);
    (column..Terminal::SIZE.1).take_while(grey).map(|column| letter(screen, row, column)).collect()
}

fn letter(screen: &vt100::Screen, row: u16, column: u16) -> String {
    let contents = screen.cell(row, column).map_or("", vt100::Cell::contents);
    if contents.is_empty() { " " } else { contents }.into()
}

fn at_prompt(screen: &vt100::Screen) -> bool {
    line(screen).ends_with("> ") && hint_on(screen).is_empty()
}

#[test]
fn redis_cli_shows_hints_while_one_types() {
    const TAKING: &str = "[COST units|UPTO units|FORCE units|REFUND units] [ID id] [RESERVE duration|BLOCK duration]";
    const ALGORITHMS: [(&str, &str); 4] = [
        ("FIXED", "[ALIGN offset|UNTIL time]"),
        ("SLIDE", "[SEGMENTS segments]"),
        ("GCRA", "[BURST burst]"),
        ("BUCKET", "[CAPACITY capacity] [STEP]"),
    ];
    let each = |syntax: &dyn Fn(&str, &str) -> String| ALGORITHMS.map(|(name, options)| syntax(name, options)).join("|");

    let server = Server::start();
    let mut terminal = Terminal::open(&server);
    terminal.wait_for("a prompt", at_prompt);
    for (name, options) in ALGORITHMS {
        let command = format!("RL.{name} ");
        terminal.assert_hint(&command, &format!("key limit period {options} {TAKING}"));
        terminal.assert_hint(&command.to_lowercase(), &format!("key limit period {options} {TAKING}"));
        terminal.assert_hint(&format!("{command}key 10 "), &format!("period {options} {TAKING}"));
        terminal.assert_hint(&format!("{command}key 10 60 "), &format!("{options} {TAKING}"));
    }
    let rules = each(&|name, options| format!("{name} limit period {options} [COST units]"));
    let rules = format!("{rules}|LEASE limit ttl [COST units]");
    terminal.assert_hint("RL.ALL ", &format!("numkeys key [key ...] {rules} [{rules} ...] [ID id] [BLOCK duration]"));
    let peeks = each(&|name, options| format!("{name} key limit period {options} [COST units|UPTO units]"));
    terminal.assert_hint("RL.PEEK ", &format!("{peeks}|LEASE key limit ttl [COST units]"));
    terminal.assert_hint("RL.LEASE ", "key limit ttl ID id [COST units] [RENEW] [BLOCK duration]");
    let renewing = TAKING.replace("[RESERVE", "[RENEW] [RESERVE");
    terminal.assert_hint("RL.USE ", &format!("key numpolicies policy [policy ...] {renewing}"));
    let policies = ["[ALIGN offset]", "[SEGMENTS segments]", "[BURST burst]", "[CAPACITY capacity] [STEP]"];
    let policies = ALGORITHMS.iter().zip(policies).map(|((name, _), options)| format!("{name} limit period {options}|"));
    terminal.assert_hint("RL.POLICY ", &format!("key {}LEASE limit ttl [SHADOW]", policies.collect::<String>()));
    terminal.assert_hint("RL.PAUSE ", "key duration");
    terminal.assert_hint("RL.SETTLE ", "key id units");
    terminal.assert_hint("RL.RELEASE ", "key id");
    terminal.assert_hint("RL.INSPECT ", "key");
    terminal.assert_hint("RL.TOP ", "[n|RESET|WAITING]");
    terminal.assert_hint("CL.THROTTLE ", "key max_burst count_per_period period [quantity]");

    // The last line is also executed.
    terminal.enter("RL.GCRA key 10 60\r");
    terminal.wait_for("a reply", |screen| at_prompt(screen) && screen.contents().contains("5) (integer) 6000"));

    terminal.enter("HELP RL.GCRA\r");
    terminal.wait_for("help", |screen| at_prompt(screen) && screen.contents().contains("group: "));
    let screen = terminal.parser.screen().contents();
    for line in [
        format!("RL.GCRA key limit period [BURST burst] {TAKING}"),
        "summary: Takes units by the generic cell rate algorithm: evenly spaced, after a burst.".into(),
        "since: 0.1.0".into(),
        "group: module".into(),
    ] {
        assert!(screen.lines().any(|shown| shown.trim() == line), "no {line:?} in\n{screen}");
    }
}
