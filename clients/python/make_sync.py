"""Makes the limits for threads, src/redis_rl/_sync, from those for asyncio, src/redis_rl/_async: all files but _io.py, which is
written twice. `make_sync.py --check` only says whether they are what this script makes."""

import io
import pathlib
import re
import sys
import tokenize

FOLDER = pathlib.Path(__file__).resolve().parent / "src/redis_rl"
# Words that go, with the space behind them.
GO = {"async", "await"}
WORDS = {"__aenter__": "__enter__", "__aexit__": "__exit__", "aclose": "close"}
# In texts and comments.
TEXTS = [
    (r"one client of redis\.asyncio, ", "one client of redis-py, "),
    (r"\bAsync(?=[A-Z])", ""),
    (r"A task that is\n +cancelled leaves the line\.", ""),
    (r" A task renews", " A thread renews"),
    (r" Tasks renew", " Threads renew"),
    (r" When the lease is lost, the block is\n +cancelled at its next `await`, and LeaseLost is raised\.", ""),
]


def made(source: str) -> str:
    """The source of the other half."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    parts, end = [], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        begin = starts[token.start[0] - 1] + token.start[1]
        stop = starts[token.end[0] - 1] + token.end[1]
        if token.type == tokenize.NAME:
            new = WORDS.get(token.string, re.sub(r"^(_?)Async(?=[A-Z])", r"\1", token.string))
            if token.string in GO:
                new, stop = "", stop + 1
        elif token.type in (tokenize.STRING, tokenize.COMMENT):
            new = source[begin:stop]
            for pattern, other in TEXTS:
                new = re.sub(pattern, other, new)
        else:
            continue
        parts += [source[end:begin], new]
        end = stop
    return "# Made by make_sync.py. Do not change it here.\n" + "".join(parts) + source[end:]


def main() -> int:
    wrong = 0
    for path in sorted(FOLDER.glob("_async/*.py")):
        if path.name in ("_io.py", "__init__.py"):
            continue
        other = FOLDER / "_sync" / path.name
        text = made(path.read_text())
        if "--check" not in sys.argv:
            other.write_text(text)
        elif not other.exists() or other.read_text() != text:
            print(f"{other} is not what make_sync.py makes: run it")
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
