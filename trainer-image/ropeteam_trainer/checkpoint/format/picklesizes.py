"""How large what a pickle makes can become, told before anything of it is made.

A hundred bytes can put a tuple twice into another, that one twice into a third, and so on: to hash the last
takes for ever. Ten can announce a text of gigabytes, or number a place of the memo so high that the unpickler
takes as much at once. So the operations are read first, as it will carry them out, with a number in the place
of each thing. Promise: time and memory of the order of the bytes.
"""

from __future__ import annotations

import pickletools

MOST_IN_TUPLE = 256
"""Things in a tuple, and in the tuples in it: what a shape of 64 dimensions needs three times."""
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_LEAVES_ONE = frozenset(
    code.name for code in pickletools.opcodes if not code.stack_before and len(code.stack_after) == 1
)
_NEW = _LEAVES_ONE - _GETS - {"MARK"}
_HASHABLE = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"})
"""They make what counts for all that they take. What the others make counts for one of these at most."""


def _effect(code: pickletools.OpcodeInfo) -> tuple[bool, int, int]:
    """Whether it takes all down to the last mark; how many things it takes beside; how many it leaves."""
    before, mark = code.stack_before, pickletools.markobject
    return mark in before, before.index(mark) if mark in before else len(before), len(code.stack_after)


_EFFECTS = {code.name: _effect(code) for code in pickletools.opcodes}


def check_sizes(content: bytes) -> None:
    """Raises ValueError or LookupError for a pickle that is none, or makes what is larger than it is."""
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[object, int] = {}
    for code, argument, _ in pickletools.genops(content):  # refuses a text that is not there
        name = code.name
        if name in _PUTS:
            place = len(memo) if argument is None else argument
            if place > len(content):
                raise ValueError("it numbers more things than it can have")
            memo[place] = stack[-1]
        elif name in _GETS:
            stack.append(memo[argument])
        elif name in _NEW:
            stack.append(1)
        elif name == "MARK":
            marks.append(len(stack))
        else:
            marked, takes, leaves = _EFFECTS[name]
            begin = (marks.pop() if marked else len(stack)) - takes
            if begin < (marks[-1] if marks else 0):
                raise ValueError("it takes what is not there")
            taken = stack[begin:]
            del stack[begin:]
            whole = 1 + sum(taken) if name in _HASHABLE else max(taken, default=1)
            if whole > MOST_IN_TUPLE:
                raise ValueError("it has tuples in tuples, of more things than a checkpoint needs")
            stack += [whole] * leaves
