//! Which timer a request is about.

use serde::{Deserialize, Serialize};

use crate::id::TimerId;
use crate::name::{Destination, Key, NameError};
use crate::partition::PartitionId;

/// Names a timer in cancel, reschedule and get: by id, or by key and destination.
///
/// ```
/// use mtimer_types::{Destination, Key, Target, TimerId};
///
/// # fn main() -> Result<(), mtimer_types::NameError> {
/// let orders = Destination::new("shop", "orders")?;
/// let by_key = orders.key("order-17")?;
/// assert_eq!(by_key, Target::from((&orders, &Key::new("order-17")?)));
///
/// let id = TimerId::from_u128(7);
/// assert_eq!(Target::from(id), Target::from(&id));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Target {
    /// By id.
    Id(TimerId),
    /// By the application's key; made by [`Destination::key`], too.
    Key(Destination, Key),
}

impl Target {
    /// The partition that it is in, of so many.
    pub fn partition(&self, partitions: u16) -> PartitionId {
        match self {
            Self::Id(id) => id.partition(),
            Self::Key(dest, key) => PartitionId::of_key(dest, key, partitions),
        }
    }
}

impl Destination {
    /// Names the timer with this key: for cancel, reschedule and get.
    ///
    /// ```
    /// # use mtimer_types::{Destination, NameError, Target};
    /// # fn main() -> Result<(), NameError> {
    /// let orders = Destination::new("shop", "orders")?;
    /// let target: Target = orders.key("order-17")?;
    /// # let _ = target;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NameError`] as for [`Key::new`].
    pub fn key(&self, key: &str) -> Result<Target, NameError> {
        Ok(Target::Key(self.clone(), Key::new(key)?))
    }
}

impl From<TimerId> for Target {
    fn from(id: TimerId) -> Self {
        Self::Id(id)
    }
}

impl From<&TimerId> for Target {
    fn from(id: &TimerId) -> Self {
        Self::Id(*id)
    }
}

impl From<&Target> for Target {
    fn from(target: &Target) -> Self {
        target.clone()
    }
}

impl From<(&Destination, &Key)> for Target {
    fn from((dest, key): (&Destination, &Key)) -> Self {
        Self::Key(dest.clone(), key.clone())
    }
}
