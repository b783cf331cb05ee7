//! What callers write down, and what the checker reads.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use redis::Value;

use crate::workload::CallId;

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// None came.
    Lost,
    /// The caller hung up before it came.
    HungUp,
    /// The node did not execute the call, because it does not serve the key, or must not write. The word is the error's code.
    Refused(String),
    /// The command's own error.
    Failed(String),
    /// Integers and words, separated by commas.
    Text(String),
}

/// The state of a key: its value and its deadline in milliseconds.
pub type State = Option<(Vec<u8>, i64)>;

/// A call's record in a history.
#[derive(Clone, Debug)]
pub struct Record {
    pub node: usize,
    /// The node's time in microseconds before and after the call. 0 and the greatest number: not known.
    pub before_us: i64,
    pub after_us: i64,
    pub reply: Reply,
    /// Whether the call was executed without its mark.
    pub unmarked: bool,
}

fn text(value: &Value, into: &mut String) {
    if let Value::Array(values) = value {
        return values.iter().for_each(|value| text(value, into));
    }
    if !into.is_empty() {
        into.push(',');
    }
    match value {
        Value::Int(number) => into.push_str(&number.to_string()),
        Value::BulkString(bytes) => into.push_str(&String::from_utf8_lossy(bytes)),
        Value::SimpleString(text) => into.push_str(text),
        Value::Okay => into.push_str("OK"),
        Value::ServerError(error) => *into = format!("!{} {}", error.code(), error.details().unwrap_or_default()),
        _ => into.push_str("nil"),
    }
}

/// The reply to a call, as it is written down.
pub fn of_call(reply: &Value) -> String {
    let mut written = String::new();
    text(reply, &mut written);
    written
}

/// Whether a reply is a grant.
pub fn grants(reply: &str) -> bool {
    !reply.starts_with("0,") && !reply.starts_with('!') && reply != "nil"
}

/// Reads the histories in a folder.
pub fn read(folder: &Path, callers: u64) -> HashMap<CallId, Record> {
    let mut records = HashMap::new();
    for caller in 0..callers {
        let Ok(text) = std::fs::read_to_string(folder.join(format!("calls.{caller}"))) else { continue };
        for line in text.lines() {
            let mut words = line.splitn(5, ' ');
            let mut number = || words.next().and_then(|word| word.parse::<i64>().ok()).expect("a number");
            let (call, node, before_us, after_us) = (number(), number(), number(), number());
            let reply = words.next().unwrap_or_default();
            let (reply, unmarked) = reply.strip_prefix('~').map_or((reply, false), |reply| (reply, true));
            let reply = match reply.as_bytes().first() {
                Some(b'-') if reply == "-" => Reply::Lost,
                Some(b'x') if reply == "x" => Reply::HungUp,
                Some(b'?') => Reply::Refused(reply[1..].into()),
                Some(b'!') => Reply::Failed(reply[1..].into()),
                _ => Reply::Text(reply.into()),
            };
            let record = Record { node: node as usize, before_us, after_us, reply, unmarked };
            records.insert(CallId { caller, number: call as u64 }, record);
        }
    }
    records
}

/// Writes down what the keys of a call held afterwards: the call's number, its place among those of the tag, and for each key the
/// deadline and the value.
pub fn write_states(into: &mut impl Write, call: CallId, values: &[Value]) {
    let place = of_call(&values[0]);
    let states = values[2..].chunks(2).map(|state| match state {
        [Value::BulkString(bytes), Value::Int(deadline_ms)] => {
            let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!(" {}:{bytes}", deadline_ms.max(&0))
        }
        _ => " -".into(),
    });
    writeln!(into, "{} {place}{}", call.number, states.collect::<String>()).expect("written states");
}
