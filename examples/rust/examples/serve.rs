//! The program in the README of the recipes; a test compares the two.

#[allow(dead_code)]
#[path = "../src/lib.rs"]
mod rate_limit;

use std::time::Duration;

use axum::{extract::Request, routing::get, Router};
use rate_limit::{OnDown, Policy, RateLimitLayer};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = ConnectionManagerConfig::new().set_response_timeout(Some(Duration::from_millis(200)));
    let redis = ConnectionManager::new_with_config(redis::Client::open("redis://127.0.0.1")?, config).await?;
    let policy = Policy::new("GCRA", 10, Duration::from_secs(60));
    let key = |request: &Request| format!("{:?}", request.headers().get("x-user"));
    let app = Router::new().route("/", get("hello")).layer(RateLimitLayer::new(redis, policy, key, OnDown::Open));
    Ok(axum::serve(tokio::net::TcpListener::bind("127.0.0.1:3000").await?, app).await?)
}
