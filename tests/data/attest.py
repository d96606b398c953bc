"""The other side of signed provenance, by other people's code: keys, signatures and their verification.

    attest.py keys DIR                          keys of every kind that is taken or refused
    attest.py check ENVELOPE PUBLIC             verify an envelope, check its statement, print it
    attest.py sign PRIVATE < PAYLOAD            an envelope around any payload
    attest.py model FOLDER PRIVATE SIGNATURE METHOD HASH
                                                a model signature by the OpenSSF tool's own library
    attest.py b3sum FOLDER                      a list of digests as b3sum writes it

The DSSE text is put together here once more, and signatures are verified by `cryptography`.
"""

import base64
import json
import os
import pathlib
import sys

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

PEM = serialization.Encoding.PEM
PKCS8 = serialization.PrivateFormat.PKCS8
TRADITIONAL = serialization.PrivateFormat.TraditionalOpenSSL
OPENSSH = serialization.PrivateFormat.OpenSSH
PLAIN = serialization.NoEncryption()
LOCKED = serialization.BestAvailableEncryption(b"a passphrase")
TYPE = "application/vnd.in-toto+json"


def keys(folder):
    folder = pathlib.Path(folder)

    def write(name, data):
        (folder / name).write_bytes(data)
        os.chmod(folder / name, 0o600)

    def pair(name, key):
        write(f"{name}.pem", key.private_bytes(PEM, PKCS8, PLAIN))
        public = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        write(f"{name}.pub", public)

    one, curve = ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())
    pair("ed25519", one)
    pair("p256", curve)
    pair("other", ed25519.Ed25519PrivateKey.generate())
    pair("other-p256", ec.generate_private_key(ec.SECP256R1()))
    pair("p384", ec.generate_private_key(ec.SECP384R1()))
    pair("rsa", rsa.generate_private_key(65537, 2048))
    write("sec1.pem", curve.private_bytes(PEM, TRADITIONAL, PLAIN))
    write("sec1-locked.pem", curve.private_bytes(PEM, TRADITIONAL, LOCKED))
    write("locked.pem", one.private_bytes(PEM, PKCS8, LOCKED))
    write("ssh", one.private_bytes(PEM, OPENSSH, PLAIN))
    line = one.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write("ssh.pub", line + b" somebody\n")
    write("ssh-p256", curve.private_bytes(PEM, OPENSSH, PLAIN))


def pae(payload):
    kind = TYPE.encode()
    return b"DSSEv1 " + str(len(kind)).encode() + b" " + kind + b" " + str(len(payload)).encode() + b" " + payload


def check(envelope, public):
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement, statement_pb2

    envelope = json.loads(pathlib.Path(envelope).read_bytes())
    assert set(envelope) == {"payload", "payloadType", "signatures"}, envelope.keys()
    assert envelope["payloadType"] == TYPE
    payload = base64.b64decode(envelope["payload"], validate=True)
    key = serialization.load_pem_public_key(pathlib.Path(public).read_bytes())
    [signature] = envelope["signatures"]
    sig = base64.b64decode(signature["sig"], validate=True)
    if isinstance(key, ed25519.Ed25519PublicKey):
        key.verify(sig, pae(payload))
    else:
        key.verify(sig, pae(payload), ec.ECDSA(hashes.SHA256()))
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(der)
    assert signature["keyid"] == digest.finalize().hex()
    # Unknown fields are an error, in the statement and in the predicate.
    parsed = json_format.Parse(payload, statement_pb2.Statement())
    statement.Statement.copy_from_pb(parsed).validate()
    assert parsed.predicate_type == "https://slsa.dev/provenance/v1"
    predicate = json.dumps(json.loads(payload)["predicate"])
    provenance = json_format.Parse(predicate, provenance_pb2.Provenance())
    assert provenance.run_details.metadata.finished_on.ToNanoseconds() > 0
    assert provenance.build_definition.build_type and provenance.run_details.builder.id
    sys.stdout.buffer.write(payload)


def sign(private):
    payload = sys.stdin.buffer.read()
    key = serialization.load_pem_private_key(pathlib.Path(private).read_bytes(), None)
    signature = base64.b64encode(key.sign(pae(payload))).decode()
    payload = base64.b64encode(payload).decode()
    print(json.dumps({"payload": payload, "payloadType": TYPE, "signatures": [{"sig": signature}]}))


def model(folder, private, signature, method, hash_type):
    from model_signing import hashing, signing

    config = hashing.Config()
    if method == "shards":
        config = config.use_shard_serialization(hashing_algorithm=hash_type, shard_size=1000)
    else:
        config = config.use_file_serialization(hashing_algorithm=hash_type)
    signer = signing.Config().use_elliptic_key_signer(private_key=private).set_hashing_config(config)
    signer.sign(pathlib.Path(folder), pathlib.Path(signature))


def b3sum(folder):
    import blake3

    top = pathlib.Path(folder)
    for path in sorted(p for p in top.rglob("*") if p.is_file()):
        print(f"{blake3.blake3(path.read_bytes()).hexdigest()}  {path.relative_to(top)}")


globals()[sys.argv[1]](*sys.argv[2:])
