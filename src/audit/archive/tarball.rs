//! The tar inside: a header for a name and a size, and what is wrong with one that is another.

/// A tar's unit.
pub(crate) const BLOCK: usize = 512;

/// The one header that a regular file of this name and size has here: nothing of the machine or the hour is in it.
pub(crate) fn header(name: &str, size: u64) -> std::io::Result<tar::Header> {
    let mut h = tar::Header::new_ustar();
    h.set_path(name)?;
    h.set_size(size);
    h.set_mode(if name.ends_with(".x") { 0o555 } else { 0o444 });
    h.set_uid(0);
    h.set_gid(0);
    h.set_mtime(1);
    h.set_entry_type(tar::EntryType::Regular);
    h.set_cksum();
    Ok(h)
}

/// The bytes that fill the last block of a file of this size.
pub(crate) fn padding(size: u64) -> usize {
    // Less than a block.
    usize::try_from(size.next_multiple_of(BLOCK as u64) - size).unwrap_or(0)
}

/// What is wrong with a header that is not the one that was expected: its name as far as it can be read, and why.
pub(crate) fn diagnose(found: &[u8; BLOCK], name: &str, size: u64) -> (String, String) {
    let h = tar::Header::from_byte_slice(found);
    if found.iter().all(|b| *b == 0) {
        return (name.to_owned(), "the archive ends before this entry".to_owned());
    }
    let found_name = crate::canon::quote(&h.path_bytes());
    let what = match h.entry_type() {
        tar::EntryType::Regular | tar::EntryType::Continuous => None,
        tar::EntryType::Symlink => Some("is a symbolic link"),
        tar::EntryType::Link => Some("is a hard link"),
        tar::EntryType::Char | tar::EntryType::Block => Some("is a device"),
        tar::EntryType::Directory => Some("is a folder"),
        tar::EntryType::Fifo => Some("is a pipe"),
        tar::EntryType::GNULongName | tar::EntryType::GNULongLink => Some("is a long name in a header of its own"),
        tar::EntryType::XHeader | tar::EntryType::XGlobalHeader => Some("is a header of extensions"),
        tar::EntryType::GNUSparse => Some("is a sparse file"),
        _ => Some("is of no type that is known"),
    };
    if let Some(what) = what {
        return (found_name, format!("{what}; only regular files are taken"));
    }
    if h.path_bytes() != name.as_bytes() {
        return (found_name, format!("the manifest has {name} in this place"));
    }
    match h.size() {
        Ok(n) if n != size => return (found_name, format!("has {n} bytes, the manifest says {size}")),
        Ok(_) => {}
        Err(_) => return (found_name, "its size does not read".to_owned()),
    }
    if let Ok(mode) = h.mode()
        && mode & !0o777 != 0
    {
        return (found_name, format!("its mode is {mode:o}: setuid, setgid and sticky bits are not taken"));
    }
    (found_name, "its header is not the one that an export writes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_holds_name_and_size_and_nothing_of_the_machine() {
        let h = header("blobs/ab/cd.x", 5).unwrap();
        assert_eq!(
            (h.path().unwrap().to_str(), h.size().unwrap(), h.mode().unwrap()),
            (Some("blobs/ab/cd.x"), 5, 0o555)
        );
        assert_eq!(h.as_bytes(), header("blobs/ab/cd.x", 5).unwrap().as_bytes());
        assert_eq!(header("x", 20 << 30).unwrap().size().unwrap(), 20 << 30);
        assert_eq!([0, 1, 511, 512, 513].map(padding), [0, 511, 1, 0, 511]);
    }
}
