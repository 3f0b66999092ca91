"""Tests whether a storage meets the assumptions behind Lakelog's promises. Run `lakelog doctor` before the first job.

    check_report.py the result of a check, as a value, and the promise that depends on it
    workspace.py    creates and removes the folder in which checks work; the arguments of each check
    actions.py      what the other side of a check (a second process or host) can do
    partner.py      the other side as a process of this host
    peer.py         the other side as this program on another host; the two hosts find each other by a file
    names.py        put-if-absent, links, renames, listings, case, length
    contents.py     fsync, positions, growing files
    limits.py       mount, permissions, space, speed
    clocks.py       the times of files; clocks compared with one another
    locks.py        the lock that keeps brokers away from log/
    visibility.py   how soon the other side sees a new name, a replaced file, a deletion
    examination.py  all checks, in order

A check calls the same methods of storage_engine.storage as a job, so the check tests the calls that jobs make. All
checks work below one folder of the root. The folder is removed at the end, also after Ctrl-C. After a SIGKILL, the
folder remains. A later examination removes the folder if the folder is an hour old by the storage's clock.
docs/GUARANTEES.md lists the promises.
"""
