//! Measures what an outage does to a web service: how many requests an axum app answers, and how long the slowest one takes, while its
//! server works, is stopped (SIGSTOP), refuses connections, or does not answer to a connection at all. It starts its own server:
//! `cargo run --release --example outage --features tower -- [open|closed|local] [SECONDS]`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::{extract::Request, routing::get, Router};
use redis_rl_client::{tower::RateLimitLayer, Gcra, Limits, OnDown};
use support::{Server, Signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

type Fails<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Starts the app, and returns its address and its limits.
async fn serve(redis: SocketAddr, on_down: OnDown) -> Fails<(SocketAddr, Limits)> {
    let limits = Limits::open(format!("redis://{redis}/"))?.on_down(on_down);
    let api = limits.limit("api", Gcra::new("1000000/s")?)?;
    let app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(api, |_: &Request| Some("all")));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok((address, limits))
}

/// Sends requests, one after the other on each of 8 connections. Returns how many were answered, how many with 200, and how long the
/// slowest one took.
async fn requests(app: SocketAddr, time: Duration) -> Fails<(u32, u32, Duration)> {
    let end = Instant::now() + time;
    let clients: Vec<_> = (0..8).map(|_| tokio::spawn(client(app, end))).collect();
    let mut sum = (0, 0, Duration::ZERO);
    for client in clients {
        let (answered, good, slowest) = client.await??;
        sum = (sum.0 + answered, sum.1 + good, slowest.max(sum.2));
    }
    Ok(sum)
}

async fn client(app: SocketAddr, end: Instant) -> Fails<(u32, u32, Duration)> {
    let mut stream = TcpStream::connect(app).await?;
    let (mut answer, mut sum) = (vec![0; 4096], (0, 0, Duration::ZERO));
    while Instant::now() < end {
        let begin = Instant::now();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
        let mut length = 0;
        while !answer[..length].ends_with(b"hello") && !answer[..length].ends_with(b"}") {
            length += stream.read(&mut answer[length..]).await?;
        }
        let good = u32::from(answer.starts_with(b"HTTP/1.1 200"));
        sum = (sum.0 + 1, sum.1 + good, begin.elapsed().max(sum.2));
    }
    Ok(sum)
}

#[tokio::main]
async fn main() -> Fails<()> {
    let mut arguments = std::env::args().skip(1);
    let on_down = match arguments.next().as_deref() {
        None | Some("open") => OnDown::Open,
        Some("closed") => OnDown::Closed,
        Some("local") => OnDown::Local(Gcra::new("1000000/s")?),
        Some(other) => return Err(format!("open, closed or local, and not {other}").into()),
    };
    let seconds: f64 = arguments.next().as_deref().unwrap_or("5").parse()?;
    println!(
        "| the server | requests a second | answered with 200 | slowest request | let through |\n|---|---:|---:|---:|---:|"
    );
    for state in ["answers", "is stopped", "refuses connections", "does not answer to connections"] {
        let mut server = Server::on_port(&[]);
        let mut redis = SocketAddr::from(([127, 0, 0, 1], server.port));
        // A queue of connections that is full: the system answers to no further one.
        let full = TcpSocket::new_v4()?;
        full.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let full = full.listen(0)?;
        let _queued = TcpStream::connect(full.local_addr()?).await?;
        if state.ends_with("to connections") {
            redis = full.local_addr()?;
        }
        let (app, limits) = serve(redis, on_down).await?;
        requests(app, Duration::from_millis(100)).await?;
        match state {
            "is stopped" => server.signal(Signal::STOP),
            "refuses connections" => server.crash(),
            _ => {}
        }
        let (begin, before) = (Instant::now(), limits.let_through());
        let (answered, good, slowest) = requests(app, Duration::from_secs_f64(seconds)).await?;
        let (rate, good) =
            (f64::from(answered) / begin.elapsed().as_secs_f64(), 100.0 * f64::from(good) / f64::from(answered));
        let through = limits.let_through() - before;
        println!("| {state} | {rate:.0} | {good:.0} % | {} ms | {through} |", slowest.as_millis());
    }
    Ok(())
}
