//! The header's JSON, read from a stream into tensors. Errors are typed and name the tensor.

use std::cell::RefCell;
use std::fmt;
use std::io::Read;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{HeaderError, MAX_RANK, TensorInfo};

/// What serde's errors can't carry: the first typed error, and where the parser stands.
#[derive(Default)]
pub(super) struct Seen {
    error: RefCell<Option<HeaderError>>,
    place: RefCell<Place>,
}

#[derive(Default)]
enum Place {
    #[default]
    Top,
    Metadata(Option<String>),
    Tensor(String),
}

impl Seen {
    /// Keeps the first typed error.
    pub(super) fn fail(&self, e: HeaderError) {
        self.error.borrow_mut().get_or_insert(e);
    }

    fn stop<E: serde::de::Error>(&self, e: HeaderError) -> E {
        self.fail(e);
        E::custom("refused")
    }

    fn at(&self, place: Place) {
        *self.place.borrow_mut() = place;
    }

    fn tensor(&self) -> String {
        match &*self.place.borrow() {
            Place::Tensor(t) => t.clone(),
            _ => String::new(),
        }
    }
}

pub(super) struct Parsed {
    pub(super) metadata: Option<Vec<(String, String)>>,
    pub(super) tensors: Vec<TensorInfo>,
}

/// Reads one JSON object and nothing behind it but white space.
pub(super) fn parse(text: impl Read, seen: &Seen) -> Result<Parsed, HeaderError> {
    let mut de = serde_json::Deserializer::from_reader(text);
    let result = de.deserialize_map(Top(seen)).and_then(|parsed| {
        seen.at(Place::Top);
        de.end().map(|()| parsed)
    });
    result.map_err(|e| {
        if let Some(typed) = seen.error.take() {
            return typed;
        }
        if e.is_io() {
            return HeaderError::Io(e.into());
        }
        let what = e.to_string();
        match seen.place.take() {
            Place::Tensor(tensor) if e.is_data() => HeaderError::BadTensor { tensor, what },
            Place::Metadata(key) if e.is_data() => HeaderError::BadMetadata { key, what },
            _ => HeaderError::NotJson { what },
        }
    })
}

struct Top<'a>(&'a Seen);

impl<'de> Visitor<'de> for Top<'_> {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
        let seen = self.0;
        let mut metadata = None;
        let mut tensors = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if metadata.is_some() {
                    return Err(seen.stop(HeaderError::DuplicateMetadata));
                }
                seen.at(Place::Metadata(None));
                metadata = Some(map.next_value_seed(Metadata(seen))?);
            } else {
                seen.at(Place::Tensor(name.clone()));
                tensors.push(map.next_value_seed(Tensor { seen, name })?);
            }
            seen.at(Place::Top);
        }
        Ok(Parsed { metadata: metadata.flatten(), tensors })
    }
}

struct Metadata<'a>(&'a Seen);

impl<'de> DeserializeSeed<'de> for Metadata<'_> {
    type Value = Option<Vec<(String, String)>>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_> {
    type Value = Option<Vec<(String, String)>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        let mut keys = std::collections::HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            self.0.at(Place::Metadata(Some(key.clone())));
            let value = map.next_value::<String>()?;
            if !keys.insert(key.clone()) {
                return Err(self.0.stop(HeaderError::DuplicateMetadataKey { key }));
            }
            pairs.push((key, value));
            self.0.at(Place::Metadata(None));
        }
        Ok(Some(pairs))
    }
}

struct Tensor<'a> {
    seen: &'a Seen,
    name: String,
}

impl<'de> DeserializeSeed<'de> for Tensor<'_> {
    type Value = TensorInfo;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Tensor<'_> {
    type Value = TensorInfo;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TensorInfo, A::Error> {
        let Tensor { seen, name } = self;
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key::<String>()? {
            let twice = match field.as_str() {
                "dtype" => {
                    let text = map.next_value::<String>()?;
                    let parsed = text.parse().map_err(|_| {
                        let dtype = text.chars().take(64).collect();
                        seen.stop(HeaderError::UnknownDtype { tensor: name.clone(), dtype })
                    })?;
                    dtype.replace(parsed).is_some()
                }
                "shape" => shape.replace(map.next_value_seed(Numbers { seen, field: "shape" })?).is_some(),
                "data_offsets" => {
                    offsets.replace(map.next_value_seed(Numbers { seen, field: "data_offsets" })?).is_some()
                }
                other => {
                    map.next_value::<IgnoredAny>()?;
                    return Err(A::Error::custom(format!("the field {other:?} is not of the format")));
                }
            };
            if twice {
                return Err(A::Error::custom(format!("the field {field:?} stands twice")));
            }
        }
        let dtype = dtype.ok_or_else(|| A::Error::missing_field("dtype"))?;
        let shape = shape.ok_or_else(|| A::Error::missing_field("shape"))?;
        let offsets: Vec<u64> = offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?;
        let [begin, end] = offsets[..] else {
            return Err(A::Error::custom(format!("data_offsets holds {} numbers instead of 2", offsets.len())));
        };
        Ok(TensorInfo { name, dtype, shape, begin, end })
    }
}

struct Numbers<'a> {
    seen: &'a Seen,
    field: &'static str,
}

impl<'de> DeserializeSeed<'de> for Numbers<'_> {
    type Value = Vec<u64>;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Numbers<'_> {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of numbers for {}", self.field)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u64>, A::Error> {
        let mut out = Vec::new();
        while let Some(n) = seq.next_element::<serde_json::Number>()? {
            let tensor = || self.seen.tensor();
            let Some(n) = n.as_u64() else {
                let value = n.to_string().chars().take(64).collect();
                return Err(self.seen.stop(HeaderError::BadNumber { tensor: tensor(), field: self.field, value }));
            };
            if out.len() == MAX_RANK {
                return Err(self.seen.stop(HeaderError::TooManyDimensions { tensor: tensor() }));
            }
            out.push(n);
        }
        Ok(out)
    }
}
