//! Timelines of FIXED.

use super::timelines;

#[test]
fn fixed() {
    timelines(
        "
        a window begins with its first call and is free again at its end
            100s     | FIXED 10 60s | COST 1  | 1 10 9 0 60s
            110s     |              | COST 9  | 9 10 0 0 50s
            110s     |              | COST 1  | 0 10 0 50s 50s
            160s-1us |              | COST 1  | 0 10 0 1us 1us
            160s     |              | COST 4  | 4 10 6 0 60s
        after a pause the next window begins with the next call
            0        | FIXED 10 60s | COST 1  | 1 10 9 0 60s
            150s     |              | COST 1  | 1 10 9 0 60s
            210s-1us |              | COST 10 | 0 10 9 1us 1us
            210s     |              | COST 10 | 10 10 0 0 60s
        a cost above the limit is never granted
            0        | FIXED 10 60s | COST 11 | 0 10 10 never 0
            0        |              | COST 10 | 10 10 0 0 60s
            1s       |              | COST 11 | 0 10 0 never 59s
        UPTO takes the remaining units
            0        | FIXED 10 60s | UPTO 4  | 4 10 6 0 60s
            1s       |              | UPTO 20 | 6 10 0 0 59s
            2s       |              | UPTO 20 | 0 10 0 58s 58s
            60s      |              | UPTO 20 | 10 10 0 0 60s
        FORCE leaves a debt, which the next windows pay, a limit each
            0        | FIXED 10 60s | FORCE 25 | 25 10 0 0 3m
            0        |              | COST 1   | 0 10 0 2m 3m
            0        |              | COST 10  | 0 10 0 3m 3m
            60s      |              | COST 1   | 0 10 0 60s 2m
            2m-1us   |              | COST 1   | 0 10 0 1us 60s+1us
            2m       |              | COST 1   | 1 10 4 0 60s
            3m       |              | COST 10  | 10 10 0 0 60s
        a debt of whole windows ends with the last of them: the next begins with a call
            0        | FIXED 10 60s | FORCE 20 | 20 10 0 0 2m
            2m+5s    |              | COST 1   | 1 10 9 0 60s
        REFUND gives back units and keeps the window, empty or not
            0        | FIXED 10 60s | COST 10    | 10 10 0 0 60s
            20s      |              | REFUND 4   | 4 10 4 0 40s
            20s      |              | COST 5     | 0 10 4 40s 40s
            20s      |              | COST 4     | 4 10 0 0 40s
            30s      |              | REFUND 100 | 10 10 10 0 0
            30s      |              | REFUND 1   | 0 10 10 0 0
            40s      |              | COST 1     | 1 10 9 0 20s
            60s      |              | COST 1     | 1 10 9 0 60s
        the limit goes up: the difference is free at once
            0        | FIXED 10 60s | COST 10 | 10 10 0 0 60s
            30s      | FIXED 15 60s | COST 6  | 0 15 5 30s 30s
            30s      |              | COST 5  | 5 15 0 0 30s
        the limit goes down: no unit becomes free, and no caller is locked out beyond the window
            0        | FIXED 10 60s | COST 10 | 10 10 0 0 60s
            30s      | FIXED 4 60s  | COST 1  | 0 4 0 30s 30s
            60s-1us  |              | COST 1  | 0 4 0 1us 1us
            60s      |              | COST 4  | 4 4 0 0 60s
        the limit goes down, but not below the usage
            0        | FIXED 10 60s | COST 3  | 3 10 7 0 60s
            30s      | FIXED 4 60s  | COST 1  | 1 4 0 0 30s
        ended windows pay the old limit, and the remaining debt is carried over in whole
            0        | FIXED 10 60s | FORCE 35 | 35 10 0 0 4m
            2m+10s   | FIXED 2 60s  | COST 1   | 0 2 0 170s 3m+50s
            2m+10s   |              | FORCE 1  | 1 2 0 0 3m+50s
        a shorter period ends the window sooner
            0        | FIXED 10 60s | COST 10 | 10 10 0 0 60s
            30s      | FIXED 10 40s | COST 1  | 0 10 0 10s 10s
            40s-1us  |              | COST 1  | 0 10 0 1us 1us
            40s      |              | COST 1  | 1 10 9 0 40s
        a shorter period may have ended the window
            0        | FIXED 10 60s | COST 10 | 10 10 0 0 60s
            50s      | FIXED 10 40s | COST 1  | 1 10 9 0 40s
        a longer period ends the window later
            0        | FIXED 10 60s  | COST 5 | 5 10 5 0 60s
            30s      | FIXED 10 100s | COST 1 | 1 10 4 0 70s
            60s      |               | COST 5 | 0 10 4 40s 40s
            100s     |               | COST 5 | 5 10 5 0 100s
        the clock steps back before the window: it begins now
            100s     | FIXED 10 60s | COST 10 | 10 10 0 0 60s
            40s      |              | COST 1  | 0 10 0 60s 60s
            160s     |              | COST 1  | 1 10 9 0 60s
        the clock steps back within the window: it stays
            100s     | FIXED 10 60s | COST 5  | 5 10 5 0 60s
            130s     |              | COST 5  | 5 10 0 0 30s
            110s     |              | COST 1  | 0 10 0 50s 50s
        ",
    );
}

#[test]
fn fixed_reserve() {
    timelines(
        "
        a booking acts wholly in one window: the units left in the windows before it are used up
            0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
            10s  |              | COST 5 RESERVE 49s  | 0 10 2 1s 50s
            10s  |              | COST 5 RESERVE 50s  | 5 10 0 50s 110s
            10s  |              | COST 1              | 0 10 0 50s 110s
            10s  |              | UPTO 1              | 0 10 0 50s 110s
            10s  |              | COST 5 RESERVE 1d   | 5 10 0 50s 110s
            10s  |              | COST 1 RESERVE 1d   | 1 10 0 110s 170s
            60s  |              | COST 1              | 0 10 0 60s 2m
            2m   |              | COST 9              | 9 10 0 0 60s
        free units are taken now, however far ahead the call may be booked
            0    | FIXED 10 60s | COST 5 RESERVE 1d   | 5 10 5 0 60s
            59s  |              | COST 5 RESERVE 1d   | 5 10 0 0 1s
        a booking of the whole limit takes a whole window, and the next booking acts in the window after it
            0    | FIXED 10 60s | COST 1              | 1 10 9 0 60s
            0    |              | COST 10 RESERVE 60s | 10 10 0 60s 2m
            0    |              | COST 9 RESERVE 2m-1us | 0 10 0 1us 2m
            1us  |              | COST 9 RESERVE 2m-1us | 9 10 0 2m-1us 3m-1us
            2m   |              | COST 2              | 0 10 1 60s 60s
            2m   |              | COST 1              | 1 10 0 0 60s
        REFUND gives a booking back, but not the units that it used up in earlier windows
            0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
            0    |              | COST 5 RESERVE 60s  | 5 10 0 60s 2m
            0    |              | REFUND 5            | 5 10 0 0 60s
            0    |              | COST 1              | 0 10 0 60s 60s
            60s  |              | COST 10             | 10 10 0 0 60s
        FORCE while a booking lies ahead is paid from its window on
            0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
            0    |              | COST 5 RESERVE 60s  | 5 10 0 60s 2m
            0    |              | FORCE 4             | 4 10 0 0 2m
            60s  |              | COST 2              | 0 10 1 60s 60s
            60s  |              | COST 1              | 1 10 0 0 60s
        a booking in debt acts after the debt is paid
            0    | FIXED 10 60s | FORCE 25            | 25 10 0 0 3m
            0    |              | COST 6 RESERVE 1d   | 6 10 0 3m 4m
            2m   |              | COST 4 RESERVE 60s  | 4 10 0 60s 2m
            3m   |              | COST 1              | 0 10 0 60s 60s
        the limit goes up: the difference is free at once, bookings are carried whole
            0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
            0    |              | COST 5 RESERVE 60s  | 5 10 0 60s 2m
            0    | FIXED 20 60s | COST 6              | 0 20 5 60s 60s
            0    |              | COST 5              | 5 20 0 0 60s
        the limit goes down: bookings are carried whole
            0    | FIXED 10 60s | COST 8              | 8 10 2 0 60s
            0    |              | COST 5 RESERVE 60s  | 5 10 0 60s 2m
            0    | FIXED 4 60s  | COST 1              | 0 4 0 2m 3m
            0    |              | COST 1 RESERVE 2m   | 1 4 0 2m 3m
            2m   |              | COST 2              | 2 4 0 0 60s
        windows on a grid, and a clock that steps back
            130s | FIXED 10 60s ALIGN 0 | COST 10            | 10 10 0 0 50s
            130s |                      | COST 1 RESERVE 49s | 0 10 0 1s 50s
            131s |                      | COST 1 RESERVE 49s | 1 10 0 49s 109s
            70s  |                      | COST 9             | 0 10 0 50s 110s
            180s |                      | COST 9             | 9 10 0 0 60s
        ",
    );
}

#[test]
fn fixed_align() {
    timelines(
        "
        windows begin on the grid
            70s     | FIXED 10 60s ALIGN 0 | COST 10 | 10 10 0 0 50s
            2m-1us  |                      | COST 1  | 0 10 0 1us 1us
            2m      |                      | COST 1  | 1 10 9 0 60s
            10m+59s |                      | COST 11 | 0 10 10 never 0
            10m+59s |                      | COST 10 | 10 10 0 0 1s
        an offset shifts the grid
            65s | FIXED 10 60s ALIGN 10s  | COST 1 | 1 10 9 0 5s
        a negative one shifts it back
            65s | FIXED 10 60s ALIGN -10s | COST 1 | 1 10 9 0 45s
        a window may begin before the epoch
            0   | FIXED 10 60s ALIGN 10s  | COST 1 | 1 10 9 0 10s
        and so may a call
            -40m | FIXED 10 60m ALIGN 30m | COST 1 | 1 10 9 0 10m
        midnight in UTC+8
            15h       | FIXED 1000 1d ALIGN -8h | COST 1000 | 1000 1000 0 0 1h
            16h-1us   |                         | COST 1    | 0 1000 0 1us 1us
            16h       |                         | COST 1    | 1 1000 999 0 24h
        UPTO, FORCE and REFUND keep to the grid
            70s     | FIXED 10 60s ALIGN 0 | FORCE 25   | 25 10 0 0 2m+50s
            70s     |                      | UPTO 10    | 0 10 0 1m+50s 2m+50s
            3m      |                      | UPTO 10    | 5 10 0 0 60s
            3m+10s  |                      | REFUND 100 | 10 10 10 0 0
            3m+20s  |                      | COST 1     | 1 10 9 0 40s
        ALIGN is newly given: the window becomes the one of the grid that holds its start
            70s     | FIXED 10 60s         | COST 10 | 10 10 0 0 60s
            80s     | FIXED 10 60s ALIGN 0 | COST 1  | 0 10 0 40s 40s
            2m-1us  |                      | COST 1  | 0 10 0 1us 1us
            2m+5s   |                      | COST 1  | 1 10 9 0 55s
        the offset changes
            70s     | FIXED 10 60s ALIGN 0   | COST 10 | 10 10 0 0 50s
            80s     | FIXED 10 60s ALIGN 30s | COST 1  | 0 10 0 10s 10s
            90s     |                        | COST 1  | 1 10 9 0 60s
        ALIGN is dropped: the window keeps its start
            70s     | FIXED 10 60s ALIGN 0 | COST 10 | 10 10 0 0 50s
            80s     | FIXED 10 60s         | COST 1  | 0 10 0 40s 40s
            2m+5s   |                      | COST 1  | 1 10 9 0 60s
        the limit changes, up and down
            70s     | FIXED 10 60s ALIGN 0 | COST 10 | 10 10 0 0 50s
            80s     | FIXED 12 60s ALIGN 0 | COST 1  | 1 12 1 0 40s
            90s     | FIXED 5 60s ALIGN 0  | COST 1  | 0 5 0 30s 30s
            2m      |                      | COST 1  | 1 5 4 0 60s
        the period changes: the window of the new grid that holds the start
            70s     | FIXED 10 60s ALIGN 0  | COST 10 | 10 10 0 0 50s
            80s     | FIXED 10 100s ALIGN 0 | COST 1  | 0 10 0 20s 20s
            80s     | FIXED 10 35s ALIGN 0  | COST 1  | 1 10 9 0 25s
        the clock steps back: the window of the grid that holds now
            130s    | FIXED 10 60s ALIGN 0 | COST 10 | 10 10 0 0 50s
            70s     |                      | COST 1  | 0 10 0 50s 50s
        ",
    );
}

#[test]
fn fixed_until() {
    timelines(
        "
        the window ends at the time, whenever it began
            10h       | FIXED 10 25h UNTIL 24h | COST 1  | 1 10 9 0 14h
            20h       |                        | COST 9  | 9 10 0 0 4h
            24h-1us   |                        | COST 1  | 0 10 0 1us 1us
            24h       | FIXED 10 25h UNTIL 48h | COST 1  | 1 10 9 0 24h
        a fast clock states the next day's end, and changes nothing
            10h       | FIXED 10 25h UNTIL 24h | COST 8  | 8 10 2 0 14h
            24h-5s    | FIXED 10 25h UNTIL 48h | COST 2  | 2 10 0 0 5s
            24h-1s    |                        | COST 1  | 0 10 0 1s 1s
            24h       |                        | COST 1  | 1 10 9 0 24h
        without a window in force, a fast clock opens the next day's
            24h-5s    | FIXED 10 25h UNTIL 48h | COST 8  | 8 10 2 0 24h+5s
            24h-1s    | FIXED 10 25h UNTIL 24h | COST 1  | 1 10 1 0 1s
            24h       | FIXED 10 25h UNTIL 48h | COST 10 | 10 10 0 0 24h
        a slow clock states a time that has passed: the end is provisional, until a right clock corrects it
            24h+5s    | FIXED 10 25h UNTIL 24h | COST 1  | 1 10 9 0 25h-5s
            25h       |                        | COST 1  | 1 10 8 0 24h
            26h       | FIXED 10 25h UNTIL 48h | COST 1  | 1 10 7 0 22h
            26h       | FIXED 10 25h UNTIL 24h | COST 1  | 1 10 6 0 22h
            26h       | FIXED 10 25h           | COST 1  | 1 10 5 0 22h
            48h       | FIXED 10 25h UNTIL 72h | COST 10 | 10 10 0 0 24h
        a time that is now has passed
            24h       | FIXED 10 25h UNTIL 24h | COST 1  | 1 10 9 0 25h
        a time that passed long ago: the fewest whole periods that lie ahead
            100h      | FIXED 10 25h UNTIL 24h | COST 1  | 1 10 9 0 24h
            124h-1us  |                        | COST 10 | 0 10 9 1us 1us
            124h      |                        | COST 10 | 10 10 0 0 25h
        more than one period ahead counts as one
            0         | FIXED 10 25h UNTIL 26h | COST 1  | 1 10 9 0 25h
            1h        |                        | COST 1  | 1 10 8 0 24h
            25h       |                        | COST 1  | 1 10 9 0 1h
        a denial corrects nothing, and its wait is that until the end in the record
            24h+5s    | FIXED 10 25h UNTIL 24h | COST 10             | 10 10 0 0 25h-5s
            26h       | FIXED 10 25h UNTIL 48h | COST 1              | 0 10 0 23h 23h
            26h       |                        | UPTO 1              | 0 10 0 23h 23h
            26h       |                        | COST 11             | 0 10 0 never 23h
            48h       |                        | COST 1              | 0 10 0 1h 1h
            48h       | FIXED 10 25h UNTIL 72h | COST 1              | 0 10 0 1h 1h
            49h       |                        | COST 1              | 1 10 9 0 23h
        a grant of any kind corrects the end
            24h+5s    | FIXED 10 25h UNTIL 24h | COST 10             | 10 10 0 0 25h-5s
            26h       | FIXED 10 25h UNTIL 48h | REFUND 1            | 1 10 1 0 22h
            26h       | FIXED 10 25h           | COST 2              | 0 10 1 22h 22h
        a debt is paid at the end and at each whole period after
            10h       | FIXED 10 25h UNTIL 24h | FORCE 25            | 25 10 0 0 64h
            23h       |                        | COST 1              | 0 10 0 26h 51h
            24h       | FIXED 10 25h            | COST 1              | 0 10 0 25h 50h
            49h       |                        | COST 1              | 1 10 4 0 25h
        bookings lie a period apart; a right clock brings the next ones closer
            10h       | FIXED 10 25h UNTIL 24h | COST 8              | 8 10 2 0 14h
            10h       |                        | COST 5 RESERVE 13h  | 0 10 2 1h 14h
            10h       |                        | COST 5 RESERVE 14h  | 5 10 0 14h 39h
            10h       |                        | COST 8 RESERVE 40h  | 8 10 0 39h 64h
            24h       | FIXED 10 25h UNTIL 48h | COST 2 RESERVE 24h  | 2 10 0 24h 49h
            48h       | FIXED 10 25h UNTIL 72h | COST 1              | 0 10 0 25h 25h
            48h       |                        | REFUND 1            | 1 10 1 0 24h
        a booking can be made before the time, under the sooner end
            24h+5s    | FIXED 10 25h UNTIL 24h | COST 10             | 10 10 0 0 25h-5s
            26h       | FIXED 10 25h UNTIL 48h | COST 1 RESERVE 20h  | 0 10 0 2h 23h
            28h       |                        | COST 1 RESERVE 20h  | 1 10 0 20h 45h
        the wait of a denied call is kept: by then the old windows have paid enough
            0         | FIXED 3 1100ms | FORCE 10 | 10 3 0 0 4400ms
            1500ms    | FIXED 5 2s     | COST 2   | 0 5 0 1800ms 3600ms
            3300ms    |                | COST 2   | 2 5 2 0 2s
        the period changes: the end stays
            10h       | FIXED 10 25h UNTIL 24h | COST 8              | 8 10 2 0 14h
            11h       | FIXED 10 30h UNTIL 24h | COST 1              | 1 10 1 0 13h
            12h       | FIXED 10 20h UNTIL 30h | COST 1              | 1 10 0 0 12h
            13h       | FIXED 10 20h UNTIL 5h  | COST 1              | 0 10 0 11h 11h
        the end stays, also if it is more than one new period ahead: only a time brings it nearer
            10h       | FIXED 10 25h UNTIL 24h | COST 8              | 8 10 2 0 14h
            11h       | FIXED 10 13h UNTIL 24h | COST 1              | 1 10 1 0 13h
            11h       | FIXED 10 5h UNTIL 10h  | COST 1              | 1 10 0 0 13h
            16h       |                        | COST 1              | 0 10 0 8h 8h
            17h       | FIXED 10 5h UNTIL 23h  | REFUND 1            | 1 10 1 0 6h
            17h       | FIXED 10 9h UNTIL 24h  | COST 1              | 1 10 0 0 6h
            23h       | FIXED 10 5h UNTIL 24h  | COST 10             | 10 10 0 0 1h
        the limit changes: usage is carried, the end stays
            10h       | FIXED 10 25h UNTIL 24h | COST 10             | 10 10 0 0 14h
            11h       | FIXED 15 25h UNTIL 24h | COST 6              | 0 15 5 13h 13h
            11h       |                        | COST 5              | 5 15 0 0 13h
            12h       | FIXED 4 25h UNTIL 24h  | COST 1              | 0 4 0 12h 12h
            24h       | FIXED 4 25h UNTIL 48h  | COST 4              | 4 4 0 0 24h
        from and to windows of other kinds
            10h       | FIXED 10 24h           | COST 5              | 5 10 5 0 24h
            11h       | FIXED 10 24h UNTIL 24h | COST 1              | 1 10 4 0 13h
            12h       | FIXED 10 24h           | COST 1              | 1 10 3 0 12h
            13h       | FIXED 10 24h ALIGN 0   | COST 1              | 1 10 2 0 11h
            14h       | FIXED 10 24h UNTIL 20h | COST 1              | 1 10 1 0 6h
            20h       | FIXED 10 24h UNTIL 44h | COST 1              | 1 10 9 0 24h
        REFUND keeps the window, and gives back nothing where nothing is used
            10h       | FIXED 10 25h UNTIL 24h | REFUND 1            | 0 10 10 0 0
            10h       |                        | COST 3              | 3 10 7 0 14h
            11h       |                        | REFUND 9            | 3 10 10 0 0
            12h       | FIXED 10 25h           | COST 1              | 1 10 9 0 12h
        the clock steps back: a window that would begin later begins now, and a right time shortens it
            100h      | FIXED 10 25h UNTIL 120h | COST 10            | 10 10 0 0 20h
            50h       |                         | COST 1             | 0 10 0 25h 25h
            50h       | FIXED 10 25h UNTIL 72h  | FORCE 1            | 1 10 0 0 47h
            72h       | FIXED 10 25h UNTIL 96h  | COST 1             | 1 10 8 0 24h
        ",
    );
}
