"""A preflight: does this storage keep what Lakelog's promises rest on?

    findings.py     what a check found, as values, and which promise rests on it
    bench.py        the folder that checks work in, made and removed; what each check is given
    actions.py      what the other side of a check does when it is asked
    partner.py      the other side as a process of this host
    peer.py         the other side as this same program on another host, met at a file
    names.py        put-if-absent, links, renames, listings, case, length
    contents.py     fsync, positions, growing files
    limits.py       mount, permissions, room, speed
    clocks.py       the times of files, clocks against each other
    locks.py        the lock that keeps brokers off
    visibility.py   how soon the other side sees a new name, a replaced file, a deletion
    examination.py  all checks, in order

Checks go through the verbs of storage_engine.storage wherever a job does, so that what is tested is what is used. Every
check works below one folder of the root and that folder is removed at the end, after Ctrl-C too; what a SIGKILL leaves
the next examination removes, an hour later by the storage's own clock. docs/GUARANTEES.md has the promises.
"""
