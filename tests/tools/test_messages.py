"""The snapshot of messages lists what a user can meet."""

from __future__ import annotations

from tools.messages import messages

SOURCE = '''
"""A module with a docstring."""

KEY = "key"

class Thing:
    size: int
    """An attribute with a docstring."""

def check(file, error, names):
    """A function with a docstring."""
    log.debug("below info level")
    log.warning("%s cannot be read", file)
    yield Announcement("Warning", "Evicted", f"the pod of {names[0]} " "is gone")
    os.write(1, "HTTP status\\r\\n")
    raise ValueError(f"{file}: {', '.join(sorted(names))} are missing; " + "add them")
'''


def test_lists_messages_of_users_and_nothing_else() -> None:
    assert list(messages(SOURCE)) == [
        "%s cannot be read",
        "Warning",
        "Evicted",
        "the pod of {names} is gone",
        "HTTP status\\r\\n",
        "{file}: {names} are missing; add them",
    ]
