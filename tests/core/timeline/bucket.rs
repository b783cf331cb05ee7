//! Timelines of BUCKET.

use super::timelines;

#[test]
fn bucket() {
    timelines(
        "
        starts full, then tokens flow in one by one
            100s     | BUCKET 10 60s | COST 1  | 1 10 9 0 6s
            100s     |               | COST 9  | 9 10 0 0 60s
            106s-1us |               | COST 1  | 0 10 0 1us 54s+1us
            106s     |               | COST 1  | 1 10 0 0 60s
            1d       |               | COST 11 | 0 10 10 never 0
            1d       |               | COST 10 | 10 10 0 0 60s
            1d+1s    |               | COST 11 | 0 10 0 never 59s
        UPTO takes whole tokens and leaves the fraction
            0     | BUCKET 10 1s | UPTO 20 | 10 10 0 0 1s
            250ms |              | UPTO 10 | 2 10 0 0 950ms
            500ms |              | UPTO 10 | 3 10 0 0 1s
            550ms |              | UPTO 10 | 0 10 0 50ms 950ms
        FORCE and REFUND
            0        | BUCKET 10 60s | FORCE 25   | 25 10 0 0 150s
            96s-1us  |               | COST 1     | 0 10 0 1us 54s+1us
            96s      |               | COST 1     | 1 10 0 0 60s
            96s      |               | REFUND 4   | 4 10 4 0 36s
            99s      |               | REFUND 100 | 5 10 10 0 0
        the limit changes, up and down
            0     | BUCKET 10 60s | COST 10 | 10 10 0 0 60s
            0     | BUCKET 20 60s | COST 11 | 0 20 10 3s 30s
            6s    |               | COST 11 | 11 20 1 0 57s
            6s    | BUCKET 5 60s  | COST 1  | 0 5 0 12s 60s
            18s   |               | COST 1  | 1 5 0 0 60s
        the period changes: refilled at the old rate up to now, or at the new one if that is more
            0     | BUCKET 10 60s  | COST 10 | 10 10 0 0 60s
            30s   | BUCKET 10 100s | COST 5  | 5 10 0 0 100s
            34s   | BUCKET 10 10s  | COST 5  | 0 10 4 1s 6s
            35s   |                | COST 5  | 5 10 0 0 10s
        the clock steps back
            100s  | BUCKET 10 60s | COST 8 | 8 10 2 0 48s
            10s   |               | COST 3 | 0 10 2 6s 48s
            10s   |               | COST 2 | 2 10 0 0 60s
        ",
    );
}

#[test]
fn bucket_capacity() {
    timelines(
        "
        a capacity below the limit
            0        | BUCKET 10 60s CAPACITY 3 | COST 4 | 0 3 3 never 0
            0        |                          | COST 3 | 3 3 0 0 18s
            6s-1us   |                          | COST 1 | 0 3 0 1us 12s+1us
            6s       |                          | COST 1 | 1 3 0 0 18s
            1h       |                          | UPTO 9 | 3 3 0 0 18s
        a capacity above the limit saves up over pauses
            0        | BUCKET 10 60s CAPACITY 30 | COST 30  | 30 30 0 0 3m
            60s      |                           | COST 11  | 0 30 10 6s 2m
            60s      |                           | FORCE 11 | 11 30 0 0 186s
            60s      |                           | REFUND 1 | 1 30 0 0 3m
        the capacity changes, up and down
            0        | BUCKET 10 60s             | COST 10 | 10 10 0 0 60s
            0        | BUCKET 10 60s CAPACITY 12 | COST 3  | 0 12 2 6s 60s
            0        |                           | COST 2  | 2 12 0 0 72s
            0        | BUCKET 10 60s CAPACITY 4  | COST 1  | 0 4 0 6s 24s
        the clock steps back
            100s     | BUCKET 10 60s CAPACITY 3 | COST 3 | 3 3 0 0 18s
            1s       |                          | COST 1 | 0 3 0 6s 18s
        ",
    );
}

#[test]
fn bucket_step() {
    timelines(
        "
        the tokens of a period come at its end, counted from the call that found the bucket full
            100s     | BUCKET 10 60s STEP | COST 1  | 1 10 9 0 60s
            130s     |                    | COST 9  | 9 10 0 0 30s
            160s-1us |                    | COST 1  | 0 10 0 1us 1us
            160s     |                    | COST 4  | 4 10 6 0 60s
            300s     |                    | COST 11 | 0 10 10 never 0
            300s     |                    | COST 1  | 1 10 9 0 60s
        a capacity of several steps
            0        | BUCKET 10 60s CAPACITY 25 STEP | COST 25 | 25 25 0 0 3m
            10s      |                                | COST 11 | 0 25 0 110s 170s
            60s      |                                | COST 4  | 4 25 6 0 2m
            2m-1us   |                                | COST 7  | 0 25 6 1us 60s+1us
            2m+1s    |                                | COST 16 | 16 25 0 0 179s
        UPTO, FORCE and REFUND
            0        | BUCKET 10 60s STEP | FORCE 25   | 25 10 0 0 3m
            0        |                    | UPTO 9     | 0 10 0 2m 3m
            60s      |                    | COST 10    | 0 10 0 2m 2m
            2m       |                    | UPTO 9     | 5 10 0 0 60s
            2m+10s   |                    | REFUND 4   | 4 10 4 0 50s
            2m+20s   |                    | REFUND 100 | 6 10 10 0 0
            2m+30s   |                    | COST 1     | 1 10 9 0 60s
        the limit changes, up and down; the steps stay where they are
            0        | BUCKET 10 60s STEP | COST 10 | 10 10 0 0 60s
            30s      | BUCKET 15 60s STEP | COST 5  | 5 15 0 0 30s
            40s      | BUCKET 4 60s STEP  | COST 1  | 0 4 0 20s 20s
            60s      |                    | COST 1  | 1 4 3 0 60s
        the next step falls one new period after the last
            0        | BUCKET 10 60s STEP  | COST 10 | 10 10 0 0 60s
            30s      | BUCKET 10 40s STEP  | COST 1  | 0 10 0 10s 10s
            30s      | BUCKET 10 100s STEP | COST 1  | 0 10 0 70s 70s
            30s      | BUCKET 10 20s STEP  | COST 1  | 1 10 9 0 20s
        STEP is newly given: the next one is a period from now; and dropped: tokens flow from the last grant on
            0        | BUCKET 10 60s      | COST 10 | 10 10 0 0 60s
            30s      | BUCKET 10 60s STEP | COST 6  | 0 10 5 60s 60s
            30s      |                    | COST 5  | 5 10 0 0 60s
            60s      | BUCKET 10 60s      | COST 1  | 1 10 4 0 36s
            72s      |                    | COST 1  | 1 10 5 0 30s
        STEP is dropped: no token flows in for the time before the last grant, and a denied caller waits no longer than its reply says
            0        | BUCKET 10 60s STEP | COST 4  | 4 10 6 0 60s
            54s      |                    | COST 6  | 6 10 0 0 6s
            54s      | BUCKET 10 60s      | COST 1  | 0 10 0 6s 60s
            57s      |                    | COST 1  | 0 10 0 3s 57s
            60s-1us  |                    | COST 1  | 0 10 0 1us 54s+1us
            60s-1us  | BUCKET 10 1h       | COST 1  | 0 10 0 354s+1us 3594s+1us
            60s-1us  | BUCKET 20 10s      | COST 12 | 12 20 8 0 6s
        STEP is dropped in debt: the forced units are owed in whole, and past steps pay as before
            0        | BUCKET 10 60s STEP | FORCE 25 | 25 10 0 0 3m
            50s      |                    | REFUND 2 | 2 10 0 0 130s
            55s      | BUCKET 10 60s      | COST 1   | 0 10 0 79s 133s
            66s      |                    | COST 1   | 0 10 0 54s 78s
            66s      |                    | FORCE 1  | 1 10 0 0 84s
        STEP is newly given: the next step completes a partial token
            0        | BUCKET 10 60s      | COST 10 | 10 10 0 0 60s
            33s      | BUCKET 10 60s STEP | COST 5  | 5 10 0 0 60s
            33s      |                    | REFUND 9 | 9 10 9 0 60s
        the clock steps back before the last step: the step counts as of now
            100s     | BUCKET 10 60s STEP | COST 10 | 10 10 0 0 60s
            40s      |                    | COST 1  | 0 10 0 60s 60s
            110s     |                    | COST 1  | 0 10 0 50s 50s
        ",
    );
}

#[test]
fn bucket_reserve() {
    timelines(
        "
        future tokens are booked in the order of the calls
            0    | BUCKET 10 60s | COST 8                | 8 10 2 0 48s
            0    |               | COST 5 RESERVE 18s-1us | 0 10 2 1us 48s
            0    |               | COST 5 RESERVE 18s    | 5 10 0 18s 78s
            0    |               | COST 1                | 0 10 0 24s 78s
            0    |               | COST 10 RESERVE 1d    | 10 10 0 78s 138s
            78s  |               | COST 1                | 0 10 0 6s 60s
            84s  |               | COST 1                | 1 10 0 0 60s
        REFUND and FORCE while bookings lie ahead
            0    | BUCKET 10 60s CAPACITY 3 | COST 3            | 3 3 0 0 18s
            0    |                          | COST 3 RESERVE 1d | 3 3 0 18s 36s
            0    |                          | FORCE 1           | 1 3 0 0 42s
            0    |                          | REFUND 2          | 2 3 0 0 30s
            0    |                          | COST 1 RESERVE 1d | 1 3 0 18s 36s
            0    |                          | REFUND 9          | 6 3 3 0 0
        the limit and the capacity change, up and down: bookings are carried whole
            0    | BUCKET 10 60s             | COST 10            | 10 10 0 0 60s
            0    |                           | COST 5 RESERVE 30s | 5 10 0 30s 90s
            0    | BUCKET 10 60s CAPACITY 16 | COST 1             | 1 16 0 0 96s
            0    |                           | COST 2 RESERVE 12s | 2 16 0 12s 108s
            0    | BUCKET 10 60s CAPACITY 4  | COST 1 RESERVE 1d  | 1 4 0 18s 42s
        ",
    );
}

#[test]
fn bucket_step_reserve() {
    timelines(
        "
        a booking acts at a step: tokens of the step that the full bucket can't hold are lost
            0    | BUCKET 10 60s STEP | COST 8             | 8 10 2 0 60s
            10s  |                    | COST 5 RESERVE 49s | 0 10 2 1s 50s
            10s  |                    | COST 5 RESERVE 50s | 5 10 0 50s 110s
            10s  |                    | COST 6 RESERVE 1d  | 6 10 0 110s 170s
            60s  |                    | COST 1             | 0 10 0 60s 2m
            2m   |                    | COST 5             | 0 10 4 60s 60s
            2m   |                    | COST 4             | 4 10 0 0 60s
        a bucket that is not full holds all tokens of a step, and keeps those that a booking leaves
            0    | BUCKET 10 60s CAPACITY 25 STEP | COST 23            | 23 25 2 0 3m
            0    |                                | COST 5 RESERVE 60s | 5 25 0 60s 3m
            0    |                                | COST 20 RESERVE 1d | 20 25 0 3m 5m
            0    |                                | COST 1 RESERVE 1d  | 1 25 0 3m 6m
            3m   |                                | COST 4             | 4 25 0 0 3m
        a bucket of one token gives one a step, however many a step would bring
            0    | BUCKET 10 60s CAPACITY 1 STEP | COST 1             | 1 1 0 0 60s
            0    |                               | COST 1 RESERVE 1d  | 1 1 0 60s 2m
            0    |                               | COST 1 RESERVE 1d  | 1 1 0 2m 3m
            60s  |                               | COST 1             | 0 1 0 2m 2m
            3m   |                               | COST 1             | 1 1 0 0 60s
        REFUND gives a booking back, but not the lost tokens
            0    | BUCKET 10 60s STEP | COST 8             | 8 10 2 0 60s
            0    |                    | COST 5 RESERVE 60s | 5 10 0 60s 2m
            0    |                    | REFUND 5           | 5 10 0 0 60s
            60s  |                    | COST 10            | 10 10 0 0 60s
        the limit changes, up and down: bookings are carried whole
            0    | BUCKET 10 60s STEP | COST 10            | 10 10 0 0 60s
            0    |                    | COST 5 RESERVE 60s | 5 10 0 60s 2m
            0    | BUCKET 20 60s STEP | COST 6             | 0 20 5 60s 60s
            0    | BUCKET 4 60s STEP  | COST 1 RESERVE 1d  | 1 4 0 2m 3m
        ",
    );
}
