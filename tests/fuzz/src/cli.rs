//! Modules of the `mtimer` program, under the path that they have there.

#[allow(dead_code, unreachable_pub)]
#[path = "../../../broker/src/cli/moment.rs"]
pub(crate) mod moment;
