//! The NVFP4A16 arithmetic against a recorded run of llm-compressor (tests/data/nvfp4/record.py made it).

#![allow(clippy::unwrap_used)] // helpers of a test, too

use std::collections::BTreeMap;

use graftwerk::kinds::quant::fuse::scale_group;
use graftwerk::kinds::quant::nvfp4::{GROUP, NonFinite, absmax, global_scale, quantise};
use graftwerk::kinds::quant::round::{FP4, Float, e4m3_to_f32};
use safetensors::{Dtype, SafeTensors};

fn float(dtype: Dtype) -> Float {
    match dtype {
        Dtype::BF16 => Float::Bf16,
        Dtype::F16 => Float::F16,
        Dtype::F32 => Float::F32,
        other => panic!("{other:?}"),
    }
}

fn data(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/data/nvfp4/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn every_recorded_case_of_every_type_comes_out_byte_for_byte() {
    let (input, output) = (data("input.safetensors"), data("output.safetensors"));
    let (input, output) = (SafeTensors::deserialize(&input).unwrap(), SafeTensors::deserialize(&output).unwrap());
    let quantised = |m: &str| output.tensor(&format!("{m}.weight_packed")).is_ok();

    let mut groups: BTreeMap<String, (Float, f32)> = BTreeMap::new();
    for (name, t) in input.tensors() {
        let module = name.strip_suffix(".weight").unwrap();
        if quantised(module) {
            let (dtype, max) = (float(t.dtype()), absmax(float(t.dtype()), t.data()).unwrap());
            let of = groups.entry(scale_group(module)).or_insert((dtype, max));
            *of = (of.0.common(dtype), of.1.max(max));
        }
    }
    let (mut modules, mut wrong) = (0, Vec::new());
    for (name, t) in input.tensors() {
        let module = name.strip_suffix(".weight").unwrap();
        if !quantised(module) {
            assert_eq!(output.tensor(&name).unwrap().data(), t.data());
            continue;
        }
        modules += 1;
        let (common, max) = groups[&scale_group(module)];
        let global = global_scale(common, max);
        let mut packed = vec![0; t.shape().iter().product::<usize>() / 2];
        let mut scales = vec![0; packed.len() / 8];
        assert_eq!(quantise(float(t.dtype()), t.data(), global, &mut packed, &mut scales), scales.len());
        for (part, made) in
            [("weight_global_scale", &global.to_le_bytes()[..]), ("weight_scale", &scales), ("weight_packed", &packed)]
        {
            let want = output.tensor(&format!("{module}.{part}")).unwrap();
            let bad = want.data().iter().zip(made).filter(|(a, b)| a != b).count();
            if bad > 0 || want.data().len() != made.len() {
                wrong.push(format!("{module}.{part}: {bad} of {} bytes", made.len()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(modules, 164);
}

#[test]
fn an_infinity_or_nan_is_found_with_its_place() {
    for (dtype, infinity, nan) in [
        (Float::Bf16, &[0x80, 0xff][..], &[0xc0, 0x7f][..]),
        (Float::F16, &[0x00, 0xfc], &[0x00, 0x7e]),
        (Float::F32, &[0, 0, 0x80, 0xff], &[0, 0, 0xc0, 0x7f]),
    ] {
        let mut bytes = vec![0u8; 100_000 * dtype.bytes()];
        assert_eq!(absmax(dtype, &bytes), Ok(0.0));
        bytes[77_777 * dtype.bytes()..][..dtype.bytes()].copy_from_slice(infinity);
        assert_eq!(absmax(dtype, &bytes), Err(NonFinite { index: 77_777, value: f32::NEG_INFINITY }));
        bytes[5 * dtype.bytes()..][..dtype.bytes()].copy_from_slice(nan);
        assert!(matches!(absmax(dtype, &bytes), Err(NonFinite { index: 5, value }) if value.is_nan()));
    }
}

#[test]
fn what_is_read_back_is_near_what_was_quantised() {
    // A triangle wave over several magnitudes, in BF16.
    let weights: Vec<f32> =
        (0..4096).map(|i| ((i * 37 % 401) as f32 - 200.0) / 200.0 * [1.0, 0.25, 0.06][i / 16 % 3]).collect();
    let bytes: Vec<u8> = weights.iter().flat_map(|w| half::bf16::from_f32(*w).to_le_bytes()).collect();
    let global = global_scale(Float::Bf16, absmax(Float::Bf16, &bytes).unwrap());
    let (mut packed, mut scales) = (vec![0; 2048], vec![0; 256]);
    quantise(Float::Bf16, &bytes, global, &mut packed, &mut scales);
    let (mut error, mut norm) = (0.0f64, 0.0f64);
    for (i, w) in weights.iter().enumerate() {
        let code = if i % 2 == 0 { packed[i / 2] & 15 } else { packed[i / 2] >> 4 };
        let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
        let back = sign * FP4[usize::from(code & 7)] * (e4m3_to_f32(scales[i / GROUP]) / global);
        error += f64::from(back - w).powi(2);
        norm += f64::from(*w).powi(2);
    }
    let relative = (error / norm).sqrt();
    assert!((0.02..0.15).contains(&relative), "{relative}");
}
