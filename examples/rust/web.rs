//! A service in axum: 429 and headers for each user, and a route with a limit of its own. Without the server of the limits, pages are
//! open, and the login is closed.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Request};
use axum::routing::{get, post};
use axum::Router;
use redis_rl_client::tower::RateLimitLayer;
use redis_rl_client::{Fixed, Gcra, Limits, OnDown};

/// The user that the header names, or else the address of the client: no request goes without a limit.
fn user(request: &Request) -> Option<Vec<u8>> {
    if let Some(user) = request.headers().get("x-user").filter(|user| !user.is_empty()) {
        return Some([b"user:", user.as_bytes()].concat());
    }
    let ConnectInfo(address) = request.extensions().get::<ConnectInfo<SocketAddr>>()?;
    Some(format!("address:{}", address.ip()).into_bytes())
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
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(tokio::net::TcpListener::bind(address).await?, app).await?)
}
