//! The interface of an operation's module.

use super::subject::Subject;
use crate::place::Retained;
use crate::table::{Context, Table};

/// Who asks for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// An application. It repeats unanswered requests: see *Repeats* in [`crate::ops`].
    Client,
    /// A person, through a client. A repeat finds the timer where the first one has put it.
    Person,
    /// The partition's owner, on its own account.
    Owner,
}

/// The properties of a kind of operation, independent of its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Properties {
    /// Who asks for it.
    pub origin: Origin,
    /// It can make the store hold more than before, if [`Operation::adds`] does not say otherwise:
    /// a full store refuses it.
    pub adds: bool,
    /// At the level `redis-replicated` its answer waits for replicas.
    pub waits: bool,
    /// Its outcome depends on the content of the timer that a key names, and not on its place
    /// alone, if [`Operation::reads_content`] does not say otherwise.
    pub reads_content: bool,
    /// It takes a key back that the timer had; only the store knows which.
    pub takes_key_back: bool,
}

/// One kind of operation.
pub trait Operation {
    /// A store's answer to it.
    type Answer;

    /// The properties of this kind.
    const IS: Properties;

    /// Returns the subject of the operation.
    fn subject(&self) -> Subject<'_>;

    /// Whether this one can make the store hold more than before. It depends on the operation
    /// alone.
    fn adds(&self) -> bool {
        Self::IS.adds
    }

    /// Whether the outcome of this one depends on the content of the timer that a key names.
    fn reads_content(&self) -> bool {
        Self::IS.reads_content
    }

    /// The most retained timers of each kind ([`Retained`]) that it can make leave. It depends on
    /// the operation alone.
    fn removes(&self) -> [usize; Retained::COUNT];

    /// Decides, and carries it out.
    ///
    /// # Errors
    ///
    /// The table's, if a read or a write of it fails.
    fn decide<T: Table>(&self, table: &mut T, ctx: &Context) -> Result<Self::Answer, T::Error>;
}

/// To an operation of the owner that moves a timer to another place: take, park and unpark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveAnswer {
    /// Moved, or found there.
    Done,
    /// The timer is not where the operation needs it; nothing changed.
    Gone,
}
