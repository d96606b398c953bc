//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;

/// The name of an index in a checkpoint.
pub const INDEX_NAME: &str = "model.safetensors.index.json";

/// The largest index that is read, in bytes.
pub const MAX_INDEX_BYTES: u64 = 100_000_000;

/// An index, with everything in it that is not ours.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Index {
    /// Tensor name → file name of its shard.
    pub weight_map: BTreeMap<String, String>,
    /// The `metadata` object in the order of the file; `None` where there is none.
    pub metadata: Option<Vec<(String, Value)>>,
    /// Every other key of the file, in its order.
    pub others: Vec<(String, Value)>,
}

/// Why an index is refused. The caller adds the path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// It is no JSON of the form of an index.
    #[error("not an index: {what}")]
    NotIndex {
        /// What the parser says, with line and column.
        what: String,
    },
    /// A key stands twice.
    #[error("{place} holds the key {key:?} twice")]
    Duplicate {
        /// `the index`, `metadata` or `weight_map`.
        place: &'static str,
        /// The key.
        key: String,
    },
    /// A shard's name is no plain file name.
    #[error("weight_map puts {tensor:?} into {shard:?}, which is no plain file name")]
    BadShardName {
        /// The tensor.
        tensor: String,
        /// The name.
        shard: String,
    },
}

impl Index {
    /// Reads an index. Errors: [`IndexError`].
    pub fn parse(bytes: &[u8]) -> Result<Index, IndexError> {
        let twice = std::cell::RefCell::new(None);
        let mut de = serde_json::Deserializer::from_slice(bytes);
        let pairs = Pairs { place: "the index", twice: &twice, inner: Part::Top }
            .deserialize(&mut de)
            .and_then(|v| de.end().map(|()| v));
        let index = match pairs {
            Ok(Read::Index(index)) => index,
            Ok(_) => return Err(IndexError::NotIndex { what: "no object".to_owned() }),
            Err(e) => {
                return Err(twice.take().unwrap_or_else(|| IndexError::NotIndex { what: e.to_string() }));
            }
        };
        for (tensor, shard) in &index.weight_map {
            if matches!(shard.as_str(), "" | "." | "..") || shard.contains(['/', '\\', '\0']) {
                return Err(IndexError::BadShardName { tensor: tensor.clone(), shard: shard.clone() });
            }
        }
        Ok(index)
    }

    /// `metadata.total_size`, where it is an unsigned integer.
    pub fn total_size(&self) -> Option<u64> {
        self.meta("total_size")?.as_u64()
    }

    /// The value of a metadata key.
    pub fn meta(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().flatten().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// Sets a metadata key, in its place where it is there.
    pub fn set_meta(&mut self, key: &str, value: Value) {
        let metadata = self.metadata.get_or_insert_default();
        match metadata.iter_mut().find(|(k, _)| k == key) {
            Some((_, v)) => *v = value,
            None => metadata.push((key.to_owned(), value)),
        }
    }

    /// Brings the sums up to date: `total_size` becomes the sum of the tensors' bytes; `total_parameters`, where it is
    /// there, changes by the elements that came and went (what it counts stays its maker's affair). One that is no
    /// unsigned integer, or would leave their range, is removed; says so by returning its old value.
    pub fn update_sums(&mut self, total_size: u64, elements_added: u64, elements_removed: u64) -> Option<Value> {
        self.set_meta("total_size", total_size.into());
        let old = self.meta("total_parameters")?.clone();
        let new = old.as_u64().and_then(|n| n.checked_add(elements_added)?.checked_sub(elements_removed));
        match new {
            Some(n) => {
                self.set_meta("total_parameters", n.into());
                None
            }
            None => {
                self.metadata.iter_mut().for_each(|m| m.retain(|(k, _)| k != "total_parameters"));
                Some(old)
            }
        }
    }

    /// The file: metadata, the other keys, then the map sorted by bytes; indented by 2, one newline at the end.
    pub fn to_json(&self) -> String {
        let mut top = serde_json::Map::new();
        if let Some(m) = &self.metadata {
            top.insert("metadata".to_owned(), Value::Object(m.iter().cloned().collect()));
        }
        for (k, v) in &self.others {
            top.insert(k.clone(), v.clone());
        }
        let map = self.weight_map.iter().map(|(k, v)| (k.clone(), Value::String(v.clone()))).collect();
        top.insert("weight_map".to_owned(), Value::Object(map));
        format!("{:#}\n", Value::Object(top))
    }
}

enum Part {
    Top,
    Metadata,
    WeightMap,
}

enum Read {
    Index(Index),
    Metadata(Option<Vec<(String, Value)>>),
    WeightMap(BTreeMap<String, String>),
}

struct Pairs<'a> {
    place: &'static str,
    twice: &'a std::cell::RefCell<Option<IndexError>>,
    inner: Part,
}

impl<'de> DeserializeSeed<'de> for Pairs<'_> {
    type Value = Read;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Read, D::Error> {
        match self.inner {
            Part::Metadata => d.deserialize_option(self),
            _ => d.deserialize_map(self),
        }
    }
}

impl Pairs<'_> {
    fn duplicate<E: serde::de::Error>(&self, key: String) -> E {
        self.twice.borrow_mut().get_or_insert(IndexError::Duplicate { place: self.place, key });
        E::custom("refused")
    }
}

impl<'de> Visitor<'de> for Pairs<'_> {
    type Value = Read;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.inner {
            Part::Top => "an object with weight_map",
            Part::Metadata => "metadata as an object",
            Part::WeightMap => "weight_map as an object of strings",
        })
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Read, E> {
        match self.inner {
            Part::Metadata => Ok(Read::Metadata(None)),
            _ => Err(E::custom("null instead of an object")),
        }
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Read, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Read, D::Error> {
        d.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Read, A::Error> {
        match self.inner {
            Part::Top => {
                let (mut metadata, mut weight_map, mut others) = (None, None, Vec::<(String, Value)>::new());
                while let Some(key) = map.next_key::<String>()? {
                    let seed = |place, inner| Pairs { place, twice: self.twice, inner };
                    let again = match key.as_str() {
                        "metadata" => {
                            metadata.replace(map.next_value_seed(seed("metadata", Part::Metadata))?).is_some()
                        }
                        "weight_map" => {
                            weight_map.replace(map.next_value_seed(seed("weight_map", Part::WeightMap))?).is_some()
                        }
                        _ => {
                            let again = others.iter().any(|(k, _)| *k == key);
                            others.push((key.clone(), map.next_value()?));
                            again
                        }
                    };
                    if again {
                        return Err(self.duplicate(key));
                    }
                }
                let metadata = match metadata {
                    Some(Read::Metadata(m)) => m,
                    _ => None,
                };
                let Some(Read::WeightMap(weight_map)) = weight_map else {
                    return Err(A::Error::missing_field("weight_map"));
                };
                Ok(Read::Index(Index { weight_map, metadata, others }))
            }
            Part::Metadata => {
                let mut pairs: Vec<(String, Value)> = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if pairs.iter().any(|(k, _)| *k == key) {
                        return Err(self.duplicate(key));
                    }
                    pairs.push((key, map.next_value()?));
                }
                Ok(Read::Metadata(Some(pairs)))
            }
            Part::WeightMap => {
                let mut pairs = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let shard = map.next_value::<String>()?;
                    if pairs.contains_key(&key) {
                        return Err(self.duplicate(key));
                    }
                    pairs.insert(key, shard);
                }
                Ok(Read::WeightMap(pairs))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_keeps_what_is_not_ours_and_its_sums_follow_the_tensors() {
        let text = r#"{"metadata": {"total_size": 32, "total_parameters": 8, "made_by": {"x": 1e400}}, "note": [1.50],
            "weight_map": {"b": "model-00002-of-00002.safetensors", "a": "model-00001-of-00002.safetensors"}}"#;
        let mut index = Index::parse(text.as_bytes()).unwrap();
        assert_eq!(index.total_size(), Some(32));
        index.weight_map.insert("aa".into(), "model-graft.safetensors".into());
        assert_eq!(index.update_sums(40, 2, 0), None);
        let expected = r#"{
  "metadata": {
    "total_size": 40,
    "total_parameters": 10,
    "made_by": {
      "x": 1e+400
    }
  },
  "note": [
    1.50
  ],
  "weight_map": {
    "a": "model-00001-of-00002.safetensors",
    "aa": "model-graft.safetensors",
    "b": "model-00002-of-00002.safetensors"
  }
}
"#;
        assert_eq!(index.to_json(), expected);
        assert_eq!(Index::parse(expected.as_bytes()).unwrap(), index);
    }

    #[test]
    fn a_parameter_count_that_can_not_be_kept_right_is_removed_and_told() {
        for old in ["\"8\"", "8.0", "1", "18446744073709551615"] {
            let text = format!(r#"{{"metadata":{{"total_parameters":{old},"k":1}},"weight_map":{{}}}}"#);
            let mut index = Index::parse(text.as_bytes()).unwrap();
            assert_eq!(index.update_sums(0, 2, 4).unwrap().to_string(), old);
            assert_eq!(index.metadata.unwrap().iter().map(|p| p.0.as_str()).collect::<Vec<_>>(), ["k", "total_size"]);
        }
    }

    #[test]
    fn a_key_that_stands_twice_is_refused_naming_its_place() {
        for (text, place, key) in [
            (r#"{"weight_map":{"a":"x","a":"x"}}"#, "weight_map", "a"),
            (r#"{"metadata":{"n":1,"n":1},"weight_map":{}}"#, "metadata", "n"),
            (r#"{"weight_map":{},"weight_map":{}}"#, "the index", "weight_map"),
            (r#"{"x":1,"x":1,"weight_map":{}}"#, "the index", "x"),
        ] {
            assert_eq!(Index::parse(text.as_bytes()), Err(IndexError::Duplicate { place, key: key.to_owned() }));
        }
    }

    #[test]
    fn a_shard_name_that_could_lead_out_of_the_checkpoint_is_refused() {
        for shard in ["../x", "a/b", "/etc/passwd", "", ".", "..", "a\\\\b", "a\\u0000b"] {
            let text = format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#);
            assert!(matches!(Index::parse(text.as_bytes()), Err(IndexError::BadShardName { .. })), "{shard}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"weight_map":[]}"#,
            r#"{"weight_map":{"a":1}}"#,
            r#"{"weight_map":null}"#,
            r#"{"weight_map":{}} x"#,
            r#"{"metadata":3,"weight_map":{}}"#,
        ] {
            assert!(matches!(Index::parse(text.as_bytes()), Err(IndexError::NotIndex { .. })), "{text}");
        }
        assert_eq!(Index::parse(br#"{"metadata":null,"weight_map":{}}"#).unwrap().metadata, None);
    }
}
