# An image of the official server with redis-rl loaded. `docs/install.md` shows how to build and run it.
#   docker build --build-arg SERVER=valkey/valkey:9.1 -t valkey-rl .
# SERVER is any image of Redis 7.0.5 or newer or Valkey 7.2 or newer on Debian bookworm or newer; not one on Alpine.
ARG RUST=1.95
ARG SERVER=redis:8.2

# A library that is built on bookworm also loads on newer releases of Debian.
FROM rust:${RUST}-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev libclang-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked --lib

FROM ${SERVER}
# Not in /usr/local/lib/redis/modules: the start script of Redis 8 loads all modules of that folder, and this one must not be loaded
# twice.
COPY --from=build /src/target/release/libredis_rl.so /usr/lib/redis/modules/libredis_rl.so
COPY LICENSE /usr/share/doc/redis-rl/LICENSE
# Since this begins with an option, the start scripts of Redis and of Valkey put the name of their server before it.
CMD ["--loadmodule", "/usr/lib/redis/modules/libredis_rl.so"]
