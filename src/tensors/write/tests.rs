use std::os::unix::fs::FileExt as _;

use super::*;
use crate::digest::Digest;
use crate::tensors::hash::hash_file;
use crate::tensors::header::Header;
use crate::tensors::testing::file_of;

fn spec(name: &str, dtype: Dtype, shape: &[u64]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

fn bytes_of(file: &File) -> Vec<u8> {
    let mut out = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut out, 0).unwrap();
    out
}

fn on(_: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

const MIB: u64 = 1 << 20;

#[test]
fn a_written_shard_is_what_the_reference_reads_and_its_bytes_do_not_change_unnoticed() {
    let donor = file_of(b"..abcd-efgh");
    let metadata = [("format".to_owned(), "pt".to_owned()), ("odd\"".to_owned(), "\u{e9}\n".to_owned())];
    let specs = vec![
        spec("x", Dtype::U8, &[4]),
        spec("odd \"name\"\n\u{1F600}", Dtype::F32, &[]),
        spec("none", Dtype::F32, &[0, 3]),
        spec("streamed", Dtype::Bf16, &[2, 1]),
    ];
    let layout = ShardLayout::new(Some(&metadata), specs, Placement::New).unwrap();
    let out = file_of(b"");
    let mut w = ShardWriter::start(&out, layout).unwrap();
    let from = |at| Some(CopyFrom { file: &donor, at });
    let mut seen = vec![];
    w.copy(&[from(2), from(7), from(0), None], &mut |n| {
        seen.push(n);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(seen, [4, 8]);
    w.write(3, 2, b"34").unwrap();
    w.write(3, 0, b"12").unwrap();
    w.finish().unwrap();
    let bytes = bytes_of(&out);
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.tensor("x").unwrap().data(), b"abcd");
    assert_eq!(read.tensor("odd \"name\"\n\u{1F600}").unwrap().data(), b"efgh");
    assert_eq!(read.tensor("none").unwrap().shape(), [0, 3]);
    assert_eq!(read.tensor("streamed").unwrap().data(), b"1234");
    let header = Header::read(&out, bytes.len() as u64).unwrap();
    assert_eq!(header.metadata.as_deref(), Some(&metadata[..]));
    assert_eq!(header.data_start % 8, 0);
    assert_eq!(Digest::of(&bytes).to_string(), "b3:ac9014d7a7e360d18a19567ba2a68d46859a0eb1b94ad8bb842eaa7ebaf9345a");
}

#[test]
fn tensors_that_follow_each_other_in_both_files_are_copied_as_one() {
    let donor = file_of(&[7; 100]);
    let specs = (0..10).map(|i| spec(&i.to_string(), Dtype::U8, &[10])).collect();
    let out = file_of(b"");
    let mut w = ShardWriter::start(&out, ShardLayout::new(None, specs, Placement::New).unwrap()).unwrap();
    let sources: Vec<_> = (0..10).map(|i| Some(CopyFrom { file: &donor, at: i * 10 })).collect();
    let mut calls = 0;
    w.copy(&sources, &mut |_| {
        calls += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(calls, 1);
    w.finish().unwrap();
}

#[test]
fn a_tensor_without_all_its_bytes_or_with_too_many_is_an_error() {
    let specs = vec![spec("a", Dtype::U8, &[4])];
    let layout = ShardLayout::new(None, specs, Placement::New).unwrap();
    let out = file_of(b"");
    let mut w = ShardWriter::start(&out, layout.clone()).unwrap();
    assert!(matches!(w.write(0, 2, b"123"), Err(WriteError::OutOfRange { end: 5, len: 4, .. })));
    assert!(matches!(w.write(1, 0, b""), Err(WriteError::OutOfRange { .. })));
    w.write(0, 0, b"123").unwrap();
    assert!(matches!(w.finish(), Err(WriteError::Incomplete { got: 3, len: 4, .. })));
    let mut w = ShardWriter::start(&out, layout).unwrap();
    let short = file_of(b"ab");
    let e = w.copy(&[Some(CopyFrom { file: &short, at: 0 })], &mut on).unwrap_err();
    assert_eq!(e.to_string(), "copying the tensor \"a\": the file being copied from ends at 2, inside the range 0..4");
}

#[test]
fn names_that_clash_and_sizes_that_do_not_exist_are_refused() {
    let new = |specs| ShardLayout::new(None, specs, Placement::New);
    let a = spec("a", Dtype::U8, &[1]);
    assert_eq!(new(vec![a.clone(), a]), Err(LayoutError::Duplicate { tensor: "a".into() }));
    assert_eq!(new(vec![spec("__metadata__", Dtype::U8, &[1])]), Err(LayoutError::Reserved));
    assert!(matches!(new(vec![spec("a", Dtype::F4, &[3])]), Err(LayoutError::NoSize { .. })));
    let huge = |n: &str| spec(n, Dtype::U8, &[u64::MAX / 16]);
    assert!(new(vec![huge("a")]).is_ok());
    let many = (0..17).map(|i| huge(&i.to_string())).collect();
    assert_eq!(new(many), Err(LayoutError::Overflow));
}

#[test]
fn a_big_new_shard_starts_its_data_at_a_mebibyte_with_room_before_it() {
    let start =
        |bytes| ShardLayout::new(None, vec![spec("a", Dtype::U8, &[bytes])], Placement::New).unwrap().data_start();
    let small = start(100);
    assert!(small < 100);
    assert_eq!(start(64 * MIB - small - 1024), start(64 * MIB - small - 1024) / 8 * 8);
    assert!(start(64 * MIB - 1024) < MIB);
    assert_eq!(start(64 * MIB), MIB);
    assert_eq!(start(5000 * MIB), MIB);
    // A header that leaves less than 64 KiB of its mebibyte takes another.
    let long = "n".repeat(usize::try_from(MIB - HEADER_ROOM).unwrap());
    let layout = ShardLayout::new(None, vec![spec(&long, Dtype::U8, &[64 * MIB])], Placement::New).unwrap();
    assert_eq!(layout.data_start(), 2 * MIB);
}

#[test]
fn a_rewritten_big_shard_keeps_its_start_or_one_that_equals_it_modulo_a_mebibyte() {
    let start = |name_len: usize, file_len, data_start| {
        let specs = vec![spec(&"n".repeat(name_len), Dtype::U8, &[8])];
        ShardLayout::new(None, specs, Placement::Rewritten { file_len, data_start }).unwrap().data_start()
    };
    assert_eq!(start(10, 64 * MIB, 2 * MIB), 2 * MIB);
    assert_eq!(start(40, 64 * MIB, 72), 72 + MIB);
    assert_eq!(start(10, 64 * MIB, 1003), 1003);
    assert_eq!(start(2000, 64 * MIB, 1003), 1003 + MIB);
    assert_eq!(start(1 << 20, 64 * MIB, MIB), 2 * MIB);
    // The size of the shard that was there decides, not what becomes of it.
    assert_eq!(start(10, 64 * MIB - 1, 1003), start(10, 100, 8));
}

#[test]
fn a_splice_into_a_big_shard_moves_no_byte_that_was_there() {
    let old = ShardLayout::new(None, vec![spec("a", Dtype::U8, &[64 * MIB])], Placement::New).unwrap();
    let specs = vec![spec("a", Dtype::U8, &[64 * MIB]), spec("b", Dtype::F32, &[2])];
    let placement = Placement::Rewritten { file_len: old.file_len(), data_start: old.data_start() };
    let new = ShardLayout::new(None, specs, placement).unwrap();
    assert_eq!((new.data_start(), new.tensors()[0].begin), (old.data_start(), 0));
    let source = tempfile::tempfile().unwrap();
    source.set_len(old.file_len()).unwrap();
    source.write_all_at(b"end", old.file_len() - 3).unwrap();
    let out = tempfile::tempfile().unwrap();
    let mut w = ShardWriter::start(&out, new).unwrap();
    w.copy(&[Some(CopyFrom { file: &source, at: old.data_start() }), None], &mut on).unwrap();
    w.write(1, 0, &[1; 8]).unwrap();
    w.finish().unwrap();
    let len = out.metadata().unwrap().len();
    let table = hash_file(&out, len, true, &mut |_| {}, &|| false).unwrap().table.unwrap();
    let mut data = vec![0; 64 << 20];
    data[(64 << 20) - 3..].copy_from_slice(b"end");
    assert_eq!(table.get("a").unwrap().digest, Digest::of(&data));
}

#[test]
fn a_stopped_copy_says_so() {
    let donor = file_of(&[1; 10]);
    let out = file_of(b"");
    let layout = ShardLayout::new(None, vec![spec("a", Dtype::U8, &[10])], Placement::New).unwrap();
    let mut w = ShardWriter::start(&out, layout).unwrap();
    let e = w.copy(&[Some(CopyFrom { file: &donor, at: 0 })], &mut |_| ControlFlow::Break(()));
    assert!(matches!(e, Err(WriteError::Stopped)));
}
