//! Timelines of FIXED.

use super::timeline;

#[test]
fn fixed() {
    timeline(
        "a window begins with its first call and is free again at its end",
        "100s     | FIXED 10 60s | COST 1  | 1 10 9 0 60s
         110s     |              | COST 9  | 9 10 0 0 50s
         110s     |              | COST 1  | 0 10 0 50s 50s
         160s-1us |              | COST 1  | 0 10 0 1us 1us
         160s     |              | COST 4  | 4 10 6 0 60s",
    );
    timeline(
        "after a pause the next window begins with the next call",
        "0        | FIXED 10 60s | COST 1  | 1 10 9 0 60s
         150s     |              | COST 1  | 1 10 9 0 60s
         210s-1us |              | COST 10 | 0 10 9 1us 1us
         210s     |              | COST 10 | 10 10 0 0 60s",
    );
    timeline(
        "a cost above the limit is never granted",
        "0        | FIXED 10 60s | COST 11 | 0 10 10 never 0
         0        |              | COST 10 | 10 10 0 0 60s
         1s       |              | COST 11 | 0 10 0 never 59s",
    );
    timeline(
        "UPTO takes the remaining units",
        "0        | FIXED 10 60s | UPTO 4  | 4 10 6 0 60s
         1s       |              | UPTO 20 | 6 10 0 0 59s
         2s       |              | UPTO 20 | 0 10 0 58s 58s
         60s      |              | UPTO 20 | 10 10 0 0 60s",
    );
    timeline(
        "FORCE leaves a debt, which the next windows pay, a limit each",
        "0        | FIXED 10 60s | FORCE 25 | 25 10 0 0 3m
         0        |              | COST 1   | 0 10 0 2m 3m
         0        |              | COST 10  | 0 10 0 3m 3m
         60s      |              | COST 1   | 0 10 0 60s 2m
         2m-1us   |              | COST 1   | 0 10 0 1us 60s+1us
         2m       |              | COST 1   | 1 10 4 0 60s
         3m       |              | COST 10  | 10 10 0 0 60s",
    );
    timeline(
        "a debt of whole windows ends with the last of them: the next begins with a call",
        "0        | FIXED 10 60s | FORCE 20 | 20 10 0 0 2m
         2m+5s    |              | COST 1   | 1 10 9 0 60s",
    );
    timeline(
        "REFUND gives back units and keeps the window, empty or not",
        "0        | FIXED 10 60s | COST 10    | 10 10 0 0 60s
         20s      |              | REFUND 4   | 4 10 4 0 40s
         20s      |              | COST 5     | 0 10 4 40s 40s
         20s      |              | COST 4     | 4 10 0 0 40s
         30s      |              | REFUND 100 | 10 10 10 0 0
         30s      |              | REFUND 1   | 0 10 10 0 0
         40s      |              | COST 1     | 1 10 9 0 20s
         60s      |              | COST 1     | 1 10 9 0 60s",
    );
    timeline(
        "the limit goes up: the difference is free at once",
        "0        | FIXED 10 60s | COST 10 | 10 10 0 0 60s
         30s      | FIXED 15 60s | COST 6  | 0 15 5 30s 30s
         30s      |              | COST 5  | 5 15 0 0 30s",
    );
    timeline(
        "the limit goes down: no unit becomes free, and no caller is locked out beyond the window",
        "0        | FIXED 10 60s | COST 10 | 10 10 0 0 60s
         30s      | FIXED 4 60s  | COST 1  | 0 4 0 30s 30s
         60s-1us  |              | COST 1  | 0 4 0 1us 1us
         60s      |              | COST 4  | 4 4 0 0 60s",
    );
    timeline(
        "the limit goes down, but not below the usage",
        "0        | FIXED 10 60s | COST 3  | 3 10 7 0 60s
         30s      | FIXED 4 60s  | COST 1  | 1 4 0 0 30s",
    );
    timeline(
        "ended windows pay the old limit, and the remaining debt is carried over in whole",
        "0        | FIXED 10 60s | FORCE 35 | 35 10 0 0 4m
         2m+10s   | FIXED 2 60s  | COST 1   | 0 2 0 170s 3m+50s
         2m+10s   |              | FORCE 1  | 1 2 0 0 3m+50s",
    );
    timeline(
        "a shorter period ends the window sooner",
        "0        | FIXED 10 60s | COST 10 | 10 10 0 0 60s
         30s      | FIXED 10 40s | COST 1  | 0 10 0 10s 10s
         40s-1us  |              | COST 1  | 0 10 0 1us 1us
         40s      |              | COST 1  | 1 10 9 0 40s",
    );
    timeline(
        "a shorter period may have ended the window",
        "0        | FIXED 10 60s | COST 10 | 10 10 0 0 60s
         50s      | FIXED 10 40s | COST 1  | 1 10 9 0 40s",
    );
    timeline(
        "a longer period ends the window later",
        "0        | FIXED 10 60s  | COST 5 | 5 10 5 0 60s
         30s      | FIXED 10 100s | COST 1 | 1 10 4 0 70s
         60s      |               | COST 5 | 0 10 4 40s 40s
         100s     |               | COST 5 | 5 10 5 0 100s",
    );
    timeline(
        "the clock steps back before the window: it begins now",
        "100s     | FIXED 10 60s | COST 10 | 10 10 0 0 60s
         40s      |              | COST 1  | 0 10 0 60s 60s
         160s     |              | COST 1  | 1 10 9 0 60s",
    );
    timeline(
        "the clock steps back within the window: it stays",
        "100s     | FIXED 10 60s | COST 5  | 5 10 5 0 60s
         130s     |              | COST 5  | 5 10 0 0 30s
         110s     |              | COST 1  | 0 10 0 50s 50s",
    );
}

#[test]
fn fixed_reserve() {
    timeline(
        "a booking acts wholly in one window: the units left in the windows before it are used up",
        "0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
         10s  |              | COST 5 RESERVE 49s  | 0 10 2 1s 50s
         10s  |              | COST 5 RESERVE 50s  | 5 10 0 50s 110s
         10s  |              | COST 1              | 0 10 0 50s 110s
         10s  |              | UPTO 1              | 0 10 0 50s 110s
         10s  |              | COST 5 RESERVE 1d   | 5 10 0 50s 110s
         10s  |              | COST 1 RESERVE 1d   | 1 10 0 110s 170s
         60s  |              | COST 1              | 0 10 0 60s 2m
         2m   |              | COST 9              | 9 10 0 0 60s",
    );
    timeline(
        "free units are taken now, however far ahead the call may be booked",
        "0    | FIXED 10 60s | COST 5 RESERVE 1d   | 5 10 5 0 60s
         59s  |              | COST 5 RESERVE 1d   | 5 10 0 0 1s",
    );
    timeline(
        "a booking of the whole limit takes a whole window, and the next booking acts in the window after it",
        "0    | FIXED 10 60s | COST 1              | 1 10 9 0 60s
         0    |              | COST 10 RESERVE 60s | 10 10 0 60s 2m
         0    |              | COST 9 RESERVE 2m-1us | 0 10 0 1us 2m
         1us  |              | COST 9 RESERVE 2m-1us | 9 10 0 2m-1us 3m-1us
         2m   |              | COST 2              | 0 10 1 60s 60s
         2m   |              | COST 1              | 1 10 0 0 60s",
    );
    timeline(
        "REFUND gives a booking back, but not the units that it used up in earlier windows",
        "0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
         0    |              | COST 5 RESERVE 60s  | 5 10 0 60s 2m
         0    |              | REFUND 5            | 5 10 0 0 60s
         0    |              | COST 1              | 0 10 0 60s 60s
         60s  |              | COST 10             | 10 10 0 0 60s",
    );
    timeline(
        "FORCE while a booking lies ahead is paid from its window on",
        "0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
         0    |              | COST 5 RESERVE 60s  | 5 10 0 60s 2m
         0    |              | FORCE 4             | 4 10 0 0 2m
         60s  |              | COST 2              | 0 10 1 60s 60s
         60s  |              | COST 1              | 1 10 0 0 60s",
    );
    timeline(
        "a booking in debt acts after the debt is paid",
        "0    | FIXED 10 60s | FORCE 25            | 25 10 0 0 3m
         0    |              | COST 6 RESERVE 1d   | 6 10 0 3m 4m
         2m   |              | COST 4 RESERVE 60s  | 4 10 0 60s 2m
         3m   |              | COST 1              | 0 10 0 60s 60s",
    );
    timeline(
        "the limit goes up: the difference is free at once, bookings are carried whole",
        "0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
         0    |              | COST 5 RESERVE 60s  | 5 10 0 60s 2m
         0    | FIXED 20 60s | COST 6              | 0 20 5 60s 60s
         0    |              | COST 5              | 5 20 0 0 60s",
    );
    timeline(
        "the limit goes down: bookings are carried whole",
        "0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
         0    |              | COST 5 RESERVE 60s  | 5 10 0 60s 2m
         0    | FIXED 4 60s  | COST 1              | 0 4 0 2m 3m
         0    |              | COST 1 RESERVE 2m   | 1 4 0 2m 3m
         2m   |              | COST 2              | 2 4 0 0 60s",
    );
    timeline(
        "windows on a grid, and a clock that steps back",
        "130s | FIXED 10 60s ALIGN 0 | COST 10            | 10 10 0 0 50s
         130s |                      | COST 1 RESERVE 49s | 0 10 0 1s 50s
         131s |                      | COST 1 RESERVE 49s | 1 10 0 49s 109s
         70s  |                      | COST 9             | 0 10 0 50s 110s
         180s |                      | COST 9             | 9 10 0 0 60s",
    );
}

#[test]
fn fixed_align() {
    timeline(
        "windows begin on the grid",
        "70s     | FIXED 10 60s ALIGN 0 | COST 10 | 10 10 0 0 50s
         2m-1us  |                      | COST 1  | 0 10 0 1us 1us
         2m      |                      | COST 1  | 1 10 9 0 60s
         10m+59s |                      | COST 11 | 0 10 10 never 0
         10m+59s |                      | COST 10 | 10 10 0 0 1s",
    );
    timeline("an offset shifts the grid", "65s | FIXED 10 60s ALIGN 10s  | COST 1 | 1 10 9 0 5s");
    timeline("a negative one shifts it back", "65s | FIXED 10 60s ALIGN -10s | COST 1 | 1 10 9 0 45s");
    timeline("a window may begin before the epoch", "0   | FIXED 10 60s ALIGN 10s  | COST 1 | 1 10 9 0 10s");
    timeline("and so may a call", "-40m | FIXED 10 60m ALIGN 30m | COST 1 | 1 10 9 0 10m");
    timeline(
        "midnight in UTC+8",
        "15h       | FIXED 1000 1d ALIGN -8h | COST 1000 | 1000 1000 0 0 1h
         16h-1us   |                         | COST 1    | 0 1000 0 1us 1us
         16h       |                         | COST 1    | 1 1000 999 0 24h",
    );
    timeline(
        "UPTO, FORCE and REFUND keep to the grid",
        "70s     | FIXED 10 60s ALIGN 0 | FORCE 25   | 25 10 0 0 2m+50s
         70s     |                      | UPTO 10    | 0 10 0 1m+50s 2m+50s
         3m      |                      | UPTO 10    | 5 10 0 0 60s
         3m+10s  |                      | REFUND 100 | 10 10 10 0 0
         3m+20s  |                      | COST 1     | 1 10 9 0 40s",
    );
    timeline(
        "ALIGN is newly given: the window becomes the one of the grid that holds its start",
        "70s     | FIXED 10 60s         | COST 10 | 10 10 0 0 60s
         80s     | FIXED 10 60s ALIGN 0 | COST 1  | 0 10 0 40s 40s
         2m-1us  |                      | COST 1  | 0 10 0 1us 1us
         2m+5s   |                      | COST 1  | 1 10 9 0 55s",
    );
    timeline(
        "the offset changes",
        "70s     | FIXED 10 60s ALIGN 0   | COST 10 | 10 10 0 0 50s
         80s     | FIXED 10 60s ALIGN 30s | COST 1  | 0 10 0 10s 10s
         90s     |                        | COST 1  | 1 10 9 0 60s",
    );
    timeline(
        "ALIGN is dropped: the window keeps its start",
        "70s     | FIXED 10 60s ALIGN 0 | COST 10 | 10 10 0 0 50s
         80s     | FIXED 10 60s         | COST 1  | 0 10 0 40s 40s
         2m+5s   |                      | COST 1  | 1 10 9 0 60s",
    );
    timeline(
        "the limit changes, up and down",
        "70s     | FIXED 10 60s ALIGN 0 | COST 10 | 10 10 0 0 50s
         80s     | FIXED 12 60s ALIGN 0 | COST 1  | 1 12 1 0 40s
         90s     | FIXED 5 60s ALIGN 0  | COST 1  | 0 5 0 30s 30s
         2m      |                      | COST 1  | 1 5 4 0 60s",
    );
    timeline(
        "the period changes: the window of the new grid that holds the start",
        "70s     | FIXED 10 60s ALIGN 0  | COST 10 | 10 10 0 0 50s
         80s     | FIXED 10 100s ALIGN 0 | COST 1  | 0 10 0 20s 20s
         80s     | FIXED 10 35s ALIGN 0  | COST 1  | 1 10 9 0 25s",
    );
    timeline(
        "the clock steps back: the window of the grid that holds now",
        "130s    | FIXED 10 60s ALIGN 0 | COST 10 | 10 10 0 0 50s
         70s     |                      | COST 1  | 0 10 0 50s 50s",
    );
}
