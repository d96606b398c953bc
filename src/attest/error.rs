//! What can be wrong with keys, signatures and lists of digests.

/// A result of this module.
pub type Result<T> = std::result::Result<T, AttestError>;

/// Why something can't be signed or verified.
#[derive(Debug, thiserror::Error)]
pub enum AttestError {
    /// A key, signature file, list or name is not what it should be.
    #[error("{place} {what}")]
    Bad {
        /// Where: a path, with a line where there is one; a variable. Never a key's text.
        place: String,
        /// What is wrong, to be read behind the place.
        what: String,
        /// What to do.
        hint: Option<String>,
    },
    /// The file is a signature, and not one of this key over this content.
    #[error("{place} {what}")]
    NotSigned {
        /// The signature's file.
        place: String,
        /// What is wrong, to be read behind the place.
        what: String,
        /// What to do.
        hint: Option<String>,
    },
    /// The user stopped it.
    #[error("stopped")]
    Cancelled,
}

impl AttestError {
    /// Something at `place` that is not what it should be.
    pub fn bad(place: impl Into<String>, what: impl Into<String>, hint: &str) -> Self {
        let hint = Some(hint.to_owned()).filter(|h| !h.is_empty());
        Self::Bad { place: place.into(), what: what.into(), hint }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Bad { hint, .. } | Self::NotSigned { hint, .. } => hint.clone(),
            Self::Cancelled => None,
        }
    }
}
