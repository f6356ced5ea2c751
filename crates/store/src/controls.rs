//! What an owner has in memory of its partition as a whole, and has stored with the batch that
//! changes it: bulk jobs, and destinations' settings.

use crate::bulk::Bulks;
use crate::settings::Settings;

/// The controls of one partition.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Controls {
    /// Its bulk jobs.
    pub bulks: Bulks,
    /// The settings of destinations.
    pub settings: Settings,
}
