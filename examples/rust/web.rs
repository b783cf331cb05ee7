//! A service in axum: 429 and headers for each user, and a route with a limit of its own. Without the server of the limits, pages are
//! open, and the login is closed.

use axum::extract::Request;
use axum::routing::{get, post};
use axum::Router;
use redis_rl_client::tower::RateLimitLayer;
use redis_rl_client::{Fixed, Gcra, Limits, OnDown};

/// A request without a key is not limited.
fn user(request: &Request) -> Option<Vec<u8>> {
    Some(request.headers().get("x-user")?.as_bytes().to_vec())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = Limits::open(std::env::var("REDIS_URL").as_deref().unwrap_or("redis://127.0.0.1/"))?;
    let login = limits.limit("login", Fixed::new("3/h")?)?;
    let pages = limits.on_down(OnDown::Open).limit("pages", Gcra::new("10/m")?.burst(5)?)?;

    let app = Router::new()
        .route("/", get("hello").layer(RateLimitLayer::new(pages, user)))
        .route("/login", post("welcome").layer(RateLimitLayer::new(login, user)));
    let address = std::env::var("ADDRESS").unwrap_or("127.0.0.1:3000".to_string());
    Ok(axum::serve(tokio::net::TcpListener::bind(address).await?, app).await?)
}
