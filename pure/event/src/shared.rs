//! Names that several fields share, as serde has them: written with each field.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Names;

pub(crate) fn serialize<S: Serializer>(names: &Arc<Names>, to: S) -> Result<S::Ok, S::Error> {
    names.as_ref().serialize(to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<Names>, D::Error> {
    Names::deserialize(from).map(Arc::new)
}
