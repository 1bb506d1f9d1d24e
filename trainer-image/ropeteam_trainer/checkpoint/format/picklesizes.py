"""Limit on the size of the objects in a pickle, checked before any of them is made.

A hundred bytes can put a tuple twice into another, that one twice into a third, and so on: hashing the last
takes for ever. Ten bytes can announce a string of gigabytes, or a memo index so high that the unpickler
allocates as much at once. So the opcodes are interpreted first, as the unpickler will execute them, with a
size in the place of each object. Promise: time and memory are linear in the size of the pickle.
"""

from __future__ import annotations

import pickletools

MOST_IN_TUPLE = 256
"""Limit on the objects in a tuple, and in the tuples in it: three times the need of a shape of 64
dimensions."""
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_LEAVES_ONE = frozenset(
    code.name for code in pickletools.opcodes if not code.stack_before and len(code.stack_after) == 1
)
_NEW = _LEAVES_ONE - _GETS - {"MARK"}
_HASHABLE = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"})
"""Opcodes whose result has the size of all their operands. That of the others has the size of one of them at
most."""


def _effect(code: pickletools.OpcodeInfo) -> tuple[bool, int, int]:
    """Whether an opcode pops all down to the last mark; how many objects it pops besides; how many it
    pushes."""
    before, mark = code.stack_before, pickletools.markobject
    return mark in before, before.index(mark) if mark in before else len(before), len(code.stack_after)


_EFFECTS = {code.name: _effect(code) for code in pickletools.opcodes}


def check_sizes(content: bytes) -> None:
    """Raise ValueError or LookupError for bytes that are no pickle, or one whose objects grow too large.

    Size of an object: 1, plus the sizes of its items for what can be hashed (tuples). Others have the size of
    their largest operand: they refer to objects, and are not hashed.
    """
    stack: list[int] = []  # sizes of the objects on the unpickler's stack
    marks: list[int] = []  # positions of its marks
    memo: dict[object, int] = {}  # sizes of memorized objects
    for code, argument, _ in pickletools.genops(content):  # refuses a string that is cut off
        name = code.name
        if name in _PUTS:
            place = len(memo) if argument is None else argument
            if place > len(content):
                raise ValueError("it numbers more objects than it can have")
            memo[place] = stack[-1]
        elif name in _GETS:
            stack.append(memo[argument])
        elif name in _NEW:
            stack.append(1)
        elif name == "MARK":
            marks.append(len(stack))
        else:
            marked, takes, leaves = _EFFECTS[name]  # any other opcode: pop operands, push results
            begin = (marks.pop() if marked else len(stack)) - takes
            if begin < (marks[-1] if marks else 0):
                raise ValueError("it takes objects that do not exist")
            taken = stack[begin:]
            del stack[begin:]
            whole = 1 + sum(taken) if name in _HASHABLE else max(taken, default=1)
            if whole > MOST_IN_TUPLE:
                raise ValueError("it has nested tuples, of more objects than a checkpoint needs")
            stack += [whole] * leaves
