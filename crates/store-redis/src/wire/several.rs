//! The same question to several servers: how many answers are waited for.

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::node::Lost;

/// The first that comes.
pub(super) async fn first<T, L>(looks: impl IntoIterator<Item = L>) -> Result<T, Lost>
where
    L: Future<Output = Result<T, Lost>>,
{
    some(looks, |_| 1).await.and_then(|mut came| came.pop().ok_or_else(|| all_of(&[])))
}

/// The answers of more than half of them, or of all that answer.
pub(super) async fn majority<T, L>(looks: impl IntoIterator<Item = L>) -> Result<Vec<T>, Lost>
where
    L: Future<Output = Result<T, Lost>>,
{
    some(looks, |asked| asked / 2 + 1).await
}

/// The answers that come first: as many as are enough of so many, or all.
async fn some<T, L>(
    looks: impl IntoIterator<Item = L>,
    enough: impl Fn(usize) -> usize,
) -> Result<Vec<T>, Lost>
where
    L: Future<Output = Result<T, Lost>>,
{
    let mut looks: FuturesUnordered<_> = looks.into_iter().collect();
    let enough = enough(looks.len());
    let (mut answers, mut reasons) = (Vec::new(), Vec::new());
    while answers.len() < enough
        && let Some(looked) = looks.next().await
    {
        match looked {
            Ok(answer) => answers.push(answer),
            Err(lost) => reasons.push(lost),
        }
    }
    if answers.is_empty() { Err(all_of(&reasons)) } else { Ok(answers) }
}

/// One reason for several.
pub(super) fn all_of(reasons: &[Lost]) -> Lost {
    match reasons {
        [] => Lost("no other server is known".into()),
        some => Lost(some.iter().map(|lost| lost.0.as_str()).collect::<Vec<_>>().join("; ")),
    }
}
