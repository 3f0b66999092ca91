"""Contains the compiled function that checks the bytes of Avro values against a program (`schemas.avro.value_check`).

    instruction            what the bytes must be
    END                    the value ends here
    BOOLEAN                one byte, 0 or 1
    INT, LONG              a zigzag varint of at most 32 or 64 bits, with as few bytes as possible
    FIXED size             this number of bytes
    LENGTH                 a LONG that is not negative, and this number of bytes
    ENUM symbols           an INT from 0 to symbols - 1
    UNION n place1...      a LONG from 0 to n - 1; the program continues at the place of this branch
    JUMP place             no bytes; the program continues at the place
    BLOCKS place           the first block of an array or a map; after the last block, the program continues at the place
    NEXT place             no bytes; one item ends. The program continues with the next item or block of the BLOCKS at
                           the place
    RANGE least most v     no bytes; the number or length that was read last is from least to most. If not, v is the
                           verdict
    UUID                   no bytes; the text that was read last is a UUID, 8-4-4-4-12 hexadecimal digits

A block is a LONG, the number of items, and the items. If the number is negative, it is followed by the size of the items
in bytes. A block without items ends the array or map. The function keeps no state.
"""

from __future__ import annotations

from typing import Any

from storage_engine.record.kernels.compiled import BYTES_IN, INT8_OUT, INT64_IN, INT64_OUT, VOID, inlined, kernel

END, BOOLEAN, INT, LONG, FIXED, LENGTH, ENUM, UNION, JUMP, BLOCKS, NEXT, RANGE, UUID = range(13)

FITS, TOO_SHORT, TOO_LONG, NUMBER, TRUTH, INDEX, SIZE, TIME, FORM = range(9)
"""Verdicts. NUMBER: a varint has too many bits or bytes. TRUTH: a boolean is neither 0 nor 1. INDEX: there is no branch or
symbol with the index. SIZE: a length or a number of items is negative, or a block has another size. TIME: a date or
time is out of range. FORM: a decimal or UUID has another form."""

FRAME = 2
"""The numbers that an array or map keeps: the items that are left in its block, and the end of its block or -1."""

_ALL_BITS = (1 << 63) - 1


@inlined
def _varint(data: Any, position: Any, end: Any, bits: Any) -> Any:
    """A zigzag varint: its number, the position after it, and a verdict."""
    number = 0
    shift = 0
    while True:
        if position == end:
            return 0, position, TOO_SHORT
        byte = int(data[position])
        position += 1
        if shift + 7 > bits and byte >> (bits - shift):
            return 0, position, NUMBER
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if byte == 0 and shift > 0:
        return 0, position, NUMBER
    return ((number >> 1) & _ALL_BITS) ^ -(number & 1), position, FITS


@inlined
def _is_uuid(data: Any, start: Any) -> Any:
    for at in range(36):
        byte = data[start + at]
        if at in (8, 13, 18, 23):
            if byte != 0x2D:
                return False
        elif not (0x30 <= byte <= 0x39 or 0x41 <= byte <= 0x46 or 0x61 <= byte <= 0x66):
            return False
    return True


@inlined
def _verdict(data: Any, position: Any, end: Any, program: Any, frames: Any) -> Any:
    place = 0
    depth = 0
    number = 0
    while True:
        instruction = program[place]
        if instruction == END:
            return FITS if position == end else TOO_LONG
        if instruction == JUMP:
            place = program[place + 1]
            continue
        if instruction == BOOLEAN:
            if position == end:
                return TOO_SHORT
            if data[position] > 1:
                return TRUTH
            position += 1
            place += 1
            continue
        if instruction == FIXED:
            if end - position < program[place + 1]:
                return TOO_SHORT
            position += program[place + 1]
            place += 2
            continue
        if instruction == RANGE:
            if number < program[place + 1] or number > program[place + 2]:
                return program[place + 3]
            place += 4
            continue
        if instruction == UUID:
            if number != 36 or not _is_uuid(data, position - 36):
                return FORM
            place += 1
            continue
        if instruction == NEXT:
            place = program[place + 1]
            frames[depth - 2] -= 1
            if frames[depth - 2] > 0:
                place += 2
                continue
            if frames[depth - 1] >= 0 and frames[depth - 1] != position:
                return SIZE
            depth -= FRAME
        number, position, verdict = _varint(data, position, end, 32 if instruction in (INT, ENUM) else 64)
        if verdict != FITS:
            return verdict
        if instruction in (INT, LONG):
            place += 1
        elif instruction == LENGTH:
            if number < 0:
                return SIZE
            if number > end - position:
                return TOO_SHORT
            position += number
            place += 1
        elif instruction == ENUM:
            if number < 0 or number >= program[place + 1]:
                return INDEX
            place += 2
        elif instruction == UNION:
            if number < 0 or number >= program[place + 1]:
                return INDEX
            place = program[place + 2 + number]
        elif number == 0:  # BLOCKS or NEXT: the last block
            place = program[place + 1]
        else:
            block_end = -1
            if number < 0:
                number = -number
                size, position, verdict = _varint(data, position, end, 64)
                if verdict != FITS:
                    return verdict
                if size < 0 or number < 0:
                    return SIZE
                if size > end - position:
                    return TOO_SHORT
                block_end = position + size
            frames[depth] = number
            frames[depth + 1] = block_end
            depth += FRAME
            place += 2


@kernel(VOID, BYTES_IN, INT64_IN, INT64_IN, INT64_IN, INT64_OUT, INT8_OUT)
def check_values(data: Any, starts: Any, ends: Any, program: Any, frames: Any, verdicts: Any) -> None:
    """Check data[starts[i]:ends[i]], for each i.

    Args:
        frames: memory for the arrays and maps: `FRAME` numbers for each level of nesting.
        verdicts: gets the verdict of each value.
    """
    for row in range(len(starts)):
        verdicts[row] = _verdict(data, starts[row], ends[row], program, frames)
