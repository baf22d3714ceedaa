use super::*;
use std::os::unix::fs::PermissionsExt;

/// Test case 2 of RFC 4231, for the primitive of the codes.
#[test]
fn the_primitive_is_hmac_of_sha256() {
    let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
    mac.update(b"what do ya want for nothing?");
    let hex: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

#[test]
fn keys_have_a_length_and_no_white_space_around_them() {
    let key = Key::new(b"  0123456789abcdef\n").unwrap();
    assert_eq!(key, Key::new(b"0123456789abcdef").unwrap());
    assert_eq!(format!("{key:?}"), "Key(..)", "it is secret");
    for bad in [&b""[..], b"\n", b"0123456789abcde\n", &[b'x'; MAX_KEY + 1]] {
        let text = Key::new(bad).unwrap_err().to_string();
        assert!(text.contains("16 to 4096") && text.contains("/dev/urandom"), "{text}");
    }
    assert!(Key::new(&[7; MAX_KEY]).is_ok());
}

#[test]
fn codes_differ_by_key_role_context_and_the_cut_of_the_parts() {
    let (one, other) = (Key::new(&[1; 16]).unwrap(), Key::new(&[2; 16]).unwrap());
    let code = |key: &Key, role, context: &[u8], parts: &[&[u8]]| -> [u8; CODE_BYTES] {
        key.code(role, context, parts).finalize().into_bytes().into()
    };
    let codes = [
        code(&one, 0, b"c", &[b"ab", b"c"]),
        code(&other, 0, b"c", &[b"ab", b"c"]),
        code(&one, 1, b"c", &[b"ab", b"c"]),
        code(&one, 0, b"d", &[b"ab", b"c"]),
        code(&one, 0, b"c", &[b"a", b"bc"]),
        code(&one, 0, b"c", &[b"abc"]),
    ];
    for (i, code) in codes.iter().enumerate() {
        assert!(codes[i + 1..].iter().all(|other| other != code));
    }
    assert_eq!(one.number("p", b"t"), one.clone().number("p", b"t"));
    assert_ne!(one.number("p", b"t"), other.number("p", b"t"));
    assert_ne!(one.number("p", b"t"), one.number("q", b"t"));
}

const VARIABLES: KeyVariables = KeyVariables { key: "T_KEY", file: "T_KEY_FILE" };

struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gdsync-auth-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read(variables: &[(&str, &str)]) -> Result<Option<Key>, KeyError> {
    VARIABLES
        .read(|name| variables.iter().find(|(one, _)| *one == name).map(|(_, value)| OsString::from(value)))
}

#[test]
fn variables_give_a_key_or_a_file_with_one_and_what_is_wrong_is_named() {
    let folder = Folder::new("variables");
    let path = folder.0.join("job.key");
    let name = path.to_str().unwrap();
    assert_eq!(read(&[]).unwrap(), None);
    let text = "0123456789abcdef";
    assert_eq!(read(&[("T_KEY", text)]).unwrap(), Some(Key::new(text.as_bytes()).unwrap()));
    std::fs::write(&path, format!("{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(read(&[("T_KEY_FILE", name)]).unwrap(), Some(Key::new(text.as_bytes()).unwrap()));
    let refusal = |variables: &[(&str, &str)]| read(variables).unwrap_err().to_string();
    let both = refusal(&[("T_KEY", text), ("T_KEY_FILE", name)]);
    assert_eq!(both, "T_KEY and T_KEY_FILE are both set: unset one of them");
    assert!(refusal(&[("T_KEY", "")]).starts_with("T_KEY: the key has 0 bytes"));
    let absent = refusal(&[("T_KEY_FILE", "/nowhere/key")]);
    assert!(absent.starts_with("T_KEY_FILE: the key file /nowhere/key cannot be read"), "{absent}");
    assert!(refusal(&[("T_KEY_FILE", folder.0.to_str().unwrap())]).contains("it is no file"));
    for mode in [0o640, 0o604, 0o660] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let text = refusal(&[("T_KEY_FILE", name)]);
        assert!(text.contains(&format!("mode {mode:o}")) && text.contains("chmod 600"), "{text}");
    }
    std::fs::write(&path, "short").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
    let text = refusal(&[("T_KEY_FILE", name)]);
    assert!(text.contains("the key has 5 bytes") && text.contains(name), "{text}");
}

#[test]
fn a_users_key_is_made_once_when_several_ask_at_once() {
    let folder = Folder::new("user");
    let keys: Vec<Key> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| Key::of_user_in(&folder.0).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(keys.iter().all(|key| *key == keys[0]));
    let own = private_folder(&folder.0).unwrap();
    let names: Vec<_> = std::fs::read_dir(&own).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["key"], "nothing else is left behind");
    assert_eq!(std::fs::metadata(own.join(KEY_FILE)).unwrap().mode() & 0o777, 0o600);
    std::fs::set_permissions(own.join(KEY_FILE), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(Key::of_user_in(&folder.0), Err(KeyError::Exposed { mode: 0o644, .. })));
    let other = Folder::new("other");
    assert_ne!(Key::of_user_in(&other.0).unwrap(), keys[0]);
    assert!(matches!(Key::of_user_in(Path::new("/nowhere")), Err(KeyError::Folder(_))));
}
