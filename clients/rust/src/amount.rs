//! How many units a call asks for, and under which id.

use crate::Error;

/// How many units a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Cost(u64),
    UpTo(u64),
    Force(u64),
    Refund(u64),
}

impl Amount {
    pub(crate) fn units(self) -> u64 {
        match self {
            Self::Cost(units) | Self::UpTo(units) | Self::Force(units) | Self::Refund(units) => units,
        }
    }

    pub(crate) fn check(self) -> Result<(), Error> {
        check_units(self.units(), 1)
    }

    /// Its words in a command: none for a single unit.
    pub(crate) fn words(self) -> Option<(&'static str, u64)> {
        match self {
            Self::Cost(1) => None,
            Self::Cost(units) => Some(("COST", units)),
            Self::UpTo(units) => Some(("UPTO", units)),
            Self::Force(units) => Some(("FORCE", units)),
            Self::Refund(units) => Some(("REFUND", units)),
        }
    }
}

/// Checks a number of units.
pub(crate) fn check_units(units: u64, least: u64) -> Result<(), Error> {
    match (least..=1_000_000_000_000).contains(&units) {
        true => Ok(()),
        false => Err(Error::InvalidCost(format!("units must be a whole number from {least} to 1000000000000, not {units}"))),
    }
}

pub(crate) fn check_id(id: &[u8]) -> Result<&[u8], Error> {
    match id.len() {
        1..=64 => Ok(id),
        length => Err(Error::InvalidId(format!("an id must be 1 to 64 bytes long, not {length}"))),
    }
}
