//! Draws what the algorithms grant, in pictures of real calls to a real server. `make plots`
//!
//! Writes docs/choosing-*.svg, the figures in docs/choosing.md, and docs/waiting.svg, the picture of the README.

mod draw;
mod gateway;
mod held;
mod traffic;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Parser;

use support::root;
use tools::chart;

use held::Units;
use traffic::{Played, Row};

/// Calls the algorithms under several kinds of traffic, and draws what they granted
#[derive(Parser)]
struct Options {
    /// Determines the random traffic
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The folder to write the pictures and the page to
    #[arg(long, default_value_os_t = root().join("docs"))]
    out: PathBuf,
    /// The most milliseconds by which a call may be late: a picture has to show the traffic that it claims to show
    #[arg(long, default_value_t = 50)]
    late: i64,
}

fn main() {
    let options = Options::parse();
    fs::create_dir_all(&options.out).unwrap_or_else(|error| panic!("{}: {error}", options.out.display()));
    println!("Half a minute of traffic");
    let run = (1..=ATTEMPTS)
        .map(|_| Run::play(options.seed))
        .find(|run| run.is_in_time(options.late * 1_000))
        .unwrap_or_else(|| panic!("calls were late or missed {ATTEMPTS} times: the machine is too busy to draw from"));
    let Run { burst, overload, boundary, attacked, random, bytes, work, given_back, gateway, stopped, lines } = run;
    let accuracy = traffic::accuracy(&attacked, &random);
    let picture = |file: &'static str, draw: &dyn Fn(&Path) -> String| (file, draw(&options.out.join(file)));
    let titles = [
        picture("choosing-burst.svg", &|path| draw::burst(&burst, path)),
        picture("choosing-overload.svg", &|path| draw::overload(&overload, path)),
        picture("choosing-boundary.svg", &|path| draw::boundary(&boundary, path)),
        picture("choosing-accuracy.svg", &|path| draw::accuracy(&accuracy, path)),
        picture("choosing-leases.svg", &|path| draw::work(&work, path)),
        picture("choosing-settle.svg", &|path| draw::given_back(&given_back, path)),
        picture("choosing-gateway.svg", &|path| draw::gateway(&gateway, path)),
        picture("choosing-stopped.svg", &|path| draw::stopped(&stopped, path)),
    ];
    draw::in_line(&lines, &options.out.join("waiting.svg"));
    let tables = [("accuracy", table(&accuracy, &bytes)), ("boundary", promises(&boundary))];
    chart::fill(&root().join("docs/choosing.md"), &options.out.join("choosing.md"), "make plots", &tables, &titles);
}

/// How often the traffic is played on a machine that is busy with other work.
const ATTEMPTS: usize = 4;
/// If calls may be later than this, in microseconds, the attack need not get all that it can.
const STRICT_US: i64 = 50_000;

/// The outcome of all traffic on one server.
struct Run {
    burst: Played,
    overload: Played,
    boundary: Played,
    attacked: Played,
    random: Vec<Played>,
    bytes: Vec<i64>,
    work: [Units; 2],
    given_back: [Units; 2],
    gateway: [gateway::Lane; 2],
    stopped: [gateway::Fleet; 2],
    lines: [gateway::Line; 2],
}

impl Run {
    fn play(seed: u64) -> Self {
        let server = &support::Server::start();
        // The traffic begins at a whole second of the clock, which the server shares: grids of windows begin there, too.
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(clock.as_secs() + 2);
        std::thread::scope(|scope| {
            let play = |name: &str, lanes, arrivals: Vec<f64>| {
                let name = name.to_string();
                scope.spawn(move || Played::of(server, &name, lanes, &arrivals, begin))
            };
            let burst = play("burst", &traffic::BURST[..], traffic::burst());
            let overload = play("overload", &traffic::OVERLOAD, traffic::overload());
            let boundary = play("boundary", &traffic::BOUNDARY, traffic::boundary());
            let attacked = play("attacked", &traffic::ACCURACY, traffic::attacks());
            let streams = traffic::random(seed).into_iter().enumerate();
            let random: Vec<_> =
                streams.map(|(at, arrivals)| play(&format!("random-{at}"), &traffic::ACCURACY, arrivals)).collect();
            let bytes = scope.spawn(move || traffic::bytes(server, begin));
            let work = scope.spawn(move || held::work(server, begin));
            let given_back = scope.spawn(move || held::given_back(server, begin));
            let gateway = scope.spawn(move || gateway::lanes(server, begin));
            let stopped = scope.spawn(move || gateway::fleets(server, begin));
            let lines = scope.spawn(move || gateway::in_line(server, begin));
            let end = |thread: std::thread::ScopedJoinHandle<Played>| thread.join().expect("traffic");
            Self {
                burst: end(burst),
                overload: end(overload),
                boundary: end(boundary),
                attacked: end(attacked),
                random: random.into_iter().map(end).collect(),
                bytes: bytes.join().expect("memory"),
                work: work.join().expect("work"),
                given_back: given_back.join().expect("charges"),
                gateway: gateway.join().expect("calls"),
                stopped: stopped.join().expect("calls"),
                lines: lines.join().expect("calls"),
            }
        })
    }

    /// Whether no call was too late. Calls at random times may come at any time.
    fn is_in_time(&self, late_us: i64) -> bool {
        let late = [&self.burst, &self.overload, &self.boundary, &self.attacked].map(|played| played.late_us);
        let others = self.work.iter().chain(&self.given_back).map(|units| units.late_us);
        let others = others.chain(self.gateway.iter().map(|lane| lane.late_us));
        let others = others.chain(self.lines.iter().map(|line| line.late_us));
        let late = late.into_iter().chain(others).max().expect("some");
        if late > late_us {
            println!("A call was {} ms late", late / 1_000);
        }
        late <= late_us && !self.bytes.contains(&0) && (self.is_attacked() || late_us > STRICT_US)
    }

    /// Whether the attack got as much from each limiter as the limiter may ever grant. It can't get more.
    fn is_attacked(&self) -> bool {
        let most = (0..traffic::BOUNDARY.len()).map(|lane| self.boundary.most_in_a_window(lane));
        let rows = traffic::BOUNDARY.iter().zip(traffic::PROMISED).zip(most);
        let missed = rows.filter(|((lane, (_, promised)), most)| {
            assert!(most <= promised, "{} granted {most} in a period", lane.name);
            most != promised
        });
        let missed: Vec<_> = missed.map(|((lane, _), most)| format!("{} {most}", lane.name)).collect();
        if !missed.is_empty() {
            println!("The attack got less than it could: {}", missed.join(", "));
        }
        missed.is_empty()
    }
}

/// What each limiter may grant within a period, and what it granted in the picture.
fn promises(boundary: &Played) -> String {
    let mut rows = format!("| | at most | at a limit of {} | granted here |\n|---|---|---:|---:|\n", traffic::LIMIT);
    for (lane, (words, promised)) in traffic::PROMISED.into_iter().enumerate() {
        let (name, most) = (traffic::BOUNDARY[lane].name, boundary.most_in_a_window(lane));
        rows += &format!("| `RL.{name}` | {words} | {promised} | {most} |\n");
    }
    rows
}

/// The figures of the picture, and the memory that each limiter takes.
fn table(accuracy: &[Row], bytes: &[i64]) -> String {
    let mut rows = String::from(
        "| | bytes | most in a period: attack | random | granted: attack | random |\n|---|---:|---:|---:|---:|---:|\n",
    );
    for (row, bytes) in accuracy.iter().zip(bytes) {
        let figures = [row.most, row.share].map(|pair| format!("{:.2} | {:.2}", pair.attacked, pair.random));
        let of = if row.lane.class == chart::SLIDE { "SLIDE " } else { "" };
        rows += &format!("| {of}{} | {bytes} | {} |\n", row.lane.name, figures.join(" | "));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The numbers in the title of a picture.
    fn numbers(page: &str, file: &str) -> Vec<String> {
        let (before, _) = page.split_once(&format!("]({file})")).expect("a picture");
        let (_, title) = before.rsplit_once("![").expect("its title");
        let words = title.split(|sign: char| !sign.is_ascii_digit()).filter(|word| !word.is_empty());
        words.map(str::to_string).collect()
    }

    #[test]
    fn the_page_says_what_the_pictures_show() {
        let docs = root().join("docs");
        let page = read(&docs.join("choosing.md"));
        // Sentences may begin a new line anywhere.
        let text = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let says = |words: String| assert!(text.contains(&words), "{words}");

        let [rate, leases] = &numbers(&page, "choosing-leases.svg")[..] else { panic!("two numbers") };
        says(format!("so while the backend is slow, up to {rate} calls are under way"));
        says(format!("`RL.LEASE` never lets more than {leases} be under way"));
        let [limit, refunded, released] = &numbers(&page, "choosing-settle.svg")[..] else { panic!("three numbers") };
        says(format!("`RL.SLIDE` allows {limit} units per 3 seconds"));
        says(format!("B and C have then used {refunded} units"));
        assert_eq!(released, limit);
        let [paused, alone] = &numbers(&page, "choosing-stopped.svg")[..] else { panic!("two numbers") };
        says(format!("{paused} of its calls is answered `429`; in the other fleet {alone} are"));

        // The title of the README's picture is also its text for those who can't see it.
        let picture = read(&docs.join("waiting.svg"));
        let titles = picture.split("class=\"title\">").skip(1).filter_map(|rest| rest.split('<').next());
        let title = titles.collect::<Vec<_>>().join(" ");
        assert!(read(&root().join("README.md")).contains(&format!("alt=\"{title}\"")), "{title}");

        // Each row of the table of promises is a bar.
        let picture = read(&docs.join("choosing-boundary.svg"));
        for (lane, (_, promised)) in traffic::BOUNDARY.iter().zip(traffic::PROMISED) {
            assert!(text.contains(&format!("| {promised} | {promised} |")), "{}", lane.name);
            let bar = picture.split_once(&format!(">{}</text>", lane.name)).expect("a bar").1;
            let figure = bar.split("</text>").next().expect("its figure");
            assert!(figure.ends_with(&format!(">{promised}")), "{}: {figure}", lane.name);
        }
    }
}
