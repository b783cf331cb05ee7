//! Timelines of SLIDE.

use super::timelines;

#[test]
fn slide() {
    timelines(
        "
        each grant counts for a period; a period of 1 ms has ticks of a microsecond
            7us      | SLIDE 2 1ms  | COST 1  | 1 2 1 0 1ms
            500us    |              | COST 1  | 1 2 0 0 1ms
            1ms+6us  |              | COST 1  | 0 2 0 1us 494us
            1ms+7us  |              | COST 1  | 1 2 0 0 1ms
            1ms+7us  |              | COST 2  | 0 2 0 1ms 1ms
            1ms+7us  |              | COST 1  | 0 2 0 493us 1ms
            9ms      |              | COST 2  | 2 2 0 0 1ms
        a minute has ticks of 916 us by default, and a grant counts until its tick has left the window
            0           | SLIDE 10 60s | COST 10 | 10 10 0 0 60s+915us
            60s+914us   |              | COST 1  | 0 10 0 1us 1us
            60s+915us   |              | COST 1  | 1 10 9 0 60s+748us
        a cost above the limit is never granted
            0       | SLIDE 10 60s | COST 11 | 0 10 10 never 0
            0       |              | COST 10 | 10 10 0 0 60s+915us
            0       |              | COST 11 | 0 10 0 never 60s+915us
        ",
    );
}

#[test]
fn slide_segments() {
    timelines(
        "
        60 segments of a second
            0        | SLIDE 10 60s SEGMENTS 60 | COST 4 | 4 10 6 0 61s-1us
            10500ms  |                          | COST 6 | 6 10 0 0 60500ms-1us
            20s      |                          | COST 4 | 0 10 0 41s-1us 51s-1us
            20s      |                          | COST 5 | 0 10 0 51s-1us 51s-1us
            61s-2us  |                          | COST 4 | 0 10 0 1us 10s+1us
            61s-1us  |                          | COST 4 | 4 10 0 0 60s
            71s-2us  |                          | UPTO 9 | 0 10 0 1us 50s+1us
            71s-1us  |                          | UPTO 9 | 6 10 0 0 60s
        one segment: a window and the rest of the one before
            10s      | SLIDE 10 60s SEGMENTS 1 | COST 6 | 6 10 4 0 110s-1us
            59s      |                         | COST 3 | 3 10 1 0 61s-1us
            70s      |                         | COST 2 | 0 10 1 50s-1us 50s-1us
            70s      |                         | COST 1 | 1 10 0 0 110s-1us
            2m-2us   |                         | COST 9 | 0 10 0 1us 60s+1us
            2m-1us   |                         | COST 9 | 9 10 0 0 60s
        a period that the segments don't divide: 7 segments of 1 ms are ticks of 143 us
            1ms      | SLIDE 1 1ms SEGMENTS 7 | COST 1 | 1 1 0 0 1ms
            2ms-1us  |                        | COST 1 | 0 1 0 1us 1us
            2ms      |                        | COST 1 | 1 1 0 0 1ms+1us
        UPTO takes the remaining units
            0        | SLIDE 10 60s SEGMENTS 60 | UPTO 7 | 7 10 3 0 61s-1us
            1s       |                          | UPTO 7 | 3 10 0 0 61s-1us
            2s       |                          | UPTO 7 | 0 10 0 59s-1us 60s-1us
        FORCE goes above the limit, and all of it has to leave the window
            0        | SLIDE 10 60s SEGMENTS 60 | FORCE 25 | 25 10 0 0 61s-1us
            30s      |                          | COST 1   | 0 10 0 31s-1us 31s-1us
            30s      |                          | FORCE 9  | 9 10 0 0 61s-1us
            61s-1us  |                          | COST 2   | 0 10 1 30s 30s
            61s-1us  |                          | COST 1   | 1 10 0 0 60s
        REFUND gives back the newest first
            0        | SLIDE 10 60s SEGMENTS 60 | COST 4     | 4 10 6 0 61s-1us
            10s      |                          | COST 6     | 6 10 0 0 61s-1us
            20s      |                          | REFUND 2   | 2 10 2 0 51s-1us
            20s      |                          | REFUND 5   | 5 10 7 0 41s-1us
            20s      |                          | REFUND 100 | 3 10 10 0 0
            20s      |                          | REFUND 1   | 0 10 10 0 0
        the limit changes, up and down: entries stay
            0        | SLIDE 10 60s SEGMENTS 60 | COST 10 | 10 10 0 0 61s-1us
            30s      | SLIDE 15 60s SEGMENTS 60 | COST 5  | 5 15 0 0 61s-1us
            40s      | SLIDE 6 60s SEGMENTS 60  | COST 1  | 0 6 0 21s-1us 51s-1us
            40s      |                          | COST 2  | 0 6 0 51s-1us 51s-1us
            61s-1us  |                          | COST 1  | 1 6 0 0 60s
        with a shorter period, entries leave the window sooner
            0        | SLIDE 10 60s SEGMENTS 60 | COST 10 | 10 10 0 0 61s-1us
            30s      | SLIDE 10 40s SEGMENTS 40 | COST 1  | 0 10 0 11s-1us 11s-1us
            41s-2us  |                          | COST 1  | 0 10 0 1us 1us
            41s-1us  |                          | COST 1  | 1 10 9 0 40s
        with a longer period, entries stay in the window
            0        | SLIDE 10 60s SEGMENTS 60   | COST 10 | 10 10 0 0 61s-1us
            30s      | SLIDE 10 2m SEGMENTS 120   | COST 1  | 0 10 0 91s-1us 91s-1us
            121s-2us |                            | COST 1  | 0 10 0 1us 1us
            121s-1us |                            | COST 1  | 1 10 9 0 120s
        finer ticks: entries keep their own tick's end
            0        | SLIDE 10 60s SEGMENTS 6  | COST 5 | 5 10 5 0 70s-1us
            20s      | SLIDE 10 60s SEGMENTS 60 | COST 5 | 5 10 0 0 61s-1us
            70s-2us  |                          | COST 5 | 0 10 0 1us 11s+1us
            70s-1us  |                          | COST 5 | 5 10 0 0 60s
        coarser ticks: the log keeps the finer ones
            5s       | SLIDE 10 60s SEGMENTS 60 | COST 5 | 5 10 5 0 61s-1us
            20s      | SLIDE 10 60s SEGMENTS 6  | COST 5 | 5 10 0 0 61s-1us
            66s-2us  |                          | COST 5 | 0 10 0 1us 15s+1us
            66s-1us  |                          | COST 5 | 5 10 0 0 60s
        and adopts coarser ones after a period without a grant to another caller
            5s       | SLIDE 10 60s SEGMENTS 60 | COST 1 | 1 10 9 0 61s-1us
            20s      | SLIDE 10 60s SEGMENTS 6  | COST 1 | 1 10 8 0 61s-1us
            50s      |                          | COST 1 | 1 10 7 0 61s-1us
            81s-1us  |                          | COST 1 | 1 10 8 0 60s
            82s-1us  |                          | COST 1 | 1 10 7 0 60s
            82s      |                          | COST 1 | 1 10 6 0 68s-1us
            119s     |                          | COST 7 | 0 10 6 1s-1us 31s-1us
            120s-1us |                          | COST 7 | 7 10 0 0 60s
        two callers in turn: each grant counts for a period and a tick of the finer one, for both
            0        | SLIDE 10 60s SEGMENTS 10 | COST 5 | 5 10 5 0 66s-1us
            3s       | SLIDE 10 60s SEGMENTS 7  | COST 1 | 1 10 4 0 63s-1us
            7s       | SLIDE 10 60s SEGMENTS 10 | COST 1 | 1 10 3 0 65s-1us
            15s      | SLIDE 10 60s SEGMENTS 7  | COST 1 | 1 10 2 0 63s-1us
            25s      | SLIDE 10 60s SEGMENTS 10 | COST 1 | 1 10 1 0 65s-1us
            30s      | SLIDE 10 60s SEGMENTS 7  | COST 1 | 1 10 0 0 66s-1us
            66s-2us  | SLIDE 10 60s SEGMENTS 10 | COST 6 | 0 10 0 1us 30s+1us
            66s-1us  |                          | COST 6 | 6 10 0 0 60s
            72s-1us  | SLIDE 10 60s SEGMENTS 7  | COST 1 | 1 10 0 0 60s
        grants of the present tick do not move to a later one, however coarse the old ticks were
            0        | SLIDE 10 60s SEGMENTS 1  | COST 5 | 5 10 5 0 2m-1us
            10s      | SLIDE 10 60s SEGMENTS 60 | COST 6 | 0 10 5 110s-1us 110s-1us
            10s      |                          | COST 5 | 5 10 0 0 61s-1us
            20s      |                          | COST 1 | 0 10 0 51s-1us 51s-1us
            71s-2us  |                          | COST 1 | 0 10 0 1us 1us
            71s-1us  |                          | COST 1 | 1 10 9 0 60s
        two periods in turn: the log keeps the longer one, and the entries that count for it
            0        | SLIDE 10 60s SEGMENTS 60 | COST 8   | 8 10 2 0 61s-1us
            10s      |                          | COST 1   | 1 10 1 0 61s-1us
            15s      | SLIDE 3 4s SEGMENTS 4    | COST 3   | 3 3 0 0 5s-1us
            19s      |                          | COST 1   | 0 3 0 1s-1us 1s-1us
            20s-1us  |                          | COST 3   | 3 3 0 0 4s
            61s-1us  |                          | COST 3   | 3 3 0 0 4s
            66s      | SLIDE 10 60s SEGMENTS 60 | COST 1   | 0 10 0 5s-1us 55s-1us
            71s-1us  |                          | COST 1   | 1 10 0 0 60s
            73s      | SLIDE 3 4s SEGMENTS 4    | REFUND 9 | 1 3 3 0 0
            73s      | SLIDE 10 60s SEGMENTS 60 | COST 1   | 1 10 0 0 61s-1us
        the clock steps back: the log is dated by its last entry
            90s      | SLIDE 10 60s SEGMENTS 60 | COST 4 | 4 10 6 0 61s-1us
            100s     |                          | COST 6 | 6 10 0 0 61s-1us
            40s      |                          | COST 4 | 0 10 0 51s-1us 61s-1us
            40s      |                          | COST 5 | 0 10 0 61s-1us 61s-1us
        a write after a step back dates the log anew, a REFUND too
            100s     | SLIDE 10 60s SEGMENTS 60 | COST 10  | 10 10 0 0 61s-1us
            40s      |                          | REFUND 1 | 1 10 1 0 61s-1us
            50s      |                          | COST 1   | 1 10 0 0 61s-1us
            101s-2us |                          | COST 9   | 0 10 0 1us 10s+1us
            101s-1us |                          | COST 9   | 9 10 0 0 60s
        ",
    );
}

#[test]
fn slide_reserve() {
    timelines(
        "
        a booking is entered at the tick in which it acts, at most a period and a tick ahead
            0        | SLIDE 10 60s SEGMENTS 60 | COST 10            | 10 10 0 0 61s-1us
            10s      |                          | COST 4 RESERVE 50s | 0 10 0 1s-1us 51s-1us
            10s      |                          | COST 4 RESERVE 51s | 4 10 0 51s-1us 111s-1us
            20s      |                          | COST 6 RESERVE 1d  | 6 10 0 41s-1us 101s-1us
            30s      |                          | COST 1             | 0 10 0 91s-1us 91s-1us
            30s      |                          | COST 1 RESERVE 61s | 0 10 0 30s-1us 91s-1us
            30s      |                          | COST 1 RESERVE 1d  | 0 10 0 30s-1us 91s-1us
            60s-2us  |                          | COST 1 RESERVE 1d  | 0 10 0 1us 61s+1us
            60s-1us  |                          | COST 1 RESERVE 1d  | 1 10 0 61s 121s
            61s-1us  |                          | COST 1             | 0 10 0 60s 120s
            121s-2us |                          | UPTO 20            | 0 10 0 1us 60s+1us
            121s-1us |                          | UPTO 20            | 9 10 0 0 60s
        one a millisecond, in ticks of a microsecond
            0        | SLIDE 1 1ms | COST 1            | 1 1 0 0 1ms
            0        |             | COST 1 RESERVE 1s | 1 1 0 1ms 2ms
            0        |             | COST 1 RESERVE 1s | 0 1 0 999us 2ms
            998us    |             | COST 1 RESERVE 1s | 0 1 0 1us 1ms+2us
            999us    |             | COST 1 RESERVE 1s | 1 1 0 1ms+1us 2ms+1us
            2ms      |             | COST 1            | 0 1 0 1ms 1ms
            3ms      |             | COST 1            | 1 1 0 0 1ms
        free units are taken now, however far ahead the call may be booked
            0        | SLIDE 10 60s SEGMENTS 60 | COST 9 RESERVE 1d  | 9 10 1 0 61s-1us
            30s      |                          | COST 1 RESERVE 1d  | 1 10 0 0 61s-1us
        FORCE while a booking lies ahead acts at once, and counts for as long as the booking
            0        | SLIDE 10 60s SEGMENTS 60 | COST 10            | 10 10 0 0 61s-1us
            1s       |                          | COST 2 RESERVE 60s | 2 10 0 60s-1us 120s-1us
            2s       |                          | FORCE 3            | 3 10 0 0 119s-1us
            61s-1us  |                          | COST 6             | 0 10 5 60s 60s
            61s-1us  |                          | COST 5             | 5 10 0 0 60s
        REFUND gives back the newest first, so bookings first
            0        | SLIDE 10 60s SEGMENTS 60 | COST 10            | 10 10 0 0 61s-1us
            1s       |                          | COST 2 RESERVE 60s | 2 10 0 60s-1us 120s-1us
            1s       |                          | REFUND 1           | 1 10 0 0 120s-1us
            1s       |                          | REFUND 3           | 3 10 2 0 60s-1us
            1s       |                          | COST 2             | 2 10 0 0 61s-1us
            1s       |                          | COST 2 RESERVE 60s | 2 10 0 60s-1us 120s-1us
            1s       |                          | REFUND 100         | 12 10 10 0 0
        the limit changes, up and down: bookings stay, and units granted now count for as long as they do
            0        | SLIDE 10 60s SEGMENTS 60 | COST 10            | 10 10 0 0 61s-1us
            1s       |                          | COST 2 RESERVE 60s | 2 10 0 60s-1us 120s-1us
            2s       | SLIDE 15 60s SEGMENTS 60 | COST 4             | 0 15 3 59s-1us 119s-1us
            2s       |                          | COST 3             | 3 15 0 0 119s-1us
            61s-1us  | SLIDE 4 60s SEGMENTS 60  | COST 1             | 0 4 0 60s 60s
            61s-1us  |                          | COST 1 RESERVE 60s | 1 4 0 60s 2m
        a shorter period: the booking lies further ahead than a new one may
            0        | SLIDE 10 60s SEGMENTS 60 | COST 10            | 10 10 0 0 61s-1us
            1s       |                          | COST 2 RESERVE 60s | 2 10 0 60s-1us 120s-1us
            2s       | SLIDE 10 10s SEGMENTS 10 | COST 1 RESERVE 8s  | 0 10 0 1s-1us 69s-1us
            2s       |                          | COST 1 RESERVE 9s  | 1 10 0 9s-1us 69s-1us
            11s-1us  |                          | COST 8             | 0 10 7 60s 60s
            11s-1us  |                          | COST 8 RESERVE 1d  | 0 10 7 49s 60s
            60s-1us  |                          | COST 8 RESERVE 1d  | 8 10 0 11s 21s
            71s-1us  |                          | COST 3             | 0 10 2 10s 10s
        finer ticks that don't divide the period: a booking keeps its own tick's end, rounded up
            0        | SLIDE 3 1s SEGMENTS 4 | COST 2                | 2 3 1 0 1250ms-1us
            0        |                       | COST 2 RESERVE 1250ms | 2 3 0 1250ms-1us 2250ms-1us
            300ms    | SLIDE 3 1s SEGMENTS 7 | FORCE 1               | 1 3 0 0 1985721us
            300ms    |                       | COST 1                | 0 3 0 1985721us 1985721us
        coarser ticks: a booking is entered in the finer ones, too
            5s       | SLIDE 10 60s SEGMENTS 60 | COST 10            | 10 10 0 0 61s-1us
            5s       |                          | COST 5 RESERVE 1d  | 5 10 0 61s-1us 121s-1us
            6s       | SLIDE 10 60s SEGMENTS 6  | COST 5 RESERVE 1d  | 5 10 0 60s-1us 120s-1us
            70s-1us  |                          | COST 1             | 0 10 0 56s 56s
        ",
    );
}
