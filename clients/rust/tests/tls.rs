//! Connections with TLS, to a server and to a cluster, with certificates that openssl makes here.
#![cfg(feature = "tls")]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{eventually, LONG};
use redis_rl_client::connection::Cluster;
use redis_rl_client::redis::{Client, TlsCertificates};
use redis_rl_client::{Fixed, Lease, Limits};
use support::{call, info, server_program, wait_for, Server};

/// Makes an authority, and a certificate of it for this machine.
fn certificates(folder: &Path) -> TlsCertificates {
    let openssl = |line: &str| {
        let mut command = Command::new("openssl");
        let output = command.args(line.split(' ')).current_dir(folder).stdin(Stdio::null()).output().expect("openssl runs");
        assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!("req -x509 {key} -days 2 -subj /CN=authority -keyout ca.key -out ca.crt"));
    openssl(&format!("req {key} -subj /CN=server -keyout server.key -out server.csr"));
    std::fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1\n").expect("a file");
    openssl("x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt");
    TlsCertificates { client_tls: None, root_cert: Some(std::fs::read(folder.join("ca.crt")).expect("a certificate")) }
}

/// A server that listens with TLS, and the port. A node of a cluster has a second one, for its bus.
fn server<const N: usize>(folder: &Path, more: impl Fn(&[u16; N]) -> Vec<String>) -> (Server, [u16; N]) {
    let file = |name: &str| folder.join(name).display().to_string();
    Server::on_ports(&server_program(), true, |ports: &[u16; N]| {
        let mut options: Vec<String> = ["--tls-auth-clients", "no", "--tls-port"].map(String::from).into();
        options.push(ports[0].to_string());
        for (name, value) in [("cert-file", "server.crt"), ("key-file", "server.key"), ("ca-cert-file", "ca.crt")] {
            options.extend([format!("--tls-{name}"), file(value)]);
        }
        options.extend(more(ports));
        options
    })
}

/// Makes each kind of call.
async fn calls(limits: Limits, server: &Server) {
    let line = limits.limit("{a}line", Fixed::new("1/h").expect("a policy")).expect("a name");
    assert!(line.take("a").await.expect("a decision").allowed());
    let waiting = tokio::spawn({
        let line = line.clone();
        async move { line.wait("a", "2h").await }
    });
    eventually("the wait", async || info(&mut server.client(), "everything", "rl_waiting_clients") == 1).await;
    call::<()>(&mut server.client(), "DEL {a}line:a");
    assert!(waiting.await.expect("no panic").expect("a decision").allowed());
    let running = limits.limit("{a}running", Lease::new(2, "30s").expect("a policy")).expect("a name");
    let tokens = limits.limit("{a}tokens", Fixed::new("1000/h").expect("a policy")).expect("a name");
    let admission =
        limits.admit([running.rule("a"), tokens.rule("a")]).estimate(300).wait("1s").await.expect("an admission");
    admission.settle(120).await.expect("no loss");
    assert_eq!(tokens.peek("a").await.expect("a decision").remaining, 880);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_tls() {
    let folder = tempfile::Builder::new().prefix("redis-rl-").tempdir().expect("a private folder");
    let certificates = certificates(folder.path());
    let (server, [port]) = server(folder.path(), |_| Vec::new());
    let client = Client::build_with_tls(format!("rediss://127.0.0.1:{port}/"), certificates).expect("an address");
    calls(Limits::new(client).timeout(LONG).connect_timeout(LONG), &server).await;
    // A server whose authority is not known.
    let limits = Limits::open(format!("rediss://127.0.0.1:{port}/")).expect("an address");
    let line = limits.limit("line", Fixed::new("1/h").expect("a policy")).expect("a name");
    assert!(line.take("a").await.expect_err("no connection").is_unavailable());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_with_tls() {
    let folder = tempfile::Builder::new().prefix("redis-rl-").tempdir().expect("a private folder");
    let certificates = certificates(folder.path());
    let node = |_: usize| {
        let more = |[_, bus]: &[u16; 2]| {
            ["--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", &bus.to_string()].map(String::from).into()
        };
        server(folder.path(), more)
    };
    let nodes: Vec<(Server, [u16; 2])> = (0..2).map(node).collect();
    for (index, (node, ..)) in nodes.iter().enumerate() {
        let from = index * 8_192;
        call::<()>(&mut node.client(), &format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
        call::<()>(&mut node.client(), &format!("CLUSTER ADDSLOTSRANGE {from} {}", from + 8_191));
    }
    call::<()>(&mut nodes[0].0.client(), &format!("CLUSTER MEET 127.0.0.1 {} {}", nodes[1].1[0], nodes[1].1[1]));
    wait_for("the cluster", || {
        nodes.iter().all(|(node, ..)| {
            let info: String = call(&mut node.client(), "CLUSTER INFO");
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        })
    });
    let slot: usize = call(&mut nodes[0].0.client(), "CLUSTER KEYSLOT {a}");
    // The address of the node that does not have the keys.
    let (owner, other) = (slot / 8_192, 1 - slot / 8_192);
    let address = format!("rediss://127.0.0.1:{}/", nodes[other].1[0]);
    let client = Client::build_with_tls(address, certificates).expect("an address");
    let cluster = Cluster::new([client.get_connection_info().clone()]).expect("an address");
    calls(Limits::new(cluster).timeout(LONG).connect_timeout(LONG), &nodes[owner].0).await;
}
