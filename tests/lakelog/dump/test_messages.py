"""Dumps of messages of magic 0 and 1: the dump of a damaged message, compared with the output of Kafka 4.3.1's own
tool, and dumps as JSON.
"""

from __future__ import annotations

import base64
import json
import shutil

from lakelog.dump import DumpOptions
from tests.lakelog.dump.dumping import BASE, GOLDEN, dumped, overwrite


def test_a_message_of_magic_1_with_another_crc_is_printed(tmp_path):
    path = tmp_path / f"{BASE}.log"
    shutil.copyfile(GOLDEN / "legacy/data/legacy_v1_none-0" / f"{BASE}.log", path)
    overwrite(path, 60, b"#")  # in the value
    printed, _, error = dumped(path)
    entry, message = printed.splitlines()[2:4]
    assert entry.endswith("crc: 3238313496 isvalid: false")
    assert "keySize: 2 valueSize: 47 isValid: false crc: 3238313496 key: k0 payload: " in message
    assert error is None


def test_messages_of_magic_1_have_their_own_fields_in_jsonl(tmp_path):
    path = GOLDEN / "legacy/data/legacy_v1_gzip-0" / f"{BASE}.log"
    entry = json.loads(dumped(path, DumpOptions(jsonl=True))[0].splitlines()[0])
    assert entry == {
        "file": "file", "offset": 2, "position": 0, "timestamp_type": "CreateTime", "max_timestamp": 1700000000000,
        "size": 310, "magic": 1, "compresscodec": "gzip", "crc": 1931249918, "isvalid": True,
    }  # fmt: skip
    message = json.loads(dumped(path, DumpOptions(records=True, contents=True, jsonl=True))[0].splitlines()[1])
    assert base64.b64decode(message.pop("value")).startswith(b'{"k":525278,"w":"alpha"}')
    assert message == {
        "file": "file", "offset": 1, "timestamp_type": "CreateTime", "timestamp": 1699999998500, "key_size": 2,
        "value_size": 145, "is_valid": True, "crc": 715982846,
        "key": base64.b64encode(b"k1").decode(), "headers": [],
    }  # fmt: skip
