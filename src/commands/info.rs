//! `INFO rl`: the counters, and what the module is doing now.

use redis_module::{InfoContext, RedisResult};
use redis_module_macros::info_command_handler;

use super::shared::stats::{self, Count, ABANDONED, PAUSES, RELEASED, SETTLED, TIMEOUTS, WAITS};
use super::shared::waiting::waiting_clients;
use crate::limiter::Kind;
use crate::server::shortcuts_are_in_use;

/// Replies to `INFO rl`.
#[info_command_handler]
fn info(ctx: &InfoContext, _for_crash_report: bool) -> RedisResult<()> {
    let section = ctx.builder().add_section("").field("version", env!("CARGO_PKG_VERSION"))?;
    let section =
        fields().into_iter().try_fold(section, |section, (name, value)| section.field(&name, value.to_string()))?;
    section.build_section()?.build_info()?;
    Ok(())
}

/// The names and the values of all fields that are numbers.
fn fields() -> Vec<(String, u64)> {
    let mut fields = Vec::new();
    let mut all_retried = 0_u64;
    for (kind, calls) in Kind::ALL.iter().filter_map(|&kind| Some((kind, stats::calls(kind)?))) {
        let name = kind.name().to_lowercase();
        let [granted, denied, shadowed, retried] = calls.all().map(Count::get);
        all_retried = all_retried.wrapping_add(retried);
        let calls = granted.wrapping_add(denied).wrapping_add(retried);
        let counts = [("calls", calls), ("granted", granted), ("denied", denied), ("shadowed", shadowed)];
        fields.extend(counts.map(|(what, count)| (format!("{name}_{what}"), count)));
    }
    let totals = [
        ("settled", SETTLED.get()),
        ("released", RELEASED.get()),
        ("retried", all_retried),
        ("pauses", PAUSES.get()),
        ("waiting_clients", waiting_clients()),
        ("waits", WAITS.get()),
        ("wait_timeouts", TIMEOUTS.get()),
        ("waits_abandoned", ABANDONED.get()),
        ("shortcuts", shortcuts_are_in_use().into()),
    ];
    fields.extend(totals.map(|(what, count)| (what.into(), count)));
    fields
}
