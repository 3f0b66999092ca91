"""A preflight: does this storage do what Lakelog's promises rest on?

    findings.py     what a check found, as values, and which promise rests on it
    bench.py        makes and removes the folder that checks work in; what each check is given
    actions.py      what the other side of a check does when it is asked
    partner.py      the other side as a process of this host
    peer.py         the other side as this same program on another host; the two find each other by a file
    names.py        put-if-absent, links, renames, listings, case, length
    contents.py     fsync, positions, growing files
    limits.py       mount, permissions, room, speed
    clocks.py       the times of files; clocks compared with one another
    locks.py        the lock that keeps brokers away from log/
    visibility.py   how soon the other side sees a new name, a replaced file, a deletion
    examination.py  all checks, in order

Where a job calls a method of storage_engine.storage, a check calls the same method, so that what is tested is what is used.
All checks work below one folder of the root. The folder is removed at the end, also after Ctrl-C. After a SIGKILL the
folder stays; the next examination removes it once it is an hour old by the storage's own clock. docs/GUARANTEES.md has
the promises.
"""
