//! The protocol of the server: enough of it to separate replies from each other, and to count their results.

/// Appends a command as clients send it.
pub fn encode<W: AsRef<[u8]>>(request: &mut Vec<u8>, words: &[W]) {
    request.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        let word = word.as_ref();
        request.extend(format!("${}\r\n", word.len()).bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
}

/// The length of the first reply in `bytes`, of either version of the protocol; `None` if it is not complete.
pub fn length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut left = 1_usize;
    while left > 0 {
        let (kind, line, next) = line(bytes, at)?;
        at = next;
        left -= 1;
        let count = usize::try_from(number(line)).ok();
        match (kind, count) {
            (b'$' | b'!' | b'=', Some(count)) => {
                at += count + 2;
                if at > bytes.len() {
                    return None;
                }
            }
            (b'*' | b'~' | b'>', Some(count)) => left += count,
            (b'%', Some(count)) => left += 2 * count,
            (b'|', Some(count)) => left += 2 * count + 1,
            _ => {}
        }
    }
    Some(at)
}

/// The type, the rest and the end of the line that begins at `at`.
fn line(bytes: &[u8], at: usize) -> Option<(u8, &[u8], usize)> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|&byte| byte == b'\r').filter(|&end| end > 0 && end + 1 < rest.len())?;
    Some((rest[0], &rest[1..end], at + end + 2))
}

fn number(line: &[u8]) -> i64 {
    std::str::from_utf8(line).ok().and_then(|line| line.parse().ok()).unwrap_or(-1)
}

/// A decoded reply. It distinguishes only the types that this tool uses.
#[derive(Debug)]
pub enum Reply<'b> {
    /// A number.
    Integer(i64),
    /// An error, with its text.
    Error(&'b [u8]),
    /// An array, or anything else with elements.
    Array(Vec<Reply<'b>>),
    /// A string, of any bytes.
    Bulk(&'b [u8]),
    /// Anything else.
    Other,
}

impl<'b> Reply<'b> {
    /// The first reply in `bytes`, which must be complete.
    pub fn read(bytes: &'b [u8]) -> Self {
        Self::read_at(bytes, &mut 0)
    }

    fn read_at(bytes: &'b [u8], at: &mut usize) -> Self {
        let Some((kind, text, next)) = line(bytes, *at) else { return Self::Other };
        *at = next;
        let count = usize::try_from(number(text)).ok();
        match (kind, count) {
            (b':', _) => Self::Integer(number(text)),
            (b'-', _) => Self::Error(text),
            (b'$' | b'!' | b'=', Some(count)) => {
                let string = bytes.get(*at..*at + count).unwrap_or_default();
                *at += count + 2;
                Self::Bulk(string)
            }
            (b'*' | b'~' | b'>', Some(count)) => Self::Array((0..count).map(|_| Self::read_at(bytes, at)).collect()),
            (b'%', Some(count)) => Self::Array((0..2 * count).map(|_| Self::read_at(bytes, at)).collect()),
            _ => Self::Other,
        }
    }

    /// The reply's numbers, if it is an array of five.
    pub fn five(&self) -> Option<[i64; 5]> {
        let Self::Array(items) = self else { return None };
        let numbers: Option<Vec<i64>> =
            items.iter().map(|item| if let Self::Integer(number) = item { Some(*number) } else { None }).collect();
        numbers?.try_into().ok()
    }
}

/// Bytes in printable form, cut off after `most` of them.
pub fn readable(bytes: &[u8], most: usize) -> String {
    let more = if bytes.len() > most { format!("... ({} bytes)", bytes.len()) } else { String::new() };
    format!("{}{more}", bytes[..bytes.len().min(most)].escape_ascii())
}
