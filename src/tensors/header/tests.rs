use super::*;
use crate::tensors::testing::{Made, data, file_of, raw, shard};

fn read(bytes: &[u8]) -> Result<Header, HeaderError> {
    Header::read(&file_of(bytes), bytes.len() as u64)
}

fn reference_accepts(bytes: &[u8]) -> bool {
    safetensors::SafeTensors::deserialize(bytes).is_ok()
}

fn one(text: &str) -> String {
    format!("{{\"a\":{text}}}")
}

#[test]
fn malformed_files_are_refused_and_odd_legal_ones_read_as_the_reference_does() {
    let mut count = 0;
    for entry in std::fs::read_dir(data("malformed")).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_file() {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).unwrap();
        let ours = read(&bytes);
        let legal = ["00", "17", "18", "20", "21", "22", "23"].iter().any(|p| name.starts_with(p));
        assert_eq!(ours.is_ok(), legal, "{name}: {ours:?}");
        assert_eq!(reference_accepts(&bytes), legal, "{name}");
        count += 1;
    }
    assert_eq!(count, 21);
}

#[test]
fn each_malformed_file_is_refused_for_its_own_fault_naming_tensor_and_values() {
    let message = |name: &str| read(&std::fs::read(data("malformed").join(name)).unwrap()).unwrap_err().to_string();
    for (name, expected) in [
        (
            "01-header-len-over-100MB",
            "the header's length is given as 100000001 bytes, more than the 100000000 that the format allows",
        ),
        ("02-header-len-past-eof", "the header's length is given as 4096 bytes, but only 128 follow"),
        ("03-file-shorter-than-8", "the file has 3 bytes, too few for the 8 bytes of a header's length"),
        ("04-header-not-utf8", "the header is not UTF-8: byte 3 of it starts no character"),
        ("05-header-not-json", "the header is not a JSON object: EOF while parsing an object at line 1 column 53"),
        ("07-overlap", "the tensor \"b\" starts at 4, inside \"a\", which ends at 8"),
        ("08-hole", "the tensor \"b\" starts at 12, but \"a\" ends at 8: the bytes between belong to no tensor"),
        ("10-trailing-bytes", "the tensors end at 16 (the last is \"b\"), but the file has 24 bytes of data"),
        ("11-offsets-past-eof", "the tensors end at 24 (the last is \"b\"), but the file has 16 bytes of data"),
        ("13-size-mismatch", "the tensor \"a\" of type F32 and shape [3] has 12 bytes, but its offsets span 8"),
        ("14-duplicate-key", "the tensor \"a\" stands twice in the header"),
        ("16-dtype-unknown", "the tensor \"a\" has the unknown element type \"F99\""),
        ("26-negative-dim", "the tensor \"a\": shape holds -2, which is no unsigned 64-bit integer"),
        ("30-lfs-pointer", "the file is a git-lfs pointer, not the weights themselves"),
    ] {
        assert_eq!(message(&format!("{name}.safetensors")), expected);
    }
}

#[test]
fn a_text_in_place_of_weights_is_shown() {
    for (text, shown, hint) in [
        ("../finetune/model-00001-of-00002.safetensors", "../finetune/model-00001-of-00002.safetensors", "a link that"),
        ("<!DOCTYPE html>\n<html><title>403 Forbidden</title></html>", "<!DOCTYPE html>", "perhaps an error page"),
        ("Größe überschritten: die Datei ist nicht mehr da, leider, und kommt auch nicht zurück", "Größe", "perhaps"),
    ] {
        let e = read(text.as_bytes()).unwrap_err();
        assert!(matches!(&e, HeaderError::Text { start } if start.starts_with(shown)), "{e}");
        assert!(e.hint().unwrap().starts_with(hint), "{e}: {:?}", e.hint());
    }
    let binary = [0xff; 64];
    assert!(matches!(read(&binary).unwrap_err(), HeaderError::TooLong { .. }));
}

#[test]
fn a_tensor_that_stands_twice_with_equal_values_is_refused_though_the_reference_accepts_it() {
    let a = r#""a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    let bytes = raw(&format!("{{{a},{a}}}"), &[7]);
    assert!(reference_accepts(&bytes));
    assert!(matches!(read(&bytes), Err(HeaderError::Duplicate { tensor }) if tensor == "a"));
}

#[test]
fn metadata_may_be_absent_null_or_empty_and_holds_strings_only() {
    for (text, expected) in [
        ("{}", None),
        (r#"{"__metadata__":null}"#, None),
        (r#"{"__metadata__":{}}"#, Some(vec![])),
        (r#"{"__metadata__":{"z":"1","a":""}}"#, Some(vec![("z".into(), "1".into()), ("a".into(), String::new())])),
    ] {
        let bytes = raw(text, &[]);
        assert!(reference_accepts(&bytes), "{text}");
        assert_eq!(read(&bytes).unwrap().metadata, expected, "{text}");
    }
    for text in [r#"{"__metadata__":{"k":1}}"#, r#"{"__metadata__":{"k":null}}"#, r#"{"__metadata__":"x"}"#] {
        let bytes = raw(text, &[]);
        assert!(!reference_accepts(&bytes), "{text}");
        assert!(matches!(read(&bytes), Err(HeaderError::BadMetadata { .. })), "{text}");
    }
    let e = read(&raw(r#"{"__metadata__":{"k":1}}"#, &[])).unwrap_err().to_string();
    assert!(e.starts_with("__metadata__, key \"k\": invalid type: integer `1`, expected a string"), "{e}");
    let twice = raw(r#"{"__metadata__":{"k":"1","k":"1"}}"#, &[]);
    assert!(matches!(read(&twice), Err(HeaderError::DuplicateMetadataKey { key }) if key == "k"));
    let twice = raw(r#"{"__metadata__":null,"__metadata__":null}"#, &[]);
    assert!(matches!(read(&twice), Err(HeaderError::DuplicateMetadata)));
}

#[test]
fn numbers_that_are_no_unsigned_integers_are_refused_with_their_text() {
    for bad in ["-2", "2.0", "1e+3", "-0", "18446744073709551616", "0.1"] {
        let shape = one(&format!(r#"{{"dtype":"U8","shape":[{bad}],"data_offsets":[0,2]}}"#));
        let offset = one(&format!(r#"{{"dtype":"U8","shape":[2],"data_offsets":[{bad},2]}}"#));
        for (text, expected) in [(shape, "shape"), (offset, "data_offsets")] {
            let bytes = raw(&text, &[0, 0]);
            assert!(!reference_accepts(&bytes), "{text}");
            let e = read(&bytes).unwrap_err();
            assert!(
                matches!(&e, HeaderError::BadNumber { tensor, field, value } if tensor == "a" && *field == expected && value == bad),
                "{text}: {e:?}"
            );
        }
    }
}

#[test]
fn descriptions_of_another_form_are_refused_naming_the_tensor() {
    for text in [
        r#"{"dtype":"U8","shape":[2]}"#,
        r#"{"dtype":"U8","data_offsets":[0,2]}"#,
        r#"{"shape":[2],"data_offsets":[0,2]}"#,
        r#"{"dtype":"U8","shape":[2],"data_offsets":[0]}"#,
        r#"{"dtype":"U8","shape":[2],"data_offsets":[0,2,2]}"#,
        r#"{"dtype":"U8","shape":[2],"shape":[2],"data_offsets":[0,2]}"#,
        r#"{"dtype":"U8","shape":2,"data_offsets":[0,2]}"#,
        r#"{"dtype":"U8","shape":["2"],"data_offsets":[0,2]}"#,
        r#"{"dtype":8,"shape":[2],"data_offsets":[0,2]}"#,
        "3",
        "null",
    ] {
        let bytes = raw(&one(text), &[0, 0]);
        assert!(!reference_accepts(&bytes), "{text}");
        assert!(matches!(read(&bytes), Err(HeaderError::BadTensor { tensor, .. }) if tensor == "a"), "{text}");
    }
    let unknown = raw(&one(r#"{"dtype":"U8","shape":[2],"data_offsets":[0,2],"strides":[1]}"#), &[0, 0]);
    assert!(matches!(read(&unknown), Err(HeaderError::BadTensor { what, .. }) if what.contains("strides")));
    let deep =
        raw(&one(&format!(r#"{{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}}"#, vec!["1"; 256].join(","))), &[0]);
    assert!(matches!(read(&deep), Err(HeaderError::TooManyDimensions { .. })));
}

#[test]
fn sizes_below_a_byte_and_sizes_that_overflow_are_refused() {
    let f4 = raw(&one(r#"{"dtype":"F4","shape":[3],"data_offsets":[0,2]}"#), &[0, 0]);
    assert!(!reference_accepts(&f4));
    let e = read(&f4).unwrap_err();
    assert_eq!(e.to_string(), "the tensor \"a\" of type F4 and shape [3]: its 12 bits are no whole number of bytes");
    let big = raw(&one(r#"{"dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,2]}"#), &[0, 0]);
    assert!(matches!(read(&big), Err(HeaderError::NoSize { why: SizeError::Overflow, .. })));
    let far = raw(&one(r#"{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,0]}"#), &[0, 0]);
    assert!(matches!(read(&far), Err(HeaderError::Backwards { .. })));
}

#[test]
fn every_type_of_the_reference_is_read_with_its_size() {
    for d in Dtype::ALL {
        let bytes = vec![0; usize::try_from(d.bits()).unwrap()];
        let file = shard(None, &[Made::new("a", d.name(), &[8], &bytes)]);
        assert!(reference_accepts(&file));
        assert_eq!(read(&file).unwrap().tensors[0].dtype, *d);
    }
}

#[test]
fn white_space_around_the_object_is_accepted_and_anything_else_is_not() {
    for (text, ok) in [("  {}", true), ("{}\n\t ", true), ("{}x", false), ("[]", false), ("", false), ("{}\0", false)] {
        let bytes = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        assert_eq!(reference_accepts(&bytes), ok, "{text:?}");
        assert_eq!(read(&bytes).is_ok(), ok, "{text:?}");
    }
}

#[test]
fn tensor_names_are_data_whatever_characters_they_hold() {
    let names = ["", "a/../b", "\u{0}", "a\nb", "\"", "\\", "\u{1F600}", "__metadata", "*", "a b", "\u{202e}x"];
    let tensors: Vec<Made> = names.iter().map(|n| Made::new(n, "U8", &[1], &[1])).collect();
    let bytes = shard(None, &tensors);
    assert!(reference_accepts(&bytes));
    let read: Vec<String> = read(&bytes).unwrap().tensors.into_iter().map(|t| t.name).collect();
    assert_eq!(read, names);
}

#[test]
fn a_character_cut_by_the_edge_of_a_piece_is_still_a_character() {
    for shift in 0..4 {
        let long = format!("{}{}", "x".repeat(PIECE - 12 + shift), "\u{1F600}".repeat(4000));
        let bytes = shard(None, &[Made::new(&long, "U8", &[1], &[1])]);
        assert_eq!(read(&bytes).unwrap().tensors[0].name, long);
    }
    let mut cut = b"{\"a".to_vec();
    cut.extend([0xf0, 0x9f]);
    let bytes = [&(cut.len() as u64).to_le_bytes()[..], &cut].concat();
    assert!(!reference_accepts(&bytes));
    assert!(read(&bytes).is_err());
}

#[test]
fn offsets_beyond_32_bits_are_read_from_a_sparse_file() {
    let far = 5_000_000_000u64;
    let text = format!(
        r#"{{"a":{{"dtype":"U8","shape":[{far}],"data_offsets":[0,{far}]}},"b":{{"dtype":"F32","shape":[],"data_offsets":[{far},{}]}}}}"#,
        far + 4
    );
    let bytes = raw(&text, &[]);
    let file = file_of(&bytes);
    let len = bytes.len() as u64 + far + 4;
    file.set_len(len).unwrap();
    let header = Header::read(&file, len).unwrap();
    assert_eq!((header.tensors[1].begin, header.data_len()), (far, far + 4));
}

#[test]
fn a_hostile_length_over_a_sparse_file_is_refused_at_the_first_piece() {
    let file = file_of(&99_999_999u64.to_le_bytes());
    file.set_len(200_000_000).unwrap();
    assert!(matches!(Header::read(&file, 200_000_000), Err(HeaderError::NotJson { .. })));
}

#[test]
fn a_file_cut_while_its_header_is_read_is_an_error() {
    let bytes = shard(None, &[Made::new(&"n".repeat(200_000), "U8", &[1], &[1])]);
    let file = file_of(&bytes[..100_000]);
    assert!(
        matches!(Header::read(&file, bytes.len() as u64), Err(HeaderError::Io(e)) if e.kind() == io::ErrorKind::UnexpectedEof)
    );
}

#[test]
fn twenty_thousand_tensors_are_read_in_order() {
    let tensors: Vec<Made> =
        (0..20_000).map(|i| Made::new(&format!("model.layers.{i}.weight"), "U8", &[1], &[0])).collect();
    let header = read(&shard(None, &tensors)).unwrap();
    assert_eq!(header.tensors.len(), 20_000);
    assert!(header.tensors.iter().zip(&tensors).all(|(a, b)| a.name == b.name));
}

mod against_the_reference {
    use super::*;
    use proptest::prelude::*;

    fn tensors() -> impl Strategy<Value = Vec<Made>> {
        let one = (any::<String>(), 0..Dtype::ALL.len(), proptest::collection::vec(0u64..4, 0..3));
        proptest::collection::vec(one, 0..6).prop_map(|all| {
            let mut made: Vec<Made> = Vec::new();
            for (name, dtype, mut shape) in all {
                let dtype = Dtype::ALL[dtype];
                // A last dimension of 8 makes every type fill its bytes.
                shape.push(8);
                let len = dtype.byte_len(&shape).unwrap();
                if name != "__metadata__" && made.iter().all(|m| m.name != name) {
                    made.push(Made::new(&name, dtype.name(), &shape, &vec![1; usize::try_from(len).unwrap()]));
                }
            }
            made
        })
    }

    fn stricter(e: &HeaderError) -> bool {
        match e {
            HeaderError::Duplicate { .. }
            | HeaderError::DuplicateMetadata
            | HeaderError::DuplicateMetadataKey { .. } => true,
            HeaderError::BadTensor { what, .. } => what.contains("not of the format"),
            _ => false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_sound_file_is_read_as_it_was_written(tensors in tensors(), meta in proptest::option::of(Just([("format", "pt")]))) {
            let bytes = shard(meta.as_ref().map(|m| &m[..]), &tensors);
            let header = read(&bytes).unwrap();
            prop_assert_eq!(header.digest, crate::digest::Digest::of(&bytes[..usize::try_from(header.data_start).unwrap()]));
            for t in &tensors {
                let found = header.tensors.iter().find(|i| i.name == t.name).unwrap();
                prop_assert_eq!((found.dtype.name(), &found.shape), (t.dtype.as_str(), &t.shape));
                prop_assert_eq!(found.end - found.begin, t.bytes.len() as u64);
            }
        }

        #[test]
        fn a_file_with_a_changed_byte_is_judged_as_the_reference_does(
            tensors in tensors(),
            at in any::<proptest::sample::Index>(),
            byte in prop_oneof![any::<u8>(), proptest::sample::select(b"0123456789{}[]\":,-. eU".to_vec())],
        ) {
            let mut bytes = shard(Some(&[("format", "pt")]), &tensors);
            let header_end = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
            let at = at.index(header_end);
            bytes[at] = byte;
            match read(&bytes) {
                Ok(_) => prop_assert!(reference_accepts(&bytes)),
                Err(e) => prop_assert!(!reference_accepts(&bytes) || stricter(&e), "{e:?}"),
            }
        }
    }
}
